"""The job folder: names, modes, and writes that are whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
from pathlib import Path

import pytest

from launcher.errors import JobNotFound, UsageError
from launcher.keep import home
from launcher.store import Folder, Store, new_job_id, read_json, write_atomically, write_json


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    return Store()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_home_is_the_variable_else_a_dot_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable counts as none."""
    monkeypatch.setenv("LAUNCHER_HOME", "/some/where")
    assert home() == Path("/some/where")
    monkeypatch.setenv("LAUNCHER_HOME", "")
    assert home() == Path("~/.launcher").expanduser()


def test_a_job_id_is_base_date_time_and_letters() -> None:
    """It can be a file name everywhere, and two of one second differ."""
    first, second = new_job_id("my job/é!", 0.0), new_job_id("my job/é!", 0.0)
    assert re.fullmatch(r"my-job-\d{8}-\d{6}-[a-z]{4}|my-job---\d{8}-\d{6}-[a-z]{4}|my-job-+\d{8}-\d{6}-[a-z]{4}", first)
    assert first != second


@pytest.mark.parametrize("base", ["", "...", "///", "名前"])
def test_a_base_without_any_plain_letter_becomes_job(base: str) -> None:
    """A job always has a name."""
    assert new_job_id(base, 0.0).startswith("job-")


def test_a_long_base_is_cut() -> None:
    """The id fits into a file name with room for what is added."""
    assert len(new_job_id("x" * 500, 0.0)) < 120


def test_a_folder_is_for_its_owner_alone(store: Store) -> None:
    """0700 for the folder and what holds it, 0600 for the environment."""
    folder = store.create("a-20250101-000000-aaaa")
    assert mode(folder.root) == 0o700 and mode(store.jobs) == 0o700
    write_json(folder.environment, {"TOKEN": "x"}, mode=0o600)
    assert mode(folder.environment) == 0o600


def test_a_home_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback: it names the place and the variable."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError) as caught:
        Store().create("a-20250101-000000-aaaa")
    assert "LAUNCHER_HOME" in str(caught.value) and str(tmp_path / "file") in str(caught.value)


def jobs(store: Store, *names: str) -> None:
    for name in names:
        store.create(name)


def test_of_two_jobs_of_one_second_the_later_one_is_the_latest(store: Store) -> None:
    """Their ids tell no order, and names come before letters in them."""
    for number, name in enumerate(("sh-20250101-000000-zzzz", "over-20250101-000000-mmmm", "away-20250101-000000-aaaa")):
        job = store.create(name).job
        job.write_text(json.dumps({"created_at": 1735689600.25 + number / 10}))
        assert store.find("latest").job_id == name


def test_the_latest_job_is_the_last_one_whatever_the_local_time_was(store: Store) -> None:
    """Summer time ends, a laptop travels, cron knows no time zone: `cancel latest` still means the job submitted last."""
    for number, name in enumerate(("a-20251026-023000-aaaa", "a-20251026-021000-bbbb", "a-20251025-180000-cccc")):
        store.create(name).job.write_text(json.dumps({"created_at": 1761438600.0 + 2400 * number}))
        assert store.find("latest").job_id == name
    assert [folder.job_id[-4:] for folder in store.folders()] == ["aaaa", "bbbb", "cccc"]
    store.create("a-20251024-180000-dddd").job.mkdir()  # as good as one that may not be read: root may read all
    assert [folder.job_id[-4:] for folder in store.folders()] == ["dddd", "aaaa", "bbbb", "cccc"]


def test_a_job_is_found_by_id_prefix_and_latest(store: Store) -> None:
    """`latest` is the youngest, whatever its name; before its job.json is written by the time in its id."""
    jobs(store, "zoo-20250101-000000-aaaa", "ant-20250102-000000-bbbb", "ant-20250101-120000-cccc")
    assert store.find("latest").job_id == "ant-20250102-000000-bbbb"
    assert store.find("zoo").job_id == "zoo-20250101-000000-aaaa"
    assert store.find("ant-20250101").job_id == "ant-20250101-120000-cccc"
    assert [folder.job_id[:3] for folder in store.folders()] == ["zoo", "ant", "ant"]


def test_an_ambiguous_prefix_names_the_candidates(store: Store) -> None:
    """And asks for more of the name."""
    jobs(store, "ant-20250101-000000-aaaa", "ant-20250102-000000-bbbb")
    with pytest.raises(JobNotFound, match="beginning of 2 jobs") as caught:
        store.find("ant")
    assert caught.value.problems == ("ant-20250101-000000-aaaa", "ant-20250102-000000-bbbb")
    assert caught.value.exit_code == 2
    jobs(store, *(f"ant-20250103-00000{n}-cccc" for n in range(5)))
    with pytest.raises(JobNotFound, match="beginning of 7 jobs, the last of which are") as caught:
        store.find("ant")
    assert len(caught.value.problems) == 5


def test_an_exact_id_wins_over_a_longer_one(store: Store) -> None:
    """A job whose id begins another's can still be named."""
    jobs(store, "a-20250101-000000-aaaa", "a-20250101-000000-aaaa-20250101-000000-bbbb")
    assert store.find("a-20250101-000000-aaaa").job_id == "a-20250101-000000-aaaa"


def test_an_unknown_name_suggests_a_near_one(store: Store) -> None:
    """A typing error is seen at once."""
    jobs(store, "train-20250101-000000-aaaa")
    with pytest.raises(JobNotFound) as caught:
        store.find("trian-20250101-000000-aaaa")
    assert caught.value.problems == ("train-20250101-000000-aaaa",)


@pytest.mark.parametrize("name", ["", "..", ".", "../jobs", "a/../..", "latest"])
def test_without_jobs_no_name_finds_anything(store: Store, name: str) -> None:
    """No name leads out of the jobs directory."""
    with pytest.raises(JobNotFound, match="no job"):
        store.find(name)


@pytest.mark.parametrize("name", ["", "..", ".", "../jobs"])
def test_no_name_leads_out_of_the_jobs(store: Store, name: str) -> None:
    """Neither an empty one nor a path is the beginning of a job."""
    jobs(store, "a-20250101-000000-aaaa")
    with pytest.raises(JobNotFound):
        store.find(name)


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader sees the old bytes or the new ones, and no part file is left."""
    path = tmp_path / "state.json"
    write_atomically(path, b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["state.json"]


def test_a_document_that_is_not_whole_is_none(tmp_path: Path) -> None:
    """So is one that is not there."""
    (tmp_path / "half.json").write_text('{"a": ')
    assert read_json(tmp_path / "half.json") is None
    assert read_json(tmp_path / "none.json") is None
    assert read_json(tmp_path / "half.json" / "below.json") is None


def test_bytes_of_the_command_line_that_are_no_text_survive(tmp_path: Path) -> None:
    """argv may hold any bytes: Python shows them as lone surrogates, and they come back as the same bytes."""
    value = {"argv": [os.fsdecode(b"\xff\xfe"), "é", "日本", "a\nb"]}
    write_json(tmp_path / "plan.json", value)
    assert read_json(tmp_path / "plan.json") == value


def test_events_come_back_as_they_were_appended(store: Store) -> None:
    """Unicode, newlines in values and all."""
    folder = store.create("a-20250101-000000-aaaa")
    told = [{"n": 0, "time": 1.0, "type": "note", "message": "zwei\nZeilen é 日本"}, {"n": 1, "time": 2.0, "type": "end"}]
    for event in told:
        folder.append(event, durable=True)
    assert folder.read_events() == told
    assert folder.events.read_bytes().count(b"\n") == 2


def test_half_a_line_is_left_out_and_harms_no_later_one(store: Store) -> None:
    """A coordinator that died in the middle of a write costs its own event, not its successor's."""
    folder = store.create("a-20250101-000000-aaaa")
    folder.append({"n": 0, "time": 1.0, "type": "created"})
    with folder.events.open("ab") as file:
        file.write(b'{"n": 1, "type": "no')
    assert [event["n"] for event in folder.read_events()] == [0]
    folder.append({"n": 1, "time": 1.0, "type": "note"})
    assert [event["type"] for event in folder.read_events()] == ["created", "note"]


def test_a_cancel_has_a_level(store: Store) -> None:
    """None, graceful, now."""
    folder = store.create("a-20250101-000000-aaaa")
    assert folder.cancel_level() == 0
    write_json(folder.cancel, {"level": 2})
    assert folder.cancel_level() == 2


def test_the_newest_log_of_a_rank_is_found(store: Store) -> None:
    """torchrun's last restart, whatever run it belongs to; a path is named even where there is none."""
    folder = Folder(store.create("a-20250101-000000-aaaa").root)
    top = folder.node_logs(1) / "ranks" / "attempt_0"
    assert folder.rank_log(1, 0, 3) == top / "restart_0" / "3" / "stderr.log"
    for age, name in enumerate(("restart_1", "restart_0", "run_1_restart_0")):
        log = top / name / "3" / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text("")
        os.utime(log, ns=(age, age))
    assert folder.rank_log(1, 0, 3) == top / "run_1_restart_0" / "3" / "stderr.log"


def test_a_file_that_another_machine_replaces_is_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS has no bytes of a file any more that was renamed over while it was read."""
    folder, read = store.create("a-20250101-000000-aaaa"), Path.read_bytes
    write_json(folder.cancel, {"level": 2})
    failures = [errno.ESTALE, errno.ESTALE]

    def stale(self: Path) -> bytes:
        if failures:
            raise OSError(failures.pop(), "it is gone")
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", stale)
    assert folder.cancel_level() == 2
    failures = [errno.EIO]
    with pytest.raises(OSError, match="it is gone"):
        folder.cancel_level()


def test_two_writers_of_one_number_write_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of two machines, or containers, that share a folder: the last one's content is there, whole."""
    path, sync = tmp_path / "slurm.json", os.fsync
    other = [threading.Thread(target=write_json, args=(path, {"by": "the other"}))]

    def meanwhile(fd: int) -> None:
        while other:
            writing = other.pop()
            writing.start()
            writing.join()
        sync(fd)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_json(path, {"by": "us"})
    assert read_json(path) == {"by": "us"} and os.listdir(tmp_path) == ["slurm.json"]

"""The spool on a node: events, claims, wishes, and the names of torchrun's logs."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from launcher.agent import procs
from launcher.agent.layout import Layout
from launcher.agent.spool import Spool


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(str(tmp_path / "spool"))
    assert made.claim(0)
    return made


def test_an_attempt_is_claimed_once(tmp_path: Path) -> None:
    """Of many at once, one."""
    spool, won = Spool(str(tmp_path / "spool")), []
    threads = [threading.Thread(target=lambda: won.append(spool.claim(3))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert spool.claimed(3) and not spool.claimed(4)


def test_the_spool_is_for_its_owner_alone(spool: Spool) -> None:
    """0700: it may hold what a command printed."""
    assert os.stat(spool.path).st_mode & 0o777 == 0o700


def test_the_outcome_of_an_attempt_is_the_first_one_told(spool: Spool) -> None:
    """Damaged lines and other attempts are passed over."""
    assert spool.outcome(0) is None
    spool.append("outcome", 1, kind="exited")
    with open(spool.events_path, "ab") as file:
        file.write(b'{"type": "outcome", "att\n\xff\xfe\n')
    assert spool.outcome(0) is None
    spool.append("outcome", 0, kind="agent lost")
    spool.append("outcome", 0, kind="exited")
    assert spool.outcome(0)["kind"] == "agent lost"


def test_an_agent_is_alive_by_pid_start_time_and_boot(spool: Spool) -> None:
    """A pid used again, or another boot, is no life."""
    assert not spool.agent_alive(0) and not spool.rebooted(0)
    spool.record_agent(0, {"agent": os.getpid(), "warden": 2**22 + 1})
    assert spool.agent_alive(0)
    path = Path(spool.path, "agent-0.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "pids": {"agent": [os.getpid(), 1]}}))
    assert not spool.agent_alive(0)
    path.write_text(json.dumps({**record, "boot_id": "another"}))
    assert not spool.agent_alive(0) and spool.rebooted(0)


def test_a_wish_to_stop_is_kept_per_attempt(spool: Spool) -> None:
    """The last one counts."""
    assert spool.stop_wish(0) is None
    spool.wish_stop(0, 30, "cancel")
    spool.wish_stop(0, 0, "cancel")
    assert spool.stop_wish(0) == {"grace": 0, "reason": "cancel"} and spool.stop_wish(1) is None


def make(spool: Spool, relative: str) -> str:
    path = os.path.join(spool.ranks, relative)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).touch()
    return path


def test_torchruns_logs_get_names_that_sort(spool: Spool) -> None:
    """Its random directory is gone; a second run of the same command has a number."""
    first = make(spool, "attempt_0/none_abc/attempt_0/0/stdout.log")
    restart = make(spool, "attempt_0/none_abc/attempt_1/0/stderr.log")
    second = make(spool, "attempt_0/other_x/attempt_0/1/stdout.log")
    make(spool, "attempt_0/none_abc/attempt_0/0/error.json")
    make(spool, "attempt_0/stray.log")
    found = {name: path for name, path in spool.logs().items() if name.startswith("ranks/")}
    assert found == {
        "ranks/attempt_0/restart_0/0/stdout.log": first,
        "ranks/attempt_0/restart_1/0/stderr.log": restart,
        "ranks/attempt_0/run_1_restart_0/1/stdout.log": second,
    }


def test_a_runs_number_never_changes(spool: Spool) -> None:
    """Two runs side by side, and the first one restarts: each log keeps its name, or replicas would mix."""
    first = make(spool, "attempt_0/none_zzz/attempt_0/0/stdout.log")
    spool.logs()
    second = make(spool, "attempt_0/none_aaa/attempt_0/0/stdout.log")
    before = spool.logs()
    make(spool, "attempt_0/none_zzz/attempt_1/0/stdout.log")
    after = Spool(spool.path).logs()
    assert {name: after[name] for name in before} == before
    assert (before["ranks/attempt_0/restart_0/0/stdout.log"], before["ranks/attempt_0/run_1_restart_0/0/stdout.log"]) == (
        first,
        second,
    )


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "a\n", ".hidden", "a b"])
def test_no_name_leads_out_of_the_directory_on_a_node(tmp_path: Path, name: str) -> None:
    """Job ids, projects and hashes are plain names."""
    layout = Layout(str(tmp_path))
    for place in (layout.job, layout.mirror, layout.agent):
        with pytest.raises(ValueError, match="not a plain name"):
            place(name)


def test_everything_lies_below_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """~ is the node's own home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    layout = Layout("~/x")
    root = str(tmp_path / "x" / "node")
    assert layout.root == root
    assert layout.spool("j", 3) == root + "/jobs/j/rank-3/spool" and layout.code("j") == root + "/jobs/j/code"


def test_a_process_is_known_by_name_start_and_environment() -> None:
    """Ours, for one."""
    assert procs.start_time(os.getpid()) and procs.parent(os.getpid()) == os.getppid()
    assert procs.environment(os.getpid()).get(b"PATH") is not None
    assert procs.start_time(2**22 + 1) is None and procs.environment(2**22 + 1) == {} and procs.name(2**22 + 1) == ""

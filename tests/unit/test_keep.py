"""What is kept between two commands, and when it is not trusted."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from launcher import cluster
from launcher.cluster.known import recall_cluster
from launcher.errors import UsageError
from launcher.keep import at_home, home, keep, nobodys, recall

OLD = time.time() - 60


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept beside the user's jobs."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))


def written(path: Path, text: str, when: float = OLD) -> Path:
    """A file that was written ``when``."""
    path.write_text(text)
    os.utime(path, (when, when))
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment has passed since all files were written (their ctime cannot be set)."""
    later = time.time_ns() + 3_600_000_000_000
    monkeypatch.setattr("launcher.keep.time.time_ns", lambda: later)


@pytest.mark.usefixtures("settled")
def test_an_answer_holds_while_its_files_do(tmp_path: Path) -> None:
    """Content of another size, another inode, a removed file: each ends it."""
    file = written(tmp_path / "a", "one")
    keep(["what", "é\udcff"], {"n": 1}, [file, tmp_path / "absent"])
    assert recall(["what", "é\udcff"]) == {"n": 1}
    assert recall(["what"]) is None
    written(file, "more")
    assert recall(["what", "é\udcff"]) is None


@pytest.mark.usefixtures("settled")
def test_a_file_that_appears_ends_it(tmp_path: Path) -> None:
    """What was not there is a part of what the answer was made from."""
    keep(["q"], 1, [tmp_path / "absent"])
    assert recall(["q"]) == 1
    written(tmp_path / "absent", "")
    assert recall(["q"]) is None


def test_a_file_of_this_very_moment_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be written again without any of its times showing that."""
    file = written(tmp_path / "a", "x")
    half_a_second_later = file.stat().st_ctime_ns + 500_000_000
    monkeypatch.setattr("launcher.keep.time.time_ns", lambda: half_a_second_later)
    keep(["q"], 1, [file])
    assert recall(["q"]) is None


@pytest.mark.usefixtures("settled")
def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    """Inventories name users, hosts and keys."""
    keep(["q"], 1, [written(tmp_path / "a", "x")])
    folder = home() / "cache"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o600]


@pytest.mark.usefixtures("settled")
def test_damage_is_asked_anew(tmp_path: Path) -> None:
    """Half a file is as good as none."""
    keep(["q"], 1, [written(tmp_path / "a", "x")])
    (kept,) = (home() / "cache").iterdir()
    for text in ("", "[]", '{"question": ["q"]}', "{"):
        kept.write_text(text)
        assert recall(["q"]) is None


@pytest.mark.usefixtures("settled")
def test_a_cluster_file_is_read_again_when_anything_it_depends_on_changed(tmp_path: Path) -> None:
    """The same inventory, kept or read; a file it names that goes is an error again."""
    config = written(tmp_path / "ssh_config", "Host a\n")
    file = written(tmp_path / "cluster.yaml", "hosts: [a, {name: b, gpus: 4, env: {X: '1'}}]\nssh: {config: ssh_config}\n")
    read = cluster.load_cluster(file)
    assert recall_cluster(file) == read == cluster.load_cluster(file)
    config.unlink()
    with pytest.raises(UsageError, match="cannot be used"):
        cluster.load_cluster(file)
    written(config, "Host b\n")
    written(file, "hosts: [c]\n")
    assert [host.name for host in cluster.load_cluster(file).hosts] == ["c"]


@pytest.mark.usefixtures("settled")
def test_secrets_are_not_kept(tmp_path: Path) -> None:
    """A token in an inventory lies there and nowhere else."""
    file = written(tmp_path / "cluster.yaml", "hosts: [{name: b, env: {HF_TOKEN: hf_secret}}]\n")
    cluster.load_cluster(file)
    assert recall_cluster(file) is None
    assert not (home() / "cache").exists()


def test_a_home_of_nobody_is_an_error_and_never_a_folder_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a traceback: it is told where it was said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_HOME", "~no-such-user/.launcher")
    with pytest.raises(UsageError) as caught:
        home()
    assert str(caught.value).startswith("LAUNCHER_HOME: ~no-such-user/.launcher: there is no user no-such-user here\n")
    monkeypatch.setenv("LAUNCHER_HOME", "~/x")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert home() == tmp_path / "me" / "x"
    assert at_home("~root", "--from") == Path(os.path.expanduser("~root"))


def test_a_folder_may_be_called_like_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is there, it is meant."""
    monkeypatch.chdir(tmp_path)
    assert nobodys("~old/model") == "~old/model: there is no user old here"
    (tmp_path / "~old").mkdir()
    assert nobodys("~old/model") is None
    assert at_home("~old/model", "--to") == tmp_path / "~old" / "model"

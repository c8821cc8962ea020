"""Hostfiles as mpirun and DeepSpeed users have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cluster import load_hostfile
from launcher.errors import UsageError


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "hosts.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_way_to_write_a_line_is_understood(tmp_path: Path) -> None:
    """Comments, blank lines, users, ports, ranges, tabs, Windows line ends and a byte order mark are fine."""
    text = "\ufeff# all\r\n\r\nnode1 slots=4\r\n  train@node2:2222\tslots=2 # two\r\nn[01-02]   \r\n[fd00::2]:22#x\r\nfd00::3"
    cluster = load_hostfile(written(tmp_path, text))
    assert [(h.name, h.address, h.user, h.port, h.slots) for h in cluster.hosts] == [
        ("node1", "node1", None, None, 4),
        ("node2:2222", "node2", "train", 2222, 2),
        ("n01", "n01", None, None, None),
        ("n02", "n02", None, None, None),
        ("[fd00::2]:22", "fd00::2", None, 22, None),
        ("fd00::3", "fd00::3", None, None, None),
    ]
    assert (cluster.name, cluster.backend) == ("hosts", "ssh")


def test_everything_wrong_is_said_at_once_with_line_and_column(tmp_path: Path) -> None:
    """Each line that is wrong is named, with what may stand there."""
    path = written(tmp_path, "a slots=0\nb slot=4\nc:0 slots=x\na b\n  n[2-1]\na\nd slots=1 slots=2\nc2 slots=\n")
    with pytest.raises(UsageError) as caught:
        load_hostfile(path)
    said = [problem.removeprefix(f"{path}:") for problem in caught.value.problems]
    assert said == [
        "1:3: slots: 0: a whole number from 1 on",
        "2:3: slot=4: after the host only slots=N may stand (did you mean slots?)",
        "3:1: c:0: '0' is no port: a number from 1 to 65535",
        "3:5: slots: x: a whole number from 1 on",
        f"4:1: a: the same name twice; first at {path}:1:1",
        "4:3: b: after the host only slots=N may stand",
        "5:3: n[2-1]: 2-1 does not count upwards",
        f"6:1: a: the same name twice; first at {path}:1:1",
        "7:11: slots: given twice in one line",
        "8:4: slots: nothing: a whole number from 1 on",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "no host stands"), (b"# x\n\n", "no host stands"), (b"n1\nn\xff2\n", ":2:2: byte 0xff: the file is not UTF-8")],
)
def test_a_file_without_hosts_is_an_error(tmp_path: Path, content: bytes, reason: str) -> None:
    """An empty hostfile never becomes a job on this machine."""
    with pytest.raises(UsageError, match=reason):
        load_hostfile(written(tmp_path, content))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """A hostfile that was asked for and is not there, or is a directory, is an error."""
    with pytest.raises(UsageError, match="No such file"):
        load_hostfile(tmp_path / "nothing")
    with pytest.raises(UsageError, match="directory"):
        load_hostfile(tmp_path)

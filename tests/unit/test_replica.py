"""Replicas of a node's logs: byte-exact whatever is sent again, and never outside of their folder."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.replica import Replica


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path / "node-0")


def test_a_new_replica_has_both_logs_empty(replica: Replica) -> None:
    """A command that printed nothing has logs nevertheless."""
    assert replica.offsets() == {"stdout.log": 0, "stderr.log": 0}


def test_what_is_here_already_is_passed_over(replica: Replica) -> None:
    """A chunk that overlaps adds its new end alone; one that is wholly known adds nothing."""
    replica.write("stdout.log", 0, b"abcdef")
    replica.write("stdout.log", 3, b"defghi")
    replica.write("stdout.log", 1, b"bc")
    replica.write("stdout.log", 9, b"")
    assert (replica.folder / "stdout.log").read_bytes() == b"abcdefghi"
    assert replica.offsets()["stdout.log"] == 9


def test_a_gap_is_refused(replica: Replica) -> None:
    """Bytes that would leave a hole are not written."""
    replica.write("stdout.log", 0, b"abc")
    with pytest.raises(ValueError, match="goes on at byte 4, but ends at 3"):
        replica.write("stdout.log", 4, b"x")
    assert (replica.folder / "stdout.log").read_bytes() == b"abc"


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x.log", "/etc/passwd", "stdout.log/", "stdout.log\n", "stdout.log\0", "agent.log",
        "ranks/../../stdout.log",
        "ranks/attempt_0/restart_0/0/../stdout.log", "ranks/attempt_0/restart_0/0/stdout.log/x",
        "ranks/attempt_/restart_0/0/stdout.log",
        "ranks/attempt_0/none_x/0/stdout.log", "./stdout.log", "EVENTS.jsonl",
    ],
)  # fmt: skip
def test_hostile_names_are_refused(replica: Replica, name: str) -> None:
    """What a node sends is not trusted to stay in its folder."""
    before = sorted(replica.folder.parent.rglob("*"))
    with pytest.raises(ValueError, match="a log called"):
        replica.write(name, 0, b"x")
    assert sorted(replica.folder.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["ranks/attempt_0/restart_0/0/stdout.log", "ranks/attempt_12/run_1_restart_3/7/stderr.log"])
def test_rank_logs_have_their_own_place(replica: Replica, name: str) -> None:
    """attempt, torchrun's restart, local rank."""
    replica.write(name, 0, b"hello\n")
    assert (replica.folder / name).read_bytes() == b"hello\n"
    assert replica.offsets()[name] == 6


def test_events_are_told_when_they_are_whole(replica: Replica) -> None:
    """Each once, whatever pieces they arrive in; what is no event is passed over."""
    text = b'{"type":"started","pid":1}\nrubbish\n[]\n{"no":"type"}\n{"type":"exited"}\n'
    told = [
        event["type"] for place in range(len(text)) for event in replica.write("events.jsonl", place, text[place : place + 1])
    ]
    assert told == ["started", "exited"]
    assert replica.write("events.jsonl", 0, text) == []
    assert [event["type"] for event in replica.events()] == ["started", "exited"]


def test_a_successor_goes_on_in_the_middle_of_an_event(tmp_path: Path) -> None:
    """A coordinator that died with half an event on the disk is followed by one that completes and tells it."""
    text = json.dumps({"type": "outcome", "exit_code": 0}).encode() + b"\n"
    first = Replica(tmp_path / "n")
    assert first.write("events.jsonl", 0, text[:9]) == []
    first.close()
    second = Replica(tmp_path / "n")
    assert second.offsets()["events.jsonl"] == 9
    assert [event["type"] for event in second.write("events.jsonl", 9, text[9:])] == ["outcome"]


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=30))
def test_any_cut_with_any_resend_gives_the_identical_file(content: bytes, pieces: list[tuple[int, int]]) -> None:
    """Whatever the pieces, their overlaps and their order: no byte is lost, doubled or moved."""
    with tempfile.TemporaryDirectory() as folder:
        replica, have = Replica(Path(folder)), 0
        for start, length in [*pieces, (0, len(content))]:
            chunk = content[start : start + length]
            if start > have and chunk:
                with pytest.raises(ValueError, match="goes on at byte"):
                    replica.write("stdout.log", start, chunk)
            elif chunk:
                replica.write("stdout.log", start, chunk)
                have = max(have, start + len(chunk))
            assert (Path(folder) / "stdout.log").read_bytes() == content[:have]
        replica.close()
        assert have == len(content)


def test_a_full_disk_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before the disk was full is not written again when the node sends it again."""
    replica = Replica(tmp_path)
    real, room = os.write, [3]

    def write(fd: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(fd, bytes(data)[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError):
        replica.write("stdout.log", 0, b"abcdef")
    room[0] = 100
    assert replica.offsets()["stdout.log"] == 3
    replica.write("stdout.log", 0, b"abcdef")
    assert (tmp_path / "stdout.log").read_bytes() == b"abcdef"

"""What a job tells, read from its folder: every line whole, once, in order, however it was written."""

from __future__ import annotations

import os
import random
import resource
import threading
from pathlib import Path

import pytest

from launcher import feed as module
from launcher.feed import Feed, Lines, last_drawn, start_of_tail
from launcher.store import Folder, Store
from tests.unit.stories import COLLECTED, DIAGNOSED_WELL, RUNNING, WELL, agent, end


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    made = Store().create("a-20250101-000000-aaaa")
    for event in RUNNING:
        made.append(event)
    for rank in (0, 1):
        made.node_logs(rank).mkdir(parents=True)
    return made


def write(folder: Folder, text: bytes, name: str = "stdout.log", node: int = 0) -> None:
    path = folder.node_logs(node) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text)


def read(feed: Feed, to_the_end: bool = False) -> list[bytes]:
    feed._looked = 0.0  # look for new files now, not in a moment
    return [line for item in feed.read(to_the_end) if isinstance(item, Lines) for line in item.lines]


def finish(folder: Folder) -> None:
    for event in [*WELL[len(RUNNING) :], DIAGNOSED_WELL, COLLECTED, end("Succeed", 0)]:
        folder.append(event)


def test_events_come_before_lines_and_the_end_after_them(folder: Folder) -> None:
    """So that the last line stands before the verdict."""
    write(folder, b"hello\n")
    finish(folder)
    kinds = [item["type"] if isinstance(item, dict) else "lines" for item in Feed(folder).read()]
    assert kinds[0] == "created" and kinds[-2:] == ["lines", "end"]


def test_a_line_is_told_when_it_is_whole(folder: Folder) -> None:
    """Its pieces are put together; the last unfinished one comes with the job's end."""
    feed = Feed(folder)
    write(folder, b"one\ntw")
    assert read(feed) == [b"one"]
    write(folder, b"o\nthr")
    assert read(feed) == [b"two"]
    assert read(feed) == []
    write(folder, b"ee")
    finish(folder)
    assert read(feed) == [b"three"]
    assert feed.ended and read(feed) == []


def test_without_following_an_unfinished_line_is_told_too(folder: Folder) -> None:
    """`logs` without -f shows all there is."""
    write(folder, b"one\ntwo")
    assert read(Feed(folder), to_the_end=True) == [b"one", b"two"]


def test_bytes_that_are_no_text_are_told_as_they_are(folder: Folder) -> None:
    """Latin-1, broken UTF-8 and NUL included."""
    write(folder, b"\xff\xfe\x00caf\xe9\n\xe6\x97\n")
    assert read(Feed(folder)) == [b"\xff\xfe\x00caf\xe9", b"\xe6\x97"]


def test_empty_lines_are_lines(folder: Folder) -> None:
    """They are part of what was printed."""
    write(folder, b"a\n\n\nb\n")
    assert read(Feed(folder)) == [b"a", b"", b"", b"b"]


def test_lines_that_end_as_on_windows_are_plain_lines(folder: Folder) -> None:
    r"""Whether or not a write ends between \r and \n: nothing is doubled, no empty line appears."""
    feed = Feed(folder)
    write(folder, b"one\r\ntwo\r")
    assert read(feed) == [b"one"]
    write(folder, b"\nthree\r\n")
    assert read(feed) == [b"two", b"three"]


def test_a_progress_bar_is_told_now_and_then_and_finally_once(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that redraws its line a thousand times gives a few lines, the last of them its last state."""
    monkeypatch.setattr(module, "_BAR_SECONDS", 3600.0)
    feed, told = Feed(folder), []
    for percent in range(101):
        write(folder, b"\r%3d%%" % percent)
        told += read(feed)
    assert len(told) == 1
    write(folder, b"\r100%\n")
    assert read(feed) == [b"100%"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [(b"plain", b"plain"), (b"a\rb", b"b"), (b"a\r", b"a"), (b"\r\r", b""), (b"\r10%\r20%", b"20%"), (b"", b"")],
)
def test_of_a_redrawn_line_the_last_state_is_shown(line: bytes, shown: bytes) -> None:
    """As a terminal would."""
    assert last_drawn(line) == shown


def test_a_line_without_end_is_cut_and_memory_stays_bounded(folder: Folder) -> None:
    """A binary blob in a log neither fills the memory nor loses a byte."""
    feed, blob = Feed(folder), bytes(range(32, 127)) * 20_000
    pieces = []
    for start in range(0, len(blob), 300_000):
        write(folder, blob[start : start + 300_000])
        pieces += read(feed)
        assert max((len(log.rest) for log in feed._logs.values()), default=0) <= module._LONGEST
    write(folder, b"\nnext\n")
    pieces += read(feed)
    assert max(map(len, pieces)) <= module._LONGEST
    assert b"".join(pieces[:-1]) == blob and pieces[-1] == b"next"


def test_files_that_appear_later_are_told_from_their_first_byte(folder: Folder) -> None:
    """Also when the feed began with a tail."""
    write(folder, b"1\n2\n3\n")
    feed = Feed(folder, tail=1)
    assert read(feed) == [b"3"]
    write(folder, b"a\nb\n", "ranks/attempt_0/restart_0/1/stderr.log", node=1)
    assert read(feed) == [b"a", b"b"]


def test_lines_know_their_node_rank_and_stream(folder: Folder) -> None:
    """The global rank is what the process said, else counted from the nodes before."""
    write(folder, b"x\n", "stderr.log", node=1)
    write(folder, b"y\n", "ranks/attempt_0/restart_0/1/stdout.log", node=1)
    folder.append({"type": "reached", "time": 1, "nodes": [{"rank": r, "address": "a", "nproc": 3} for r in (0, 1)]})
    items = [item for item in Feed(folder).read() if isinstance(item, Lines)]
    assert {(item.node, item.local_rank, item.rank, item.stream) for item in items} == {
        (1, None, None, "stderr"),
        (1, 1, 4, "stdout"),
    }
    folder.append(agent(1, "workers", workers=[{"local_rank": 1, "rank": 9}]))
    assert {item.rank for item in Feed(folder).read() if isinstance(item, Lines)} == {None, 9}


def test_strange_files_among_the_logs_are_passed_over(folder: Folder) -> None:
    """An editor's backup or events.jsonl are no logs."""
    write(folder, b"{}\n", "events.jsonl")
    write(folder, b"x\n", "stdout.log~")
    assert read(Feed(folder)) == []


def test_half_an_event_is_waited_for_and_a_spoiled_one_passed_over(folder: Folder) -> None:
    """The coordinator may die in the middle of a line; its successor's events are read."""
    feed = Feed(folder)
    feed.read_events()
    with folder.events.open("ab") as file:
        file.write(b'{"type": "note", "time": 1, "mess')
    assert feed.read_events() == []
    folder.append({"type": "note", "time": 2, "message": "hello"})
    assert [event["message"] for event in feed.read_events()] == ["hello"]


@pytest.mark.parametrize(
    ("content", "count", "shown"),
    [
        (b"", 3, b""),
        (b"a\nb\nc\n", 0, b""),
        (b"a\nb\nc\n", 1, b"c\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc", 1, b"c"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"\na", 1, b"a"),
    ],
)
def test_a_tail_begins_with_its_line(tmp_path: Path, content: bytes, count: int, shown: bytes) -> None:
    """An unfinished last line counts as one."""
    path = tmp_path / "log"
    path.write_bytes(content)
    assert content[start_of_tail(path, count) :] == shown


def test_a_tail_may_be_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are joined wherever they are cut."""
    path = tmp_path / "log"
    lines = [b"%d\n" % number for number in range(50)]
    path.write_bytes(b"".join(lines))
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(module, "_CHUNK", size)
        for count in (1, 10, 49, 50, 51):
            assert path.read_bytes()[start_of_tail(path, count) :] == b"".join(lines[-count:])


def test_no_line_is_lost_or_doubled_while_writers_append(folder: Folder) -> None:
    """Two writers cut their lines anywhere; the reader has each line once, in its file's order."""
    expected = {node: [b"node %d line %d \xff %s" % (node, n, b"x" * (n % 97)) for n in range(2000)] for node in (0, 1)}

    def append(node: int) -> None:
        text, random_ = b"".join(line + b"\n" for line in expected[node]), random.Random(node)
        with (folder.node_logs(node) / "stdout.log").open("ab", buffering=0) as file:
            while text:
                cut = random_.randrange(1, 4000)
                file.write(text[:cut])
                text = text[cut:]

    feed = Feed(folder)
    told: dict[int, list[bytes]] = {0: [], 1: []}
    writers = [threading.Thread(target=append, args=(node,)) for node in (0, 1)]
    for writer in writers:
        writer.start()

    def take() -> None:
        for item in feed.read():
            if isinstance(item, Lines):
                told[item.node] += item.lines

    while any(writer.is_alive() for writer in writers):
        feed.wait(0.01)
        take()
    finish(folder)
    take()
    assert told == expected


def test_whoever_watches_may_have_any_number_of_files_open(folder: Folder) -> None:
    """As a notebook has whose data loaders share memory by descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1024:
            opened.append(os.dup(opened[0]))
        feed = Feed(folder)
        feed.wait(0.01)
        feed.close()
    finally:
        for fd in opened:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""What a job tells, as it comes: events and log lines, read from the job folder alone.

Every line is told whole, once, in its file's order; at the end of the job nothing is left untold.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.agent.watch import POLL_SECONDS, Watch
from launcher.policy import View, fold
from launcher.record import dataclass
from launcher.store import Folder, parse_event

_CHUNK = 1 << 18
_LONGEST = 1 << 16
"""a line is cut after that many bytes"""
_TOGETHER_SECONDS = 0.03
"""what changes within this time of the last look is looked at in one go"""
_BAR_SECONDS = 1.0
"""how often a progress bar that redraws its line is told"""
_NODE = re.compile(r"(?:requeue-\d+/)?node-(\d+)/")
_RANK = re.compile(r"ranks/attempt_(\d+)/(?:run_\d+_)?restart_(\d+)/(\d+)/(stdout|stderr)\.log\Z")


@dataclass(frozen=True)
class Lines:
    """Whole lines of one log, without line ends."""

    node: int
    local_rank: int | None
    """None: what the command itself printed (torchrun, or a command without it)"""
    stream: str
    """stdout or stderr"""
    lines: list[bytes]
    rank: int | None = None
    """global rank"""


@dataclass
class _Log:
    path: Path
    node: int
    local_rank: int | None
    stream: str
    offset: int = 0
    rest: bytes = b""
    told_bar: float = float("-inf")


class Feed:
    """Reads a job folder from its beginning, or its logs from their end where ``tail`` says how many lines."""

    def __init__(self, folder: Folder, tail: int | None = None) -> None:
        self._folder = folder
        self._watch = Watch()
        self._watch.add(str(folder.root))
        self._events_at = 0
        self._events_rest = b""
        self._logs: dict[Path, _Log] = {}
        self._tail = tail
        self._looked = self._read_at = 0.0
        self._to_the_end = False
        self.view = View()

    @property
    def ended(self) -> bool:
        """True once the job's end was read."""
        return self.view.end is not None

    def read_events(self) -> list[dict[str, Any]]:
        """The events that are new, folded into ``view``; for whoever does not want the logs."""
        self._watch.clear()
        self._read_at = time.monotonic()
        return list(self._new_events())

    def read(self, to_the_end: bool = False) -> Iterator[dict[str, Any] | Lines]:
        """All that is new: events first, then lines; with ``to_the_end``, or after the job's end, unfinished lines too."""
        events = self.read_events()
        self._to_the_end = to_the_end or self.ended
        yield from (event for event in events if event["type"] != "end")
        self._find_logs(force=self._to_the_end)
        for log in list(self._logs.values()):
            yield from self._new_lines(log)
        yield from (event for event in events if event["type"] == "end")

    def logged(self) -> set[tuple[int, int | None]]:
        """(node, global rank or None) of all logs with something in them, of those that were looked at."""
        return {(log.node, self.rank_of(log.node, log.local_rank)) for log in self._logs.values() if log.path.stat().st_size}

    def wait(self, seconds: float = POLL_SECONDS) -> None:
        """Until something may be new; many nodes that tell something at once are heard together."""
        self._watch.wait(seconds)
        time.sleep(max(0.0, self._read_at + _TOGETHER_SECONDS - time.monotonic()))

    def close(self) -> None:
        """Give the watch's descriptor back; what is read later is looked for now and then instead."""
        self._watch.close()

    def _new_events(self) -> Iterator[dict[str, Any]]:
        try:
            with self._folder.events.open("rb") as file:
                file.seek(self._events_at)
                fresh = file.read()
        except FileNotFoundError:
            return
        self._events_at += len(fresh)
        *lines, self._events_rest = (self._events_rest + fresh).split(b"\n")
        for line in lines:
            event = parse_event(line)
            if event is not None:
                fold([event], self.view)
                yield event

    def _find_logs(self, force: bool) -> None:
        """New log files come rarely; looking for them at every change of any would cost more than reading them."""
        now = time.monotonic()
        if not force and now - self._looked < POLL_SECONDS / 2:
            return
        self._looked = now
        for directory, _, files in sorted(os.walk(self._folder.logs)):
            self._watch.add(directory)
            for name in sorted(files):
                self._add(Path(directory, name))
        # Files that appear later are new from their first byte on.
        self._tail = None

    def _add(self, path: Path) -> None:
        if path in self._logs or path.suffix != ".log":
            return
        name = path.relative_to(self._folder.logs).as_posix()
        top = _NODE.match(name)
        if top is None:
            return
        match = _RANK.match(name, top.end())
        node = int(top[1])
        log = _Log(path, node, int(match[3]) if match else None, match[4] if match else path.stem)
        if self._tail is not None:
            log.offset = start_of_tail(path, self._tail)
        self._logs[path] = log

    def _new_lines(self, log: _Log) -> Iterator[Lines]:
        try:
            if not log.rest and os.stat(log.path).st_size == log.offset:
                return
        except FileNotFoundError:
            # Somebody removed the job's folder; whoever looks after its coordinator notices, and says so.
            return
        with log.path.open("rb") as file:
            file.seek(log.offset)
            while True:
                chunk = file.read(_CHUNK)
                log.offset += len(chunk)
                lines = self._split(log, chunk)
                if lines:
                    yield Lines(log.node, log.local_rank, log.stream, lines, self.rank_of(log.node, log.local_rank))
                if len(chunk) < _CHUNK:
                    return

    def _split(self, log: _Log, chunk: bytes) -> list[bytes]:
        *lines, rest = (log.rest + chunk).split(b"\n")
        if rest and self._to_the_end and len(chunk) < _CHUNK:
            lines.append(rest)
            rest = b""
        told = lines
        # Most logs have neither; they come by the hundred megabytes, and are not looked at line by line.
        if b"\r" in log.rest or b"\r" in chunk or max(map(len, lines), default=0) > _LONGEST:
            told = [piece for line in lines for piece in _pieces(last_drawn(line))]
        # A bar redraws its line without ending it; its newest complete state is worth a line now and then.  A \r at the very
        # end may be the first half of a line's end.
        drawn = rest.rfind(b"\r", 0, max(0, len(rest) - 1))
        if drawn > 0 and time.monotonic() - log.told_bar >= _BAR_SECONDS:
            log.told_bar = time.monotonic()
            bar = last_drawn(rest[:drawn])
            told += _pieces(bar) if bar else []
            rest = rest[drawn + 1 :]
        *whole, log.rest = _pieces(rest)
        return told + whole

    def rank_of(self, node: int, local_rank: int | None) -> int | None:
        """The global rank of a process; None of the command itself."""
        return self.view.rank_of(node, local_rank)


def _pieces(line: bytes) -> list[bytes]:
    return [line[start : start + _LONGEST] for start in range(0, max(1, len(line)), _LONGEST)]


def last_drawn(line: bytes) -> bytes:
    """What a terminal would show of a line that carriage returns redraw."""
    if b"\r" not in line:
        return line
    return next((part for part in reversed(line.split(b"\r")) if part), b"")


def start_of_tail(path: Path, count: int) -> int:
    """The offset at which the last ``count`` lines of a file begin."""
    if count <= 0:
        return path.stat().st_size
    with path.open("rb") as file:
        end = position = file.seek(0, os.SEEK_END)
        found = 0
        while position > 0:
            size = min(_CHUNK, position)
            position -= size
            file.seek(position)
            block = file.read(size)
            if position + size == end and block.endswith(b"\n"):
                block = block[:-1]
            for index in range(len(block) - 1, -1, -1):
                if block[index] == 0x0A:
                    found += 1
                    if found == count:
                        return position + index + 1
    return 0

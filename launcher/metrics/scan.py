"""The program that looks for numbers in a job's logs: a process of its own, so that no regular expression holds up anybody.

    stdin   {"logs": folder, "definitions": [[name, regex], ...], "at": {log: offset}}; then `end` when nothing more comes.
            When stdin ends before, whoever started it is gone, and so is this.
    stdout  {"log", "offset", "found": [[name, text], ...]} for a line with a number in it;
            {"slow": name} when a line took too long, {"given up": name} when that was once too often;
            {"done": true} when all is read.

Lines are those of the byte-exact replicas, whole ones only.  Started by `collect` in the folder that has this package.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from launcher.agent.watch import POLL_SECONDS, Watch

LONGEST = 4096
"""bytes of a line that are looked at"""
_CHUNK = 1 << 18
_TICK = 0.25
"""seconds of computing; a search that lasts from one tick to the next is given up"""
_PATIENCE = 3
"""lines that may take too long before their metric is looked for no more"""
_PAUSE = 0.1
"""seconds between two looks at least, however much is written"""
_IDLE = 2.0
"""seconds between two looks at most, where inotify tells of changes"""
_LOG = re.compile(r"(?:requeue-\d+/)?node-\d+/(?:ranks/attempt_\d+/(?:run_\d+_)?restart_\d+/\d+/)?std(?:out|err)\.log\Z")


class _Slow(Exception):
    """The search that runs has taken too long."""


class _Search:
    """One metric's regular expression, under a clock."""

    _running: int | None = None
    _last_tick: int | None = None
    _count = 0

    def __init__(self, name: str, regex: str) -> None:
        self.name = name
        self.slow = 0
        self._pattern = re.compile(regex)

    @classmethod
    def start_clock(cls) -> None:
        """Computing time, so that a busy machine makes nothing slow; `re` looks for signals while it searches."""
        signal.signal(signal.SIGVTALRM, cls._tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, _TICK, _TICK)

    @classmethod
    def _tick(cls, number: int, frame: FrameType | None) -> None:
        if cls._running is not None and cls._running == cls._last_tick:
            cls._running = None
            raise _Slow
        cls._last_tick = cls._running

    def find(self, text: str) -> str | None:
        """What the group matched; raises _Slow."""
        _Search._count += 1
        _Search._running = _Search._count
        try:
            found = self._pattern.search(text)
        finally:
            _Search._running = None
        return None if found is None else found[1]


class _Log:
    """A growing file, read a whole line at a time."""

    def __init__(self, path: str, offset: int) -> None:
        self.path = path
        self._read = offset
        self._rest = b""
        self._start = offset
        """where the line that ``rest`` is the beginning of begins"""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(offset, line without its end) of what is new."""
        try:
            if os.stat(self.path).st_size <= self._read:
                return
            with open(self.path, "rb") as file:
                file.seek(self._read)
                while chunk := file.read(_CHUNK):
                    self._read += len(chunk)
                    yield from self._split(chunk)
        except FileNotFoundError:
            return

    def _split(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        begun = self._read - len(chunk)
        at = 0
        while (end := chunk.find(b"\n", at)) >= 0:
            yield self._start, _shown(self._rest + chunk[at:end])
            self._rest = b""
            at = end + 1
            self._start = begun + at
        self._rest += chunk[at:]
        if len(self._rest) > _CHUNK:
            # No line of a person's; what is over is not kept.
            self._rest = _shown(self._rest)


def _shown(line: bytes) -> bytes:
    """What a terminal would show of a line that carriage returns redraw, as much as is looked at."""
    if b"\r" in line:
        line = next((part for part in reversed(line.split(b"\r")) if part), b"")
    return line[:LONGEST]


class _Scan:
    def __init__(self, order: dict[str, Any]) -> None:
        self._top = order["logs"]
        self._at = order["at"]
        self._searches = [_Search(name, regex) for name, regex in order["definitions"]]
        self._logs: dict[str, _Log] = {}
        self.watch = Watch()

    def look(self) -> None:
        """Through all that is new."""
        self.watch.clear()
        for directory, _, files in os.walk(self._top):
            self.watch.add(directory)
            for name in files:
                path = os.path.join(directory, name)
                known = os.path.relpath(path, self._top)
                if known not in self._logs and _LOG.match(known):
                    self._logs[known] = _Log(path, self._at.get(known, 0))
        for known in sorted(self._logs):
            for offset, line in self._logs[known].lines():
                found = self._found(line.decode("utf-8", "replace")) if line else []
                if found:
                    _tell({"log": known, "offset": offset, "found": found})
        sys.stdout.flush()

    def _found(self, text: str) -> list[tuple[str, str]]:
        found = []
        for search in list(self._searches):
            try:
                value = search.find(text)
            except _Slow:
                self._complain(search)
                continue
            if value is not None:
                found.append((search.name, value))
        return found

    def _complain(self, search: _Search) -> None:
        search.slow += 1
        if search.slow == 1:
            _tell({"slow": search.name})
        if search.slow == _PATIENCE:
            self._searches.remove(search)
            _tell({"given up": search.name})


def _tell(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def main() -> int:
    """Look until the end; 1 when whoever started this is gone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # Slurm and terminals mean the job's coordinator; its end is heard of on stdin.
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)
    # Unbuffered: what comes behind the order is waited for by `select`.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        scan = _Scan(json.loads(stdin.readline()))
    _Search.start_clock()
    descriptor = scan.watch.fileno()
    while True:
        scan.look()
        looked = time.monotonic()
        patience = POLL_SECONDS if descriptor is None else _IDLE
        select.select([sys.stdin, *([] if descriptor is None else [descriptor])], [], [], patience)
        while True:
            left = max(0.0, looked + _PAUSE - time.monotonic())
            if not select.select([sys.stdin], [], [], left)[0]:
                break
            word = os.read(0, 64)
            if not word:
                return 1
            if b"end" in word:
                scan.look()
                _tell({"done": True})
                sys.stdout.flush()
                return 0


if __name__ == "__main__":
    sys.exit(main())

"""The thread of the coordinator that has the logs looked through, and writes what is found into the job folder.

It is the only writer of metrics.jsonl.  What is in there already is all the memory that it needs: of each log the last
record says up to where it was read, so neither a coordinator that died nor a scan that did costs or doubles a record.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.agent.lines import add_line
from launcher.metrics import as_json, number, read
from launcher.model import MetricDefinition

_TRIES = 3
"""scans that may die by themselves"""
_ROOM_SECONDS = 1.0
"""between two tries to write on a full disk"""
_PLACE = re.compile(r"(?:requeue-\d+/)?node-(\d+)/(?:ranks/attempt_\d+/(?:run_\d+_)?restart_\d+/(\d+)/)?")


class Collector:
    """Collects the metrics of one job.  ``rank_of`` tells a process's global rank from its node and local rank."""

    def __init__(
        self,
        root: Path,
        definitions: Sequence[MetricDefinition],
        rank_of: Callable[[int, int | None], int | None],
        note: Callable[[str], None],
        directory: str,
    ) -> None:
        """``root``: the job folder; ``note`` gets sentences for people; ``directory``: where Python finds this package."""
        self._path = root / "metrics.jsonl"
        self._logs = root / "logs"
        self._definitions = definitions
        self._rank_of = rank_of
        self._note = note
        self._directory = directory
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._scan: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def start(self) -> None:
        """Begin, unless that was done; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._collect, name="metrics", daemon=True)
            self._thread.start()

    def finish(self, seconds: float) -> None:
        """Nothing more will be logged: returns when all is looked through and written, or that much later."""
        self._ending.set()
        self.start()
        assert self._thread is not None
        with self._lock:
            if self._scan is not None:
                _say_end(self._scan)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._note(f"warning: the logs were not looked through for metrics within {seconds:g} s; the rest is missing")
            with self._lock:
                if self._scan is not None:
                    self._scan.kill()

    def _collect(self) -> None:
        try:
            self._try_to_collect()
        except Exception as error:
            what = f"by a fault of the launcher itself: {type(error).__name__}: {error}"
            self._note(f"warning: metrics are collected no more, {what}")
            raise

    def _try_to_collect(self) -> None:
        tries = 0
        while tries < _TRIES:
            try:
                if self._scan_once():
                    return
                tries += 1
            except OSError as error:
                print(f"metrics: {error}", file=sys.stderr, flush=True)
                # What is written already is read again, so that nothing comes twice; nobody tells of room that was made.
                tries += error.errno not in (errno.ENOSPC, errno.EDQUOT)
                time.sleep(_ROOM_SECONDS)
        self._note("warning: metrics are collected no more: the program that looks through the logs ended by itself")

    def _scan_once(self) -> bool:
        """From what is in the file to the end of the job; False when the scan died before."""
        memory = _Memory(self._path)
        order = {
            "logs": str(self._logs),
            "definitions": [[one.name, one.regex] for one in self._definitions],
            "at": memory.offsets,
        }
        words = [sys.executable, "-m", "launcher.metrics.scan"]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=self._directory, start_new_session=True) as scan:
            assert scan.stdin is not None and scan.stdout is not None
            try:
                with contextlib.suppress(BrokenPipeError):
                    scan.stdin.write(json.dumps(order).encode() + b"\n")
                    scan.stdin.flush()
                with self._lock:
                    self._scan = scan
                    if self._ending.is_set():
                        _say_end(scan)
                return self._take(scan, memory)
            finally:
                with self._lock:
                    self._scan = None
                scan.kill()

    def _take(self, scan: Any, memory: _Memory) -> bool:
        """Write what comes; True when all was looked through."""
        while True:
            # What has come together is written together.
            piece = scan.stdout.read1(1 << 16)
            if piece and not piece.endswith(b"\n"):
                piece += scan.stdout.readline()
            # Of a scan that was killed the last line may be cut.
            messages = [json.loads(line) for line in piece.split(b"\n")[:-1]]
            records = [record for message in messages if "found" in message for record in self._records(message, memory)]
            if records:
                lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
                add_line(self._path, lines.encode("utf-8", "replace"), 0o600)
            for message in messages:
                self._complain(message)
            if any("done" in message for message in messages):
                return True
            if not piece:
                return False

    def _records(self, message: dict[str, Any], memory: _Memory) -> list[dict[str, Any]]:
        log, offset = message["log"], message["offset"]
        place = _PLACE.match(log)
        assert place is not None
        node, local_rank = int(place[1]), int(place[2]) if place[2] else None
        records = []
        for name, text in message["found"]:
            value = number(text)
            if value is None:
                self._say(f"warning: metric {name}: {text[:60]!r} is no number, and is left out")
            elif not memory.has(log, offset, name):
                step = memory.next_step(name, node, local_rank)
                place_ = {"node": node, "rank": self._rank_of(node, local_rank), "local_rank": local_rank}
                told = {"time": time.time(), "name": name, "value": as_json(value), "step": step}
                records.append({**told, **place_, "log": log, "offset": offset})
        return records

    def _complain(self, message: dict[str, Any]) -> None:
        if "slow" in message:
            self._say(f"warning: metric {message['slow']}: its regular expression takes too long on a line, which is passed over")
        if "given up" in message:
            self._say(f"warning: metric {message['given up']}: its regular expression takes too long, and is looked for no more")

    def _say(self, sentence: str) -> None:
        """Each sentence once; of odd values one for each metric."""
        about = sentence.partition("'")[0]
        if about not in self._told:
            self._told.add(about)
            self._note(sentence)


class _Memory:
    """What the file says of where the last collector got to."""

    def __init__(self, path: Path) -> None:
        self.offsets: dict[str, int] = {}
        """for each log the beginning of the last line that a record came from"""
        self._names: dict[str, set[str]] = {}
        """for each log the metrics of that line"""
        self._steps: Counter[tuple[str, int, int | None]] = Counter()
        for record in read(path):
            log, offset = record["log"], record["offset"]
            if self.offsets.get(log) != offset:
                self.offsets[log], self._names[log] = offset, set()
            self._names[log].add(record["name"])
            self._steps[record["name"], record["node"], record["local_rank"]] += 1

    def has(self, log: str, offset: int, name: str) -> bool:
        """Whether this very record was written already."""
        return self.offsets.get(log) == offset and name in self._names[log]

    def next_step(self, name: str, node: int, local_rank: int | None) -> int:
        """How many came before it."""
        self._steps[name, node, local_rank] += 1
        return self._steps[name, node, local_rank] - 1


def _say_end(scan: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):
        assert scan.stdin is not None
        scan.stdin.write(b"end\n")
        scan.stdin.flush()

"""Byte-exact copies of one node's log files, grown from any offset on; the copies' sizes are the only memory needed."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

_NAME = re.compile(r"(events\.jsonl|std(out|err)\.log|ranks/attempt_\d+/(run_\d+_)?restart_\d+/\d+/std(out|err)\.log)\Z")


_AT_ONCE = 64
"""files that are kept open; a torchrun that restarts again and again makes any number of them"""
_LONGEST, _MOST = 1 << 20, 64 << 20
"""bytes of an event, and of all of a node's; no agent has ever so much to tell"""
_LOGS = 100_000
"""of one node: as many as a torchrun of 64 processes has that restarts them 780 times"""
_NUMBER, _WORD = (int, type(None)), (str, type(None))
_PROMISED: dict[str, dict[str, Any]] = {
    "started": {"pid": _NUMBER},
    "workers": {"workers": list},
    "exited": {"exit_code": _NUMBER, "signal": _WORD},
    "outcome": {"kind": _WORD, "exit_code": _NUMBER, "signal": _WORD},
    "killing": {"pids": list},
    "warned": {"signal": str, "told": list, "untold": list},
}
"""{type of an agent's event: {key: its type}}, as far as somebody here relies on it"""
_OF_WORKERS: dict[str, Any] = dict.fromkeys(("local_rank", "rank", "restart_count"), _NUMBER)


class Replica:
    """One node's logs below ``folder``.  Written by the reader thread of that node's link alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._line = b""
        for name in ("stdout.log", "stderr.log"):
            self._descriptor(name)

    def offsets(self) -> dict[str, int]:
        """{name: bytes that are here}."""
        found = [path for path in self.folder.rglob("*") if path.is_file()]
        sizes = {str(path.relative_to(self.folder)): path.stat().st_size for path in found}
        return {name: size for name, size in sizes.items() if _NAME.match(name)}

    def write(self, name: str, offset: int, chunk: bytes) -> list[dict[str, Any]]:
        """Put ``chunk`` at ``offset`` of a file; bytes that are here already are passed over.

        Returns the agent's events that this completes.  Raises ValueError for a name or an offset that cannot be right:
        what a node sends is not trusted to stay in its folder.
        """
        if not _NAME.match(name):
            raise ValueError(f"a log called {name!r}")
        if len(self._sizes) >= _LOGS and name not in self._sizes:
            raise ValueError("logs without end")
        fd = self._descriptor(name)
        have = self._sizes[name]
        if offset > have:
            raise ValueError(f"{name} goes on at byte {offset}, but ends at {have}")
        if name == "events.jsonl" and offset + len(chunk) > _MOST:
            raise ValueError("events without end")
        fresh = chunk[have - offset :]
        view = memoryview(fresh)
        try:
            while view:
                view = view[os.write(fd, view) :]
        finally:
            # On a full disk a part may have been written; the rest comes again, from there on.
            self._sizes[name] = have + len(fresh) - len(view)
        return self._events(fresh) if name == "events.jsonl" else []

    def _descriptor(self, name: str) -> int:
        """Of an open file; the one that nobody wrote to for the longest time makes way."""
        fd = self._files.pop(name, None)
        self._files[name] = self._open(name) if fd is None else fd
        if len(self._files) > _AT_ONCE:
            os.close(self._files.pop(next(iter(self._files))))
        return self._files[name]

    def _open(self, name: str) -> int:
        path = self.folder / name
        if not self.folder.exists():
            # With it would come back a job folder that somebody removed.
            raise FileNotFoundError(errno.ENOENT, "the folder was removed", str(self.folder))
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._sizes[name] = os.fstat(fd).st_size
        if name == "events.jsonl":
            _, _, self._line = path.read_bytes().rpartition(b"\n")
        return fd

    def events(self) -> list[dict[str, Any]]:
        """All events of this node's agent that are here."""
        try:
            return _parse((self.folder / "events.jsonl").read_bytes().split(b"\n"))
        except FileNotFoundError:
            return []

    def _events(self, fresh: bytes) -> list[dict[str, Any]]:
        *lines, rest = (self._line + fresh).split(b"\n")
        # The beginning of what is no event makes no event of its end.
        self._line = rest if len(rest) <= _LONGEST else b""
        return _parse(lines)

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()


def _parse(lines: list[bytes]) -> list[dict[str, Any]]:
    """The events in these lines; one that is not what its type promises is passed over, whoever wrote it there."""
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("type"), str) and _is_sound(event):
            events.append(event)
    return events


def _is_sound(event: dict[str, Any]) -> bool:
    promised = {"attempt": _NUMBER, **_PROMISED.get(event["type"], {})}
    if not _has(event, promised):
        return False
    workers = {"workers": ["workers"], "warned": ["told", "untold"]}.get(event["type"], [])
    listed = [one for key in workers for one in event[key]]
    return all(isinstance(one, dict) and _has(one, _OF_WORKERS) for one in [event, *listed])


def _has(value: dict[str, Any], promised: dict[str, Any]) -> bool:
    return all(isinstance(value.get(key), kind) for key, kind in promised.items())

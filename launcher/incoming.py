"""Output files on their way from a node: their bytes gather in parts, which a later try goes on with.

Not more bytes are taken than were announced, and no file keeps another content than its node computed the hash of.
Blocks of zeros do not travel: they stay holes here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, Any, Protocol

from launcher.errors import CollectFailed, LauncherError
from launcher.manifest import hash_of
from launcher.model import Host
from launcher.record import dataclass

_AT_ONCE = 1000
"""files asked for by one request; a stream's number has 15 bits"""

Wanted = Sequence[tuple[str, dict[str, Any]]]
"""(path below output/, entry of the node's listing) of each file"""


class Sender(Protocol):
    """What is needed of the link to an agent."""

    @property
    def host(self) -> Host: ...

    @property
    def rank(self) -> int: ...

    def ask(self, op: str, *, on_data: Callable[[int, int, bytes], None], **arguments: Any) -> dict[str, Any]:
        """Send a request, pass the data that comes on, and return the reply; raises NodeUnusable, LinkLost."""


@dataclass
class Arrivals:
    """What came of one node's files."""

    hashes: dict[str, str] = field(default_factory=dict)
    """{path: sha256} of those that are here"""
    unreadable: dict[str, str] = field(default_factory=dict)
    """{path: why} of those that the node could not read after all"""


def part_of(parts: Path, rank: int, entry: Mapping[str, Any]) -> Path:
    """Where a file's bytes gather: another name as soon as anything about the file changed since the last try."""
    identity = json.dumps([rank, entry["path"], entry["size"], entry.get("mtime")])
    return parts / hashlib.sha256(identity.encode()).hexdigest()


def arrived(part: Path, size: int) -> int:
    """Bytes of a file that are here."""
    return min(part.stat().st_size, size) if part.is_file() else 0


def fetch(peer: Sender, wanted: Wanted, parts: Path) -> Arrivals:
    """Bring these files of one node into ``parts``; raises CollectFailed when one did not arrive as it is there."""
    arrivals = Arrivals()
    for start in range(0, len(wanted), _AT_ONCE):
        _fetch_some(peer, wanted[start : start + _AT_ONCE], parts, arrivals)
    return arrivals


def _fetch_some(peer: Sender, wanted: Wanted, parts: Path, arrivals: Arrivals) -> None:
    files = []
    for _, entry in wanted:
        part = part_of(parts, peer.rank, entry)
        part.touch(mode=0o600)
        files.append((part, arrived(part, entry["size"]), entry["size"]))
    incoming = _Incoming(peer, files)
    try:
        request = [[path, offset, size] for (path, _), (_, offset, size) in zip(wanted, files, strict=True)]
        reply = peer.ask("outputs_fetch", on_data=incoming.take, files=request)
    finally:
        incoming.close()
    if incoming.fault is not None:
        raise incoming.fault
    claimed = dict(zip((path for path, _ in wanted), reply["hashes"], strict=False))
    unreadable = reply.get("unreadable")
    for (path, _), (part, _, size) in zip(wanted, files, strict=True):
        if isinstance(unreadable, dict) and path in unreadable:
            part.unlink()
            arrivals.unreadable[path] = str(unreadable[path])
        else:
            arrivals.hashes[path] = _checked(peer, path, part, size, claimed.get(path))


class _Incoming:
    """Takes one node's data frames and writes each file's bytes, as long as they are what was asked for.

    The link's reader thread calls it: what is wrong is kept for whoever waits for the reply.
    """

    def __init__(self, peer: Sender, files: Sequence[tuple[Path, int, int]]) -> None:
        self._peer = peer
        self._parts = [part for part, _, _ in files]
        self._next = [offset for _, offset, _ in files]
        self._sizes = [size for _, _, size in files]
        self._open: tuple[int, IO[bytes]] | None = None
        self.fault: LauncherError | None = None

    def take(self, stream: int, offset: int, chunk: bytes) -> None:
        if self.fault is not None:
            return
        try:
            if not 0 <= stream < len(self._parts) or not self._next[stream] <= offset <= self._sizes[stream] - len(chunk):
                self.fault = CollectFailed("the node sent bytes that were not asked for", where=self._peer.host.name)
                return
            file = self._file(stream)
            if offset != self._next[stream]:
                file.seek(offset)
            file.write(chunk)
            self._next[stream] = offset + len(chunk)
        except OSError as error:
            self._failed(error)

    def _file(self, stream: int) -> IO[bytes]:
        if self._open is None or self._open[0] != stream:
            self.close()
            file = self._parts[stream].open("r+b")
            file.seek(self._next[stream])
            self._open = (stream, file)
        return self._open[1]

    def close(self) -> None:
        """Write out what is buffered; a fault in that is kept too."""
        if self._open is None:
            return
        try:
            self._open[1].close()
        except OSError as error:
            self._failed(error)
        self._open = None

    def _failed(self, error: OSError) -> None:
        self.fault = _cannot_write(error, self._parts[0].parent)


def _cannot_write(error: OSError, where: Path) -> CollectFailed:
    return CollectFailed(f"{error.strerror}: {where}", where="this machine", next_step="make room, then `launcher resume`")


def _checked(peer: Sender, path: str, part: Path, size: int, claimed: object) -> str:
    """The hash of what arrived; CollectFailed, and the next try begins anew, unless the node claims the same."""
    try:
        if part.stat().st_size < size:
            # Zeros at the end did not travel; if it was anything else that is lacking, the hash tells.
            os.truncate(part, size)
        sha256 = hash_of(part)
    except OSError as error:
        raise _cannot_write(error, part.parent) from error
    if sha256 != claimed:
        part.unlink()
        raise CollectFailed(
            f"{path} did not arrive as it is on the node",
            where=peer.host.name,
            next_step="`launcher resume` fetches it again, once nothing writes into the output there any more",
        )
    return sha256

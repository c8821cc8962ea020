"""Bring a snapshot to one node: make its mirror hold exactly the snapshot, then make the job's working copy of it.

The node says what its mirror holds, by a manifest that lies beside it and that it checks against the files; we send the
new manifest, it answers with the files it lacks, and only those travel.  Where nothing changed, that is two requests.

The missing files go in one of two ways.  As *pack*: their bytes one after the other through the channel that is open
already; both sides hold the manifest, so no tar headers are needed.  It is made and compressed once for all nodes that
lack the same files.  As *rsync*: where larger files are on the node in an older version, so that their difference is
worth computing; its server runs behind a second channel of the same connection.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

from launcher.agent.wire import CHUNK
from launcher.errors import LauncherError, LinkLost, NodeUnusable
from launcher.model import Host
from launcher.record import dataclass
from launcher.rsync import DeltaImpossible, push
from launcher.transports import Channel

DELTA_FLOOR = 4 << 20
"""bytes of old versions on the node from which on rsync's delta is worth a second channel and two processes"""
WORTH_PACKING = 0.8
"""a pack is compressed when its beginning shrinks at least to this part"""

Progress = Callable[[int, int], None]
"""called with (bytes sent, bytes to send) of one node"""


class Peer(Protocol):
    """What sync and collect need of the link to an agent."""

    @property
    def host(self) -> Host: ...

    @property
    def rank(self) -> int: ...

    def ask(self, op: str, timeout: float | None = None, on_data: Callable[[int, int, bytes], None] | None = None,
            feed: Iterable[bytes] | None = None, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its reply; raises NodeUnusable for an error reply, LinkLost for a broken link."""

    def open(self, words: Sequence[str]) -> Channel:
        """Start a program through the same connection; its output is clean from the first byte."""


@dataclass(frozen=True)
class SyncReport:
    """What one node's sync did."""

    host: str
    code: str
    """the working copy's path on the node"""
    way: str
    """none (the mirror was right), pack or rsync"""
    files: int
    """files that travelled"""
    bytes: int
    """their size"""
    mirror_seconds: float
    copy_seconds: float
    notes: tuple[str, ...] = ()


def packed_manifest(digest: str, files: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A manifest as `mirror_diff` takes it."""
    return zlib.compress(json.dumps({"digest": digest, "files": files}, separators=(",", ":")).encode(), 1)


def deflater(first: bytes) -> Any:
    """What compresses a stream that begins so (a zlib.compressobj); None where that does not pay."""
    shrunk = len(zlib.compress(first, 1)) if first else 0
    return zlib.compressobj(1) if shrunk < WORTH_PACKING * len(first) else None


class Shipment:
    """One snapshot on its way to many nodes: what can be made once is made once.  Shared by the nodes' threads."""

    def __init__(self, code: Path, manifest: Mapping[str, Any]) -> None:
        self.code = code
        self.digest: str = manifest["digest"]
        self.files: Mapping[str, Mapping[str, Any]] = manifest["files"]
        self._packed_manifest: bytes | None = None
        self._packs: dict[tuple[str, ...], Pack] = {}
        self._lock = threading.Lock()

    def manifest(self) -> bytes:
        """The manifest as the nodes take it."""
        with self._lock:
            if self._packed_manifest is None:
                self._packed_manifest = packed_manifest(self.digest, self.files)
            return self._packed_manifest

    def pack(self, paths: Sequence[str]) -> Pack:
        """The pack of these files, begun by the first node that asks."""
        with self._lock:
            key = tuple(paths)
            if key not in self._packs:
                self._packs[key] = Pack(self.code, self.files, key)
            return self._packs[key]

    def close(self) -> None:
        """Give the packs' temporary files back."""
        for pack in self._packs.values():
            pack.close()


class Pack:
    """Files' bytes one after the other, compressed when that pays, written while the first node already reads."""

    def __init__(self, code: Path, files: Mapping[str, Mapping[str, Any]], paths: Sequence[str]) -> None:
        self._code = code
        self._lock = threading.Lock()
        self._length = 0
        self._ended = False
        self._fault: LauncherError | None = None
        self._blocks = blocks(code, files, paths)
        with self._on_this_machine():
            # Beside the snapshot, for which there was room: /tmp may be a small one in memory.
            self._file = TemporaryFile(prefix="launcher-pack-", dir=code.parent)  # noqa: SIM115 - closed by close()
            self._first = next(self._blocks, b"")
        self._deflate = deflater(self._first)

    @property
    def coding(self) -> str:
        """What the node has to do with the bytes: zlib or raw."""
        return "zlib" if self._deflate else "raw"

    def chunks(self) -> Iterator[bytes]:
        """The pack from its beginning; every node's thread may read at its own pace."""
        offset = 0
        while True:
            with self._lock:
                while offset == self._length and not self._ended:
                    self._grow()
            chunk = os.pread(self._file.fileno(), CHUNK, offset)
            if not chunk:
                return
            offset += len(chunk)
            yield chunk

    def _grow(self) -> None:
        with self._on_this_machine():
            block, self._first = self._first or next(self._blocks, b""), b""
            self._ended = not block
            if self._deflate:
                block = self._deflate.compress(block) if block else self._deflate.flush()
            view = memoryview(block)
            while view:
                written = os.pwrite(self._file.fileno(), view, self._length)
                self._length += written
                view = view[written:]

    @contextmanager
    def _on_this_machine(self) -> Iterator[None]:
        """What goes wrong here is said once for all nodes, whichever of them was about to be served."""
        if self._fault is not None:
            raise self._fault
        try:
            yield
        except OSError as error:
            step = "make room here, leave the job folder alone while a job starts, and submit again"
            what = f"{error.strerror}: {error.filename or self._code.parent}"
            self._fault = LauncherError(what, where="this machine", next_step=step)
            raise self._fault from error
        except LauncherError as error:
            self._fault = error
            raise

    def close(self) -> None:
        self._file.close()


def blocks(code: Path, files: Mapping[str, Mapping[str, Any]], paths: Sequence[str]) -> Iterator[bytes]:
    """The files' bytes in blocks of CHUNK or a little more, small files gathered."""
    gathered, length = [], 0
    for path in paths:
        left = files[path]["size"]
        with open(os.path.join(code, path), "rb", buffering=0) as file:
            while left:
                block = file.read(min(left, CHUNK))
                if not block:
                    raise LauncherError(f"{path} of the snapshot is shorter than when it was taken", where=str(code),
                                        next_step="leave the job folder alone while a job starts, and submit again")
                left -= len(block)
                length += len(block)
                gathered.append(block)
                if length >= CHUNK:
                    yield b"".join(gathered)
                    gathered, length = [], 0
    if gathered:
        yield b"".join(gathered)


def sync(peer: Peer, shipment: Shipment, project: str, progress: Progress) -> SyncReport:
    """Make the peer's mirror right and the job's working copy of it.

    Call it in one thread per node, once per file system.  Raises NodeUnusable (no room, a refused file), LinkLost, and
    LauncherError when the snapshot itself was changed; the mirror then has no manifest, and the next sync mends it.
    """
    began = time.monotonic()
    with _released_on_error(peer):
        way, sent, size, notes = _mirror(peer, shipment, project, progress)
        mirrored = time.monotonic()
        made = peer.ask("working_copy")
    copied = time.monotonic()
    return SyncReport(peer.host.name, made["code"], way, sent, size, mirrored - began, copied - mirrored, notes)


@contextmanager
def _released_on_error(peer: Peer) -> Iterator[None]:
    """Another job must not wait for a mirror that this one gave up."""
    try:
        yield
    except LinkLost:
        raise
    except LauncherError:
        peer.ask("mirror_release")
        raise


def _mirror(peer: Peer, shipment: Shipment, project: str, progress: Progress) -> tuple[str, int, int, tuple[str, ...]]:
    """(way, files, bytes, notes) of making the mirror right."""
    begun = peer.ask("mirror_begin", project=project, digest=shipment.digest)
    if begun["same"]:
        progress(0, 0)
        return "none", 0, 0, ()
    wanted = peer.ask("mirror_diff", feed=[shipment.manifest()])
    need, size = asked_files(peer, wanted, shipment.files, "the source folder"), _count(wanted, "bytes")
    if not need:
        progress(0, 0)
        return "none", 0, 0, ()
    notes: list[str] = []
    if _count(wanted, "old") >= DELTA_FLOOR:
        try:
            push(peer.open, peer.host.name, shipment.code, need, begun["rsync"], begun["tree"],
                 lambda sent: progress(min(sent, size), size))
            peer.ask("mirror_commit")
            return "rsync", len(need), size, ()
        except DeltaImpossible as reason:
            notes.append(f"{peer.host.name}: {reason}; the changed files are sent whole")
        need = asked_files(peer, peer.ask("mirror_diff", feed=[shipment.manifest()]), shipment.files, "the source folder")
    if not shutil.which("rsync"):
        notes = ["no rsync on this machine: changed files are sent whole"]
    elif not begun["rsync"]:
        notes = [f"{peer.host.name}: no rsync there; changed files are sent whole"]
    _fill(peer, shipment.pack(need), size, progress)
    return "pack", len(need), size, tuple(dict.fromkeys(notes))


def asked_files(peer: Peer, wanted: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]], whole: str) -> list[str]:
    """What the node says that it lacks of ``files``; NodeUnusable where it asks for anything but a file of ``whole``.

    A name below a link would lead out of the folder, to what nobody gave away; one that comes twice is sent once.
    """
    need = wanted["need"]
    named = isinstance(need, list) and all(isinstance(path, str) for path in need)
    strange = next((path for path in need if "size" not in files.get(path, ())), None) if named else "nothing that has a name"
    if strange is not None:
        raise NodeUnusable(f"it wants a file that is not of {whole}: {strange!r}", where=peer.host.name)
    return list(dict.fromkeys(need))


def _count(wanted: Mapping[str, Any], key: str) -> int:
    """Bytes that a node tells of; none where it tells no number."""
    count = wanted[key]
    return count if isinstance(count, int) else 0


def _fill(peer: Peer, pack: Pack, size: int, progress: Progress) -> None:
    faults: list[LauncherError] = []

    def chunks() -> Iterator[bytes]:
        # The node must see an end of the stream whatever happens here, or it would wait for the rest.
        sent = 0
        try:
            for chunk in pack.chunks():
                yield chunk
                sent += len(chunk)
                progress(min(sent, size), size)
        except LauncherError as error:
            faults.append(error)

    progress(0, size)
    try:
        peer.ask("mirror_fill", feed=chunks(), coding=pack.coding)
    except NodeUnusable as error:
        raise (faults or [error])[0] from error
    progress(size, size)

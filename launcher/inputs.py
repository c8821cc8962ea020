"""Bring a channel of data to one node: nothing where its store has that content, else what is lacking, checked by hashes.

A folder or file of this machine goes as the code does: the node gets the list of hashes, says which files it lacks, and is
sent those.  What a URI names is fetched by the node's own Python where that can, else by us, and sent.  The content's place
in the store is the digest of names and hashes; of a URI, that of names, sizes and what tells that a file there changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher import uri as uris
from launcher.agent.wire import CHUNK
from launcher.code import size_text
from launcher.errors import LauncherError, NodeUnusable, StorageFailed
from launcher.keep import home, keep, recall
from launcher.listing import Listing, look
from launcher.manifest import hash_of
from launcher.objects import Depot
from launcher.record import dataclass
from launcher.sync import Peer, asked_files, blocks, deflater, packed_manifest

Progress = Callable[[int, int], None]
"""called with (bytes sent, bytes to send) of one node"""
_SHOWN = 5
_LONGEST_NAME = 255
"""bytes that a name has at most (NAME_MAX of limits.h)"""


@dataclass(frozen=True)
class Cargo:
    """One content on its way."""

    source: str
    """path or URI"""
    root: str
    """the folder of this machine that the files are below; of a URI the one where they would be fetched to"""
    sizes: Mapping[str, int]
    digest: str
    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """what the node's manifest says of each file; of a URI empty until we have fetched it"""
    recorded: Mapping[str, Any] | None = None
    """the listing made at submit, of data on this machine"""
    single: str | None = None

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    def told(self) -> str:
        """For people: `12 files, 3.4 GB`."""
        return f"{len(self.sizes)} file{'s' * (len(self.sizes) != 1)}, {size_text(self.size)}"


def local_cargo(channel: str, source: str, recorded: Mapping[str, Any]) -> Cargo:
    """Data on this machine, hashed.  LauncherError names what was changed since the job was submitted."""
    found = look(source)
    _refuse_changes(channel, found, recorded)
    hashes = _hashes(found)
    entries: dict[str, dict[str, Any]] = {
        path: {"size": size, "mode": 0o400, "sha256": hashes[path], "mtime": mtime} for path, (size, mtime) in found.files.items()
    }
    entries.update({path: {"dir": True} for path in found.folders})
    sizes = {path: size for path, (size, _) in found.files.items()}
    return Cargo(source, found.root, sizes, _digest(entries), dict(sorted(entries.items())), recorded, found.single)


def _refuse_changes(channel: str, found: Listing, recorded: Mapping[str, Any]) -> None:
    changes = found.changes(recorded)
    if changes:
        more = [f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
        what = f"input {channel}: {found.root} was changed since the job was submitted"
        step = "submit again, and leave the data alone until the job runs"
        raise LauncherError(what, where="this machine", lines=[*changes[:_SHOWN], *more], next_step=step)


def _hashes(found: Listing) -> dict[str, str]:
    """{path: sha256}; of files that did not change since they were hashed the last time they are not read again."""
    question = ["hashes", found.root, found.single or ""]
    known = recall(question) or {}
    told: dict[str, list[Any]] = {}
    for path in found.files:
        full = os.path.join(found.root, path)
        status = os.stat(full)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        before = known.get(path)
        told[path] = before if before and before[:4] == stamp else [*stamp, hash_of(Path(full))]
    if told != known:
        newest = max(((path, entry[2]) for path, entry in told.items()), key=lambda one: one[1], default=("", 0))[0]
        keep(question, told, [os.path.join(found.root, newest)] if newest else [])
    return {path: str(entry[4]) for path, entry in told.items()}


def _digest(entries: Mapping[str, Mapping[str, Any]]) -> str:
    text = json.dumps([[path, entry.get("sha256")] for path, entry in sorted(entries.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def remote_cargo(uri: str, may_be_empty: bool = False, follow: bool = False) -> Cargo:
    """What a URI names now; with ``follow``, of a folder here, what its links lead to as well.

    Raises StorageFailed where it cannot be looked at, or there is nothing.
    """
    listed = Depot(uri).followed() if follow else Depot(uri).listing()
    single = uris.name_of(uri) if list(listed) == [""] else None
    found = {single or path: entry for path, entry in listed.items()}
    if not found and not may_be_empty:
        raise StorageFailed("there is nothing there", where=uri, next_step="check the URI and the credentials of this terminal")
    for path in found:
        parts = path.split("/")
        what = None
        if any(part in ("", ".", "..") or "\0" in part or len(part.encode(errors="replace")) > _LONGEST_NAME for part in parts):
            what = f"a name that no file can have: {path!r}"
        elif any("/".join(parts[:depth]) in found for depth in range(1, len(parts))):
            what = f"{path!r} lies below a file"
        if what:
            raise StorageFailed(what, where=uri, next_step="name a folder without such")
    text = json.dumps([uri, [[path, entry.size, entry.mark] for path, entry in sorted(found.items())]])
    digest = hashlib.sha256(text.encode()).hexdigest()
    sizes = {path: entry.size for path, entry in sorted(found.items())}
    return Cargo(uri, str(home() / "cache" / "inputs" / digest), sizes, digest, single=single)


def share(cargo: Cargo, rank: int, nodes: int) -> Cargo:
    """A node's part: of the files sorted by name every ``nodes``-th, from the ``rank``-th on; LauncherError for none."""
    paths = sorted(cargo.sizes, key=os.fsencode)[rank::nodes]
    if not paths or cargo.single:
        what = f"{cargo.told()} cannot be shared among {nodes} nodes: each needs one at least"
        raise LauncherError(what, where=cargo.source, next_step="leave `shard` out, or take fewer nodes")
    sizes = {path: cargo.sizes[path] for path in paths}
    entries = {path: cargo.entries[path] for path in paths if path in cargo.entries}
    text = json.dumps([cargo.digest, paths])
    digest = _digest(entries) if entries else hashlib.sha256(text.encode()).hexdigest()
    return Cargo(cargo.source, cargo.root, sizes, digest, entries, cargo.recorded)


class Carrier:
    """Brings one channel to the nodes; shared by their threads."""

    def __init__(self, channel: str, note: Callable[[str], None]) -> None:
        self._channel, self._note = channel, note
        self._lock = threading.Lock()
        self._fetched: dict[str, Cargo] = {}
        self._notes: set[str] = set()

    def bring(self, peer: Peer, cargo: Cargo, python: str | None, rank: int | None, progress: Progress) -> str:
        """Make it so that the node has it; the path that its command finds it at.

        ``rank``: whose share it is.
        Raises NodeUnusable (no room, refused), LinkLost, StorageFailed, LauncherError for data that changed meanwhile.
        """
        begun = peer.ask("inputs_begin", digest=cargo.digest)
        try:
            if begun.get("same") is not True:
                self._say(peer, cargo, begun.get("free"))
                if not (uris.is_uri(cargo.source) and self._fetched_there(peer, cargo, python)):
                    self._send(peer, self._here(cargo), progress)
            progress(cargo.size, cargo.size)
            told = peer.ask("inputs_place", channel=self._channel, single=cargo.single, share=rank).get("path")
            if not isinstance(told, str):
                raise NodeUnusable("it does not say where the input is", where=peer.host.name)
            return told
        except NodeUnusable:
            peer.ask("mirror_release")
            raise

    def restore(self, peer: Peer, cargo: Cargo) -> Mapping[str, Mapping[str, Any]]:
        """Put the content into a job's checkpoints, where the command may change it; the entries with their hashes."""
        begun = peer.ask("inputs_begin", digest=cargo.digest)
        try:
            here = self._here(cargo)
            if begun.get("same") is not True:
                self._send(peer, here, lambda done, total: None)
            peer.ask("inputs_restore")
        except NodeUnusable:
            peer.ask("mirror_release")
            raise
        return here.entries

    def _say(self, peer: Peer, cargo: Cargo, free: object) -> None:
        room = f" ({size_text(free)} are free there)" if isinstance(free, int) else ""
        self._once(f"input {self._channel}: {cargo.told()} for {peer.host.name}{room}")

    def _once(self, text: str) -> None:
        with self._lock:
            if text not in self._notes:
                self._notes.add(text)
                self._note(text)

    def _fetched_there(self, peer: Peer, cargo: Cargo, python: str | None) -> bool:
        """Whether the node's own Python has got it from the URI."""
        if python is None:
            return False
        order: dict[str, Any] = {"uri": cargo.source, "single": cargo.single is not None, "files": dict(cargo.sizes)}
        told = peer.ask("inputs_fetch", python=python, digest=cargo.digest, **order)
        if told.get("fetched") is not True:
            why = uris.hidden(str(told.get("why", ""))[:1000])[:300]
            self._once(f"input {self._channel}: {peer.host.name} cannot fetch it itself ({why}); it is fetched here and sent")
        return told.get("fetched") is True

    def _here(self, cargo: Cargo) -> Cargo:
        """The content with its hashes: of a URI fetched to this machine, once for all nodes."""
        if cargo.entries:
            return cargo
        with self._lock:
            if cargo.digest not in self._fetched:
                self._fetched[cargo.digest] = _fetched(cargo)
            return self._fetched[cargo.digest]

    def close(self) -> None:
        """What was fetched to this machine was on its way only."""
        for cargo in self._fetched.values():
            shutil.rmtree(cargo.root, ignore_errors=True)

    def _send(self, peer: Peer, cargo: Cargo, progress: Progress) -> None:
        wanted = peer.ask("mirror_diff", feed=[packed_manifest(cargo.digest, cargo.entries)])
        need = asked_files(peer, wanted, cargo.entries, "this input")
        if not need:
            return
        faults: list[LauncherError] = []
        stream = _Stream(cargo, need, faults, progress)
        try:
            peer.ask("mirror_fill", feed=stream.chunks(), coding=stream.coding)
        except NodeUnusable as error:
            # Other bytes than were hashed: the node noticed, and we can tell which file it was.
            if cargo.recorded is not None:
                _refuse_changes(self._channel, look(cargo.source), cargo.recorded)
            raise (faults or [error])[0] from error


def _fetched(cargo: Cargo) -> Cargo:
    """Fetch what a URI names into ``root``, where an earlier try may have left a part of it; hashed."""
    root = Path(cargo.root)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _fetched_to(root, cargo)
    except OSError as error:
        step = "mend it, and submit again; or install fsspec and the package on the nodes"
        raise LauncherError(f"{error.strerror}: {error.filename or root}", where="this machine", next_step=step) from error


def _fetched_to(root: Path, cargo: Cargo) -> Cargo:
    free = shutil.disk_usage(root).free
    if cargo.size > free:
        what = f"{cargo.told()} do not fit: {size_text(free)} are free"
        raise LauncherError(what, where=str(root), next_step="make room there, or install fsspec and the package on the nodes")
    depot = Depot(cargo.source)
    entries = {}
    for path, size in cargo.sizes.items():
        target = root / path
        if not target.is_file() or target.stat().st_size != size:
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            with part.open("wb") as file:
                for block in depot.read("" if cargo.single else path):
                    file.write(block)
            if part.stat().st_size != size:
                raise LauncherError(f"{path} was changed while it was fetched", where=cargo.source, next_step="submit again")
            os.replace(part, target)
        entries[path] = {"size": size, "mode": 0o400, "sha256": hash_of(target), "mtime": target.stat().st_mtime_ns}
    return Cargo(cargo.source, cargo.root, cargo.sizes, cargo.digest, entries, None, cargo.single)


class _Stream:
    """Files' bytes one after the other for one node, compressed when that pays.  No copy is made: data may be large."""

    def __init__(self, cargo: Cargo, need: list[str], faults: list[LauncherError], progress: Progress) -> None:
        self._blocks = blocks(Path(cargo.root), cargo.entries, need)
        self._faults, self._progress = faults, progress
        self._total = sum(cargo.sizes[path] for path in need)
        self._first = self._next()
        self._deflate = deflater(self._first)

    @property
    def coding(self) -> str:
        """What the node has to do with the bytes: zlib or raw."""
        return "zlib" if self._deflate else "raw"

    def _next(self) -> bytes:
        """The next block; nothing at the end, and where a file cannot be read: the node must see an end of the stream."""
        try:
            return next(self._blocks, b"")
        except LauncherError as error:
            self._faults.append(error)
        except OSError as error:
            step = "submit again, and leave the data alone until the job runs"
            self._faults.append(LauncherError(f"{error.strerror}: {error.filename}", where="this machine", next_step=step))
        return b""

    def chunks(self) -> Iterator[bytes]:
        """The stream in pieces of a frame's size."""
        done, block = 0, self._first
        while block:
            done += len(block)
            yield from _cut(self._deflate.compress(block) if self._deflate else block)
            self._progress(done, self._total)
            block = self._next()
        if self._deflate:
            yield from _cut(self._deflate.flush())


def _cut(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]

"""Collect what the nodes left in their output channels, and write down what came from where.

    <job folder>/output/<channel>/…      the files, each with the hash that its node computed
    <job folder>/output/model.json       the manifest, written last: without it the collection is not complete
    <job folder>/output/.incoming/       while collecting: what has arrived; the next try goes on from there

Nothing that a node says is believed where it could do harm: names are checked here, links are made only when they stay
inside their channel, no file is written through a link, and no more bytes are taken than the listing announced.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from launcher.code import size_text
from launcher.errors import CollectFailed, LauncherError, NodeUnusable
from launcher.model import to_json
from launcher.sync import Peer

MANIFEST = "model.json"
INCOMING = ".incoming"
_BLOCK = 1 << 20
_AT_ONCE = 1000
"""files asked for by one request; a stream's number has 15 bits"""
_SPARE = 16 << 20
"""bytes that are left free here"""


@dataclass(frozen=True)
class OutputFile:
    """A file that was brought here."""

    path: str
    """below output/; its first component is the channel"""
    size: int
    sha256: str
    node: int
    host: str


@dataclass(frozen=True)
class OutputLink:
    """A link that was made here as it was on the node."""

    path: str
    target: str
    node: int
    host: str


@dataclass(frozen=True)
class Left:
    """Something that stayed on its node."""

    path: str
    """absolute, on the node"""
    size: int
    node: int
    host: str
    reason: str


@dataclass(frozen=True)
class Conflict:
    """One path that nodes filled differently: the lowest rank's was brought, the others stayed."""

    path: str
    node: int
    """the rank whose version is here"""
    others: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path}: node {self.node}'s was kept; other content on node {', '.join(map(str, self.others))}"


@dataclass(frozen=True)
class Manifest:
    """The content of model.json."""

    channels: tuple[str, ...]
    files: tuple[OutputFile, ...] = ()
    links: tuple[OutputLink, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    left: tuple[Left, ...] = ()
    schema_version: int = 1


@dataclass
class _Choice:
    """What to bring, settled from the listings before anything is fetched."""

    files: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """path: (rank, entry of its listing)"""
    links: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    dirs: set[str] = field(default_factory=set)
    doubles: dict[str, list[int]] = field(default_factory=dict)
    """paths that several nodes have: the ranks after the first"""
    left: list[Left] = field(default_factory=list)


def collect(
    peers: Mapping[int, Peer],
    same_file_system: Iterable[Sequence[int]],
    target: Path,
    channels: Sequence[str],
    notes: Callable[[str], None],
) -> Manifest:
    """Bring the channels of all nodes to ``target``, the job folder's output/, and write the manifest.

    Of each group of ``same_file_system`` the lowest rank is asked.  Raises LinkLost when a connection broke (call again
    with a new one: what has arrived is kept), NodeUnusable for what a node refuses, CollectFailed for too little room
    here or for files that did not arrive as they were.
    """
    asked = {min(group): peers[min(group)] for group in same_file_system}
    listings = dict(zip(asked, _each(asked, _listing), strict=True))
    choice = _choose(asked, listings, channels)
    conflicts = _conflicts(asked, listings, choice)
    incoming = target / INCOMING
    _check_room(target, choice, incoming, notes)
    parts = incoming / "parts"
    parts.mkdir(parents=True, exist_ok=True, mode=0o700)
    fetched = _each(asked, lambda peer: _fetch(peer, choice, parts))
    hashes = {path: sha256 for part in fetched for path, sha256 in part.items()}
    _place(target, choice, channels, parts)
    manifest = _manifest(asked, choice, channels, hashes, conflicts)
    _write(target / MANIFEST, manifest)
    shutil.rmtree(incoming)
    return manifest


def _listing(peer: Peer) -> dict[str, Any]:
    """What a node says that it has; NodeUnusable for entries that are none."""
    listing = peer.ask("outputs_list")
    entries = listing["entries"]
    if not isinstance(entries, list) or not all(isinstance(one, dict) and isinstance(one.get("path"), str) for one in entries):
        raise NodeUnusable("its list of outputs is none", where=peer.host.name)
    return listing


def verify(output: Path) -> list[str]:
    """What is wrong with a collected ``output`` folder, a sentence each; empty when it is whole."""
    try:
        manifest = json.loads((output / MANIFEST).read_text(encoding="ascii"))
        files, links = manifest["files"], manifest["links"]
    except FileNotFoundError:
        return [f"{output / MANIFEST} is not there: the outputs were not collected whole"]
    except (ValueError, KeyError, TypeError):
        return [f"{output / MANIFEST} is no manifest"]
    problems = [problem for entry in files if (problem := _wrong(output / entry["path"], entry))]
    return problems + [
        f"{output / link['path']} is no link to {link['target']}"
        for link in links
        if not os.path.islink(output / link["path"]) or os.readlink(output / link["path"]) != link["target"]
    ]


def _wrong(path: Path, entry: Mapping[str, Any]) -> str | None:
    if path.is_symlink() or not path.is_file():
        return f"{path} is missing"
    if (size := path.stat().st_size) != entry["size"]:
        return f"{path} has {size} bytes, {entry['size']} were collected"
    return None if _hash(path) == entry["sha256"] else f"{path} is not what was collected: its hash differs"


def _each(peers: Mapping[int, Peer], act: Callable[[Peer], Any]) -> list[Any]:
    """Do it for every node at once; all have ended before the first error is raised."""
    with ThreadPoolExecutor(max(len(peers), 1)) as pool:
        tasks = [pool.submit(act, peer) for peer in peers.values()]
    return [task.result() for task in tasks]


def _choose(asked: Mapping[int, Peer], listings: Mapping[int, Mapping[str, Any]], channels: Sequence[str]) -> _Choice:
    """The union of the listings; of two nodes with one path the lower rank's, and what is not brought in `left`."""
    choice = _Choice()
    taken: dict[str, str] = {}
    for rank in sorted(asked):
        for entry in listings[rank]["entries"]:
            path = entry["path"]
            reason = _refusal(entry, channels, taken)
            if reason and "dir" not in entry:
                choice.left.append(Left(_absolute(listings[rank], path), _size(entry), rank, asked[rank].host.name, reason))
            if reason:
                continue
            kind = "file" if "size" in entry else "link" if "link" in entry else "dir"
            if path in taken:
                if kind != "dir":
                    choice.doubles.setdefault(path, []).append(rank)
                continue
            _take(taken, path, kind)
            if kind == "dir":
                choice.dirs.add(path)
            else:
                (choice.files if kind == "file" else choice.links)[path] = (rank, entry)
    return choice


def _take(taken: dict[str, str], path: str, kind: str) -> None:
    taken[path] = kind
    parent = path.rpartition("/")[0]
    while parent and parent not in taken:
        taken[parent] = "dir"
        parent = parent.rpartition("/")[0]


def _refusal(entry: Mapping[str, Any], channels: Sequence[str], taken: Mapping[str, str]) -> str | None:
    """Why an entry stays on its node; None when it is brought (or a lower rank's is)."""
    path = entry["path"]
    parts = path.split("/") if isinstance(path, str) else [""]
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return "not a name that can be written here"
    if parts[0] not in channels:
        return "not collected"
    if "special" in entry:
        return "a socket, pipe or device"
    if "link" in entry and not _stays_inside(parts, entry["link"]):
        return f"a link that leads out of its channel, to {entry['link']}"
    if len(parts) == 1 and "dir" not in entry:
        return "a channel is a directory"
    if "size" in entry and not (isinstance(entry["size"], int) and entry["size"] >= 0):
        return "not a size"
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    if any(taken.get(parent, "dir") != "dir" for parent in above):
        return "a lower node has a file or link where this needs a directory"
    here = taken.get(path)
    if here is not None and (here == "dir") != ("dir" in entry):
        return f"a lower node has a {'directory' if here == 'dir' else 'file or link'} of this name"
    return None


def _stays_inside(parts: Sequence[str], target: object) -> bool:
    """Whether a relative link at ``parts`` ends inside its channel.

    It may climb only at its beginning, where directories are real ones; behind a name, which may be a link, it may not.
    """
    if not isinstance(target, str) or not target or target.startswith("/") or "\0" in target:
        return False
    steps = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((count for count, part in enumerate(steps) if part != ".."), len(steps))
    return climbs <= len(parts) - 2 and ".." not in steps[climbs:]


def _size(entry: Mapping[str, Any]) -> int:
    size = entry.get("size", 0)
    return size if isinstance(size, int) else 0


def _absolute(listing: Mapping[str, Any], path: object) -> str:
    return f"{listing['root']}/{path}"


def _conflicts(asked: Mapping[int, Peer], listings: Mapping[int, Mapping[str, Any]], choice: _Choice) -> list[Conflict]:
    """Compare what several nodes have, by hash where the sizes are equal; the losers are entered as left."""
    entries = {rank: {entry["path"]: entry for entry in listing["entries"]} for rank, listing in listings.items()}
    unsure: dict[int, set[str]] = {}
    for path, others in choice.doubles.items():
        for rank in others:
            first = choice.files.get(path)
            if first and entries[rank][path].get("size") == first[1]["size"]:
                unsure.setdefault(rank, set()).add(path)
                unsure.setdefault(first[0], set()).add(path)
    hashes = {rank: asked[rank].ask("outputs_hash", paths=sorted(paths))["hashes"] for rank, paths in unsure.items()}
    conflicts = []
    for path, others in choice.doubles.items():
        owner, chosen = choice.files.get(path) or choice.links[path]
        differing = []
        for rank in others:
            entry = entries[rank][path]
            if path in hashes.get(rank, {}):
                same = hashes[rank][path] == hashes[owner][path]
            else:
                same = "link" in entry and entry.get("link") == chosen.get("link")
            if not same:
                differing.append(rank)
                reason = f"node {owner} has another file of this name"
                choice.left.append(Left(_absolute(listings[rank], path), _size(entry), rank, asked[rank].host.name, reason))
        if differing:
            conflicts.append(Conflict(path, owner, tuple(differing)))
    return conflicts


def _part(parts: Path, rank: int, entry: Mapping[str, Any]) -> Path:
    """Where a file's bytes gather: another name as soon as anything about the file changed since the last try."""
    identity = json.dumps([rank, entry["path"], entry["size"], entry.get("mtime")])
    return parts / hashlib.sha256(identity.encode()).hexdigest()


def _check_room(target: Path, choice: _Choice, incoming: Path, notes: Callable[[str], None]) -> None:
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    total = sum(entry["size"] for _, entry in choice.files.values())
    here = sum(_arrived(_part(incoming / "parts", rank, entry), entry["size"]) for rank, entry in choice.files.values())
    free = shutil.disk_usage(target).free
    if choice.files:
        nodes = len({rank for rank, _ in choice.files.values()})
        already = f", {size_text(here)} of it here already" if here else ""
        what = f"{len(choice.files)} file(s), {size_text(total)}, from {nodes} node(s)"
        notes(f"collecting {what}{already} ({size_text(free)} are free here)")
    if total - here + _SPARE > free and total > here:
        raise CollectFailed(
            f"{size_text(total - here)} of outputs do not fit: {size_text(free)} are free",
            where=str(target),
            next_step="make room here, then `launcher resume` or copy them from the nodes",
        )


def _arrived(part: Path, size: int) -> int:
    return min(part.stat().st_size, size) if part.is_file() else 0


class _Incoming:
    """Takes one node's data frames and writes each file's bytes, as long as they are what was asked for.

    The link's reader thread calls it: what is wrong is kept for whoever waits for the reply.
    """

    def __init__(self, peer: Peer, files: Sequence[tuple[Path, int, int]]) -> None:
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
            if not 0 <= stream < len(self._parts) or offset != self._next[stream] or offset + len(chunk) > self._sizes[stream]:
                self.fault = CollectFailed("the node sent bytes that were not asked for", where=self._peer.host.name)
                return
            self._file(stream).write(chunk)
            self._next[stream] += len(chunk)
        except OSError as error:
            self._failed(error)

    def _file(self, stream: int) -> IO[bytes]:
        if self._open is None or self._open[0] != stream:
            self.close()
            self._open = (stream, self._parts[stream].open("ab"))
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
        where = self._parts[0].parent
        self.fault = CollectFailed(
            f"{error.strerror}: {where}", where="this machine", next_step="make room, then `launcher resume`"
        )


def _fetch(peer: Peer, choice: _Choice, parts: Path) -> dict[str, str]:
    """Bring one node's chosen files into ``parts``: {path: sha256}."""
    wanted = [(path, entry) for path, (rank, entry) in choice.files.items() if rank == peer.rank]
    hashes: dict[str, str] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        hashes.update(_fetch_some(peer, wanted[start : start + _AT_ONCE], parts))
    return hashes


def _fetch_some(peer: Peer, wanted: Sequence[tuple[str, dict[str, Any]]], parts: Path) -> dict[str, str]:
    files = []
    for _, entry in wanted:
        part = _part(parts, peer.rank, entry)
        part.touch(mode=0o600)
        files.append((part, _arrived(part, entry["size"]), entry["size"]))
    incoming = _Incoming(peer, files)
    try:
        request = [[path, offset, size] for (path, _), (_, offset, size) in zip(wanted, files, strict=True)]
        reply = peer.ask("outputs_fetch", on_data=incoming.take, files=request)
    finally:
        incoming.close()
    if incoming.fault is not None:
        raise incoming.fault
    claimed = dict(zip((path for path, _ in wanted), reply["hashes"], strict=False))
    return {path: _checked(peer, path, part, claimed.get(path)) for (path, _), (part, _, _) in zip(wanted, files, strict=True)}


def _checked(peer: Peer, path: str, part: Path, claimed: str | None) -> str:
    """The hash of what arrived; CollectFailed, and the next try begins anew, unless the node claims the same."""
    sha256 = _hash(part)
    if sha256 != claimed:
        part.unlink()
        raise CollectFailed(
            f"{path} did not arrive as it is on the node",
            where=peer.host.name,
            next_step="`launcher resume` fetches it again, once nothing writes into the output there any more",
        )
    return sha256


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _place(target: Path, choice: _Choice, channels: Sequence[str], parts: Path) -> None:
    """Build the channels beside, then rename each into place; links are made when no file is written any more."""
    tree = target / INCOMING / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for directory in [*channels, *choice.dirs]:
        (tree / directory).mkdir(parents=True, exist_ok=True)
    for path, (rank, entry) in choice.files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        part = _part(parts, rank, entry)
        executable = isinstance(entry.get("mode"), int) and entry["mode"] & 0o100
        part.chmod(0o700 if executable else 0o600)
        part.rename(tree / path)
    for path, (_, entry) in choice.links.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).symlink_to(entry["link"])
    for channel in channels:
        before = target / INCOMING / "before" / channel
        shutil.rmtree(before, ignore_errors=True)
        before.parent.mkdir(parents=True, exist_ok=True)
        if (target / channel).exists():
            (target / channel).rename(before)
        (tree / channel).rename(target / channel)


def _manifest(
    asked: Mapping[int, Peer], choice: _Choice, channels: Sequence[str], hashes: Mapping[str, str], conflicts: Sequence[Conflict]
) -> Manifest:
    files = tuple(
        OutputFile(path, entry["size"], hashes[path], rank, asked[rank].host.name)
        for path, (rank, entry) in sorted(choice.files.items())
    )
    links = tuple(
        OutputLink(path, entry["link"], rank, asked[rank].host.name) for path, (rank, entry) in sorted(choice.links.items())
    )
    return Manifest(tuple(channels), files, links, tuple(conflicts), tuple(choice.left))


def _write(path: Path, manifest: Manifest) -> None:
    unfinished = path.with_name(path.name + ".tmp")
    with open(unfinished, "w", encoding="ascii") as file:
        file.write(json.dumps(to_json(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)

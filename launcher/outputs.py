"""Collect what the nodes left in their output channels, and write down what came from where.

    <job folder>/output/<channel>/…      the files, each with the hash that its node computed
    <job folder>/output/model.json       the manifest, written last: without it the collection is not complete
    <job folder>/output/.incoming/       while collecting: what has arrived; the next try goes on from there

Nothing that a node says is believed where it could do harm: names are checked here, links are made only when they stay
inside their channel, no file is written through a link, and no more bytes are taken than the listing announced.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher.code import size_text
from launcher.errors import CollectFailed, NodeUnusable
from launcher.incoming import Arrivals, arrived, fetch, part_of
from launcher.manifest import MANIFEST, Conflict, Left, Manifest, OutputFile, OutputLink, save
from launcher.record import dataclass
from launcher.reply import is_text
from launcher.sync import Peer

INCOMING = ".incoming"
_SPARE = 16 << 20
"""bytes that are left free here"""
_LONGEST_NAME, _LONGEST_PATH, _DEEPEST = 255, 2000, 128
"""bytes of a file's name and of a path below output/, folders below each other: what any file system and program here takes"""


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

    def of(self, rank: int) -> list[tuple[str, dict[str, Any]]]:
        """The files to bring from one node."""
        return [(path, entry) for path, (owner, entry) in self.files.items() if owner == rank]


def collect(
    peers: Mapping[int, Peer],
    same_file_system: Iterable[Sequence[int]],
    target: Path,
    channels: Sequence[str],
    notes: Callable[[str], None],
    made_by: Callable[[bool], Mapping[str, Any]] = lambda anything: {},
    if_room: Sequence[str] = (),
) -> Manifest:
    """Bring the channels of all nodes to ``target``, the job folder's output/, and write the manifest.

    ``made_by`` gives the manifest's account of the job, and hears whether it has any files to account for.
    Channels of ``if_room`` stay on the nodes, and a note says so, where not everything fits here.
    Of each group of ``same_file_system`` the lowest rank is asked.  Raises LinkLost when a connection broke (call again
    with a new one: what has arrived is kept), NodeUnusable for what a node refuses, CollectFailed for too little room
    here or for files that did not arrive as they were.  What a node cannot read is no error here: see Manifest.gaps.
    """
    asked = {min(group): peers[min(group)] for group in same_file_system}
    listings = dict(zip(asked, _each(asked, listing_of), strict=True))
    choice = _choose(asked, listings, channels)
    incoming = target / INCOMING
    if if_room and not _fits(target, choice, incoming):
        channels = [channel for channel in channels if channel not in if_room]
        choice = _choose(asked, listings, channels)
        notes(f"warning: {', '.join(if_room)}: not enough space here, so they stay on the nodes")
    conflicts = _conflicts(asked, listings, choice)
    _check_room(target, choice, incoming, notes)
    parts = incoming / "parts"
    parts.mkdir(parents=True, exist_ok=True, mode=0o700)
    fetched = _each(asked, lambda peer: fetch(peer, choice.of(peer.rank), parts))
    hashes = {path: sha256 for arrivals in fetched for path, sha256 in arrivals.hashes.items()}
    for peer, arrivals, listing in zip(asked.values(), fetched, listings.values(), strict=True):
        _leave_unreadable(choice, peer, arrivals, listing)
    _place(target, choice, channels, parts)
    manifest = _manifest(asked, choice, channels, hashes, conflicts)
    manifest = dataclasses.replace(manifest, made_by=made_by(bool(manifest.files)))
    save(target / MANIFEST, manifest)
    shutil.rmtree(incoming)
    return manifest


def listing_of(peer: Peer) -> dict[str, Any]:
    """What a node says that it has; NodeUnusable for entries that are none."""
    listing = peer.ask("outputs_list")
    entries = listing["entries"]
    if not isinstance(entries, list) or not all(isinstance(one, dict) and is_text(one.get("path")) for one in entries):
        raise NodeUnusable("its list of outputs is none", where=peer.host.name)
    return listing


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
            refused = _refusal(entry, channels, taken)
            if refused and "dir" not in entry:
                choice.left.append(_left(listings[rank], entry, asked[rank], *refused))
            if refused:
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


def _leave_unreadable(choice: _Choice, peer: Peer, arrivals: Arrivals, listing: Mapping[str, Any]) -> None:
    """Enter as left what a node could list but not read."""
    for path, why in arrivals.unreadable.items():
        _, entry = choice.files.pop(path)
        choice.left.append(_left(listing, entry, peer, f"could not be read: {why}", "unreadable"))


def _refusal(entry: Mapping[str, Any], channels: Sequence[str], taken: Mapping[str, str]) -> tuple[str, str] | None:
    """(reason, kind of Left) when an entry stays on its node; None when it is brought (or a lower rank's is)."""
    path = entry["path"]
    parts = path.split("/")
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    here = taken.get(path)
    if "unreadable" in entry and (path == "" or parts[0] in channels):
        # Where a lower node has it, it would not have been brought anyway.
        return f"could not be read: {entry['unreadable']}", "unreadable" if here is None else "unfit"
    if path == "" and "link" in entry:
        return f"a link in the place of the outputs, to {entry['link']}", "unfit"
    if not _is_named(parts):
        return "not a name that can be written here", "unfit"
    if parts[0] not in channels:
        return "not collected", "unasked"
    if not fits_here(path):
        return "its path is too long, or its folders too deep, to be brought here", "unreadable"
    if misfit := _misfit(entry, parts):
        return misfit, "unfit"
    if any(taken.get(parent, "dir") != "dir" for parent in above):
        return "a lower node has a file or link where this needs a directory", "unfit"
    if here is not None and (here == "dir") != ("dir" in entry):
        return f"a lower node has a {'directory' if here == 'dir' else 'file or link'} of this name", "unfit"
    return None


def fits_here(path: str) -> bool:
    """Whether a path of a node's listing names a place below output/ that can be written, and removed again, here."""
    parts = path.split("/")
    short = len(os.fsencode(path)) <= _LONGEST_PATH and all(len(os.fsencode(part)) <= _LONGEST_NAME for part in parts)
    return _is_named(parts) and short and len(parts) <= _DEEPEST


def _is_named(parts: Sequence[str]) -> bool:
    return not any(part in ("", ".", "..") or "\0" in part for part in parts)


def _misfit(entry: Mapping[str, Any], parts: Sequence[str]) -> str | None:
    """Why an entry, whatever the others are, has no place here."""
    if "special" in entry:
        return "a socket, pipe or device"
    if "link" in entry and not _stays_inside(parts, entry["link"]):
        return f"a link that leads out of its channel, to {entry['link']}"
    if len(parts) == 1 and "dir" not in entry:
        return "a channel is a directory"
    if "size" in entry and not (isinstance(entry["size"], int) and 0 <= entry["size"] < 1 << 63):
        return "not a size"
    return None


def _stays_inside(parts: Sequence[str], target: Any) -> bool:
    """Whether a relative link at ``parts`` ends inside its channel.

    It may climb only at its beginning, where directories are real ones; behind a name, which may be a link, it may not.
    """
    if not is_text(target) or not target or target.startswith("/") or "\0" in target or len(target) > _LONGEST_PATH:
        return False
    steps = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((count for count, part in enumerate(steps) if part != ".."), len(steps))
    return climbs <= len(parts) - 2 and ".." not in steps[climbs:]


def _size(entry: Mapping[str, Any]) -> int:
    size = entry.get("size", 0)
    return size if isinstance(size, int) else 0


def _left(listing: Mapping[str, Any], entry: Mapping[str, Any], peer: Peer, reason: str, kind: str) -> Left:
    path = entry["path"]
    where = f"{listing['root']}/{path}".rstrip("/")
    return Left(where, _size(entry), peer.rank, peer.host.name, reason, path.partition("/")[0], kind)


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
            if path in unsure.get(rank, ()):
                here = hashes[rank].get(path)
                same = here is not None and here == hashes[owner].get(path)
            else:
                same = "link" in entry and entry.get("link") == chosen.get("link")
            if not same:
                differing.append(rank)
                reason = f"node {owner} has another file of this name"
                choice.left.append(_left(listings[rank], entry, asked[rank], reason, "conflict"))
        if differing:
            conflicts.append(Conflict(path, owner, tuple(differing)))
    return conflicts


def _room(target: Path, choice: _Choice, incoming: Path) -> tuple[int, int, int]:
    """Bytes: of files that are here already, needed for the others, and free."""
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    here = needed = 0
    for rank, entry in choice.files.values():
        part = part_of(incoming / "parts", rank, entry)
        here += arrived(part, entry["size"])
        needed += max(_data(entry) - (part.stat().st_blocks * 512 if part.is_file() else 0), 0)
    return here, needed, shutil.disk_usage(target).free


def _fits(target: Path, choice: _Choice, incoming: Path) -> bool:
    _, needed, free = _room(target, choice, incoming)
    return not needed or needed + _SPARE <= free


def _check_room(target: Path, choice: _Choice, incoming: Path, notes: Callable[[str], None]) -> None:
    here, needed, free = _room(target, choice, incoming)
    total = sum(entry["size"] for _, entry in choice.files.values())
    if choice.files:
        nodes = len({rank for rank, _ in choice.files.values()})
        already = f", {size_text(here)} of it here already" if here else ""
        what = f"{len(choice.files)} file(s), {size_text(total)}, from {nodes} node(s)"
        notes(f"collecting {what}{already} ({size_text(free)} are free here)")
    if needed + _SPARE > free and needed:
        raise CollectFailed(
            f"{size_text(needed)} of outputs do not fit: {size_text(free)} are free",
            where=str(target),
            next_step="make room here, then `launcher resume` or copy them from the nodes",
        )


def _data(entry: Mapping[str, Any]) -> int:
    """Bytes that a file takes here: its size, or what its node says of one with holes."""
    data, size = entry.get("data"), int(entry["size"])
    return data if isinstance(data, int) and 0 <= data <= size else size


def _place(target: Path, choice: _Choice, channels: Sequence[str], parts: Path) -> None:
    """Build the channels beside, then rename each into place; links are made when no file is written any more."""
    tree = target / INCOMING / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for directory in [*channels, *choice.dirs]:
        (tree / directory).mkdir(parents=True, exist_ok=True)
    for path, (rank, entry) in choice.files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        part = part_of(parts, rank, entry)
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

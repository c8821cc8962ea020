"""Checkpoints that outlive their nodes: from `checkpoints_path` to the nodes before the start, and back while the job runs.

    <checkpoints_path>/<path>…                    the files, each whole
    <checkpoints_path>/launcher-manifest.json     written after them: what belongs together
    <job folder>/checkpoints.json                 what was copied, so that nothing is copied twice
    <job folder>/.checkpoints/                    files on their way from a node

Only what nobody writes any more is copied: a file must have the size and time that it had at an earlier look, and still
have them when all of it is here.  The connections are of their own, so that no wish to stop waits for a large file.
"""

from __future__ import annotations

import dataclasses
import posixpath
import shutil
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher.code import size_text
from launcher.environments import OUTPUT
from launcher.errors import CollectFailed, LauncherError, NodeError
from launcher.model import Plan
from launcher.store import Folder, read_json, write_json

if TYPE_CHECKING:
    from launcher.fleet import Fleet
    from launcher.objects import Depot
    from launcher.sync import Peer

CHANNEL = "checkpoints"
_LINKS = 8
"""links to links that are followed"""
_STABLE_SECONDS = 2.0
"""between the two looks that tell whether a file is still being written"""
Entry = dict[str, Any]


class Checkpoints:
    """Copies one job's checkpoints, now and then in a thread of its own, and a last time at the end."""

    def __init__(self, plan: Plan, folder: Folder, tell: Callable[[dict[str, Any]], None]) -> None:
        self._plan, self._tell = plan, tell
        self._path = folder.root / "checkpoints.json"
        self._parts = folder.root / ".checkpoints"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""

    def begin(self, fleet: Fleet, leaders: list[int]) -> None:
        """Copy every `checkpoint_interval` seconds from now on, if the job has a place for checkpoints.

        Called again, as in an allocation where each attempt is another step, it goes on with the nodes as they are reached then.
        """
        if self._plan.spec.checkpoints_path is None:
            return
        self._nodes = fleet, leaders
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()

    def abandon(self) -> None:
        """Nobody wants them copied any more."""
        self._stop.set()

    def finish(self, peers: Mapping[int, Peer]) -> None:
        """The last copy, once no command runs any more.  CollectFailed where it cannot be made: they are on the nodes."""
        if self._plan.spec.checkpoints_path is None:
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        try:
            self._copy(peers, {rank: _listed(peer) for rank, peer in peers.items()}, threading.Event())
        except NodeError:
            raise
        except (LauncherError, OSError) as error:
            raise CollectFailed(f"the checkpoints could not be copied: {_said(error)}") from error

    def _run(self) -> None:
        while not self._stop.wait(self._plan.spec.checkpoint_interval):
            try:
                self._once(*self._nodes)
                self._trouble = ""
            except (LauncherError, OSError) as error:
                self._complain(_said(error))
            except Exception as error:  # noqa: BLE001 - nobody would hear of it, and a training of weeks would go on with no copy
                traceback.print_exc()
                self._complain(f"{type(error).__name__}: {error}")

    def _once(self, fleet: Fleet, leaders: list[int]) -> None:
        links = {}
        try:
            for rank in leaders:
                link = fleet.another(rank)
                try:
                    link.connect(python=link.host.python, venv=link.host.venv)
                except NodeError as error:
                    self._complain(str(error))
                    continue
                links[rank] = link
            before = {rank: _listed(link) for rank, link in links.items()}
            if not any(before.values()) or self._stop.wait(_STABLE_SECONDS):
                return
            after = {rank: _listed(link) for rank, link in links.items()}
            self._copy(links, after, self._stop, before)
        finally:
            for link in links.values():
                link.close()

    def _complain(self, text: str) -> None:
        """A sentence, once until something else is wrong."""
        if text != self._trouble:
            self._trouble = text
            self._tell({"type": "note", "message": f"warning: checkpoints were not copied: {text}"})

    def _copy(
        self,
        peers: Mapping[int, Peer],
        listed: Mapping[int, Mapping[str, Entry]],
        stop: threading.Event,
        before: Mapping[int, Mapping[str, Entry]] | None = None,
    ) -> None:
        """Copy what is new; ``before`` is the earlier look, by which files that are still written are left for the next time."""
        from launcher.objects import Depot, Stopped
        from launcher.publish import CHANNEL_MANIFEST

        assert self._plan.spec.checkpoints_path is not None
        record = _Record(read_json(self._path))
        wanted = _wanted(listed, record, before)
        gone = [path for path, entry in record.files.items() if entry["node"] in listed and not _somewhere(path, listed)]
        if not wanted and not gone:
            return
        try:
            depot = Depot(self._plan.spec.checkpoints_path, stop)
            self._tell_size(wanted)
            if any(path in record.files for entries in wanted.values() for path in entries):
                # Until all of them are there what it says of the older ones does not hold.
                depot.remove(CHANNEL_MANIFEST)
            for rank, entries in sorted(wanted.items()):
                copied = self._bring(peers[rank], entries, depot, judged=before is not None)
                record.files.update(copied)
                for path in copied:
                    record.see(path, rank, listed)
            for path in gone:
                del record.files[path]
            self._write_manifest(depot, record.files)
            write_json(self._path, record.to_json())
            for path in gone:
                depot.remove(path)
        except Stopped:
            return
        finally:
            shutil.rmtree(self._parts, ignore_errors=True)

    def _tell_size(self, wanted: Mapping[int, Mapping[str, Entry]]) -> None:
        entries = [entry for of_node in wanted.values() for entry in of_node.values()]
        if entries:
            size = size_text(sum(entry["size"] for entry in entries))
            text = f"checkpoints: copying {len(entries)} file(s), {size}, to {self._plan.spec.checkpoints_path}"
            self._tell({"type": "note", "message": text})

    def _bring(self, peer: Peer, entries: Mapping[str, Entry], depot: Depot, judged: bool) -> dict[str, Entry]:
        """One node's files, by way of this machine; those that were written meanwhile are left for the next time."""
        from launcher.incoming import fetch, part_of

        self._parts.mkdir(mode=0o700, exist_ok=True)
        copied: dict[str, Entry] = {}
        names: dict[str, list[str]] = {}
        for path, entry in entries.items():
            names.setdefault(entry["path"], []).append(path)
        for there, paths in names.items():
            entry = entries[paths[0]]
            # One at a time: a checkpoint may be as large as the free space here.
            free = shutil.disk_usage(self._parts).free
            if entry["size"] > free:
                what = f"{paths[0]} has {size_text(entry['size'])}, and {size_text(free)} are free here"
                raise LauncherError(what, where=peer.host.name, next_step="make room in $LAUNCHER_HOME")
            arrived = fetch(peer, [(there, entry)], self._parts)
            part = part_of(self._parts, peer.rank, entry)
            sha256 = arrived.hashes.get(there)
            now = _listed(peer) if judged else entries
            for path in paths if sha256 is not None else ():
                if _same(now.get(path), entry):
                    depot.put(path, part)
                    copied[path] = {"size": entry["size"], "node": peer.rank, "sha256": sha256}
            part.unlink(missing_ok=True)
        return copied

    def _write_manifest(self, depot: Depot, record: Mapping[str, Entry]) -> None:
        from launcher.manifest import Manifest, OutputFile, text_of
        from launcher.publish import CHANNEL_MANIFEST

        hosts = {node.rank: node.host.name for node in self._plan.nodes}
        files = tuple(
            OutputFile(path, entry["size"], entry["sha256"], entry["node"], hosts.get(entry["node"], ""))
            for path, entry in sorted(record.items())
        )
        depot.put(CHANNEL_MANIFEST, text_of(Manifest((CHANNEL,), files, made_by={"job_id": self._plan.job_id})))

    def restore(self, peers: Mapping[int, Peer]) -> None:
        """Bring those at `checkpoints_path`, or of an earlier job, to the nodes that have none of this job yet."""
        from launcher.inputs import Carrier, remote_cargo
        from launcher.publish import CHANNEL_MANIFEST

        place = self._plan.spec.goes_on_from
        assert place is not None
        empty = {rank: peer for rank, peer in peers.items() if not _listed(peer)}
        cargo = remote_cargo(place, may_be_empty=True, follow=True) if empty else None
        sizes = {path: size for path, size in cargo.sizes.items() if path != CHANNEL_MANIFEST} if cargo else {}
        if cargo is None or not sizes:
            if cargo and self._plan.spec.checkpoints_from:
                self._tell({"type": "note", "message": f"warning: no checkpoints in {place}; the training begins anew"})
            return
        cargo = dataclasses.replace(cargo, sizes=sizes)
        self._tell({"type": "note", "message": f"checkpoints: going on from {cargo.told()} of {cargo.source}"})
        carrier = Carrier(CHANNEL, lambda text: None)
        record = _Record(read_json(self._path))
        try:
            for rank, peer in sorted(empty.items(), reverse=True):
                entries = carrier.restore(peer, cargo)
                # What was just put there need not be copied back.
                listed = {rank: {path: entry for path, entry in _listed(peer).items() if path in entries}}
                for path, entry in listed[rank].items():
                    record.files[path] = {"size": entry["size"], "node": rank, "sha256": entries[path]["sha256"]}
                    record.see(path, rank, listed)
        finally:
            carrier.close()
        write_json(self._path, record.to_json())


def _said(error: LauncherError | OSError) -> str:
    return f"{error.strerror}: {error.filename or 'this machine'}" if isinstance(error, OSError) else str(error)


class _Record:
    """What is at `checkpoints_path`, and by what each node's own copy of it is known."""

    def __init__(self, stored: Mapping[str, Any] | None) -> None:
        stored = stored or {}
        self.files: dict[str, Entry] = dict(stored.get("files", {}))
        """{path: size, sha256, and the node that it came from}"""
        self.seen: dict[str, dict[str, Any]] = {rank: dict(of_node) for rank, of_node in stored.get("seen", {}).items()}
        """{rank: {path: [size, mtime]}} of the versions that need not be copied"""

    def see(self, path: str, rank: int, listed: Mapping[int, Mapping[str, Entry]]) -> None:
        """The version of this node was copied; what the nodes after it have by that name was not newer."""
        for other, of_node in listed.items():
            if other >= rank and path in of_node:
                self.seen.setdefault(str(other), {})[path] = _stamp(of_node[path])

    def knows(self, rank: int, path: str, entry: Mapping[str, Any]) -> bool:
        """Whether this node's version was there at the last copy."""
        return self.seen.get(str(rank), {}).get(path) == _stamp(entry)

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": 1, "files": self.files, "seen": self.seen}


def _listed(peer: Peer) -> dict[str, Entry]:
    """{path below the channel: entry} of the checkpoints that a node has; by the name of a link, too, what it leads to.

    A link such as `last.pt` is how many a training finds its newest one, and behind a URI there are no links.
    """
    from launcher.outputs import fits_here, listing_of

    own = CHANNEL + "/"
    listing = listing_of(peer)
    found: dict[str, Entry] = {}
    links: dict[str, str] = {}
    for entry in listing["entries"]:
        path = entry["path"]
        if not (path.startswith(own) and fits_here(path)) or "unreadable" in entry:
            continue
        size, target = entry.get("size"), _led_to(path[len(own) :], entry.get("link"), f"{listing.get('root')}/{CHANNEL}")
        if isinstance(size, int) and 0 <= size < 1 << 63:
            found[path[len(own) :]] = entry
        elif target is not None:
            links[path[len(own) :]] = target
    linked = {path: entry for link in links for path, entry in _behind(link, links, found) if fits_here(own + path)}
    return {**linked, **found}


def _led_to(link: str, target: Any, top: str) -> str | None:
    """The path below the channel that a link names; None for what is outside, for the channel itself, and for no link.

    ``top`` is the channel's directory on the node; inside of a container it has another name.
    """
    if not isinstance(target, str) or not target or "\0" in target:
        return None
    for absolute in (top, f"{OUTPUT}/{CHANNEL}"):
        if target.startswith(absolute + "/"):
            target = posixpath.relpath(target, posixpath.join(absolute, posixpath.dirname(link)))
    path = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
    return None if path.startswith(("/", "../")) or path in (".", "..") else path


def _behind(link: str, links: Mapping[str, str], files: Mapping[str, Entry]) -> Iterator[tuple[str, Entry]]:
    """(path by the link's name, entry) of the file that it leads to, or of those in the folder; nothing for circles."""
    real: str | None = link
    for _ in range(_LINKS):
        real = links.get(real or "", real)
    if real is None or real in links or link.startswith(real + "/"):
        return
    for path, entry in files.items():
        if path == real or path.startswith(real + "/"):
            yield link + path[len(real) :], entry


def _stamp(entry: Mapping[str, Any]) -> list[Any]:
    return [entry["size"], entry.get("mtime")]


def _same(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    return one is not None and _stamp(one) == _stamp(other)


def _somewhere(path: str, listed: Mapping[int, Mapping[str, Entry]]) -> bool:
    return any(path in of_node for of_node in listed.values())


def _wanted(
    listed: Mapping[int, Mapping[str, Entry]], record: _Record, before: Mapping[int, Mapping[str, Entry]] | None
) -> dict[int, dict[str, Entry]]:
    """What each node is asked for: what changed there and is not still written; of two nodes with one path the lower rank's."""
    taken: set[str] = set()
    wanted: dict[int, dict[str, Entry]] = {}
    for rank in sorted(listed):
        for path, entry in listed[rank].items():
            if path in taken or record.knows(rank, path, entry):
                continue
            taken.add(path)
            if before is None or _same(before[rank].get(path), entry):
                wanted.setdefault(rank, {})[path] = entry
    return wanted

"""Copy what was collected to where it is to stay: a folder behind a URI, or one on this machine.

    <uri>/<path>…                   every file, each of them whole or not there
    <uri>/<manifest>                written last: without it the copy is not complete

What was sent is noted in output/.published/ of the job folder, so that the next try sends only what is missing.  Nothing
that is there already and has other content is overwritten, but for what a manifest of ours says to be an earlier copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from launcher import uri as uris
from launcher.code import size_text
from launcher.errors import StorageFailed
from launcher.manifest import MANIFEST, Manifest, OutputFile, OutputLink, hash_of, parse, text_of
from launcher.model import Plan
from launcher.objects import Depot, Entry, Stopped
from launcher.record import dataclass

CHANNEL_MANIFEST = "launcher-manifest.json"
"""the manifest's name where a folder holds the files of one channel"""
RECORDS = ".published"
MAX_MANIFEST = 64 << 20
"""bytes; a larger one was not written by us"""
_AT_ONCE = 4
_SHOWN = 10


@dataclass(frozen=True)
class Target:
    """One folder to be filled."""

    uri: str
    manifest: Manifest
    """its paths are those below the folder"""
    manifest_name: str
    below: str
    """the prefix that these paths have below output/"""
    replace: bool = False
    """an earlier copy of ours there, of whichever job, gives way"""


@dataclass(frozen=True)
class Copied:
    """What came of one target."""

    uri: str
    files: int
    bytes: int
    """that were sent; the others were there"""
    kept: int


Progress = Callable[[int, int], None]
"""called with (bytes that are there, bytes in all)"""


def targets(plan: Plan, manifest: Manifest) -> Iterator[tuple[Target, dict[str, str]]]:
    """Each folder to be filled, with {channel: where it will be}: all below output_path, but for those with their own place."""
    own = {channel: where for channel, where in plan.spec.outputs.items() if where and channel in manifest.channels}
    if plan.spec.output_path is not None:
        uri = uris.join(plan.spec.output_path, plan.job_id)
        rest = [channel for channel in manifest.channels if channel not in own]
        yield whole(uri, manifest.only(rest)), {channel: uris.join(uri, channel) + "/" for channel in rest}
    for channel, where in own.items():
        yield of_channel(where, manifest, channel, replace=True), {channel: where.rstrip("/") + "/"}


def whole(uri: str, manifest: Manifest) -> Target:
    """All of ``manifest``'s channels below one URI, each in a folder of its name."""
    return Target(uri, manifest, MANIFEST, "")


def of_channel(uri: str, manifest: Manifest, channel: str, replace: bool = False) -> Target:
    """One channel's files right below a URI."""
    own = channel + "/"
    files = tuple(
        dataclasses.replace(file, path=file.path[len(own) :])
        for file in manifest.files
        if file.path.startswith(own) and file.path != own + CHANNEL_MANIFEST
    )
    links = tuple(
        dataclasses.replace(link, path=link.path[len(own) :]) for link in manifest.links if link.path.startswith(own)
    )
    kept = dataclasses.replace(manifest.only([channel]), files=files, links=links)
    return Target(uri, kept, CHANNEL_MANIFEST, own, replace)


def publish(
    output: Path, target: Target, notes: Callable[[str], None], progress: Progress, stop: threading.Event | None = None
) -> Copied:
    """Fill the target from a collected ``output`` folder; what is there already is not sent again.

    Raises StorageFailed (not to be reached, no room, other content in the way), Stopped once ``stop`` is set.
    """
    depot = Depot(target.uri, stop)
    depot_links = target.manifest.links if depot.local else ()
    files = {file.path: file for file in (*target.manifest.files, *(() if depot.local else _resolved(target.manifest)))}
    record = _Record(output / RECORDS, target.uri)
    there = depot.listing()
    before = _earlier(depot, there, target)
    in_the_way = _in_the_way(depot, before, files, depot_links)
    lacking = _lacking(depot, files, {path: entry for path, entry in there.items() if path not in in_the_way}, record, before)
    size = sum(file.size for file in lacking)
    _say(target, lacking, len(files), depot, notes)
    if before is not None and (lacking or in_the_way or before.files != target.manifest.files):
        depot.remove(target.manifest_name)
    for path in in_the_way:
        depot.remove(path)
    total = sum(file.size for file in files.values())
    count = _Count(total - size, total, progress)
    _each(lacking, lambda file: _send(depot, output / (target.below + file.path), file, record, count), stop)
    for link in depot_links:
        _link(depot, link)
    if before is not None:
        for file in before.files:
            if file.path not in files and file.path not in in_the_way:
                depot.remove(file.path)
    _check(depot, files)
    depot.put(target.manifest_name, text_of(target.manifest))
    return Copied(target.uri, len(files), size, len(files) - len(lacking))


def _in_the_way(
    depot: Depot, before: Manifest | None, files: Mapping[str, OutputFile], links: Sequence[OutputLink]
) -> dict[str, None]:
    """What an earlier copy of ours has in the place of a file or folder of this one, and links that lead elsewhere now."""
    if before is None:
        return {}
    now = {link.path: link.target for link in links}
    above = {parent for path in (*files, *now) for parent in _above(path)}
    ours: dict[str, str | None] = {file.path: None for file in before.files}
    ours |= {link.path: link.target for link in before.links} if depot.local else {}
    return {
        path: None
        for path, target in ours.items()
        if path in above
        or any(parent in files or parent in now for parent in _above(path))
        or (path in now and now[path] != target)
        or (path in files and target is not None)
    }


def _above(path: str) -> list[str]:
    return [str(parent) for parent in PurePosixPath(path).parents][:-1]


def _resolved(manifest: Manifest) -> Iterator[OutputFile]:
    """Behind a URI there are no links: what one leads to is stored under its name as well."""
    files = {file.path: file for file in manifest.files}
    links = {link.path: link.target for link in manifest.links}
    for path in links:
        real = _followed(path, links)
        for name, file in files.items():
            if real is not None and (name == real or name.startswith(real + "/")):
                yield dataclasses.replace(file, path=path + name[len(real) :])


def _followed(path: str, links: Mapping[str, str], depth: int = 8) -> str | None:
    """Where a link leads in the end; None where it goes round in circles."""
    if path not in links:
        return path
    if not depth:
        return None
    parts: list[str] = []
    for part in (PurePosixPath(path).parent / links[path]).parts:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return _followed("/".join(parts), links, depth - 1)


class _Record:
    """What this job has sent to one URI: {path: sha256}, a line each; written by one process at a time."""

    def __init__(self, folder: Path, uri: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path = folder / (hashlib.sha256(uri.encode()).hexdigest()[:24] + ".jsonl")
        self._lock = threading.Lock()
        self.sent: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self._path.read_text().splitlines():
                with contextlib.suppress(ValueError, TypeError):
                    path, sha256 = json.loads(line)
                    self.sent[path] = sha256

    def add(self, file: OutputFile) -> None:
        with self._lock, self._path.open("a") as lines:
            lines.write(json.dumps([file.path, file.sha256]) + "\n")


class _Count:
    """Bytes that are there, over several threads."""

    def __init__(self, done: int, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = done, total, progress
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            self._progress(min(self._done, self._total), self._total)


def _earlier(depot: Depot, there: Mapping[str, Entry], target: Target) -> Manifest | None:
    """The manifest of an earlier copy that may give way, or is this one; StorageFailed for one that may not."""
    if target.manifest_name not in there:
        return None
    text = depot.small(target.manifest_name, MAX_MANIFEST)
    where = uris.join(target.uri, target.manifest_name)
    try:
        found = parse(text or b"")
    except ValueError as error:
        raise StorageFailed(f"there is a file of this name, and it is no manifest of ours: {error}", where=where,
                            next_step="name another place, or remove it") from error
    job = found.made_by.get("job_id")
    if not target.replace and job != target.manifest.made_by.get("job_id"):
        raise StorageFailed(f"the outputs of another job are there: {job}", where=target.uri, next_step="name another place")
    return found


def _lacking(
    depot: Depot, files: Mapping[str, OutputFile], there: Mapping[str, Entry], record: _Record, before: Manifest | None
) -> list[OutputFile]:
    """The files that must be sent; StorageFailed where something else has one of their names."""
    ours = {} if before is None else {file.path: file for file in before.files}
    lacking, strange = [], []
    for path, file in files.items():
        entry = there.get(path)
        if entry is None:
            lacking.append(file)
        elif entry.size == file.size and record.sent.get(path) == file.sha256:
            continue
        elif entry.size == file.size and _hash(depot, path) == file.sha256:
            record.add(file)
        elif path in ours or path in record.sent:
            lacking.append(file)
        else:
            strange.append(path)
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise StorageFailed(
            f"something else is there already: {', '.join(strange[:_SHOWN])}{more}",
            where=depot.uri,
            next_step="name another place, or remove it; nothing is overwritten",
        )
    return lacking


def _hash(depot: Depot, path: str) -> str:
    digest = hashlib.sha256()
    for block in depot.read(path):
        digest.update(block)
    return digest.hexdigest()


def _say(target: Target, lacking: list[OutputFile], count: int, depot: Depot, notes: Callable[[str], None]) -> None:
    """What will be sent, and for a folder on this machine whether there is room for it."""
    size = sum(file.size for file in lacking)
    already = f", {count - len(lacking)} of {count} there already" if len(lacking) < count else ""
    free = ""
    if depot.local:
        folder = uris.nearest(Path(uris.local_path(target.uri) or "/"))
        room = shutil.disk_usage(folder).free
        free = f" ({size_text(room)} are free there)"
        if size > room:
            what = f"{size_text(size)} do not fit: {size_text(room)} are free"
            raise StorageFailed(what, where=target.uri, next_step="make room there")
    notes(f"copying {len(lacking)} file(s), {size_text(size)}, to {target.uri}{already}{free}")


def _send(depot: Depot, source: Path, file: OutputFile, record: _Record, count: _Count) -> None:
    """Send one file, unless it is not what the manifest says any more."""
    if source.stat().st_size != file.size or hash_of(source) != file.sha256:
        raise StorageFailed(f"{source} is not what was collected any more", where="this machine",
                            next_step="restore it, or remove output/model.json and collect again by `launcher resume`")
    depot.put(file.path, source, count.add)
    record.add(file)


def _each(files: list[OutputFile], act: Callable[[OutputFile], None], stop: threading.Event | None) -> None:
    """A few at once; after the first that fails no other is begun."""
    failed = threading.Event()

    def one(file: OutputFile) -> None:
        if failed.is_set() or (stop is not None and stop.is_set()):
            raise Stopped
        try:
            act(file)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tasks = [pool.submit(one, file) for file in files]
    errors = [error for task in tasks if (error := task.exception()) is not None]
    # Those that were not begun say nothing of the reason.
    for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
        raise error


def _link(depot: Depot, link: OutputLink) -> None:
    try:
        depot.link(link.path, link.target)
    except FileExistsError as error:
        what = f"something else is there already: {link.path}"
        raise StorageFailed(what, where=depot.uri, next_step="name another place") from error


def _check(depot: Depot, files: Mapping[str, OutputFile]) -> None:
    """All of it is there, as far as a listing tells."""
    there = depot.listing()
    for path, file in files.items():
        if path not in there or there[path].size != file.size:
            step = "`launcher resume` sends it again"
            raise StorageFailed(f"{path} was sent and is not there", where=depot.uri, next_step=step)


def verify(uri: str, manifest_name: str, stop: threading.Event | None = None) -> list[str]:
    """What is wrong with a copy, a sentence each, by its own manifest and the hashes of all files; empty when it is whole."""
    depot = Depot(uri, stop)
    where = uris.join(uris.masked(uri), manifest_name)
    # First: of what may not be listed some clients say that it is not there.
    there = depot.listing()
    text = depot.small(manifest_name, MAX_MANIFEST)
    if text is None:
        return [f"{where} is not there: the copy is not complete"]
    try:
        manifest = parse(text)
    except ValueError as error:
        return [f"{where} is no manifest: {error}"]
    problems = [str(gap) for gap in manifest.gaps()]
    for file in (*manifest.files, *(() if depot.local else _resolved(manifest))):
        at = uris.join(depot.uri, file.path)
        if file.path not in there:
            problems.append(f"{at} is missing")
        elif there[file.path].size != file.size:
            problems.append(f"{at} has {there[file.path].size} bytes, {file.size} were collected")
        elif _hash(depot, file.path) != file.sha256:
            problems.append(f"{at} is not what was collected: its hash differs")
    return problems


def summary(copied: list[Copied]) -> dict[str, Any]:
    """What of it belongs into an event."""
    return {
        "files": sum(one.files for one in copied),
        "bytes": sum(one.bytes for one in copied),
        "targets": [one.uri for one in copied],
    }

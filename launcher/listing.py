"""What lies in a folder of data on this machine, or in one file: looked at when a job is submitted and again before it is sent.

Data are taken as they lie there: no ignore file leaves anything out, dotfiles go along, and what a link leads to goes in its
place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from launcher.errors import UsageError
from launcher.record import dataclass

_SHOWN = 10


@dataclass(frozen=True)
class Listing:
    """The files of one source."""

    root: str
    """the folder that the paths are below"""
    files: Mapping[str, tuple[int, int]]
    """{path: (size, mtime in ns)}, sorted by path"""
    folders: tuple[str, ...] = ()
    """empty ones"""
    single: str | None = None
    """the file's name, where the source is one"""

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """As the job folder keeps it."""
        return {"files": {path: list(told) for path, told in self.files.items()}, "folders": list(self.folders)}

    def changes(self, recorded: Mapping[str, Any]) -> list[str]:
        """In what it differs from what was recorded, a few words each."""
        before = {path: tuple(told) for path, told in recorded["files"].items()}
        found = [f"{path} is gone" for path in before if path not in self.files]
        found += [f"{path} is new" for path in self.files if path not in before]
        found += [f"{path} was changed" for path, told in self.files.items() if path in before and before[path] != told]
        folders = set(self.folders) ^ set(recorded["folders"])
        return found or [f"{path}/ is not what it was" for path in sorted(folders)]


def look(source: str) -> Listing:
    """What lies there now; UsageError lists what cannot be read or sent."""
    if not os.path.isdir(source):
        name = os.path.basename(source)
        try:
            status = os.stat(source)
        except OSError as error:
            raise UsageError(f"{error.strerror}: {source}", next_step="check the path of the input") from error
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{source} is neither a file nor a folder", next_step="check the path of the input")
        return Listing(os.path.dirname(source), {name: (status.st_size, status.st_mtime_ns)}, single=name)
    files: dict[str, tuple[int, int]] = {}
    folders: list[str] = []
    problems: list[str] = []
    todo: list[tuple[str, str, tuple[str, ...]]] = [(source, "", (os.path.realpath(source),))]
    while todo:
        directory, prefix, above = todo.pop()
        try:
            with os.scandir(directory) as scan:
                entries = list(scan)
        except OSError as error:
            problems.append(f"{directory}: {error.strerror}")
            continue
        if not entries and prefix:
            folders.append(prefix[:-1])
        for entry in entries:
            below = _see(entry, prefix + entry.name, above, files, problems)
            todo += [(entry.path, prefix + entry.name + "/", below)] if below else []
    if problems:
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        step = "mend these, or take them out of the folder"
        raise UsageError("an input cannot be sent as it is", where=source, problems=[*problems[:_SHOWN], *more], next_step=step)
    return Listing(source, dict(sorted(files.items())), tuple(sorted(folders)))


def _see(
    entry: os.DirEntry[str], path: str, above: tuple[str, ...], files: dict[str, tuple[int, int]], problems: list[str]
) -> tuple[str, ...]:
    """Enter a file; of a folder the real paths of it and all above, by which a link that goes round in circles is known."""
    try:
        status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            if real in above:
                problems.append(f"{path}: a link that leads back to a folder above it")
                return ()
            return (*above, real)
        if not stat.S_ISREG(status.st_mode):
            problems.append(f"{path}: a socket, pipe or device")
        elif not os.access(entry.path, os.R_OK):
            problems.append(f"{path}: cannot be read")
        else:
            files[path] = (status.st_size, status.st_mtime_ns)
    except FileNotFoundError:
        problems.append(f"{path}: a link that leads nowhere" if entry.is_symlink() else f"{path}: it vanished just now")
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
    return ()

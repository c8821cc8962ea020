"""A snapshot of the source folder: what the nodes get is what lay there at submit, whatever is edited afterwards.

    <job folder>/code/       the files
    <job folder>/code.json   {schema_version, digest, bytes, git: {commit, dirty} or null, ignored, notes,
                             files: {path: {size, mode, sha256, mtime} or {link} or {dir}}}

Paths use "/" and are relative; names that are not UTF-8 stand there with surrogate escapes (Python's `surrogateescape`),
which JSON can carry.  Directories are named only when empty.  The digest is over paths, contents, links and exec bits, not
over times.

Links stay links.  One that leads out of the folder: an absolute one is kept with a note (its target may exist on the
nodes, as /mnt/data does); a relative one to a file is replaced by the file's content; a relative one to a directory is
refused, since on the nodes it would lead nowhere.  Sockets, pipes and devices are left out with a note.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import re
import stat
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher.errors import UsageError
from launcher.ignore import IgnoreRules
from launcher.keep import home
from launcher.record import dataclass

Entry = Mapping[str, Any]

_BLOCK = 1 << 20
_TOLD = 20
"""problems of a source folder that are told: one that has more, such as a whole home, is not mended one by one"""
_NAMED = 5
"""entries left out that are named; of the others it is said how many they are"""
_LONGEST_PATH = 4095
"""bytes, Linux's PATH_MAX less its NUL"""
_CLONE_FLOOR = 1 << 20
"""files from this size on are cloned where the file system can; for smaller ones asking costs more than copying"""


@dataclass(frozen=True)
class Snapshot:
    """What was copied."""

    files: Mapping[str, Entry]
    digest: str
    bytes: int
    commit: str | None
    dirty: bool | None
    """None outside of a git work tree"""
    ignored: int
    """entries that ignore files left out; a whole directory counts once"""
    left_out: tuple[str, ...] = ()
    """the first few of them by name, a directory with a slash"""
    notes: tuple[str, ...] = ()
    """sentences about what was left out or replaced"""

    def manifest(self) -> dict[str, Any]:
        """What the nodes keep beside their mirror."""
        return {"digest": self.digest, "files": self.files}

    def to_json(self) -> dict[str, Any]:
        """The content of code.json."""
        git = None if self.commit is None else {"commit": self.commit, "dirty": self.dirty}
        return {"schema_version": 1, "digest": self.digest, "bytes": self.bytes, "git": git, "ignored": self.ignored,
                "left_out": list(self.left_out), "notes": list(self.notes), "files": self.files}

    def __str__(self) -> str:
        state = "" if self.commit is None else f", git {self.commit[:10]}{' with uncommitted changes' if self.dirty else ''}"
        text = f"code: {len(self.files)} file{'s' * (len(self.files) != 1)}, {size_text(self.bytes)}{state}"
        if self.left_out:
            more = self.ignored - len(self.left_out)
            text += f"; ignore files leave out {', '.join(self.left_out)}{f' and {more} more' if more else ''}"
        return "\n".join([text, *self.notes])


@dataclass
class _Walk:
    """What the walk found, before anything is copied."""

    files: list[tuple[str, str, os.stat_result]] = field(default_factory=list)
    """(path in the snapshot, path to read, its stat)"""
    links: dict[str, str] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def no_folder(source: str) -> UsageError:
    """What is said of a source folder that is none."""
    if os.path.isfile(source):
        return UsageError("a file, no folder", where=source, next_step="give --source-dir the folder that the script lies in")
    return UsageError("there is no such source folder", where=source, next_step="check --source-dir")


def snapshot(source: Path | None, target: Path, limit: int, beside: Mapping[str, bytes | Path] | None = None) -> Snapshot:
    """Copy ``source`` into the new folder ``target`` and write ``<target>.json`` beside it.

    ``beside``: {path in the snapshot: content, or the file that has it}, what goes along though it is not in the folder;
    without a ``source`` it is all there is.  Raises UsageError where there is no such folder, something in it cannot be read
    or sent, or it is larger than ``limit`` bytes; nothing is copied then.
    """
    if source is not None and not source.is_dir():
        raise no_folder(str(source))
    with _git_state(source) as git, _files(beside or {}) as others:
        found = _walk(source, target) if source is not None else _Walk()
        _add(found, others)
        found.problems += _too_long(found, target)
        if found.problems:
            more = len(found.problems) - _TOLD
            told = [*found.problems[:_TOLD], *([f"... and {more} more"] if more > 0 else [])]
            raise UsageError("the source folder cannot be taken as it is", where=str(source), problems=told,
                             next_step="mend these, or name them in a .launcherignore file")
        _check_size(source or target, found, limit)
        files = _copy(found, target)
        commit, dirty = git()
    total = sum(entry.get("size", 0) for entry in files.values())
    left_out = tuple(sorted(found.ignored, key=_by_weight)[:_NAMED])
    taken = Snapshot(files, _digest(files), total, commit, dirty, len(found.ignored), left_out, tuple(found.notes))
    _write_json(target.with_name(target.name + ".json"), taken.to_json())
    return taken


def _by_weight(path: str) -> tuple[bool, int, str]:
    """Sorts what a person may miss before what no person wrote, and what lies on top before what lies deep."""
    name = path.rstrip("/").rpartition("/")[2]
    return name.startswith(".") or name == "__pycache__" or name.endswith(".pyc"), path.rstrip("/").count("/"), path


@contextlib.contextmanager
def _files(beside: Mapping[str, bytes | Path]) -> Iterator[dict[str, Path]]:
    """All of it as files."""
    import tempfile  # for git alone

    with tempfile.TemporaryDirectory(prefix="launcher-code-") as folder:
        made = {}
        for number, (path, content) in enumerate(beside.items()):
            made[path] = content if isinstance(content, Path) else Path(folder, str(number))
            if isinstance(content, bytes):
                made[path].write_bytes(content)
        yield made


def _add(found: _Walk, others: Mapping[str, Path]) -> None:
    """Take the other files along, too."""
    taken = {path for path, _, _ in found.files} | found.links.keys()
    for path, file in others.items():
        if path in taken:
            found.problems.append(f"{path}: a file of this name goes along, too")
        else:
            found.files.append((path, str(file), file.stat()))


def _too_long(found: _Walk, target: Path) -> list[str]:
    """What lies so deep that its copy would have no path, a sentence each."""
    room = _LONGEST_PATH - len(os.fsencode(target)) - 1
    paths = [*(path for path, _, _ in found.files), *found.links, *found.empty]
    return [f"{path[:60]}…: its path is too long to be copied" for path in paths if len(os.fsencode(path)) > room]


def load(code_json: Path) -> Snapshot:
    """The snapshot that a code.json describes."""
    data = json.loads(code_json.read_text(encoding="ascii"))
    git = data["git"] or {"commit": None, "dirty": None}
    notes = tuple(data["notes"])
    left_out = tuple(data.get("left_out", ()))
    return Snapshot(data["files"], data["digest"], data["bytes"], git["commit"], git["dirty"], data["ignored"], left_out, notes)


def project_name(source: Path) -> str:
    """The name of the folder's mirror on the nodes: its base name and a hash of where it is, and whose."""
    path = os.path.realpath(source)
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(path)).strip("-.")[:40] or "code"
    identity = f"{path}\0{getpass.getuser()}\0{_machine()}"
    name = f"{base}-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:12]}"
    return name if name[0].isalnum() else "p" + name


def _machine() -> str:
    """An id of this machine that outlives changes of its name where there is one (machine-id(5))."""
    with contextlib.suppress(OSError):
        return Path("/etc/machine-id").read_text().strip()
    return os.uname().nodename


def _walk(source: Path, target: Path) -> _Walk:
    found = _Walk()
    real = os.path.realpath(source)
    ours, own = _ours(target), list[str]()
    todo: list[tuple[str, str, IgnoreRules]] = [("", real, IgnoreRules.above(real))]
    while todo:
        prefix, directory, above = todo.pop()
        rules = above.inside(directory)
        try:
            with os.scandir(directory) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            found.problems.append(f"{prefix or '.'}: {error.strerror}")
            continue
        kept = 0
        for entry in entries:
            if entry.name == ".git":
                continue
            if entry.path in ours:
                kept += 1  # no empty folder to be made on the nodes
                own.append(prefix + entry.name)
                continue
            is_dir = entry.is_dir(follow_symlinks=False)
            if rules.ignores(entry.path, is_dir):
                found.ignored.append(prefix + entry.name + "/" * is_dir)
                continue
            kept += 1
            if is_dir:
                todo.append((prefix + entry.name + "/", entry.path, rules))
            else:
                _see(found, real, prefix + entry.name, entry.path)
        if not kept and prefix:
            found.empty.append(prefix[:-1])
    if own:
        found.notes.append(f"{', '.join(sorted(own))}: what the launcher keeps here, left out")
    return found


def _ours(target: Path) -> set[str]:
    """What the launcher itself writes on this machine: other jobs' code, and values that are stored nowhere else.

    Where LAUNCHER_HOME lies in the source folder each job would hold all that were before it.
    """
    return {os.path.realpath(path) for path in (target, *(home() / name for name in ("jobs", "node", "cache")))}


def _see(found: _Walk, source: str, path: str, real: str) -> None:
    """Sort one entry that is no directory into what the walk found."""
    try:
        status = os.lstat(real)
        if stat.S_ISLNK(status.st_mode):
            _see_link(found, source, path, real)
        elif stat.S_ISREG(status.st_mode):
            found.files.append((path, real, status))
        else:
            found.notes.append(f"{path}: a socket, pipe or device, left out")
    except FileNotFoundError:
        found.notes.append(f"{path}: vanished while the snapshot was taken, left out")
    except OSError as error:
        found.problems.append(f"{path}: {error.strerror}")


def _see_link(found: _Walk, source: str, path: str, real: str) -> None:
    text = os.readlink(real)
    target = os.path.normpath(os.path.join(os.path.dirname(real), text))
    if target == source or target.startswith(source + os.sep):
        found.links[path] = os.path.relpath(target, os.path.dirname(real)) if os.path.isabs(text) else text
    elif os.path.isabs(text):
        found.links[path] = text
        found.notes.append(f"{path}: a link to {text}, outside of the source folder; it must exist on the nodes")
    elif os.path.isfile(real):
        found.files.append((path, real, os.stat(real)))
        found.notes.append(f"{path}: a link to {text}, outside of the source folder; the file itself was taken")
    else:
        found.problems.append(f"{path}: a link to {text}, outside of the source folder, which the nodes would not have")


def _check_size(source: Path, found: _Walk, limit: int) -> None:
    total = sum(status.st_size for _, _, status in found.files)
    if total <= limit:
        return
    sizes: Counter[str] = Counter()
    for path, _, status in found.files:
        top, slash, _rest = path.partition("/")
        sizes[top + slash] += status.st_size
        if slash:
            sizes[path] += status.st_size
    largest = [f"{path}: {size_text(size)}" for path, size in sizes.most_common(8)]
    what = f"the source folder has {size_text(total)}, and {size_text(limit)} are allowed; the largest entries:"
    raise UsageError(what, where=str(source), problems=largest,
                     next_step="name what the nodes do not need in .launcherignore, or raise --max-code-size")


def size_text(size: int) -> str:
    """A number of bytes for people: 1.2 GB."""
    amount = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, {"bytes": "kB", "kB": "MB", "MB": "GB", "GB": "TB"}[unit]
    return f"{size} bytes" if size < 1000 else f"{amount:.1f} {unit}"


def _copy(found: _Walk, target: Path) -> dict[str, dict[str, Any]]:
    """Copy what was found; the manifest's entries, sorted by path."""
    entries: dict[str, dict[str, Any]] = {}
    root = str(target)
    os.mkdir(root, 0o700)
    for directory in sorted(_parents([path for path, _, _ in found.files] + list(found.links)) | set(found.empty)):
        os.makedirs(os.path.join(root, directory), exist_ok=True)
    problems = []
    for path, real, status in found.files:
        try:
            entries[path] = _copy_file(real, os.path.join(root, path), status)
        except FileNotFoundError:
            found.notes.append(f"{path}: vanished while the snapshot was taken, left out")
        except PermissionError as error:
            problems.append(f"{path}: {error.strerror}")
    if problems:
        raise UsageError("some files cannot be read", problems=problems,
                         next_step="make them readable, or name them in .launcherignore")
    for path, link in found.links.items():
        os.symlink(link, os.path.join(root, path))
        entries[path] = {"link": link}
    entries.update({path: {"dir": True} for path in found.empty})
    return dict(sorted(entries.items()))


def _parents(paths: list[str]) -> set[str]:
    parents: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            parent = parent.rpartition("/")[0]
    return parents


def _copy_file(source: str, target: str, status: os.stat_result) -> dict[str, Any]:
    """Copy and hash in one reading; a clone is hashed instead of the source, which may change meanwhile."""
    digest, size = hashlib.sha256(), 0
    mode = stat.S_IMODE(status.st_mode) & 0o777 | stat.S_IRUSR
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        writing = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            cloned = status.st_size >= _CLONE_FLOOR and _clone(reading, writing)
            while block := os.read(writing if cloned else reading, _BLOCK):
                digest.update(block)
                size += len(block)
                if not cloned:
                    _write_all(writing, block)
            os.fchmod(writing, mode)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
    return {"size": size, "mode": mode, "sha256": digest.hexdigest(), "mtime": status.st_mtime_ns}


def _write_all(file: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(file, view):]


def _clone(source: int, target: int) -> bool:
    """Share the blocks of ``source`` where the file system can (FICLONE of linux/fs.h)."""
    if os.uname().sysname != "Linux":
        return False
    import fcntl

    from launcher.agent.mirror import FICLONE

    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        return False
    return True


def _digest(files: Mapping[str, Entry]) -> str:
    digest = hashlib.sha256()
    for path, entry in files.items():
        if "sha256" in entry:
            content = f"file {entry['sha256']} {int(bool(entry['mode'] & 0o111))}"
        else:
            content = f"link {entry['link']}" if "link" in entry else "dir"
        digest.update(f"{path}\0{content}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@contextlib.contextmanager
def _git_state(source: Path | None) -> Iterator[Any]:
    """Asks git while the walk goes on; the value is a function giving (commit or None, dirty or None)."""
    if source is None:
        yield lambda: (None, None)
        return
    environment = dict(os.environ, GIT_OPTIONAL_LOCKS="0", LC_ALL="C")
    words = ["git", "-C", str(source), "status", "--porcelain=v2", "--branch", "--", "."]
    try:
        asked = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
    except OSError:
        yield lambda: (None, None)
        return

    def answer() -> tuple[str | None, bool | None]:
        said = asked.communicate()[0].decode(errors="replace").splitlines()
        commits = [line.split()[2] for line in said if line.startswith("# branch.oid ")]
        if asked.returncode or not commits:
            return None, None
        return commits[0], any(not line.startswith("#") for line in said)

    try:
        yield answer
    finally:
        if asked.returncode is None:
            asked.kill()
            asked.communicate()


def _write_json(path: Path, value: object) -> None:
    unfinished = path.with_name(path.name + ".tmp")
    with open(unfinished, "w", encoding="ascii") as file:
        file.write(json.dumps(value, separators=(",", ":")))
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)

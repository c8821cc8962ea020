"""Files behind a URI, of any kind that fsspec knows: list them, read them, put them there whole.

Credentials come from where each kind looks for them by itself (environment, ~/.aws, …; for OSS see agent/credentials.py) and
are never passed on or stored.
Foreign exceptions are translated here, once; what may pass by itself is tried again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from launcher import oss
from launcher import uri as uris
from launcher.agent.credentials import options
from launcher.errors import StorageFailed
from launcher.record import dataclass

T = TypeVar("T")
BLOCK = 4 << 20
_PAUSES = (1.0, 4.0)
"""seconds before each further try"""
_FOR_GOOD = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, ImportError)
_REFUSALS = ("Credential", "AccessDenied", "Forbidden", "403", "InvalidAccessKey", "SecurityToken", "NoSuchBucket",
             "SignatureDoesNotMatch", "endpoint is required")  # fmt: skip
"""words of stores that say that another try would be answered alike"""
_PLACES = {"oss": "OSS_ACCESS_KEY_ID, OSS_ACCESS_KEY_SECRET, OSS_SESSION_TOKEN, ~/.ossutilconfig"}
"""where credentials may stand, of a store for which that is not said by "the usual ones" """
_ADVICE = {errno.ENOSPC: "make room there", errno.EDQUOT: "make room there", errno.ENAMETOOLONG: "name a shorter place"}
_MARKS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "Last-Modified", "last_modified", "modified", "updated", "created")
"""what a listing may say of a file that changes when the file does, best first"""


class Stopped(Exception):
    """Whoever waits does not want it any more."""


@dataclass(frozen=True)
class Entry:
    """One file behind a URI."""

    size: int
    """bytes; -1 for a link on this machine"""
    mark: str
    """changes when the file does; "" where nothing tells"""


class Depot:
    """The files below one URI (or the one file that it names, whose path is "")."""

    def __init__(self, uri: str, stop: threading.Event | None = None) -> None:
        """``stop``: once set, whatever goes on raises Stopped."""
        self.uri = uri.rstrip("/") if not uri.endswith("://") else uri
        self._page = uris.is_web(uri) and uri.endswith("/")
        self._stop = stop or threading.Event()
        self._fs, self._root = self._guarded(lambda: _file_system(self.uri))
        self.local = uris.local_path(uri) is not None
        """whether it is a folder on this machine"""

    def listing(self) -> dict[str, Entry]:
        """{path: entry} of all files; empty where there is nothing.  Raises StorageFailed."""
        look = self._walk if self.local else self._of_the_web if uris.is_web(self.uri) else self._list
        if uris.protocol(self.uri) == "oss" and "::" not in self.uri:
            look = self._of_oss
        return dict(sorted(self._tried(look).items()))

    def followed(self) -> dict[str, Entry]:
        """As `listing`, but of a folder here without links: by their names, what they lead to.

        One that leads nowhere, or to a folder that it lies in, counts for nothing, nor do those in a folder that one leads to.
        Raises StorageFailed.
        """
        listed = self.listing()
        entries = {path: entry for path, entry in listed.items() if entry.size >= 0}
        for link in listed.keys() - entries.keys():
            entries |= self._tried(functools.partial(_behind, self._root, link))
        return dict(sorted(entries.items()))

    def _walk(self) -> dict[str, Entry]:
        """On this machine no link is followed; one is no file, but something that is there."""
        if os.path.isfile(self._root):
            return {"": _entry_here(self._root)}
        entries = {}
        for directory, folders, files in os.walk(self._root):
            for name in [*files, *(folder for folder in folders if os.path.islink(os.path.join(directory, folder)))]:
                path = os.path.join(directory, name)
                entries[os.path.relpath(path, self._root)] = _entry_here(path)
        return entries

    def _list(self) -> dict[str, Entry]:
        self._fs.invalidate_cache()
        try:
            told = self._fs.find(self._root, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            told = {}
        if not told:
            try:
                told = {self._root: self._fs.info(self._root)}
            except FileNotFoundError:
                return {}
        entries = {}
        for name, info in told.items():
            path = str(name)[len(self._root) :].lstrip("/")
            if info.get("type") != "directory" and not (name.endswith("/") and not info.get("size")):
                entries[path] = Entry(int(info.get("size") or 0), _mark(info))
        return entries

    def _of_oss(self) -> dict[str, Entry]:
        self._fs.invalidate_cache()
        told = oss.listing(self._fs, self._root)
        return {path: Entry(size, etag) for path, size, etag in told if not path.endswith("/") or size}

    def _of_the_web(self) -> dict[str, Entry]:
        """One file; behind a URI that ends with a slash those that the page there, and pages below it, lead to."""
        if not self._page:
            found = self._of_a_server("")
            return {} if found is None else {"": found}
        names = [unquote(str(name)[len(self._root) :].lstrip("/")) for name in self._fs.find(f"{self._root}/")]
        # Links that sort the page, or lead to a place on it, are no files.
        entries = {path: self._of_a_server(path) for path in names if path and not {"?", "#"} & set(path)}
        return {path: entry for path, entry in entries.items() if entry is not None}

    def _of_a_server(self, path: str) -> Entry | None:
        """A file of a web server; of one that does not tell its size all is read, to know it.  None: there is none."""
        try:
            info = self._fs.info(self._at(path))
        except FileNotFoundError as error:
            # Whatever went wrong has become this.
            if error.__cause__ is None or getattr(error.__cause__, "status", None) in (404, 410):
                return None
            raise error.__cause__ from None
        if info.get("size") is not None:
            return Entry(int(info["size"]), _mark(info))
        digest, size = hashlib.sha256(), 0
        for block in self.read(path):
            digest.update(block)
            size += len(block)
        return Entry(size, digest.hexdigest())

    def read(self, path: str) -> Iterator[bytes]:
        """A file's bytes in blocks.  Raises StorageFailed."""
        file = self._tried(lambda: self._fs.open(self._at(path), "rb"))
        with contextlib.closing(file):
            while block := self._tried(lambda: file.read(BLOCK)):
                yield block

    def small(self, path: str, limit: int) -> bytes | None:
        """The bytes of a small file; None where there is none.  StorageFailed for one of more than ``limit`` bytes."""
        gathered, size = [], 0
        try:
            for block in self.read(path):
                gathered.append(block)
                size += len(block)
                if size > limit:
                    raise StorageFailed(f"it has more than {limit} bytes", where=uris.join(self.uri, path))
        except StorageFailed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        return b"".join(gathered)

    def put(self, path: str, source: Path | bytes, sent: Callable[[int], None] = lambda size: None) -> None:
        """Store a file: it is there whole or not at all.  ``sent`` gets the bytes of each piece.  Raises StorageFailed."""
        whole = uris.protocol(self.uri) in uris.OBJECT_STORES and not self.local
        target = self._inside(path)
        beside = target if whole else f"{target}.{os.getpid()}.part"

        def store() -> None:
            if not whole:
                self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            try:
                self._store(source, beside, sent)
                if not whole:
                    self._rename(beside, target)
            except BaseException:
                if not whole:
                    with contextlib.suppress(OSError):
                        self._fs.rm_file(beside)
                raise

        self._tried(store)

    def _store(self, source: Path | bytes, target: str, sent: Callable[[int], None]) -> None:
        if isinstance(source, bytes):
            self._fs.pipe_file(target, source)
            sent(len(source))
            return
        from fsspec.callbacks import Callback

        stop = self._stop

        class Counting(Callback):  # type: ignore[misc]  # fsspec has no types
            """Passes the pieces on, and is where a wish to stop is heard."""

            def relative_update(self, inc: int = 1) -> None:
                if stop.is_set():
                    raise Stopped
                sent(inc)

            def absolute_update(self, value: int) -> None:
                """Of ossfs: all that was passed on; less than before where it has begun anew."""
                inc, self.value = value - getattr(self, "value", 0), value
                self.relative_update(inc)

        if self.local:
            # What fsspec does in one call, in pieces that can be counted and stopped.
            with open(source, "rb") as reading, open(target, "wb") as writing:
                while block := reading.read(BLOCK):
                    Counting().relative_update(len(block))
                    writing.write(block)
                writing.flush()
                os.fsync(writing.fileno())
            if os.access(source, os.X_OK):
                mode = os.stat(target).st_mode & 0o777
                os.chmod(target, mode | (mode & 0o444) >> 2)
        else:
            self._fs.put_file(str(source), target, callback=Counting())

    def _rename(self, source: str, target: str) -> None:
        if self.local:
            if os.path.isdir(target) and not os.path.islink(target):
                # Of files that made way their folders may be left.
                _remove_empty(target)
            os.replace(source, target)
            return
        if self._fs.exists(target):
            self._fs.rm_file(target)
        self._fs.mv(source, target)

    def link(self, path: str, target: str) -> None:
        """Make a link in a folder on this machine."""
        at = self._inside(path)
        os.makedirs(os.path.dirname(at), exist_ok=True)
        if os.path.islink(at) and os.readlink(at) == target:
            return
        if os.path.isdir(at) and not os.path.islink(at):
            _remove_empty(at)
        os.symlink(target, at)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there.  Raises StorageFailed."""

        def act() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._inside(path))

        self._tried(act)

    def _inside(self, path: str) -> str:
        """Where something is written or removed: on this machine through no link that somebody has put there."""
        at = self._at(path)
        if self.local and path:
            root, parent = os.path.realpath(self._root), os.path.realpath(os.path.dirname(at))
            if parent != root and not parent.startswith(root.rstrip("/") + "/"):
                raise StorageFailed(f"a link leads out of it: {os.path.dirname(path)}", where=self.uri, next_step="remove it")
        return at

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else str(self._root)

    def _tried(self, act: Callable[[], T]) -> T:
        """Act, again after a while where that may help; raises StorageFailed, or Stopped."""
        for pause in (*_PAUSES, None):
            if self._stop.is_set():
                raise Stopped
            try:
                return self._guarded(act)
            except StorageFailed as error:
                if pause is None or isinstance(error.__cause__, _FOR_GOOD) or _refused(error.__cause__):
                    raise
                self._stop.wait(pause)
        raise AssertionError("unreachable")

    def _guarded(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except (Stopped, StorageFailed):
            raise
        except Exception as error:
            raise _translated(error, self.uri) from error


def _remove_empty(folder: str) -> None:
    """Remove a folder that has nothing but empty folders in it."""
    with contextlib.suppress(OSError):
        for directory, _, _ in os.walk(folder, topdown=False):
            os.rmdir(directory)


def _file_system(uri: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    # What somebody asked before, or with other credentials, says nothing about now.
    system, root = url_to_fs(uri, skip_instance_cache=True, **options(uri, os.environ))
    return system, str(root).rstrip("/") if len(str(root)) > 1 else str(root)


def _behind(root: str, link: str) -> dict[str, Entry]:
    """What a link leads to: a file, or all files of a folder, by the link's name."""
    at = os.path.join(root, link)
    real = os.path.realpath(at)
    if os.path.isfile(real):
        return {link: _entry_here(real)}
    if not os.path.isdir(real) or (os.path.realpath(os.path.dirname(at)) + os.sep).startswith(real.rstrip(os.sep) + os.sep):
        return {}
    paths = [os.path.join(directory, name) for directory, _, files in os.walk(real) for name in files]
    return {os.path.join(link, os.path.relpath(path, real)): _entry_here(path) for path in paths if not os.path.islink(path)}


def _entry_here(path: str) -> Entry:
    if os.path.islink(path):
        return Entry(-1, "link")
    status = os.stat(path)
    return Entry(status.st_size, str(status.st_mtime_ns))


def _mark(info: Any) -> str:
    told = next((info[name] for name in _MARKS if info.get(name) is not None), "")
    return str(told).strip('"')


def _refused(error: BaseException | None) -> bool:
    """Trying again does not help: no credentials, or not the right ones."""
    text = f"{type(error).__name__} {error}"
    return any(word in text for word in _REFUSALS)


def _translated(error: Exception, uri: str) -> StorageFailed:
    """What went wrong, in the words of whoever knows the store, and what helps."""
    words = uris.hidden(oss.words(error) or (str(error) or type(error).__name__).strip().splitlines()[-1])
    step = "try again once it answers"
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in words:
        words, step = f"there is no such thing: {words}", "check the URI"
    elif isinstance(error, ImportError):
        step = "install that package here"
    elif isinstance(error, (IsADirectoryError, NotADirectoryError)):
        words, step = f"something else is there already: {words}", "name another place, or remove it"
    elif "endpoint is required" in words:
        words, step = "the endpoint of OSS is not known", "set OSS_ENDPOINT, or call `ossutil config`"
    elif isinstance(error, PermissionError) or _refused(error):
        where = _PLACES.get(uris.protocol(uri), "environment, ~/.aws, …")
        step = f"check the credentials of this terminal ({where}): `launcher` takes the usual ones"
    elif isinstance(error, OSError) and error.errno in _ADVICE:
        step = _ADVICE[error.errno]
    return StorageFailed(words, where=uris.masked(uri), next_step=step)

"""What a job left in its output channels on this node: list it, hash it, send it.

No link is ever followed: a file is opened component by component below output/, so that a link which a training script
made cannot make us read outside of it.

Runs on the nodes: standard library only, Python 3.8.
"""

import errno
import os
import stat

from launcher.agent.wire import CHUNK, raw

_NOT_TO_BE_HAD = frozenset([errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOENT])
"""why a single file may be unreadable, while the others can be brought"""
_NAMED = 3
"""files that strayed into the working copy of which the names are told"""
_ZEROS = bytes(CHUNK)


def list_outputs(session, request):
    """{}: {root, entries}, sorted by path.  An entry is a path and what is there:

    {path, size, mtime, mode} (of a file with holes also {data: bytes that will be sent at most}), {path, link}, {path, dir}
    or {path, special}; and, with or without that, {unreadable: why}.  Directories are named only when empty or unreadable;
    paths are relative to output/, their first component is the channel.
    """
    root = session.layout.output(session.job)
    if os.path.islink(root):
        # The command put it there, and what it leads to is not ours; the near side names it as left here.
        return {"root": root, "entries": [{"path": "", "link": os.readlink(root)}]}
    entries = _entries(os.fsencode(root)) if _exists(root) else []
    return {"root": root, "entries": sorted(entries, key=lambda entry: entry["path"])}


def list_strayed(session, request):
    """{}: {code, count, files}: the working copy, and what the command has made or changed in it since it first began.

    `files` are the first few, by their paths in the working copy.  What Python compiles for itself does not count, nor
    does what cannot be looked into.
    """
    code, began = session.layout.code(session.job), _began(session.layout.job(session.job))
    files, todo = [], [os.fsencode(code)]
    while todo:
        try:
            with os.scandir(todo.pop()) as scan:
                for entry in scan:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != b"__pycache__":
                            todo.append(entry.path)
                    elif entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_ctime_ns >= began:
                        files.append(os.path.relpath(entry.path, os.fsencode(code)).decode("utf-8", "surrogateescape"))
        except OSError:
            continue
    return {"code": code, "count": len(files), "files": sorted(files)[:_NAMED]}


def _began(job):
    """When, in ns by the file system's clock, the first node of those that share this directory claimed the first start."""
    spools = [os.path.join(job, rank, spool) for rank in os.listdir(job) if rank.startswith("rank-")
              for spool in os.listdir(os.path.join(job, rank))]
    claims = [os.path.join(spool, name) for spool in spools for name in os.listdir(spool) if name.startswith("claim-")]
    return min(os.stat(claim).st_mtime_ns for claim in claims)


def _exists(path):
    """False only for what is not there: what cannot be looked at may be."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def _entries(top):
    """All below a directory; what cannot be looked into is an entry of its own.  As deep as it goes, without recursion."""
    entries, todo = [], [(top, "")]
    while todo:
        directory, prefix = todo.pop()
        try:
            with os.scandir(directory) as scan:
                found = list(scan)
        except OSError as error:
            entries.append({"path": prefix[:-1], "unreadable": error.strerror})
            continue
        if not found and prefix:
            entries.append({"path": prefix[:-1], "dir": True})
        for entry in found:
            path = prefix + entry.name.decode("utf-8", "surrogateescape")
            try:
                if entry.is_dir(follow_symlinks=False):
                    todo.append((entry.path, path + "/"))
                else:
                    entries.append(_entry(entry, path))
            except OSError as error:
                entries.append({"path": path, "unreadable": error.strerror})
    return entries


def _entry(entry, path):
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return {"path": path, "link": os.readlink(entry.path).decode("utf-8", "surrogateescape")}
    if not stat.S_ISREG(status.st_mode):
        return {"path": path, "special": True}
    told = {"path": path, "size": status.st_size, "mtime": status.st_mtime_ns, "mode": status.st_mode & 0o777}
    if not os.access(entry.path, os.R_OK):
        told["unreadable"] = os.strerror(errno.EACCES)
    elif status.st_blocks * 512 < status.st_size:
        told["data"] = _data(entry.path, status.st_size)
    return told


def _data(path, size):
    """At most so many bytes of a file with holes are sent: those of the blocks that hold data (lseek(2)).

    Good enough to know the room that is needed; what is sent is told by the bytes alone.
    """
    blocks, end = set(), 0
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while end < size:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
            blocks.update(range(start // CHUNK, (end - 1) // CHUNK + 1))
    except OSError as error:
        if error.errno != errno.ENXIO:
            # A file system that knows no holes.
            return size
    finally:
        os.close(file)
    return min(len(blocks) * CHUNK, size)


def hash_outputs(session, request):
    """{paths}: {hashes: {path: sha256}}, without those that cannot be read."""
    root = session.layout.output(session.job)
    hashes = {}
    for path in request["paths"]:
        try:
            file = _reading(open_below, root, path)
            try:
                hashes[path] = _reading(_digest, file, None).hexdigest()
            finally:
                os.close(file)
        except _Unreadable:
            continue
    return {"hashes": hashes}


def fetch(session, request):
    """{files: [[path, offset, size]]}: send each file's bytes from offset to size as stream number = place in the list.

    Blocks of zeros are not sent: the next offset, or the size, tells of them.  The reply's {hashes: [sha256]} are those of
    the whole files, the part before the offset included; {unreadable: {path: why}} names those whose bytes are not to be
    had.  A file that became shorter than its listed size is a ValueError; what was added behind it since is not sent.
    """
    root = session.layout.output(session.job)
    hashes, unreadable = [], {}
    for stream, (path, offset, size) in enumerate(request["files"]):
        digest = None
        try:
            file = _reading(open_below, root, path)
            try:
                digest = _send(session, file, stream, offset, size)
            finally:
                os.close(file)
        except _Unreadable as error:
            unreadable[path] = str(error)
        except _Shorter:
            raise ValueError(f"{os.path.join(root, path)} became shorter while it was collected") from None
        hashes.append(digest)
    return {"hashes": hashes, "unreadable": unreadable}


class _Unreadable(Exception):
    """A file that is there and whose bytes are not to be had; a connection that takes none is another matter."""


class _Shorter(Exception):
    """A file that ends before its listed size."""


def _reading(read, *arguments):
    try:
        return read(*arguments)
    except OSError as error:
        if error.errno in _NOT_TO_BE_HAD:
            raise _Unreadable(os.strerror(error.errno)) from None
        raise


def _send(session, file, stream, offset, size):
    """Send a descriptor's bytes from ``offset`` on, but for blocks of zeros; the hash of all of it."""
    if os.fstat(file).st_size < size:
        raise _Shorter
    digest = _reading(_digest, file, offset)
    while offset < size:
        chunk = _reading(os.read, file, min(CHUNK - offset % CHUNK, size - offset))
        if not chunk:
            raise _Shorter
        digest.update(chunk)
        if chunk != _ZEROS[: len(chunk)]:
            session.send_data(stream, offset, chunk)
        offset += len(chunk)
    return digest.hexdigest()


def _digest(file, limit):
    """The hash of a descriptor's next ``limit`` bytes (None: all of them)."""
    import hashlib

    digest = hashlib.sha256()
    while limit is None or limit > 0:
        block = os.read(file, CHUNK if limit is None else min(CHUNK, limit))
        if not block:
            break
        digest.update(block)
        limit = None if limit is None else limit - len(block)
    return digest


def open_below(root, path):
    """A descriptor for reading the regular file ``path`` below ``root``; ValueError where it is something else."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"not a path inside the output directory: {path!r}")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    at = os.open(root, flags | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = os.open(raw(part), flags | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        file = os.open(raw(parts[-1]), flags | os.O_NONBLOCK, dir_fd=at)
    except OSError as error:
        error.filename = os.path.join(root, path)
        raise
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError(f"not a regular file: {path!r}")
    return file


def torch(session, request):
    """{python}: {torch: the version of torch that this interpreter has, None where it has none}; nothing is imported of it."""
    import subprocess

    text = "from importlib.metadata import version; print(version('torch'))"
    try:
        done = subprocess.run([request["python"], "-c", text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {"torch": None}
    return {"torch": done.stdout.decode("utf-8", "replace").strip() or None}


OPS = {"outputs_list": list_outputs, "outputs_hash": hash_outputs, "outputs_fetch": fetch, "outputs_torch": torch,
       "outputs_strayed": list_strayed}

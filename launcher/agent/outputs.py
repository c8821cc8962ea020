"""What a job left in its output channels on this node: list it, hash it, send it.

No link is ever followed: a file is opened component by component below output/, so that a link which a training script
made cannot make us read outside of it.

Runs on the nodes: standard library only, Python 3.8.
"""

import os
import stat

from launcher.agent.wire import CHUNK, raw


def list_outputs(session, request):
    """{}: {root, entries: [{path, size, mtime, mode} or {path, link} or {path, dir} or {path, special}]}, sorted by path.

    Directories are named only when empty; paths are relative to output/, their first component is the channel.
    """
    root = session.layout.output(session.job)
    if os.path.islink(root):
        # The command put it there, and what it leads to is not ours; the near side names it as left here.
        return {"root": root, "entries": [{"path": "", "link": os.readlink(root)}]}
    entries = list(_entries(os.fsencode(root), "")) if os.path.isdir(root) else []
    return {"root": root, "entries": sorted(entries, key=lambda entry: entry["path"])}


def _entries(directory, prefix):
    with os.scandir(directory) as scan:
        for entry in scan:
            path = prefix + entry.name.decode("utf-8", "surrogateescape")
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                yield {"path": path, "link": os.readlink(entry.path).decode("utf-8", "surrogateescape")}
            elif stat.S_ISREG(status.st_mode):
                yield {"path": path, "size": status.st_size, "mtime": status.st_mtime_ns, "mode": status.st_mode & 0o777}
            elif stat.S_ISDIR(status.st_mode):
                inside = list(_entries(entry.path, path + "/"))
                yield from inside or [{"path": path, "dir": True}]
            else:
                yield {"path": path, "special": True}


def hash_outputs(session, request):
    """{paths}: {hashes: {path: sha256}}."""
    root = session.layout.output(session.job)
    hashes = {}
    for path in request["paths"]:
        file = open_below(root, path)
        try:
            hashes[path] = _digest(file, None).hexdigest()
        finally:
            os.close(file)
    return {"hashes": hashes}


def fetch(session, request):
    """{files: [[path, offset, size]]}: send each file's bytes from offset to size as stream number = place in the list.

    The reply's {hashes: [sha256]} are those of the whole files, the part before the offset included.  A file that became
    shorter than its listed size is a ValueError; what was added behind it since is not sent.
    """
    root = session.layout.output(session.job)
    hashes = []
    for stream, (path, offset, size) in enumerate(request["files"]):
        file = open_below(root, path)
        try:
            digest = _digest(file, offset)
            while offset < size:
                chunk = os.read(file, min(CHUNK, size - offset))
                if not chunk:
                    raise ValueError(f"{os.path.join(root, path)} became shorter while it was collected")
                digest.update(chunk)
                session.send_data(stream, offset, chunk)
                offset += len(chunk)
        finally:
            os.close(file)
        hashes.append(digest.hexdigest())
    return {"hashes": hashes}


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


OPS = {"outputs_list": list_outputs, "outputs_hash": hash_outputs, "outputs_fetch": fetch}

"""What lies below a directory, as quickly as it can be told whether that is still so.

Runs on the nodes: standard library only, Python 3.8.
"""

import os

from launcher.agent.wire import raw


def scan(root):
    """[[directory, [name, size, mtime, ctime, mode, and so on for all that is no directory]], ...] below bytes ``root``.

    Directories are paths ending in a slash, but for the root, which is empty.  Follows no link.
    """
    seen, todo = [], [""]
    while todo:
        prefix = todo.pop()
        files = []
        seen.append([prefix, files])
        # By its descriptor: the path to it would be looked up once more for each file.
        directory = os.open(root + b"/" + raw(prefix), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(prefix + _text(entry.name) + "/")
                    else:
                        status = entry.stat(follow_symlinks=False)
                        files += (entry.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
        finally:
            os.close(directory)
    return seen


def arranged(scanned):
    """({path: stamp} of everything that is no directory, {paths of directories}) of a scan."""
    found, dirs = {}, set()
    for prefix, files in scanned:
        if prefix:
            dirs.add(prefix[:-1])
        for place in range(0, len(files), 5):
            found[prefix + _text(files[place])] = files[place + 1:place + 5]
    return found, dirs


def _text(name):
    """A name as manifests have it, whatever the locale says."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "surrogateescape")


def stamp_of(status):
    """What must not change behind our back.  ctime tells of a write even when the old mtime was put back."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode]

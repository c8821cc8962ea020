"""A file of lines, added to by whoever has the word; the one before may have died in the middle of a line.

Runs on the nodes too: standard library only, Python 3.8.
"""

from __future__ import annotations

import os


def add_line(path: str | os.PathLike[str], line: bytes, mode: int = 0o600, durable: bool = False) -> None:
    """Add ``line`` (with its end) to the file, which is made with ``mode``; ``durable`` waits until it is on the disk.

    A reader sees it whole or, on a full disk or after a death, cut: then OSError is raised, and the next line begins anew.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            # The cut line of whoever wrote before us must not spoil ours.
            line = b"\n" + line
        view = memoryview(line)
        while view:
            # On a full disk a part is written, and then nothing.
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)

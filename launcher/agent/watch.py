"""Wakes a reader when files in a directory change: inotify where there is one, else a poll.

Used on both sides.  Standard library only, Python 3.8.  Numbers from inotify(7).
"""

from __future__ import annotations

import os
import select
import sys

from launcher.agent import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Set

_CREATE, _MODIFY, _CLOSE_WRITE, ARRIVED = 0x100, 0x2, 0x8, 0x80
ANYTHING = _CREATE | _MODIFY | _CLOSE_WRITE | ARRIVED
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
POLL_SECONDS = 0.2
"""how long a change may stay unseen where inotify does not see it (other machines' writes, macOS)"""


class Watch:
    """Changes in a growing set of directories.  ``fileno`` is an inotify descriptor, or None where there is none.

    ``wanted`` is ANYTHING, or ARRIVED for files that are renamed into place alone.
    """

    def __init__(self, wanted: int = ANYTHING) -> None:
        self._wanted = wanted
        self._paths: Set[str] = set()
        self._fd: Optional[int] = None
        if sys.platform.startswith("linux"):
            fd = libc.call("inotify_init1", _NONBLOCK_CLOEXEC)
            self._fd = fd if fd >= 0 else None

    def fileno(self) -> Optional[int]:
        return self._fd

    def add(self, path: str) -> None:
        """Watch a directory too; one that is watched already, or is not there, changes nothing."""
        if path in self._paths or not os.path.isdir(path):
            return
        self._paths.add(path)
        if self._fd is not None:
            libc.call("inotify_add_watch", self._fd, os.fsencode(path), self._wanted)

    def clear(self) -> None:
        """Forget the changes seen so far; call it before looking at the files."""
        try:
            while self._fd is not None and os.read(self._fd, 65536):
                pass
        except BlockingIOError:
            pass

    def wait(self, seconds: float = POLL_SECONDS) -> None:
        """Block until something changed, at most ``seconds`` (and at most POLL_SECONDS, for what inotify does not see)."""
        # Not select, which knows no descriptor above 1023: whoever watches may have many open.
        poll = select.poll()
        if self._fd is not None:
            poll.register(self._fd, select.POLLIN)
        poll.poll(max(0.0, min(seconds, POLL_SECONDS)) * 1000)
        self.clear()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

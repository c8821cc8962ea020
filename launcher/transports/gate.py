"""Keeps a channel's descriptors from being closed while somebody is inside a read or write."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from launcher.errors import LinkLost


class Gate:
    """Open until it is shut once; shutting waits until everybody inside is out.

    A descriptor that was closed under somebody's feet could be another file's a moment later.
    """

    def __init__(self) -> None:
        self.shut = False
        self._inside = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def inside(self, lost: Callable[[], LinkLost]) -> Iterator[None]:
        """Be inside; raises ``lost()`` when it was shut."""
        with self._changed:
            if self.shut:
                raise lost()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self, wake: Callable[[], object]) -> bool:
        """Shut it: ``wake()`` makes those inside come out.  True, when they are, for the one who then closes what they used."""
        with self._changed:
            if self.shut:
                return False
            self.shut = True
            wake()
            return self._changed.wait_for(lambda: self._inside == 0)

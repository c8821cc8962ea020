"""Being the one coordinator of a job: the owner's record with its heartbeat, and a file lock as a second belt."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from launcher import owner
from launcher.store import Folder, read_json, write_json

HEARTBEAT_SECONDS = 5.0
_PATIENCE, _AGAIN = 5.0, 0.05
"""seconds that a lock is waited for which no coordinator of this machine holds, and between two tries"""


class AlreadyOwned(Exception):
    """Another living coordinator has this job."""


class Owner:
    """Holds the job while the `with` block runs; raises AlreadyOwned on entry when somebody else does."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._trouble: str | None = None
        self._over = threading.Event()
        self._writing = threading.Lock()
        self.on_replaced: Callable[[], None] = lambda: None
        """called once the record is another coordinator's: somebody took over while nothing was heard of us"""

    def __enter__(self) -> Owner:
        self._fd = os.open(self._folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
        except AlreadyOwned:
            os.close(self._fd)
            raise
        self._record: dict[str, Any] = owner.here()
        self._write()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        with self._writing:
            os.close(self._fd)

    def _lock(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                # A coordinator; or whoever looks after a job in Slurm's queue, for a moment, in which it may have been started.
                if self._lives_here() or time.monotonic() > deadline:
                    raise AlreadyOwned from None
                time.sleep(_AGAIN)
            except OSError:
                # Some network file systems know no locks; the record decides there.
                if owner.is_alive(read_json(self._folder.owner)):
                    raise AlreadyOwned from None
                return

    def _lives_here(self) -> bool:
        record = read_json(self._folder.owner)
        return owner.is_alive(record) and record["host"] == os.uname().nodename

    def report(self, trouble: str | None) -> None:
        """Say in the record why we cannot do our work just now (`key unavailable`), or that we can again."""
        if trouble != self._trouble:
            self._trouble = trouble
            with contextlib.suppress(OSError):
                self._write()

    def _beat(self) -> None:
        missing = False
        while not self._over.wait(HEARTBEAT_SECONDS):
            # A full disk, or a folder that is gone, is not the heart's business.
            with contextlib.suppress(OSError):
                found = read_json(self._folder.owner)
                if found is not None and any(found.get(key) != self._record[key] for key in ("host", "pid", "start_time")):
                    self._over.set()
                    self.on_replaced()
                    return
                # Who takes over removes the record first, and writes his own a moment later.
                missing = found is None and not missing
                if not missing:
                    self._write()

    def _write(self) -> None:
        with self._writing:
            if not self._over.is_set():
                write_json(self._folder.owner, {**self._record, "heartbeat": time.time(), "trouble": self._trouble})

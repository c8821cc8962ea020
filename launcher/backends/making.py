"""A job's folder while submit writes it; and one that stays unfinished, because submit was killed meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.policy import fold
from launcher.store import Folder


@contextmanager
def alone(folder: Folder) -> Iterator[bool]:
    """The coordinator's own lock: True for one of several that want it at the same time, and never while a coordinator lives.

    Submit holds it until the folder is whole.
    """
    fd = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            # Some network file systems know no locks; two equal ends are no harm.
            pass
        yield True
    finally:
        os.close(fd)


def give_up(folder: Folder) -> None:
    """End a job that has no plan, unless its submit is still at it: nobody can go on with it, and nothing of it runs.

    What submit had taken along, the environment above all, is removed.
    """
    import shutil

    with alone(folder) as is_ours:
        seen = fold(folder.read_events())
        if not is_ours or folder.plan.exists() or seen.end is not None:
            return
        for file in (folder.environment, *folder.root.glob(".*.part")):
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
        for directory in (folder.code, folder.clone):
            shutil.rmtree(directory, ignore_errors=True)
        end = {
            "type": "end",
            "status": "CreateFailed",
            "reason_code": "SubmitEnded",
            "reason_message": "submit was killed before it had written the job down; nothing was started",
            "exit_code": 130,
            "model": None,
        }
        folder.append({"n": seen.count, "time": time.time(), **end}, durable=True)

"""Watching a job, whoever asked for it: what is new goes to the screen, and somebody sees to its coordinator."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher import api
from launcher.errors import HomeFull, LauncherError
from launcher.feed import Feed

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import Popen

    from launcher.screen import Screen
    from launcher.store import Folder

LOOK_SECONDS = 1.0
"""how often a coordinator's death is looked for, where nobody says otherwise"""
_ROOM = 1 << 16
"""bytes"""
_FAILURES, _LAST_LINES = 3, 12
"""after so many that failed before they had written an end no other is tried; so much is shown of their log"""


class Attention:
    """Whoever watches a job sees to it now and then that somebody coordinates it."""

    def __init__(self, folder: Folder, at_once: bool = True, every: float = LOOK_SECONDS) -> None:
        self._folder = folder
        self._every = every
        self._looked = time.monotonic() - (every if at_once else 0)
        self._news: str | None = None
        self._started: list[Popen[bytes]] = []

    def pay(self) -> str | None:
        """Look if it is time to; a sentence that was not said before.  Raises LauncherError when one after the other fails."""
        if time.monotonic() - self._looked < self._every:
            return None
        self._looked = time.monotonic()
        told = api.ensure_coordinator(self._folder, self._started)
        if told is not None:
            self._give_up_at_last()
        if told is None or told == self._news:
            return None
        self._news = told
        return told

    def _give_up_at_last(self) -> None:
        # One that was killed (below 0), or that found another one at work (0), tells nothing of the next.
        if sum((process.poll() or 0) > 0 for process in self._started) < _FAILURES:
            return
        log = self._folder.coordinator_log
        what = "one coordinator of the job after the other failed; what runs on its nodes goes on"
        if _is_full(self._folder.root):
            step = f"make room on the disk of LAUNCHER_HOME, then launcher attach {self._folder.job_id}"
            raise HomeFull(what, where=str(self._folder.root), lines=[os.strerror(errno.ENOSPC)], next_step=step)
        raise LauncherError(what, where=str(log), lines=_last_lines(log),
                            next_step=f"mend that, then launcher attach {self._folder.job_id}")


def _is_full(folder: Path) -> bool:
    """Whether what a coordinator writes first has no place there, on a full disk or with a quota that is used up."""
    import tempfile  # for this alone

    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return file.write(bytes(_ROOM)) < _ROOM
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _last_lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    except OSError:
        return []


def follow(
    folder: Folder,
    screen: Screen,
    feed: Feed,
    heed: Callable[[], int | None] = lambda: None,
    *,
    until_running: bool = False,
    quiet: bool = False,
    every: float = LOOK_SECONDS,
) -> int | None:
    """Show a job until its end (or until it runs, or waits in Slurm's queue); None then.

    ``heed`` is called at every turn, for the wishes of whoever watches; a number that it returns ends the watching at once,
    and is returned.  ``quiet`` leaves the log lines out.  ``every``: seconds between looks for a coordinator's death.
    """
    attention = Attention(folder, at_once=False, every=every)
    while True:
        for item in feed.read():
            screen.show(item, feed, quiet)
        if feed.ended or (until_running and (feed.view.following or feed.view.submitted_at is not None)):
            return None
        left = heed()
        if left is not None:
            return left
        news = attention.pay()
        if news:
            screen.note(news)
        feed.wait()


def until_end(folder: Folder, timeout: float | None = None, every: float = LOOK_SECONDS) -> Feed | None:
    """Wait for a job's end, whoever coordinates it; what was read of it, or None after ``timeout`` seconds."""
    feed = Feed(folder)
    attention, began = Attention(folder, every=every), time.monotonic()
    while True:
        feed.read_events()
        if feed.ended:
            return feed
        if timeout is not None and time.monotonic() - began >= timeout:
            return None
        attention.pay()
        feed.wait()

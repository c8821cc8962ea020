"""Watching a job, whoever asked for it: what is new goes to the screen, and somebody sees to its coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher import api
from launcher.feed import Feed

if TYPE_CHECKING:
    from launcher.screen import Screen
    from launcher.store import Folder

LOOK_SECONDS = 1.0
"""how often a coordinator's death is looked for, where nobody says otherwise"""


class Attention:
    """Whoever watches a job sees to it now and then that somebody coordinates it."""

    def __init__(self, folder: Folder, at_once: bool = True, every: float = LOOK_SECONDS) -> None:
        self._folder = folder
        self._every = every
        self._looked = time.monotonic() - (every if at_once else 0)
        self._news: str | None = None

    def pay(self) -> str | None:
        """Look if it is time to; a sentence that was not said before."""
        if time.monotonic() - self._looked < self._every:
            return None
        self._looked = time.monotonic()
        told = api.ensure_coordinator(self._folder)
        if told is None or told == self._news:
            return None
        self._news = told
        return told


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

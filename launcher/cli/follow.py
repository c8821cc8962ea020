"""Watching a job from a terminal: its feed goes to the screen, signals go to the job."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import NoReturn

import click

from launcher import api
from launcher.cli import options
from launcher.cli.show import Screen
from launcher.feed import Feed
from launcher.store import Folder

_LOOK_SECONDS = 1.0
"""how often a coordinator's death is looked for"""


class Interrupts:
    """Counts Ctrl-C and SIGTERM.  Until `note_from_now_on` a Ctrl-C raises KeyboardInterrupt as usual."""

    def __init__(self) -> None:
        self.count = 0
        self.warnings = 0
        """how often Slurm has warned that the allocation ends soon"""
        self._noting = False

    def note_from_now_on(self) -> None:
        """Something runs that must not be left alone: handlers only note, the loop acts."""
        self._noting = True

    def note_warnings(self, number: int) -> None:
        """Slurm's warning to a batch script (`--signal=B:…`) comes to us, who stand in the script's place."""
        signal.signal(number, self._note_warning)

    def _note_warning(self, number: int, frame: FrameType | None) -> None:
        self.warnings += 1

    def __enter__(self) -> Interrupts:
        self._old = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        # One Ctrl-C more than was needed must not change how we exit.
        interrupted = self.count > 0 or isinstance(value, KeyboardInterrupt)
        for number, handler in self._old.items():
            signal.signal(number, signal.SIG_IGN if interrupted else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._noting:
            raise KeyboardInterrupt
        self.count += 1


class Attention:
    """Whoever watches a job sees to it now and then that somebody coordinates it."""

    def __init__(self, folder: Folder, at_once: bool = True) -> None:
        self._folder = folder
        self._looked = time.monotonic() - (_LOOK_SECONDS if at_once else 0)
        self._news: str | None = None

    def pay(self) -> str | None:
        """Look if it is time to; a sentence that was not said before."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
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
    interrupts: Interrupts | None,
    until_running: bool = False,
    quiet: bool = False,
    feed: Feed | None = None,
) -> int:
    """Show a job until its end (or until it runs, or waits in Slurm's queue); returns the job's exit code, 0 while there is none.

    ``interrupts`` None: signals are the caller's, and only leave.  ``feed``: one that has read what need not be shown.
    """
    feed = feed or Feed(folder)
    attention, heard, handed_on = Attention(folder, at_once=False), 0, 0
    while True:
        for item in feed.read():
            screen.show(item, feed, quiet)
        if feed.ended or (until_running and (feed.view.following or feed.view.submitted_at is not None)):
            break
        # One by one, however fast they came: who presses three times at once has cancelled, too.
        while interrupts is not None and interrupts.count > heard:
            heard += 1
            if heard > 2:
                return screen.leave(folder, feed.view)
            screen.stopping(heard)
            api.cancel(folder, heard)
        if interrupts is not None and interrupts.warnings > handed_on:
            handed_on += api.hand_on(folder)
        news = attention.pay()
        if news:
            screen.note(news)
        feed.wait()
    screen.finish(folder, feed.view)
    return int(feed.view.end["exit_code"]) if feed.view.end else 0


def exit_as_the_job(ctx: click.Context, folder: Folder, output: str, code: int) -> NoReturn:
    """The last act of whatever watched a job to its end: the document for programs, and the job's exit code."""
    if output == "json":
        options.print_json(api.describe(folder))
    ctx.exit(code)


def until_end(folder: Folder, timeout: float | None = None) -> Feed | None:
    """Wait for a job's end, whoever coordinates it; what was read of it, or None after ``timeout`` seconds."""
    leave_quietly()
    feed = Feed(folder)
    attention, began = Attention(folder), time.monotonic()
    while True:
        feed.read_events()
        if feed.ended:
            return feed
        if timeout is not None and time.monotonic() - began >= timeout:
            return None
        attention.pay()
        feed.wait()


def leave_quietly() -> None:
    """Where a command only watches, Ctrl-C leaves without a word, and the job goes on."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

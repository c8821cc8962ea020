"""Watching a job from a terminal: its feed goes to the screen, signals go to the job."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import NoReturn

import click

from launcher import api, following
from launcher.cli import options
from launcher.feed import Feed
from launcher.screen import Screen
from launcher.store import Folder


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
    heed = Wishes(folder, screen, interrupts, feed).heed if interrupts is not None else lambda: None
    left = following.follow(folder, screen, feed, heed, until_running=until_running, quiet=quiet)
    if left is not None:
        return left
    screen.finish(folder, feed.view)
    return int(feed.view.end["exit_code"]) if feed.view.end else 0


class Wishes:
    """What the signals that came mean for the job."""

    def __init__(self, folder: Folder, screen: Screen, interrupts: Interrupts, feed: Feed) -> None:
        self._folder, self._screen, self._interrupts, self._feed = folder, screen, interrupts, feed
        self._heard = self._handed_on = 0

    def heed(self) -> int | None:
        """Pass on what is new; the exit code with which to leave, once that is wished."""
        # One by one, however fast they came: who presses three times at once has cancelled, too.
        while self._interrupts.count > self._heard:
            self._heard += 1
            if self._heard > 2:
                return self._screen.leave(self._folder, self._feed.view)
            self._screen.stopping(self._heard)
            api.cancel(self._folder, self._heard)
        if self._interrupts.warnings > self._handed_on:
            self._handed_on += api.hand_on(self._folder)
        return None


def exit_as_the_job(ctx: click.Context, folder: Folder, output: str, code: int) -> NoReturn:
    """The last act of whatever watched a job to its end, or for its time: the document for programs, and the exit code."""
    if output == "json":
        options.print_json(api.describe(folder))
    ctx.exit(code)


def leave_quietly() -> None:
    """Where a command only watches, Ctrl-C leaves without a word, and the job goes on."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

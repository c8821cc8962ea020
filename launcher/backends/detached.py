"""A coordinator as a process of its own on this machine, which no terminal's end and no log-out reaches."""

from __future__ import annotations

import contextlib
import os
import signal
import site
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from launcher import owner
from launcher.errors import LauncherError, UsageError
from launcher.store import Folder, read_json

SSH = b"ssh\0"
"""what a prepared coordinator is told when its job will probably need that: loading it takes longer than all the rest"""


class Prepared:
    """A coordinator that loads its code while its job is still being planned; without a job it ends when we do."""

    def __init__(self) -> None:
        """Raises LauncherError when no coordinator can be started."""
        null, words = subprocess.DEVNULL, _words()
        try:
            self._process = _popen(words, stdin=subprocess.PIPE, stdout=null, stderr=null)
        except OSError as error:
            raise LauncherError(f"the coordinator cannot be started: {error}", where=words[0]) from error

    def foresee_ssh(self) -> None:
        """Let it load what ssh needs."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone; `start` sees to that
            self._process.stdin.write(SSH)
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """There is no job for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def start(self, folder: Folder) -> None:
        """Give it the job.  Raises LauncherError when no coordinator can be started."""
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stdin:
                stdin.write(os.fsencode(folder.root))
        except BrokenPipeError:
            start(folder)


_waiting: list[Prepared] = []
"""the one that was started before the command line was loaded, until somebody takes it"""


def prepare_early() -> None:
    """Start one before anything is known of its job: two processes load their code side by side.  `prepare` hands it out."""
    with contextlib.suppress(LauncherError):  # said again where it is wanted
        _waiting.append(Prepared())


def prepare() -> Prepared:
    """A coordinator that waits for its job.  Raises LauncherError when none can be started."""
    return _waiting.pop() if _waiting else Prepared()


def start(folder: Folder) -> subprocess.Popen[bytes]:
    """Start a coordinator for the job; it finds out by itself what is left to do.  Raises LauncherError when it cannot."""
    try:
        with folder.coordinator_log.open("ab") as log:
            return _popen([*_words(), str(folder.root)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    except OSError as error:
        raise LauncherError(f"the coordinator cannot be started: {error}", where=str(folder.root)) from error


def start_again(folder: Folder) -> subprocess.Popen[bytes]:
    """As `start`, for a job that has had one.  UsageError where that was on another machine, which may come back to life."""
    host = owner.elsewhere(read_json(folder.owner))
    if host is not None:
        what = f"its coordinator was on {host}, and has not been heard of for {owner.FRESH_SECONDS:.0f} s or more"
        step = f"look after it there; where {host} will not come back: launcher resume --take-over {folder.job_id}"
        raise UsageError(what, where=folder.job_id, next_step=step)
    return start(folder)


def take_over(folder: Folder, state: str) -> None:
    """Start one though the last one was on another machine.  UsageError unless its ``state`` is that it is lost."""
    if state != "lost" or folder.slurm.exists():
        what = f"there is no coordinator to take over from: {'Slurm starts it' if folder.slurm.exists() else state}"
        raise UsageError(what, where=folder.job_id, next_step=f"launcher attach {folder.job_id}")
    replace(folder)


def replace(folder: Folder) -> None:
    """Start one, whoever had the job before."""
    folder.owner.unlink(missing_ok=True)
    start(folder)


def retire(folder: Folder) -> bool:
    """Ask a coordinator to leave its job (nothing on the nodes is touched), and wait until it has; False when it stays."""
    record = read_json(folder.owner)
    if not owner.send(record, signal.SIGTERM):
        return not owner.is_alive(record)
    from launcher.agent.watch import Watch

    watch = Watch()
    deadline = time.monotonic() + 10
    while owner.is_alive(record) and time.monotonic() < deadline:
        watch.wait(0.05)
    return not owner.is_alive(record)


def _popen(words: list[str], **streams: Any) -> subprocess.Popen[bytes]:
    """Start a coordinator.

    In Slurm TERM says that the job ends, and another signal that it soon will, also while the coordinator loads its code: it
    starts with these blocked, and lets them through when it can write an end.
    """
    blocked = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2} if "SLURM_JOB_ID" in os.environ else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        return subprocess.Popen(words, start_new_session=True, cwd=directory(), **streams)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _words() -> list[str]:
    scope = _scope() if sys.platform.startswith("linux") else []
    return [*scope, sys.executable, "-m", "launcher.coordinator"]


def _scope() -> list[str]:
    """Where a user manager outlives log-outs, the coordinator goes below it."""
    from launcher.agent import facts

    return ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--"] if facts.lingering() else []


def directory() -> str:
    """Where `python -m` finds this very package without a variable that the job would inherit; never the user's directory,
    whose modules would go before those of the standard library."""
    here = str(Path(__file__).resolve().parents[2])
    installed = (*site.getsitepackages(), site.getusersitepackages())
    return "/" if here in installed else here

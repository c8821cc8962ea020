"""TensorBoard on what a job has written for it: on a free port of this machine, for as long as this program lives.

    shown = start(folder)      # returns when it answers
    shown.app_uri              # http://127.0.0.1:36325/
    shown.status               # Running, or Stopped
    shown.stop()

TensorBoard itself is an extra: pip install 'launcher[tensorboard]'.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import threading

from launcher.errors import LauncherError, UsageError

RUNNING, STOPPED = "Running", "Stopped"
_START_SECONDS = 120.0
"""its imports alone take seconds on a busy machine"""
_STOP_SECONDS = 5.0
_LAST_LINES = 8
_PROGRAM = """
import os, sys, threading
def leave():
    sys.stdin.buffer.read()
    os._exit(0)
threading.Thread(target=leave, daemon=True).start()
from tensorboard import main
main.run_main()
"""
"""its stdin ends with the program that started it, however that ends; so does its own data server"""
_ADDRESS = re.compile(r"TensorBoard \S+ at (http://\S+)")


class TensorBoard:
    """A TensorBoard that runs beside this program."""

    def __init__(self, process: subprocess.Popen[str], logdir: str) -> None:
        self.logdir = logdir
        self._process = process
        self._lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._told = threading.Event()
        """it has said where it is, or ended"""
        self._uri: str | None = None
        threading.Thread(target=self._listen, name="tensorboard", daemon=True).start()

    @property
    def app_uri(self) -> str:
        """Where a browser finds it."""
        assert self._uri is not None
        return self._uri

    @property
    def status(self) -> str:
        """Running or Stopped."""
        return RUNNING if self._process.poll() is None else STOPPED

    def wait(self) -> None:
        """Until it ends, by `stop` from elsewhere or by itself."""
        self._process.wait()

    def stop(self) -> None:
        """End it; one that has ended is left as it is."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def delete(self) -> None:
        """As `stop`, by the name that PAI's notebooks call at their end; what was written stays."""
        self.stop()

    def await_answer(self) -> None:
        """Return when it answers; LauncherError, with its last lines, where it does not."""
        if not self._told.wait(_START_SECONDS) or self._uri is None:
            self.stop()
            raise LauncherError("TensorBoard did not start", where=self.logdir, lines=list(self._lines))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line.rstrip())
            found = _ADDRESS.search(line)
            if found:
                self._uri = found[1]
                self._told.set()
        self._process.wait()
        self._told.set()

    def __repr__(self) -> str:
        return f"TensorBoard({self._uri!r}, {self.status})"


def start(logdir: str | os.PathLike[str], port: int = 0) -> TensorBoard:
    """Start one on a folder, which may come to be later, and return when it answers.

    ``port`` 0: a free one.  UsageError where TensorBoard is not installed, LauncherError where it does not start.
    """
    if importlib.util.find_spec("tensorboard") is None:
        step = f"{sys.executable} -m pip install 'launcher[tensorboard]'"
        raise UsageError("TensorBoard is not installed here", where=sys.executable, next_step=step)
    folder = os.fspath(logdir)
    words = [f"--logdir={folder}", "--host=127.0.0.1", f"--port={port}"]
    pipe = subprocess.PIPE
    # In a session of its own: Ctrl-C in a terminal is for whoever started it.
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *words], stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True,
        errors="replace", start_new_session=True, cwd="/",
    )  # fmt: skip
    made = TensorBoard(process, folder)
    made.await_answer()
    return made

"""The local transport: a simulated node of this machine, reached through a subprocess's pipes."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO

from launcher.errors import LinkLost, NodeUnusable
from launcher.model import Host
from launcher.transports.gate import Gate

STDERR_KEPT = 4096
"""bytes of a program's stderr that are remembered, the last ones"""
GOODBYE = 1.0
"""seconds a program is given to end after its input was closed"""


class LocalTransport:
    """Starts programs here, as ssh would there: in the home directory, a session of their own, ~ expanded, no shell."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._channels: list[LocalChannel] = []

    def open(self, words: Sequence[str]) -> LocalChannel:
        """Start the word list; NodeUnusable when there is no such program."""
        argv = [os.path.expanduser(word) for word in words]
        try:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                                       start_new_session=True, cwd=_home())
        except OSError as error:
            step = "install it, or name another with `python:` or `venv:` in the inventory"
            if error.errno in (errno.EMFILE, errno.ENFILE):
                step = "raise the limit of open files (`ulimit -n`), or simulate fewer nodes"
            raise NodeUnusable(f"{argv[0]} cannot be started: {error.strerror}", where=self._host.name, next_step=step) from None
        channel = LocalChannel(process, self._host.name)
        self._channels = [*(other for other in self._channels if not other.closed), channel]
        return channel

    def close(self) -> None:
        """Close the pipes of every program that still has them; what is started goes on or ends as it likes."""
        for channel in self._channels:
            channel.hang_up()


class LocalChannel:
    """A subprocess's pipes: see `launcher.transports.Channel`."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._name = name
        self._stdin, self._stdout = process.stdin, process.stdout
        self._stderr: IO[bytes] | None = process.stderr
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._tail = b""
        self._stderr_lock = threading.Lock()
        self._sending = threading.Lock()
        """held by whoever uses the program's input"""
        # Whoever closes the channel writes here, which wakes those who wait, and closes the pipes when they are out.
        self._woken, self._waker = os.pipe()
        self._gate = Gate()

    def send(self, data: bytes) -> None:
        """Write all of ``data``; LinkLost when the program is gone or has closed its input."""
        rest = memoryview(data)
        with self._sending, self._using():
            while rest:
                if self._wait(self._stdin, select.POLLOUT, None):
                    rest = rest[self._written(rest):]

    def receive(self, limit: int, timeout: float | None = None) -> bytes:
        """Up to ``limit`` bytes; b"" at the end of output; LinkLost after `close`; TimeoutError."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._using():
            while True:
                if self._wait(self._stdout, select.POLLIN, end):
                    # Whoever closes the channel receives, too, and may have been first.
                    with contextlib.suppress(BlockingIOError):
                        return os.read(self._stdout.fileno(), limit)

    def finish(self) -> None:
        """Close the program's standard input."""
        with self._sending:
            self._stdin.close()

    def close(self) -> tuple[int | None, bytes]:
        """Let go of the program: (exit status or None, last bytes of its stderr)."""
        end = time.monotonic() + GOODBYE
        # While somebody sends to a program that takes nothing, the input is in use until it is hung up.
        if self._sending.acquire(timeout=GOODBYE):
            self._stdin.close()
            self._sending.release()
        try:
            while self.receive(1 << 20, end - time.monotonic()):
                pass
            self._process.wait(max(end - time.monotonic(), 0.01))
        except (TimeoutError, LinkLost, subprocess.TimeoutExpired):
            pass  # it does not end, and need not
        status = self._process.poll()
        if not self.closed:
            self._keep_stderr()
        self.hang_up()
        return (status if status is None or status >= 0 else None), self._tail

    def hang_up(self) -> None:
        """Close the pipes; whoever waits on them gets LinkLost."""
        if not self._gate.close(lambda: os.write(self._waker, b"x")):
            return
        for pipe in (self._stdin, self._stdout, self._stderr):
            if pipe:
                pipe.close()
        os.close(self._woken)
        os.close(self._waker)

    @property
    def closed(self) -> bool:
        """Whether it was hung up."""
        return self._gate.shut

    def _using(self) -> contextlib.AbstractContextManager[None]:
        return self._gate.inside(lambda: self._lost("the program's pipes were closed"))

    def _wait(self, pipe: IO[bytes], what: int, end: float | None) -> bool:
        """Whether ``pipe`` is ready now; stderr is emptied meanwhile.  TimeoutError after ``end``, LinkLost when closed."""
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        if pipe.closed:
            raise self._lost("the program's input was closed already")
        poll = select.poll()
        poll.register(pipe, what)
        poll.register(self._woken, select.POLLIN)
        stderr = self._stderr
        if stderr:
            poll.register(stderr, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if left is None else left * 1000)}
        if self._woken in ready:
            raise self._lost("the program's pipes were closed")
        if stderr and stderr.fileno() in ready:
            self._keep_stderr()
        return pipe.fileno() in ready

    def _written(self, data: memoryview) -> int:
        try:
            return os.write(self._stdin.fileno(), data)
        except BlockingIOError:
            return 0
        except (OSError, ValueError):
            raise self._lost("the program has ended, or closed its input") from None

    def _keep_stderr(self) -> None:
        """Read what is there; at its end stop looking, or every wait would end at once."""
        with self._stderr_lock:
            while self._stderr:
                try:
                    piece = os.read(self._stderr.fileno(), 1 << 16)
                except BlockingIOError:
                    return
                self._tail = (self._tail + piece)[-STDERR_KEPT:]
                if not piece:
                    self._stderr = None

    def _lost(self, what: str) -> LinkLost:
        return LinkLost(what, where=self._name, next_step="what was started goes on; connect again")


def _home() -> str | None:
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else None

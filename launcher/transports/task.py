"""The near end of a step's task, and the channels to the programs that it was asked to start."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from launcher.agent import lanes
from launcher.errors import LinkLost, NodeError, NodeUnusable
from launcher.transports.gate import Gate

GOODBYE = 1.0
"""seconds a program is given to end after its input was closed"""
OPENING = 30.0
"""seconds until a program that was asked for must have its channel"""


class Task:
    """One task of a step: what was asked of it, and what it told.  The step's thread feeds it, under the step's lock."""

    def __init__(self, number: int, node: str, changed: threading.Condition, post: Callable[[bytes], None]) -> None:
        """``post`` sends text of the control line."""
        self.number = number
        self.node = node
        self.changed = changed
        self.sentences = lanes.Sentences()
        self.gone: NodeError | None = None
        """why nothing can come from it any more"""
        self.ended: dict[int, tuple[int | None, bytes]] = {}
        """{channel: (exit status, last words on stderr)} of programs that have ended"""
        self.arrived: dict[int, tuple[socket.socket, bytes]] = {}
        """{channel: (its connection, what came with the call)} that nobody has fetched yet"""
        self.lane: Callable[[int], socket.socket] | None = None
        """makes the near end of a channel over the step's own stdin and stdout; None: the task calls for each"""
        self._post = post
        self._channels = itertools.count(1)

    def say(self, sentence: str) -> None:
        """Send a sentence of the control line."""
        self._post(sentence.encode() + b"\n")

    def open(self, words: Sequence[str]) -> tuple[int, socket.socket, bytes]:
        """(channel, its socket, the first bytes) of a program started there; raises NodeErrors."""
        with self.changed:
            channel = next(self._channels)
            made = self.lane(channel) if self.lane is not None else None
            self.say(f"open {channel} {chr(0).join(words).encode('utf-8', 'surrogateescape').hex()}")
            if made is not None:
                return channel, made, b""
            arrived = self.changed.wait_for(lambda: channel in self.arrived or channel in self.ended or self.gone, OPENING)
            if channel in self.arrived:
                return channel, *self.arrived.pop(channel)
            if self.gone is not None:
                raise self.gone
            tail = self.ended.pop(channel)[1] if arrived else b""
        raise NodeUnusable("its task could not call back for a program", where=self.node,
                           lines=tail.decode(errors="replace").splitlines()[-5:],
                           next_step="do the training ports of this machine answer there at all times?")

    def end_of(self, channel: int, seconds: float) -> tuple[int | None, bytes]:
        """(exit status, last words on stderr) of a program, waiting at most that long; (None, b"") when it goes on."""
        with self.changed:
            self.changed.wait_for(lambda: channel in self.ended or self.gone, max(seconds, 0))
            return self.ended.get(channel, (None, b""))

    def heard(self, sentence: bytes) -> str | None:
        """Take what the task told; the name of a signal if it is about one."""
        word, *rest = sentence.decode(errors="replace").split(" ")
        if word == "ended" and len(rest) == 3:
            self.ended[int(rest[0])] = (int(rest[1]) if rest[1].isdigit() else None, bytes.fromhex(rest[2]))
        return rest[0] if word == "heard" and rest else None


class SrunTransport:
    """Starts programs in one task of a step, all of them below it, each in a session of its own."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._channels: list[SrunChannel] = []

    def open(self, words: Sequence[str]) -> SrunChannel:
        """Start the word list there; raises NodeGone when the task has ended."""
        channel = SrunChannel(self._task, *self._task.open(words))
        self._channels = [*(other for other in self._channels if not other.closed), channel]
        return channel

    def close(self) -> None:
        """Hang up on the programs that were started; the task stays."""
        for channel in self._channels:
            channel.hang_up()


class SrunChannel:
    """A program's socket: see `launcher.transports.Channel`."""

    def __init__(self, task: Task, number: int, sock: socket.socket, first: bytes) -> None:
        sock.setblocking(False)
        self._task = task
        self._number = number
        self._sock = sock
        self._first = first
        self._gate = Gate()

    def send(self, data: bytes) -> None:
        """Write all of ``data``; LinkLost when the program is gone or has closed its input."""
        rest = memoryview(data)
        with self._using():
            while rest:
                self._wait(select.POLLOUT, None)
                try:
                    rest = rest[self._sock.send(rest):]
                except BlockingIOError:
                    continue
                except OSError:
                    raise self._lost("the program has ended, or closed its input") from None

    def receive(self, limit: int, timeout: float | None = None) -> bytes:
        """Up to ``limit`` bytes; b"" at the end of output; LinkLost after `close`; TimeoutError."""
        if self._first:
            piece, self._first = self._first[:limit], self._first[limit:]
            return piece
        end = None if timeout is None else time.monotonic() + timeout
        with self._using():
            while True:
                self._wait(select.POLLIN, end)
                try:
                    piece = self._sock.recv(limit)
                except BlockingIOError:
                    continue
                except OSError:
                    raise self._lost("the connection broke") from None
                if piece or not self.closed:
                    return piece
                raise self._lost("the channel was closed")

    def finish(self) -> None:
        """Close the program's standard input."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> tuple[int | None, bytes]:
        """Let go of the program: (exit status or None, last bytes of its stderr); as often as one likes."""
        end = time.monotonic() + GOODBYE
        self.finish()
        with contextlib.suppress(TimeoutError, LinkLost):
            while self.receive(1 << 20, end - time.monotonic()):
                pass
        told = self._task.end_of(self._number, end - time.monotonic())
        self.hang_up()
        return told

    def hang_up(self) -> None:
        """Close the socket; whoever waits on it gets LinkLost."""
        if self._gate.close(self._shut_down):
            self._sock.close()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    @property
    def closed(self) -> bool:
        """Whether it was hung up."""
        return self._gate.shut

    def _using(self) -> contextlib.AbstractContextManager[None]:
        return self._gate.inside(lambda: self._lost("the channel was closed"))

    def _wait(self, what: int, end: float | None) -> None:
        """Until the socket is ready, or hung up; TimeoutError after ``end``."""
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        poll = select.poll()
        poll.register(self._sock, what)
        poll.poll(None if left is None else left * 1000)

    def _lost(self, what: str) -> LinkLost:
        return LinkLost(what, where=self._task.node)

"""Channels over a Slurm step's own stdin and stdout, where a task cannot dial back: lines that name their task.

srun's stdin is one broadcast to all tasks, and its stdout mixes the tasks' lines once they are longer than about 1,000
bytes (tried with 22.05).  So each line is shorter than that and says whose it is:

    <task> <channel> <kind><base64>

    c   a sentence of the control line; its channel is 0
    d   bytes of the channel; none: their end
    t   that many bytes (a decimal number) were taken: as many more may come
    s   nobody reads this channel any more

Runs on the nodes: standard library only, Python 3.8.  The near side's end of a channel is the same class.
"""

from __future__ import annotations

import _socket as socket  # the interpreter's own part: `socket` would bring enum and selectors
import binascii
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Never imported on a node: it would take a tenth of the agent's start.
    from typing import Callable, List, Optional, Tuple

CONTROL, DATA, TAKEN, SHUT = b"c", b"d", b"t", b"s"
PIECE = 720
"""bytes of one line before they are made base64, so that a line has fewer than 1,000"""
WINDOW = 1 << 20
"""bytes of a channel that may be under way: what the reader does not take waits with the writer"""
_AT_ONCE = 64 * 1024


def lines(task: int, channel: int, kind: bytes, data: bytes) -> bytes:
    """The lines that carry ``data``; of kind DATA with no bytes: the end."""
    head = b"%d %d %s" % (task, channel, kind)
    step = PIECE if kind in (DATA, CONTROL) else max(1, len(data))
    pieces = [data[start : start + step] for start in range(0, len(data), step)] or [b""]
    return b"".join(head + binascii.b2a_base64(piece, newline=False) + b"\n" for piece in pieces)


def parsed(line: bytes) -> Optional[Tuple[int, int, bytes, bytes]]:
    """(task, channel, kind, data) of a line; None for one that is none of ours: a prolog may print, too."""
    words = line.split(b" ")
    if len(words) != 3 or not (words[0].isdigit() and words[1].isdigit()) or words[2][:1] not in (CONTROL, DATA, TAKEN, SHUT):
        return None
    try:
        return int(words[0]), int(words[1]), words[2][:1], binascii.a2b_base64(words[2][1:])
    except ValueError:
        return None


class Sentences:
    """Puts the control line's text together from its pieces: a sentence ends with a newline."""

    def __init__(self) -> None:
        self._text = b""

    def feed(self, piece: bytes) -> List[bytes]:
        """The sentences that ``piece`` completes."""
        *whole, self._text = (self._text + piece).split(b"\n")
        return whole


class Lane:
    """One channel: what a socket has to say goes out as lines, lines that come go into the socket."""

    def __init__(self, sock: socket.socket, post: Callable[[bytes, bytes], None]) -> None:
        """``sock`` is ours alone; ``post(kind, data)`` sends a line of this channel."""
        sock.setblocking(False)
        self._sock = sock
        self._post = post
        self._credit = WINDOW
        self._waiting = bytearray()
        self._taken = 0
        self._reading = True
        self._last = False
        """no more bytes will come after those that wait"""

    def fileno(self) -> int:
        """The descriptor to poll; -1 once it is closed."""
        return self._sock.fileno()

    def events(self) -> int:
        """What to poll the socket for now; 0: nothing."""
        wanted = select.POLLIN if self._reading and self._credit > 0 else 0
        return wanted | (select.POLLOUT if self._waiting else 0)

    def work(self, ready: int) -> None:
        """Do what poll(2) said is possible."""
        if ready & (select.POLLIN | select.POLLHUP | select.POLLERR) and self._reading and self._credit > 0:
            self._pull()
        if ready & select.POLLOUT:
            self._flush()

    def take(self, kind: bytes, data: bytes) -> None:
        """A line of this channel came."""
        if kind == TAKEN and data.isdigit():
            self._credit += int(data)
        elif kind == SHUT:
            self._reading = False
            self._hang_up(socket.SHUT_RD)
        elif kind == DATA and not self._last:
            self._last = not data
            self._waiting += data
            self._flush()

    def close(self) -> None:
        """Let go of the socket."""
        self._sock.close()

    @property
    def over(self) -> bool:
        """Both directions have ended: nothing more will come out of this lane."""
        return not self._reading and self._last and not self._waiting

    def _pull(self) -> None:
        try:
            data = self._sock.recv(min(_AT_ONCE, self._credit))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._credit -= len(data)
        self._reading = bool(data)
        self._post(DATA, data)

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._waiting) if self._waiting else 0
        except BlockingIOError:
            return
        except OSError:
            self._waiting.clear()
            self._last = True
            self._post(SHUT, b"")
            return
        del self._waiting[:sent]
        self._taken += sent
        # Not for each piece: a quarter of the window keeps the writer going.
        if self._taken >= WINDOW // 4 or (sent and not self._waiting):
            self._post(TAKEN, b"%d" % self._taken)
            self._taken = 0
        if self._last and not self._waiting:
            self._hang_up(socket.SHUT_WR)

    def _hang_up(self, way: int) -> None:
        try:
            self._sock.shutdown(way)
        except OSError:
            pass  # the other end is gone already


class Outbox:
    """Bytes that wait for a descriptor that does not take them at once."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._waiting = bytearray()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, data: bytes) -> None:
        """Send now what goes, and keep the rest; OSError when nobody reads there any more."""
        self._waiting += data
        try:
            while self._waiting:
                del self._waiting[: os.write(self.fd, self._waiting)]
        except BlockingIOError:
            return
        except OSError:
            self._waiting.clear()
            raise

    def close(self) -> None:
        """The descriptor may be somebody else's from now on."""
        self.fd = -1
        self._waiting.clear()

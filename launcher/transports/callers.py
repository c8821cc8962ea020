"""Whoever calls a step's coordinator: let in when both ends have proved that they know the step's secret.

The words of a call are `launcher.agent.dial`'s.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import time

from launcher.agent import dial
from launcher.errors import NodeGone

_LONGEST = 1024
"""bytes of a call's sentences"""


def listen(ports: tuple[int, int] | None) -> socket.socket:
    """A listening socket on all addresses, at a port of the range if there is one; NodeGone when all of them are taken."""
    choices = [0] if ports is None else random.sample(range(ports[0], ports[1] + 1), ports[1] - ports[0] + 1)
    for port in choices:
        try:
            if socket.has_dualstack_ipv6():
                made = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
            else:
                made = socket.create_server(("", port), backlog=1024)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                continue
            raise
        made.setblocking(False)
        return made
    assert ports is not None
    step = "wait until other steps of this machine have ended, or ask for a wider SrunPortRange"
    raise NodeGone(f"no port of SrunPortRange ({ports[0]}-{ports[1]}) is free here", where="this machine", next_step=step)


class Caller:
    """A connection whose other end has yet to say who it is."""

    def __init__(self, sock: socket.socket, secret: str) -> None:
        sock.setblocking(False)
        dial.tune(sock)  # type: ignore[no-untyped-call]  # the agent's modules have no types
        self.sock = sock
        self.deadline = time.monotonic() + dial.CALL_SECONDS
        self._secret = secret
        self._nonce = os.urandom(16).hex().encode()
        self._received = b""
        self._label: bytes | None = None

    def attend(self) -> tuple[list[str], bytes] | None:
        """Go on with the call; once it stands: the parts of its label, and the bytes that came behind it.

        Raises OSError for a caller who is none of ours, or gone.
        """
        try:
            piece = self.sock.recv(4096)
        except BlockingIOError:
            return None
        if not piece:
            raise OSError("hung up")
        self._received += piece
        while b"\n" in self._received:
            sentence, _, self._received = self._received.partition(b"\n")
            if self._label is not None:
                if not dial.same(sentence, dial.proof(self._secret, self._nonce, b"far " + self._label)):
                    raise OSError("not one of ours")
                return self._label.decode(errors="replace").split("/", 2), self._received
            self._greet(sentence)
        if len(self._received) > _LONGEST:
            raise OSError("not one of ours")
        return None

    def _greet(self, sentence: bytes) -> None:
        words = sentence.split(b" ")
        if len(words) != 3 or words[0] != b"launcher":
            raise OSError("not one of ours")
        _, theirs, self._label = words
        answer = b"%s %s\n" % (self._nonce, dial.proof(self._secret, theirs, b"near " + self._label))
        # A few dozen bytes into an empty buffer go at once, or not at all.
        if self.sock.send(answer) != len(answer):
            raise OSError("takes nothing")

"""The byte stream below ssh: a TCP connection, or a ProxyCommand's pipe.  Only the first machine of a chain is dialled."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from launcher.errors import HostUnreachable
from launcher.transports.ssh_config import SshSettings

T = TypeVar("T")

SILENCE = 60
"""seconds after which the kernel gives up a peer that takes nothing and answers nothing"""


class Deadline:
    """A moment by which everything must be done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left; never zero or less, so that it can be used as a timeout."""
        return max(self._end - time.monotonic(), 0.01)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._end


def within(seconds: float, action: Callable[[], T]) -> T:
    """``action()``, done in a thread that is left behind when it takes longer: TimeoutError then."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - carried over to the waiting thread, all of it
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


def tcp(settings: SshSettings, deadline: Deadline) -> socket.socket:
    """A connected socket; HostUnreachable when the name does not resolve or no address answers in time."""
    addresses = _addresses(settings, deadline)
    refusals: list[str] = []
    for number, (family, address) in enumerate(addresses):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            # An address that swallows packets must not use up the time of the next one.
            connection.settimeout(deadline.left / (len(addresses) - number))
            if settings.bind_address:
                connection.bind((settings.bind_address, 0))
            connection.connect(address)
            _tune(connection)
            return connection
        except OSError as error:
            connection.close()
            refusals.append(f"{address[0]} port {address[1]}: {_reason(error, deadline.seconds)}")
    raise HostUnreachable("nothing answers there", where=settings.where, lines=refusals,
                          next_step=f"is the machine up, and the port right? Try by hand: {settings.by_hand}")


def proxy(settings: SshSettings, command: str) -> tuple[socket.socket, Callable[[], list[str]]]:
    """A socket to a ProxyCommand's standard input and output, and what tells the last lines of its stderr.

    It runs as ssh runs it (`exec` in the user's shell), in a session of its own: Ctrl-C is not for it.
    It ends when the socket is closed.
    """
    ours, theirs = socket.socketpair()
    said = tempfile.TemporaryFile()  # noqa: SIM115 - read when the connection fails, closed with it
    shell = os.environ.get("SHELL") or "/bin/sh"
    try:
        subprocess.Popen([shell, "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=said,
                         start_new_session=True)
    except OSError as error:
        ours.close()
        raise HostUnreachable(f"its ProxyCommand cannot be started: {error}", where=settings.where, lines=[command],
                              next_step=f"try by hand: {settings.by_hand}") from None
    finally:
        theirs.close()

    def last_lines() -> list[str]:
        said.seek(0)
        return [shlex.join(["ProxyCommand", command]), *said.read()[-2048:].decode(errors="replace").splitlines()[-5:]]

    return ours, last_lines


def _addresses(settings: SshSettings, deadline: Deadline) -> list[tuple[int, tuple[str, int]]]:
    """(family, socket address) of the machine; a name server that does not answer is given up at the deadline."""

    # Text goes through IDNA first, whose tables take 10 ms to load.
    name = settings.hostname.encode() if settings.hostname.isascii() else settings.hostname

    def ask(flags: int = 0) -> list[tuple[int, tuple[str, int]]]:
        found = socket.getaddrinfo(name, settings.port, settings.family, socket.SOCK_STREAM, 0, flags)
        return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]

    try:
        return ask(socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # a name, then
    try:
        return within(deadline.left, ask)
    except (OSError, UnicodeError) as error:
        reason = "no name server answered" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        raise HostUnreachable(f"the name {settings.hostname} does not resolve: {reason}", where=settings.where,
                              next_step="correct `address:` in the inventory, or give it a HostName in ~/.ssh/config") from None


def _tune(connection: socket.socket) -> None:
    """No waiting for full packets, and a kernel that notices a dead peer (option names differ between systems)."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": SILENCE * 1000}
    for name, value in wanted.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _reason(error: OSError, seconds: float) -> str:
    return f"no answer in {seconds:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)

"""The ssh transport: one connection to a host, through its jump hosts, kept for everything."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Sequence

import fabric
import paramiko
from paramiko.ssh_exception import ChannelException, SSHException

from launcher.errors import LinkLost, NodeError
from launcher.model import Host, SshOptions
from launcher.transports import ssh_config
from launcher.transports.dial import SILENCE, Deadline, within
from launcher.transports.gateways import Gateways
from launcher.transports.link import WINDOW, log_in
from launcher.transports.ssh_config import SshSettings

STDERR_KEPT = 4096
"""bytes of a program's stderr that are remembered, the last ones"""
GOODBYE = 1.0
"""seconds a program is given to end after its input was closed"""

_PIECE = 128 * 1024
_BARE = re.compile(r"[A-Za-z0-9_./:,+@-]+\Z")
_HOME = re.compile(r"~[A-Za-z0-9_.-]*(?=/|\Z)")
_UNQUOTABLE = re.compile(r"['\\!\x00-\x1f\x7f]")


def command_line(words: Sequence[str]) -> str:
    """The words as one line that bash, dash, ksh, zsh, fish and tcsh read alike; a leading ~ is expanded there.

    ValueError for a word that no quoting makes the same everywhere: one with a quote, a backslash, an exclamation
    mark or a control character.  Such data belongs on the program's standard input.
    """
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if _UNQUOTABLE.search(word):
        raise ValueError(f"cannot stand in a remote command line: {word!r}")
    home = _HOME.match(word)
    start, rest = (home[0], word[home.end():]) if home else ("", word)
    if not word or (rest and not _BARE.match(rest)):
        rest = f"'{rest}'" if not rest.startswith("/") else f"/'{rest[1:]}'"
    return start + rest


class SshTransport:
    """One connection to one host.  Connects when made, within ``options.connect_timeout`` seconds.

    ``gateways``: where its jump hosts are shared with other hosts.
    """

    def __init__(self, host: Host, options: SshOptions, gateways: Gateways | None = None) -> None:
        self._settings = ssh_config.resolve(host, options)
        self._gateways = gateways or Gateways()
        self._closing = threading.Lock()
        deadline = Deadline(self._settings.connect_timeout)
        self._gateway = self._gateways.enter(self._settings.jumps, deadline)
        try:
            through = self._gateway.connection if self._gateway else None
            self._connection: fabric.Connection = log_in(self._settings, through, deadline)
        except BaseException:
            if self._gateway is not None and deadline.passed:
                self._gateways.distrust(self._gateway)
            self._leave()
            raise

    def open(self, words: Sequence[str]) -> SshChannel:
        """Start the word list there, in place of the log-in shell.

        Raises ValueError (see `command_line`), NodeError when the server grants no further session, LinkLost.
        """
        line = "exec " + command_line(words)
        limit = self._settings.connect_timeout
        transport = self._connection.transport
        try:
            channel = transport.open_session(timeout=limit)
            within(limit, lambda: channel.exec_command(line))
        except ChannelException as error:
            raise NodeError("the server grants no further session on this connection (MaxSessions)", where=self._settings.where,
                            lines=[error.text], next_step="raise MaxSessions in its sshd_config") from None
        except TimeoutError:
            raise self._lost(f"no answer to the start of a program in {limit:g} s") from None
        except (SSHException, EOFError, OSError) as error:
            if transport.is_active():
                raise NodeError("the server starts no programs for this user", where=self._settings.where, lines=[str(error)],
                                next_step=f"try by hand: {self._settings.by_hand} true") from None
            raise self._lost("the connection broke") from None
        return SshChannel(channel, transport, self._settings)

    def close(self) -> None:
        """End the connection, and those to jump hosts that nobody else needs; whoever waits on a channel gets LinkLost.

        Of several threads that close it one does it, and the others return when it is done: a jump host that one of them
        let go of already would be closed under the good-bye of the other.
        """
        with self._closing:
            if self._gateway is None:
                self._connection.client.close()
                return
            # A jump host that is stuck takes no good-bye; others may still go through it, so it is not closed before.
            with contextlib.suppress(TimeoutError):
                within(GOODBYE, self._connection.client.close)
            self._leave()

    def _leave(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            self._gateways.leave(gateway)

    def _lost(self, what: str) -> LinkLost:
        return _lost(self._settings, what)


class SshChannel:
    """A program started over ssh: see `launcher.transports.Channel`."""

    def __init__(self, channel: paramiko.Channel, transport: paramiko.Transport, settings: SshSettings) -> None:
        self._channel = channel
        self._transport = transport
        self._settings = settings
        self._tail = b""
        self._taken = memoryview(b"")
        channel.settimeout(SILENCE)
        # One event for both streams: stderr must be read while stdout is waited for, or a flood of it would use up
        # the window that both share, and the program would stand still.
        self._arrived = threading.Event()
        channel.in_buffer.set_event(self._arrived)
        channel.in_stderr_buffer.set_event(self._arrived)

    def send(self, data: bytes) -> None:
        """Write all of ``data``; LinkLost when the connection or the program is gone or takes nothing for a minute."""
        try:
            # In pieces: sendall copies all that is left of its data for every packet of 32 KiB.
            for start in range(0, len(data), _PIECE):
                self._channel.sendall(data[start:start + _PIECE])
        except TimeoutError:
            raise _lost(self._settings, f"the program took no data for {SILENCE} s") from None
        except (OSError, EOFError, SSHException):
            raise _lost(self._settings, self._ending("the program has ended, or closed its input")) from None

    def receive(self, limit: int, timeout: float | None = None) -> bytes:
        """Up to ``limit`` bytes; b"" at the end of output; LinkLost when the connection broke; TimeoutError."""
        end = None if timeout is None else time.monotonic() + timeout
        channel = self._channel
        try:
            while True:
                self._keep_stderr()
                if self._taken or channel.recv_ready():
                    return self._piece(limit)
                if channel.eof_received or channel.closed:
                    return self._end(limit)
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._arrived.wait(left)
        except (EOFError, SSHException):
            raise _lost(self._settings, self._ending("the connection broke")) from None

    def finish(self) -> None:
        """Close the program's standard input."""
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError, SSHException):
            pass  # the program or the connection is gone; receive tells

    def close(self) -> tuple[int | None, bytes]:
        """Let go of the program: (exit status or None, last bytes of its stderr)."""
        channel, deadline = self._channel, Deadline(GOODBYE)
        if channel.eof_received:
            channel.status_event.wait(deadline.left)
            self._keep_stderr()
        else:
            try:
                within(deadline.left, lambda: self._see_off(deadline))
            except (TimeoutError, LinkLost):
                pass  # it did not end, or nobody can tell
        status = channel.exit_status if channel.status_event.is_set() and channel.exit_status >= 0 else None
        # A program that ended by itself: its server closes the channel, and nothing needs to be sent.
        if not (channel.closed or (channel.eof_received and status is not None)):
            try:
                within(GOODBYE, channel.close)
            except (TimeoutError, OSError, EOFError, SSHException):
                pass  # a connection that takes no bytes; closing it as a whole still works
        return status, self._tail

    def _see_off(self, deadline: Deadline) -> None:
        self.finish()
        while self.receive(1 << 20, deadline.left):
            pass
        self._channel.status_event.wait(deadline.left)

    def _piece(self, limit: int) -> bytes:
        """Up to ``limit`` bytes of what has been taken out of paramiko's buffer.  That is always emptied as a whole:
        taking a piece of it moves the rest, megabytes each time (16 MB/s instead of 130, with a large window)."""
        if not self._taken:
            self._taken = memoryview(self._channel.recv(WINDOW))
        piece = bytes(self._taken[:limit])
        self._taken = self._taken[limit:]
        return piece

    def _end(self, limit: int) -> bytes:
        """What is left after the end of output.  That end is a genuine one only if the server said so, by an EOF or an
        exit status: paramiko closes the channels of a connection that died in the same way, before it says so."""
        left = self._piece(limit)
        self._keep_stderr()
        if not left and not self._channel.eof_received and self._channel.exit_status < 0:
            raise _lost(self._settings, self._ending("the connection broke"))
        return left

    def _keep_stderr(self) -> None:
        while self._channel.recv_stderr_ready():
            self._tail = (self._tail + self._channel.recv_stderr(1 << 16))[-STDERR_KEPT:]

    def _ending(self, what: str) -> str:
        """``what``, unless the connection is known to have died."""
        if self._transport.is_active():
            return what
        reason = self._transport.get_exception()
        return f"the connection broke{f' ({reason})' if reason and str(reason) else ''}"


def _lost(settings: SshSettings, what: str) -> LinkLost:
    return LinkLost(what, where=settings.where, next_step="what runs on the node goes on; connect again")

"""The way to a host: one fabric.Connection after another, each through the one before it.

Whatever paramiko raises on the way is translated here, once, into the tree of `launcher.errors`.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Sequence
from typing import Any

import fabric
import paramiko
from paramiko.ssh_exception import ChannelException, IncompatiblePeer, SSHException

from launcher.errors import HostUnreachable, NodeError
from launcher.transports import dial
from launcher.transports.dial import Deadline
from launcher.transports.host_keys import KnownHosts, Presented
from launcher.transports.keys import KeyRing
from launcher.transports.ssh_config import SshSettings

WINDOW = 4 << 20
"""bytes the far side may send before we have read them: 80 MB/s at 50 ms; larger ones were not faster nearby"""
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
"""fastest first: GCM needs no separate MAC"""
BROKEN = (OSError, EOFError, SSHException)
"""what paramiko raises when a connection, or the one below it, is gone"""
IDLE = 1.0
"""seconds between two looks of an idle connection's thread at whether it was closed; closing wakes it anyway"""


class Wire(paramiko.Transport):
    """A paramiko Transport that hangs up at once, prefers fast ciphers, and keeps its log to itself."""

    def __init__(self, sock: Any, settings: SshSettings, deadline: Deadline) -> None:
        super().__init__(sock, default_window_size=WINDOW)
        self.banner_timeout = self.handshake_timeout = self.auth_timeout = deadline.left
        self.channel_timeout = settings.connect_timeout
        security = self.get_security_options()
        security.ciphers = _allowed(CIPHERS, settings.ciphers, security.ciphers)
        security.digests = _allowed(security.digests, settings.macs, security.digests)
        security.kex = _allowed(security.kex, settings.kex, security.kex)
        sock.settimeout(IDLE)

    def _log(self, level: int, msg: Any, *args: Any) -> None:
        """Nothing: what it would say becomes one of our errors."""

    def _parse_debug(self, message: paramiko.Message) -> None:
        """Nothing: sshd's debug messages are for nobody here."""

    def run(self) -> None:
        """The reading thread; its last act closes the socket, which a channel through a jump host that is gone refuses."""
        with contextlib.suppress(*BROKEN):
            super().run()

    def close(self) -> None:
        """End it; a jump host that is gone takes no good-bye from the channel that leads through it, and needs none."""
        with contextlib.suppress(*BROKEN):
            super().close()

    def stop_thread(self) -> None:
        """Wake the reading thread instead of waiting for its next look (also at the interpreter's exit)."""
        self.active = False
        with contextlib.suppress(*BROKEN):  # gone already
            self.sock.shutdown(socket.SHUT_RDWR)
        super().stop_thread()

    def ask_for(self, algorithms: Sequence[str]) -> None:
        """Put these host key algorithms first."""
        security = self.get_security_options()
        security.key_types = [*algorithms, *(kind for kind in security.key_types if kind not in algorithms)]

    def presented(self) -> Presented:
        """The server's host key, proved by the key exchange."""
        key = self.get_remote_server_key()
        return Presented(key.get_name(), key.asbytes())


class _HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Asked for every server, because paramiko is given no known hosts of its own; before any log-in."""

    def __init__(self, known: KnownHosts) -> None:
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        self._known.judge(Presented(key.get_name(), key.asbytes()))


class _Settings(fabric.Config):  # type: ignore[misc]  # fabric is untyped
    """What a connection reads of its settings, without those of tasks and of invoke's runners, which all would be copied."""

    @staticmethod
    def global_defaults() -> dict[str, Any]:
        return {
            "authentication": {"identities": [], "strategy_class": None}, "connect_kwargs": {}, "forward_agent": False,
            "gateway": None, "inline_ssh_env": True, "load_ssh_configs": False, "port": 22, "ssh_config_path": None,
            "timeouts": {"connect": None}, "user": None,
        }


class _Connection(fabric.Connection):  # type: ignore[misc]  # fabric is untyped
    """A connection whose way through its gateway is opened by `stream`, where its failures are told apart."""

    def __setattr__(self, name: str, value: Any) -> None:
        # invoke's own way asks dir() each time, and turns some attributes into settings, which all connections share here.
        object.__setattr__(self, name, value)

    def open_gateway(self) -> Any:
        return self.connect_kwargs["sock"]


def log_in(machine: SshSettings, gateway: fabric.Connection | None, deadline: Deadline) -> fabric.Connection:
    """One machine's connection, its host key checked before any log-in; closed again on failure."""
    known = KnownHosts(machine)
    sock, last_words = stream(machine, gateway, deadline)

    def wire(sock: Any, disabled_algorithms: Any = None) -> Wire:
        made = Wire(sock, machine, deadline)
        made.ask_for(known.algorithms())
        return made

    connection = None
    try:
        connection = _Connection(
            machine.hostname, user=machine.user, port=machine.port, config=_config(), gateway=gateway or False,
            connect_kwargs={"sock": sock, "timeout": deadline.left, "transport_factory": wire,
                            "auth_strategy": KeyRing(machine, deadline)})
        connection.client.set_missing_host_key_policy(_HostKeyPolicy(known))
        connection.open()
    except BaseException as error:
        if connection is not None:
            connection.client.close()
        with contextlib.suppress(*BROKEN):
            sock.close()
        if isinstance(error, (SSHException, EOFError, OSError, ValueError)):
            raise translated(error, machine, deadline, last_words()) from None
        raise
    return connection


def close_chain(chain: Sequence[fabric.Connection]) -> None:
    """Close them, the nearest first: with its socket gone, no farther one can wait for a jump host that is stuck."""
    for connection in chain:
        connection.client.close()


def stream(settings: SshSettings, gateway: fabric.Connection | None, deadline: Deadline) -> tuple[Any, Callable[[], list[str]]]:
    """A socket (or a channel through the gateway) to a machine's sshd, and what tells the last words of a ProxyCommand."""
    if gateway is not None:
        return _forwarded(settings, gateway, deadline), list
    if settings.proxy_command:
        return dial.proxy(settings, settings.proxy_command)
    return dial.tcp(settings, deadline), list


def translated(error: BaseException, settings: SshSettings, deadline: Deadline, said: Sequence[str] = ()) -> NodeError:
    """Our error for what paramiko raised while a connection was made."""
    where, by_hand = settings.where, f"try by hand: {settings.by_hand}"
    if isinstance(error, NodeError):
        return error
    if isinstance(error, IncompatiblePeer):
        return NodeError(f"it shares no algorithm with us: {error}", where=where, lines=said, next_step=by_hand)
    if deadline.passed or isinstance(error, TimeoutError):
        return HostUnreachable(f"something accepts connections there, but no ssh server answered in {deadline.seconds:g} s",
                               where=where, lines=said, next_step=f"is that the port of sshd? {by_hand}")
    text = str(error) or "the connection was closed"
    return HostUnreachable("the connection broke before the log-in", where=where, lines=[text, *said],
                           next_step=f"is that the port of sshd, and is it overloaded (MaxStartups)? {by_hand}")


@functools.cache
def _config() -> fabric.Config:
    """fabric's built-in settings and nothing else: no files, no ssh_config (`ssh -G` has read that already).

    One for all connections, which only read it.
    """
    return _Settings(lazy=True, ssh_config=paramiko.SSHConfig())


def _forwarded(settings: SshSettings, gateway: fabric.Connection, deadline: Deadline) -> paramiko.Channel:
    try:
        channel: paramiko.Channel = gateway.transport.open_channel(
            "direct-tcpip", (settings.hostname, settings.port), ("127.0.0.1", 0), timeout=deadline.left)
    except ChannelException as error:
        forbidden = error.code == 1
        raise HostUnreachable(
            f"the jump host {gateway.host} {'forwards nothing' if forbidden else 'cannot reach'} "
            f"{'to ' if forbidden else ''}{settings.hostname} port {settings.port}", where=settings.where, lines=[error.text],
            next_step=f"{'AllowTcpForwarding and PermitOpen there must permit it' if forbidden else 'is the machine up?'}; "
                      f"try by hand: {settings.by_hand}") from None
    except (SSHException, EOFError, OSError) as error:
        raise translated(error, settings, deadline) from None
    return channel


def _allowed(preferred: Sequence[str], permitted: Sequence[str], possible: Sequence[str]) -> tuple[str, ...]:
    """Our order, without what the user's ssh configuration rules out (unless nothing would remain)."""
    usable = [name for name in preferred if name in possible]
    return tuple(name for name in usable if name in permitted) or tuple(usable)

"""Jump hosts that many hosts lie behind: one connection to each, for as long as anybody goes through it.

A connection for every host behind it would be refused at random by a jump host's sshd: MaxStartups is 10:30:100 unless
set, while forwarded connections are not counted by MaxSessions (sshd_config(5)).
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING

from launcher.errors import NodeError
from launcher.model import Host, SshOptions
from launcher.transports.ssh_config import SshSettings

if TYPE_CHECKING:
    import fabric

    from launcher.transports.dial import Deadline
    from launcher.transports.ssh import SshTransport

Chain = tuple[SshSettings, ...]


class SshWay:
    """What the connections to many hosts share: see `launcher.transports.Way`."""

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        self._gateways = Gateways()

    def transport(self, host: Host) -> SshTransport:
        """A connection to a host, through the jump hosts that others go through, too."""
        from launcher.transports.ssh import SshTransport

        return SshTransport(host, self._options, self._gateways)

    def close(self, polite: bool = True) -> None:
        """Nothing is left to do: each connection lets go of its jump hosts."""


class Gateway:
    """A logged-in connection to the last machine of a chain of jump hosts, and how many go through it."""

    def __init__(self, chain: Chain, machines: Sequence[SshSettings]) -> None:
        self.chain = chain
        """the same for all hosts behind it"""
        self.machines = machines
        """as the host that made the connection calls them"""
        self.users = 0
        self.before: Gateway | None = None
        """the jump host through which this one is reached"""
        self.arrival: Future[fabric.Connection] = Future()

    @property
    def connection(self) -> fabric.Connection:
        """The connection; whoever holds the gateway waited for it."""
        return self.arrival.result()

    @property
    def usable(self) -> bool:
        """False once it is known to be broken; True while it is being made."""
        return not self.arrival.done() or (self.arrival.exception() is None and self.connection.is_connected)


class Gateways:
    """All jump hosts on the way to many hosts.  Threads may use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Chain, Gateway] = {}

    def enter(self, jumps: Sequence[SshSettings], deadline: Deadline) -> Gateway | None:
        """The gateway at the end of ``jumps`` (None where there are none), to be left again; NodeErrors as for a host.

        The first who asks makes the connection; the others wait for it, and share its failure.
        """
        if not jumps:
            return None
        chain = tuple(dataclasses.replace(machine, name="", where="", jumps=()) for machine in jumps)
        with self._lock:
            gateway = self._open.get(chain)
            first = gateway is None or not gateway.usable
            if gateway is None or first:
                # Those who still go through a broken one leave it by themselves.
                gateway = self._open[chain] = Gateway(chain, jumps)
            gateway.users += 1
        try:
            if first:
                self._connect(gateway, deadline)
            gateway.arrival.result(deadline.left)
        except NodeError as error:
            self.leave(gateway)
            raise _retold(error, gateway, jumps) from None
        except FutureTimeout:
            self.leave(gateway)
            raise _too_late(jumps[-1], deadline) from None
        except BaseException:
            self.leave(gateway)
            raise
        return gateway

    def _connect(self, gateway: Gateway, deadline: Deadline) -> None:
        from launcher.transports.link import log_in

        try:
            gateway.before = self.enter(gateway.machines[:-1], deadline)
            through = gateway.before.connection if gateway.before else None
            gateway.arrival.set_result(log_in(gateway.machines[-1], through, deadline))
        except BaseException as error:
            # Whoever comes from now on tries again.
            self.distrust(gateway)
            gateway.arrival.set_exception(error)
            raise

    def distrust(self, gateway: Gateway) -> None:
        """Let nobody else go through it: it may be dead, although nothing says so."""
        with self._lock:
            if self._open.get(gateway.chain) is gateway:
                del self._open[gateway.chain]

    def leave(self, gateway: Gateway) -> None:
        """Go through it no more; the last one closes the connection, and leaves the jump host before it."""
        with self._lock:
            gateway.users -= 1
            if gateway.users:
                return
            if self._open.get(gateway.chain) is gateway:
                del self._open[gateway.chain]
        if gateway.arrival.done() and gateway.arrival.exception() is None:
            gateway.connection.client.close()
        if gateway.before is not None:
            self.leave(gateway.before)


def _retold(error: NodeError, gateway: Gateway, jumps: Sequence[SshSettings]) -> NodeError:
    """The error of the one who tried, told of the way to one's own host."""
    mine = copy.copy(error)
    names = {machine.where: own.where for machine, own in zip(gateway.machines, jumps, strict=True)}
    mine.where = names.get(error.where, error.where)
    return mine


def _too_late(machine: SshSettings, deadline: Deadline) -> NodeError:
    from launcher.transports.link import translated

    return translated(TimeoutError(), machine, deadline)

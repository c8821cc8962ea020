"""How a program is started on a node: one seam with one verb.

A transport is one connection to one host, kept for everything.  ``open`` starts a word list there and gives the
channel to its standard input and output.  Whatever a log-in shell prints comes through the channel too; whoever opened
it waits for a marker of their own (see `launcher.agent.wire`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from launcher.model import Host, SshOptions


class Channel(Protocol):
    """A started program's standard input and output.  One thread may send while another receives."""

    def send(self, data: bytes) -> None:
        """Write all of ``data``; raises LinkLost when the connection or the program is gone."""

    def receive(self, limit: int, timeout: float | None = None) -> bytes:
        """Up to ``limit`` bytes as soon as any are there; b"" at the end of output.

        Raises LinkLost when the connection broke, TimeoutError after ``timeout`` seconds of silence.
        """

    def finish(self) -> None:
        """Close the program's standard input; its output can still be received."""

    def close(self) -> tuple[int | None, bytes]:
        """Let go of the program, waiting at most a second for it: (exit status or None, last bytes of its stderr)."""


class Transport(Protocol):
    """One connection to one host."""

    def open(self, words: Sequence[str]) -> Channel:
        """Start the word list there; raises the NodeErrors of `launcher.errors`."""

    def close(self) -> None:
        """End the connection; harmless when it is gone already."""


class Way(Protocol):
    """What all transports of one attempt share: a Slurm step, with a task on every node."""

    def transport(self, host: Host) -> Transport:
        """The transport to one of its nodes; raises the NodeErrors of `launcher.errors`."""

    def close(self, polite: bool = True) -> None:
        """End it, and everything that it started on any node; ``polite``: what ends by itself is waited for."""


def connect(backend: str, host: Host, options: SshOptions | Way) -> Transport:
    """The transport for a host: a subprocess for `local`, a fabric.Connection for `ssh`, a task of a step for `slurm`.

    Connects before it returns; raises the NodeErrors of `launcher.errors`, each naming the host and the next step.
    """
    if not isinstance(options, SshOptions):
        return options.transport(host)
    if backend == "local":
        from launcher.transports.local import LocalTransport

        return LocalTransport(host)
    from launcher.transports.ssh import SshTransport

    return SshTransport(host, options)

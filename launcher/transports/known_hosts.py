"""`launcher trust`: fetch the keys of machines nobody has vouched for, and record them after a yes.

    while keys := scan(host, options):
        show them, ask
        record(keys)

The way to a host leads through its jump hosts, which must be trusted first: `scan` gives the keys of one machine at a
time, the first one on the way that is not known yet, and [] when all are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import fabric
from paramiko.ssh_exception import IncompatiblePeer, SSHException

from launcher.errors import NodeError
from launcher.model import Host, SshOptions
from launcher.transports import ssh_config
from launcher.transports.dial import Deadline
from launcher.transports.host_keys import NEGOTIABLE, KnownHosts, Presented, append, fingerprint, line_for
from launcher.transports.link import Wire, close_chain, log_in, stream, translated
from launcher.transports.ssh_config import SshSettings

_FAMILIES = (
    NEGOTIABLE["ssh-ed25519"],
    tuple(name for kind, names in NEGOTIABLE.items() if kind.startswith("ecdsa") for name in names),
    NEGOTIABLE["ssh-rsa"],
)
"""a server shows one key per connection: the kinds to ask for, one connection each"""


class FoundKey(NamedTuple):
    """A key that a machine has shown, and proved to hold."""

    type: str
    fingerprint: str
    """as `ssh-keygen -l` prints it"""
    line: str
    """what to record"""
    machine: str
    """whose key it is: the host's name, or `NAME (jump host X)`"""
    settings: SshSettings
    """how that machine is reached, and which files are its known_hosts"""


def scan(host: Host, options: SshOptions) -> list[FoundKey]:
    """The keys of the first machine on the way to ``host`` that no known_hosts file vouches for; [] if there is none.

    Nobody logs in to that machine.  Raises HostKeyChanged and HostKeyRevoked (a changed key is never replaced behind
    anybody's back), and the other NodeErrors when the way there is barred.
    """
    settings = ssh_config.resolve(host, options)
    machines = (*settings.jumps, settings)
    chain: list[fabric.Connection] = []
    try:
        for machine in machines:
            keys = _shown(machine, chain[-1] if chain else None)
            known = KnownHosts(machine)
            for key in keys:
                known.refuse_bad(key)
            if not any(known.knows(key) for key in keys):
                return [FoundKey(key.kind, fingerprint(key.blob), line_for(machine, key), machine.where, machine) for key in keys]
            if machine is not settings:
                chain.append(log_in(machine, chain[-1] if chain else None, Deadline(machine.connect_timeout)))
        return []
    finally:
        close_chain(chain)


def record(keys: Sequence[FoundKey]) -> str | None:
    """Append the keys to the user's known_hosts file (made if need be, readable by the user only; a key that is
    there already is left out); the file's path, or None where the configuration names no such file."""
    if not keys:
        return None
    return append(keys[0].settings, [key.line for key in keys])


def _shown(machine: SshSettings, gateway: fabric.Connection | None) -> list[Presented]:
    """Every key the machine has, each proved by a key exchange of its own."""
    deadline = Deadline(machine.connect_timeout)
    found: list[Presented] = []
    problem: NodeError | None = None
    for algorithms in _FAMILIES:
        try:
            key = _shake_hands(machine, gateway, algorithms, deadline)
        except IncompatiblePeer as error:
            problem = translated(error, machine, deadline)  # it has no key of this kind
            continue
        found.append(key)
    if not found and problem:
        raise problem
    return found


def _shake_hands(machine: SshSettings, gateway: fabric.Connection | None, algorithms: Sequence[str],
                 deadline: Deadline) -> Presented:
    sock, last_words = stream(machine, gateway, deadline)
    wire = Wire(sock, machine, deadline)
    wire.get_security_options().key_types = tuple(algorithms)
    try:
        wire.start_client(timeout=deadline.left)
        return wire.presented()
    except IncompatiblePeer:
        raise
    except (SSHException, EOFError, OSError) as error:
        raise translated(error, machine, deadline, last_words()) from None
    finally:
        wire.stop_thread()
        sock.close()

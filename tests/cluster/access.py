"""Keys of the fake cluster and the files through which people and tests use it.

Everything lies in one state directory (``.cluster/`` of the checkout, git-ignored)::

    keys/id_ed25519 authorized_keys hostkeys/<service>     made once, kept over restarts
    known_hosts ssh_config cluster.yaml hostfile           written at every start
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.engine import run


@dataclass(frozen=True)
class Service:
    """A container of the compose file: its last address byte, the network it is in, and who stands before it."""

    name: str
    network: str
    last_byte: int
    jump: str | None = None


SERVICES = (
    Service("bastion", "outer", 10),
    Service("node1", "outer", 11),
    Service("node2", "outer", 12),
    Service("node3", "outer", 13),
    Service("hidden", "inner", 21, jump="bastion"),
    Service("hidden2", "inner", 22, jump="bastion"),
)
WITH_TORCH = ("node1", "node2")
"""services that see the environment which runs the tests"""
LOGIN_SHELLS = ("fish", "tcsh", "noisy")
"""users whose log-in shell or rc files are out of the ordinary: ``node1-fish`` and so on in ssh_config"""
FLEET_KEY = "fleet"
"""all containers of a fleet share one host key"""


@dataclass(frozen=True)
class Networks:
    """First three bytes of the two networks' addresses."""

    outer: str
    inner: str

    def address(self, service: Service) -> str:
        prefix = self.outer if service.network == "outer" else self.inner
        return f"{prefix}.{service.last_byte}"


def ensure_keys(state: Path) -> str:
    """Make the user's key and one host key per service, where missing; return a fingerprint of all of them."""
    keys = state / "keys"
    (keys / "hostkeys").mkdir(parents=True, exist_ok=True)
    names = [FLEET_KEY, *(service.name for service in SERVICES)]
    for path in [keys / "id_ed25519", *(keys / "hostkeys" / name for name in names)]:
        if not path.exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"fake cluster {path.name}", "-f", str(path)])
    public = (keys / "id_ed25519.pub").read_text()
    (keys / "authorized_keys").write_text(public)
    everything = "".join((keys / "hostkeys" / f"{name}.pub").read_text() for name in names) + public
    return hashlib.sha256(everything.encode()).hexdigest()[:12]


def write_files(state: Path, networks: Networks, python: str | None) -> None:
    """Write known_hosts, ssh_config, cluster.yaml and hostfile for the services at their addresses.

    ``python``: interpreter with torch that WITH_TORCH services have, None when there is none.
    """
    (state / "known_hosts").write_text(_known_hosts(state, networks))
    (state / "ssh_config").write_text(_ssh_config(state, networks))
    (state / "cluster.yaml").write_text(_cluster_yaml(state, python))
    (state / "hostfile").write_text("node1 slots=2\nnode2 slots=2\n")


def host_key(state: Path, name: str) -> str:
    """Type and key of a service's host key, as known_hosts wants them."""
    return " ".join((state / "keys" / "hostkeys" / f"{name}.pub").read_text().split()[:2])


def options(state: Path) -> str:
    """What every host of an ssh_config of ours says: our key, our known_hosts, nothing of the person's own."""
    return (
        "    User train\n"
        f'    IdentityFile "{state}/keys/id_ed25519"\n'
        "    IdentitiesOnly yes\n"
        f'    UserKnownHostsFile "{state}/known_hosts"\n'
        "    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n"
    )


def _known_hosts(state: Path, networks: Networks) -> str:
    return "".join(f"{networks.address(s)} {host_key(state, s.name)}\n" for s in SERVICES)


def _ssh_config(state: Path, networks: Networks) -> str:
    blocks = []
    for service in SERVICES:
        jump = f"    ProxyJump {service.jump}\n" if service.jump else ""
        where = f"    HostName {networks.address(service)}\n{jump}"
        blocks += [f"Host {service.name}-{user}\n    User {user}\n{where}" for user in (*LOGIN_SHELLS, "root")]
        blocks.append(f"Host {service.name}\n{where}")
    names = " ".join(f"{service.name} {service.name}-*" for service in SERVICES)
    return "# Written by tests/cluster; `ssh -F` this file.\n" + "".join(blocks) + f"Host {names}\n{options(state)}"


def _cluster_yaml(state: Path, python: str | None) -> str:
    with_torch = f", python: {python}" if python else ""
    hosts = "".join(f"  - {{name: {name}{with_torch}}}\n" for name in WITH_TORCH)
    return (
        "# Written by tests/cluster. node1 and node2 have torch, node3 is an old Debian without it,\n"
        "# hidden and hidden2 are reached through the bastion.\n"
        "name: fake\n"
        "backend: ssh\n"
        "hosts:\n"
        f"{hosts}"
        "  - node3\n"
        "  - hidden\n"
        "  - hidden2\n"
        "ssh:\n"
        f'  config: "{state}/ssh_config"\n'
    )

"""Many sshd containers of one image, for benchmarks: real ones, at addresses of the outer network."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from tests.cluster import access
from tests.cluster.engine import ClusterError, docker
from tests.cluster.place import STATE
from tests.cluster.services import READY_SECONDS, Running, project, states, up, wait_for_banner

FIRST_BYTE = 100
LARGEST = 150
PARALLEL_STARTS = 4


def fleet_up(count: int) -> list[str]:
    """Have ``count`` sshd containers (and the cluster whose network they share); return their addresses.

    Writes ``fleet_ssh_config``, ``fleet.yaml`` and ``fleet_hosts`` (one alias a line, as pdsh and clush want it).
    """
    if not 1 <= count <= LARGEST:
        raise ClusterError(f"a fleet has 1 to {LARGEST} containers, not {count}")
    running = up()
    found = states()
    missing = [n for n in range(count) if found.get(_name(n)) != "running"]
    for name in [_name(n) for n in missing if _name(n) in found]:
        docker("rm", "--force", running.container(name))
    with ThreadPoolExecutor(PARALLEL_STARTS) as pool:
        list(pool.map(lambda n: _start(running, n), missing))
    addresses = [_address(running, n) for n in range(count)]
    _write_files(addresses)
    deadline = time.monotonic() + READY_SECONDS
    for address in addresses:
        wait_for_banner(address, deadline)
    return addresses


def fleet_down() -> None:
    """Remove the fleet's containers; the cluster stays."""
    running = [name for name in states() if name.startswith("fleet-")]
    if running:
        docker("rm", "--force", "--volumes", *(f"{project()}-{name}" for name in running))


def _name(number: int) -> str:
    return f"fleet-{number:02d}"


def _address(running: Running, number: int) -> str:
    return f"{running.outer}.{FIRST_BYTE + number}"


def _start(running: Running, number: int) -> None:
    docker(
        *("run", "--detach", "--name", running.container(_name(number)), "--hostname", _name(number)),
        *("--network", f"{running.project}_outer", "--ip", _address(running, number)),
        *("--env", f"CLUSTER_HOST_KEY={access.FLEET_KEY}", "--volume", f"{STATE}/keys:/run/cluster-keys:ro"),
        running.image,
    )


def _write_files(addresses: list[str]) -> None:
    names = [_name(number) for number in range(len(addresses))]
    known = "".join(f"{address} {access.host_key(STATE, access.FLEET_KEY)}\n" for address in addresses)
    (STATE / "fleet_known_hosts").write_text(known)
    blocks = "".join(f"Host {name}\n    HostName {address}\n" for name, address in zip(names, addresses, strict=True))
    options = access.options(STATE).replace('/known_hosts"', '/fleet_known_hosts"')
    (STATE / "fleet_ssh_config").write_text(f"# Written by tests/cluster.\n{blocks}Host fleet-*\n{options}")
    (STATE / "fleet_hosts").write_text("".join(f"{name}\n" for name in names))
    hosts = "".join(f"  - {name}\n" for name in names)
    (STATE / "fleet.yaml").write_text(
        f'# Written by tests/cluster.\nname: fleet\nbackend: ssh\nhosts:\n{hosts}ssh:\n  config: "{STATE}/fleet_ssh_config"\n'
    )

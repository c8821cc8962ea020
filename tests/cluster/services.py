"""The services of docker-compose.yml: up, down, and whether they answer.

``up`` is idempotent and quick when everything is there: what the containers were made from is hashed into
``cluster.json``, and compose is asked only when that or the containers differ.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import access, engine
from tests.cluster.access import SERVICES, WITH_TORCH, Networks
from tests.cluster.engine import ClusterError, docker, locked
from tests.cluster.place import STATE, checkout_hash, free_subnets, interpreter_mounts

COMPOSE_FILE = Path(__file__).parent / "docker-compose.yml"
READY_SECONDS = 180.0
"""from a container's start until sshd greets: tenths of a second, unless the machine is swamped"""


@dataclass(frozen=True)
class Running:
    """What ``up`` made, as recorded in ``cluster.json``."""

    project: str
    fingerprint: str
    outer: str
    inner: str
    image: str
    python: str | None
    """interpreter with torch on node1 and node2, at the same path as here; None: they have no torch"""
    no_torch_because: str | None = None

    @property
    def networks(self) -> Networks:
        return Networks(self.outer, self.inner)

    def container(self, service: str) -> str:
        return f"{self.project}-{service}"


def project() -> str:
    """Name of this checkout's containers: two checkouts on one machine do not meet."""
    return f"launcher-cluster-{checkout_hash()}"


def up() -> Running:
    """Have the cluster running as this checkout and this interpreter describe it; ClusterError says why not."""
    STATE.mkdir(exist_ok=True)
    with locked(STATE / "lock"):
        engine.ensure_engine()
        images = engine.ensure_images()
        keys = access.ensure_keys(STATE)
        networks = Networks(**free_subnets(STATE / "networks.json", project(), ("outer", "inner")))
        mounts, refusal = _torch_mounts()
        fingerprint = _fingerprint(images, keys, networks, mounts)
        running = recorded()
        if running is None or running.fingerprint != fingerprint or _not_running():
            running = _compose_up(images, networks, mounts, fingerprint, refusal)
        wait_for_ssh(networks, [service.name for service in SERVICES])
        return running


def ensure() -> Running:
    """The cluster as it is when all of it runs, whichever interpreter started it; else ``up``."""
    running = recorded()
    if running is not None and engine.have_engine() and not _not_running():
        return running
    return up()


def down() -> bool:
    """Remove this checkout's containers and networks; True when our dockerd, idle now, was stopped as well."""
    STATE.mkdir(exist_ok=True)
    with locked(STATE / "lock"):
        (STATE / "cluster.json").unlink(missing_ok=True)
        if not engine.have_engine():
            return False
        for name in ("containers", "networks", "volumes"):
            _remove(name)
    return engine.release_engine()


def recorded() -> Running | None:
    """What the last ``up`` made here, None when nothing is up."""
    try:
        return Running(**json.loads((STATE / "cluster.json").read_text()))
    except FileNotFoundError:
        return None


def states() -> dict[str, str]:
    """Service -> docker's word for its container (`running`, `paused`, `exited`); fleet containers are in it too."""
    lines = docker("ps", "--all", "--filter", f"name=^/?{project()}-", "--format", "{{.Names}} {{.State}}").splitlines()
    pairs = (line.split() for line in lines)
    return {name.removeprefix(f"{project()}-"): state for name, state in pairs}


def wait_for_ssh(networks: Networks, names: list[str]) -> None:
    """Wait for a greeting where this machine gets one, for a log-in where a bastion stands before the host."""
    deadline = time.monotonic() + READY_SECONDS
    asked = [service for service in SERVICES if service.name in names]
    for service in asked:
        if service.jump is None:
            wait_for_banner(networks.address(service), deadline)
    for service in asked:
        if service.jump is not None:
            _wait_for_login(service.name, deadline)


def wait_for_banner(address: str, deadline: float) -> None:
    """Return when sshd at an address has greeted; ``deadline`` is a time.monotonic()."""
    while True:
        try:
            with socket.create_connection((address, 22), timeout=2) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise ClusterError(f"no sshd answers at {address}:22; see `docker logs` of that container")
        time.sleep(0.05)


def _torch_mounts() -> tuple[list[str], str | None]:
    """Directories to mount so that a node can run this interpreter with torch; empty, and why, when it cannot."""
    if importlib.util.find_spec("torch") is None:
        return [], f"{sys.executable} has no torch"
    return interpreter_mounts()


def _fingerprint(images: dict[str, str], keys: str, networks: Networks, mounts: list[str]) -> str:
    # A mount holds on to a directory that was removed and made anew at its path, so its inode counts too.
    mounted = [(path, os.stat(path).st_ino) for path in [*mounts, str(STATE / "keys")]]
    facts = [images, keys, dataclasses.astuple(networks), mounted, COMPOSE_FILE.read_text()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _not_running() -> list[str]:
    found = states()
    return [service.name for service in SERVICES if found.get(service.name) != "running"]


def _compose_up(
    images: dict[str, str], networks: Networks, mounts: list[str], fingerprint: str, refusal: str | None
) -> Running:
    for name, state in states().items():
        if state == "paused":
            docker("unpause", f"{project()}-{name}")
    override = STATE / "docker-compose.mounts.json"
    volumes = [f"{path}:{path}:ro" for path in mounts]
    services = {name: {"volumes": volumes} for name in WITH_TORCH} if volumes else {}
    override.write_text(json.dumps({"version": "3.5", "services": services}))
    environment = os.environ | {
        "COMPOSE_PROJECT_NAME": project(),
        "CLUSTER_IMAGE_BOOKWORM": images["bookworm"],
        "CLUSTER_IMAGE_BULLSEYE": images["bullseye"],
        "CLUSTER_KEYS": str(STATE / "keys"),
        "CLUSTER_OUTER": networks.outer,
        "CLUSTER_INNER": networks.inner,
        "CLUSTER_FINGERPRINT": fingerprint,
    }
    files = ["-f", str(COMPOSE_FILE), *(["-f", str(override)] if volumes else [])]
    engine.run([*_compose(), *files, "up", "-d", "--timeout", "1"], env=environment)
    running = Running(project(), fingerprint, networks.outer, networks.inner, images["bookworm"], None, refusal)
    if volumes:
        running = _with_torch(running)
    access.write_files(STATE, networks, running.python)
    (STATE / "cluster.json").write_text(json.dumps(dataclasses.asdict(running), indent=2))
    return running


def _compose() -> list[str]:
    client = engine.client()
    if subprocess.run([client, "compose", "version"], capture_output=True, check=False).returncode == 0:
        return [client, "compose"]
    if shutil.which("docker-compose") is None:
        raise ClusterError("neither `docker compose` nor docker-compose is here; on Debian: apt-get install docker-compose")
    return ["docker-compose"]


def _with_torch(running: Running) -> Running:
    """Look whether `train` finds torch with this interpreter on a node."""
    python = str(Path(sys.prefix) / "bin" / "python")
    question = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    try:
        docker("exec", "--user", "train", running.container(WITH_TORCH[0]), python, "-c", question)
    except ClusterError as failure:
        return dataclasses.replace(running, no_torch_because=f"user train cannot use {python} on a node: {failure}")
    return dataclasses.replace(running, python=python)


def _wait_for_login(name: str, deadline: float) -> None:
    argv = ["ssh", "-F", str(STATE / "ssh_config"), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", name, "true"]
    while True:
        try:
            engine.run(argv)
            return
        except ClusterError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _remove(kind: str) -> None:
    """Remove our containers, networks or volumes by name: also those of a compose file that has changed since."""
    listing = {
        "containers": ("ps", "--all", "--quiet", "--filter", f"name=^/?{project()}-"),
        "networks": ("network", "ls", "--quiet", "--filter", f"name=^{project()}_"),
        "volumes": ("volume", "ls", "--quiet", "--filter", f"name=^{project()}_"),
    }
    removing = {
        "containers": ("rm", "--force", "--volumes"),
        "networks": ("network", "rm"),
        "volumes": ("volume", "rm"),
    }
    found = docker(*listing[kind]).split()
    if found:
        docker(*removing[kind], *found)

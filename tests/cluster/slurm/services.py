"""The containers of a fake Slurm cluster: up, down, and whether its nodes answer.

They have nothing to do with the sshd cluster but the engine and the base image.  All machines see this checkout, the
interpreter that runs the tests (both read-only), and one shared directory, at the paths these have here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import engine
from tests.cluster.engine import ClusterError, docker, locked
from tests.cluster.place import ROOT, STATE, checkout_hash, free_subnets, interpreter_mounts, outermost
from tests.cluster.slurm.layout import ACCOUNTING, CONTROLLER, PLAIN, TWIN, Layout, files, many

READY_SECONDS = 120.0
"""from the containers' start until all nodes are idle: a few seconds, unless the machine is swamped"""
TRAIN_UID = 1000
FIRST_BYTE = 10
"""last byte of the controller's address; the other machines follow"""
PARALLEL_STARTS = 4


@dataclass(frozen=True)
class Running:
    """A fake Slurm cluster that was started, as recorded in its ``cluster.json``."""

    layout: Layout
    fingerprint: str
    prefix: str
    """first three bytes of its addresses"""

    def container(self, machine: str) -> str:
        return f"{project(self.layout.name)}-{machine}"

    def address(self, machine: str) -> str:
        return f"{self.prefix}.{FIRST_BYTE + self.layout.machines.index(machine)}"

    @property
    def shared(self) -> Path:
        """Directory on the file system that all machines and this one share; everybody may write there."""
        return state(self.layout.name) / "shared"

    @property
    def etc(self) -> Path:
        """What the machines have as /etc/slurm."""
        return state(self.layout.name) / "etc"


def project(name: str) -> str:
    """Begins the names of a layout's containers in this checkout."""
    return f"launcher-slurm-{checkout_hash()}-{name}"


def state(name: str) -> Path:
    """Directory of what belongs to a layout's cluster."""
    return STATE / "slurm" / name


def up(layout: Layout) -> Running:
    """Have a cluster running as its layout, this checkout and this interpreter describe it; ClusterError says why not."""
    state(layout.name).mkdir(parents=True, exist_ok=True)
    with locked(state(layout.name) / "lock"):
        engine.ensure_engine()
        running = _described(layout, engine.ensure_slurm_image())
        if _recorded_fingerprint(layout.name) != running.fingerprint or not _all_running(layout):
            _remove(layout.name)
            _start(running, engine.ensure_slurm_image())
            wait_started(running, layout.machines)
            wait_idle(running)
            record = {"fingerprint": running.fingerprint, "prefix": running.prefix, "nodes": len(layout.nodes)}
            (state(layout.name) / "cluster.json").write_text(json.dumps(record))
        return running


def ensure(layout: Layout) -> Running:
    """The cluster of a layout as it is when all of it runs, whatever it was started from; else ``up``."""
    if engine.have_engine() and is_up(layout.name):
        return recorded(layout.name)
    return up(layout)


def recorded(name: str) -> Running:
    """The cluster that ``up`` made of a layout of this name; ClusterError when there is none."""
    try:
        kept = json.loads((state(name) / "cluster.json").read_text())
    except FileNotFoundError:
        raise ClusterError(f"no Slurm cluster {name} is up; see tests/cluster/cluster") from None
    layout = next(layout for layout in (PLAIN, TWIN, ACCOUNTING, many(kept["nodes"])) if layout.name == name)
    return Running(layout, kept["fingerprint"], kept["prefix"])


def is_up(name: str) -> bool:
    """True when all machines of the cluster that ``up`` made of a layout run."""
    return (state(name) / "cluster.json").exists() and _all_running(recorded(name).layout)


def down(names: Sequence[str]) -> bool:
    """Remove clusters by the names of their layouts, and what they shared; True when our idle dockerd was stopped as well."""
    for name in names:
        if state(name).exists():
            with locked(state(name) / "lock"):
                if engine.have_engine():
                    _remove(name)
                for kept in ("etc", "shared"):
                    shutil.rmtree(state(name) / kept, ignore_errors=True)
    return engine.have_engine() and engine.release_engine()


def states(name: str) -> dict[str, str]:
    """Machine -> docker's word for its container (`running`, `paused`, `exited`)."""
    prefix = project(name) + "-"
    lines = docker("ps", "--all", "--filter", f"name=^/?{prefix}", "--format", "{{.Names}} {{.State}}").splitlines()
    return {container.removeprefix(prefix): state for container, state in map(str.split, lines)}


def wait_started(running: Running, machines: Sequence[str]) -> None:
    """Wait until the daemons of some machines run; ClusterError shows the log of the one that does not."""
    deadline = time.monotonic() + READY_SECONDS
    for machine in machines:
        while _tried(docker, "exec", running.container(machine), "ls", "/run/started").strip() != "/run/started":
            if states(running.layout.name).get(machine) != "running" or time.monotonic() > deadline:
                raise ClusterError(f"{machine} of Slurm cluster {running.layout.name}: {_container_log(running, machine)}")
            time.sleep(0.1)


def wait_idle(running: Running, seconds: float = READY_SECONDS) -> None:
    """Wait until slurmctld answers and every node is idle; ClusterError shows the logs of those that are not."""
    _wait_nodes(running, "idle", lambda word: word == "idle", seconds)


def wait_answering(running: Running, seconds: float = READY_SECONDS) -> None:
    """Wait until slurmctld has heard of every node, drained or not; ClusterError as above."""
    _wait_nodes(running, "answering", lambda word: not word.startswith("unk") and not word.endswith("*"), seconds)


def _wait_nodes(running: Running, wish: str, fulfilled: Callable[[str], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    wanted = {node.name for node in running.layout.nodes}
    while others := sorted(wanted - {name for name, word in _node_words(running).items() if fulfilled(word)}):
        exited = [machine for machine, word in states(running.layout.name).items() if word == "exited"]
        if exited:
            raise ClusterError("\n".join(f"{m} exited:\n{_container_log(running, m)}" for m in exited))
        if time.monotonic() > deadline:
            raise ClusterError(_complaint(running, others, f"not {wish} after {seconds:.0f} s"))
        time.sleep(0.1)


def _node_words(running: Running) -> dict[str, str]:
    """NodeName -> sinfo's short word for its state; empty while slurmctld does not answer."""
    try:
        lines = docker("exec", running.container(CONTROLLER), "sinfo", "--noheader", "--Node", "--format=%N %t").splitlines()
    except ClusterError:
        return {}
    return dict(line.split() for line in lines)


def _described(layout: Layout, image: str) -> Running:
    project_name = project(layout.name)
    record = state(layout.name) / "networks.json"
    (prefix,) = free_subnets(record, project_name, ("slurm",), seed=layout.name).values()
    # A mount holds on to a directory that was removed and made anew at its path, so its inode counts too.
    mounted = [(path, os.stat(path).st_ino) for path in _read_only()]
    facts = [image, prefix, dataclasses.asdict(layout), files(layout), _mounts(layout.name), mounted]
    return Running(layout, hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16], prefix)


def _read_only() -> list[str]:
    mounts, refusal = interpreter_mounts()
    if refusal is not None:
        raise ClusterError(f"the machines of a fake Slurm cluster cannot run {sys.executable}: {refusal}")
    return outermost({str(ROOT), *mounts})


def _mounts(name: str) -> list[str]:
    shared = state(name) / "shared"
    return [*(f"{path}:{path}:ro" for path in _read_only()), f"{shared}:{shared}", f"{state(name) / 'etc'}:/opt/slurm-etc:ro"]


def _recorded_fingerprint(name: str) -> str | None:
    try:
        return str(json.loads((state(name) / "cluster.json").read_text())["fingerprint"])
    except FileNotFoundError:
        return None


def _all_running(layout: Layout) -> bool:
    return states(layout.name) == dict.fromkeys(layout.machines, "running")


def _start(running: Running, image: str) -> None:
    layout = running.layout
    running.etc.mkdir(exist_ok=True)
    for name, text in files(layout).items():
        (running.etc / name).write_text(text)
    shutil.rmtree(running.shared, ignore_errors=True)
    running.shared.mkdir()
    running.shared.chmod(0o777)
    network = project(layout.name)
    docker("network", "create", "--subnet", f"{running.prefix}.0/24", network)

    def start(machine: str) -> None:
        gpus = sum(node.gpus for node in layout.nodes_on(machine))
        docker(
            *("run", "--detach", "--name", running.container(machine), "--hostname", machine),
            *("--network", network, "--ip", running.address(machine), "--network-alias", machine),
            *("--tmpfs", "/run", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_PTRACE", "--cap-add", "SYS_NICE"),
            *(word for mount in _mounts(layout.name) for word in ("--volume", mount)),
            *("--env", f"CLUSTER_DAEMONS={layout.daemons(machine)}", "--env", f"CLUSTER_GPUS={gpus}"),
            image,
        )

    with ThreadPoolExecutor(PARALLEL_STARTS) as pool:
        list(pool.map(start, layout.machines))


def _complaint(running: Running, names: list[str], what: str) -> str:
    """A report: what Slurm says of the nodes, and the ends of the logs of slurmctld and of their machines."""
    argv = ("exec", running.container(CONTROLLER), "sinfo", "--Node", "--format=%N %T %E")
    machines = dict.fromkeys([CONTROLLER, *(running.layout.node(name).machine for name in names)])
    parts = [f"{', '.join(names)} of Slurm cluster {running.layout.name}: {what}", _tried(docker, *argv)]
    for machine in machines:
        log = _tried(docker, "exec", running.container(machine), "sh", "-c", "tail -n 10 /var/log/slurm/*.log")
        parts.append(f"{machine}:\n{_container_log(running, machine)}{log}")
    return "\n".join(parts)


def _container_log(running: Running, machine: str) -> str:
    return _tried(engine.run, ["sh", "-c", f"{engine.client()} logs --tail 15 {running.container(machine)} 2>&1"])


def _tried(command: Callable[..., str], *argv: object) -> str:
    try:
        return command(*argv)
    except ClusterError as failure:
        return str(failure)


def _remove(name: str) -> None:
    (state(name) / "cluster.json").unlink(missing_ok=True)
    containers = docker("ps", "--all", "--quiet", "--filter", f"name=^/?{project(name)}-").split()
    if containers:
        docker("rm", "--force", "--volumes", *containers)
    networks = docker("network", "ls", "--quiet", "--filter", f"name=^{project(name)}$").split()
    if networks:
        docker("network", "rm", *networks)

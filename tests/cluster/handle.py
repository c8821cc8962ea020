"""What a test holds: the running cluster, its containers' faults, and a look into their process tables."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster import engine, processes, services
from tests.cluster.access import SERVICES, WITH_TORCH
from tests.cluster.engine import ClusterError
from tests.cluster.place import STATE
from tests.cluster.processes import Process
from tests.cluster.services import Running

SYSTEM = ("tini", "sleep infinity", "/usr/sbin/sshd", "sshd:")
"""beginnings of the command lines that an idle container, or an ssh session being served, consists of"""


class Cluster:
    """The fake cluster.  Whoever breaks a service mends it: ``mend`` brings all of them back."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._here = processes.FromHere()
        self.hosts: tuple[str, ...] = tuple(s.name for s in SERVICES if s.name != "bastion")
        self.with_torch: tuple[str, ...] = WITH_TORCH if running.python else ()
        self.python: str | None = running.python
        self.ssh_config: Path = STATE / "ssh_config"
        self.cluster_yaml: Path = STATE / "cluster.yaml"
        self.known_hosts: Path = STATE / "known_hosts"
        self.identity_file: Path = STATE / "keys" / "id_ed25519"

    def address(self, service: str) -> str:
        """IPv4 address of a service; hidden ones answer only the bastion there."""
        return next(self._running.networks.address(s) for s in SERVICES if s.name == service)

    def exec(
        self, service: str, *argv: str, user: str = "root", stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a container, past ssh; ClusterError when it fails and ``check``."""
        command = [engine.client(), "exec", "--interactive", "--user", user, self._running.container(service), *argv]
        done = subprocess.run(command, input=stdin or "", capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise ClusterError(f"{' '.join(argv)} on {service} exited {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def docker(self, verb: str, service: str, *options: str) -> None:
        """Any other verb of the engine on a container: start, stop, kill, unpause, restart."""
        engine.docker(verb, *options, self._running.container(service))

    def kill(self, service: str) -> None:
        """As if the machine lost power."""
        self.docker("kill", service)

    def stop(self, service: str) -> None:
        """End a container; its processes get two seconds after TERM."""
        self.docker("stop", service, "--time", "2")

    def start(self, service: str) -> None:
        """Start a stopped or killed container and wait until its sshd answers."""
        self.docker("start", service)
        services.wait_for_ssh(self._running.networks, [service])

    def pause(self, service: str) -> None:
        """Freeze every process of a container; its peers hear nothing more."""
        engine.pause(self._running.container(service))

    def unpause(self, service: str) -> None:
        """Let a paused container go on."""
        self.docker("unpause", service)

    def disconnect(self, service: str) -> None:
        """Unplug a node from its network; its processes run on."""
        self._network("disconnect", service)

    def connect(self, service: str) -> None:
        """Plug a node back in, at its address."""
        self._network("connect", service, "--ip", self.address(service))

    def mend(self) -> None:
        """Bring every service back that a test left stopped, paused or unplugged."""
        states = services.states()
        for service in SERVICES:
            state = states.get(service.name)
            if state == "paused":
                self.unpause(service.name)
            elif state == "exited":
                self.start(service.name)

    def processes(self, service: str) -> list[Process]:
        """All processes of a container, apart from this look itself."""
        seen = self._here.read(self._running.container(service))
        return processes.parse(self.exec(service, *processes.READ).stdout) if seen is None else seen

    def leftovers(self, service: str) -> list[Process]:
        """Processes that an idle node does not have: what a job left alive, zombies included."""
        return processes.left(self.processes(service), SYSTEM)

    def _network(self, verb: str, service: str, *options: str) -> None:
        network = next(s.network for s in SERVICES if s.name == service)
        engine.docker("network", verb, *options, f"{self._running.project}_{network}", self._running.container(service))


def start() -> Cluster:
    """The cluster of this checkout, started where it does not run yet."""
    return Cluster(services.ensure())


def why_not() -> str | None:
    """None when the cluster runs or can be started here, else the reason in one sentence."""
    return engine.why_no_engine()

"""What a test holds of a fake Slurm cluster: commands on its machines, its faults, and what is left running on them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster import engine, processes
from tests.cluster.engine import ClusterError
from tests.cluster.place import interpreter_mounts
from tests.cluster.processes import Process
from tests.cluster.slurm import services
from tests.cluster.slurm.layout import CONTROLLER, Layout, slurm_conf

SYSTEM = ("tini", "sleep infinity", "munged", "mariadbd", "slurmdbd", "slurmctld", ": slurmscriptd", "slurmd")
"""beginnings of the command lines that an idle machine consists of; slurmstepd is not among them"""
STEP_SECONDS = 5.0
"""from the end of all processes of a job until its nodes have said so"""
END_SECONDS = 120.0
"""from a cancelled job until its nodes are idle: Slurm's KillWait and some, unless the machine is swamped"""


class SlurmCluster:
    """A running fake Slurm cluster.  Whoever breaks something mends it: ``mend`` brings all of it back.

    Machines go by host name or NodeName, whichever a test has: ``m3`` and ``n-three`` are the same container.
    """

    def __init__(self, running: services.Running) -> None:
        self._running = running
        self._here = processes.FromHere()
        self.layout: Layout = running.layout
        self.login: str = CONTROLLER
        self.nodes: tuple[str, ...] = tuple(node.name for node in running.layout.nodes)
        self.shared: Path = running.shared
        """on the file system that all machines and this one see, writable for everybody"""
        self.python: str = str(Path(sys.prefix) / "bin" / "python")
        """the interpreter that runs the tests, at the same path on every machine"""
        self.whole: bool = False
        """True while nothing was broken through this handle since it mended everything"""

    def run(
        self,
        where: str,
        command: str | Sequence[str],
        *,
        user: str = "train",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: str = "",
        check: bool = True,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Run argv, or a bash script, on a machine; ClusterError when it fails and ``check``.

        LAUNCHER_HOME is ``shared/home`` and the working directory ``shared``, unless said otherwise.
        """
        argv = self.argv(where, command, user=user, env=env, cwd=cwd)
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=timeout)
        if check and done.returncode != 0:
            raise ClusterError(f"{command} on {where} exited {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def argv(
        self,
        where: str,
        command: str | Sequence[str],
        *,
        user: str = "train",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> list[str]:
        """The words with which this machine runs a command there: for Popen.  A signal to that process does not get through."""
        environment = {"LAUNCHER_HOME": str(self.shared / "home"), "USER": user, "LOGNAME": user} | dict(env or {})
        words = [word for item in environment.items() for word in ("--env", "=".join(item))]
        inside = ["bash", "-c", command] if isinstance(command, str) else list(command)
        directory = str(self.shared if cwd is None else cwd)
        container = self._container(where)
        return [engine.client(), "exec", "--interactive", "--user", user, "--workdir", directory, *words, container, *inside]

    def address(self, where: str) -> str:
        """IPv4 address of a machine."""
        return self._running.address(self._machine(where))

    def drain(self, node: str) -> None:
        """Let what runs on a node go on, and start nothing more there."""
        self.whole = False
        self._root("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")

    def resume(self, node: str) -> None:
        """Take a drained or downed node into use again."""
        self._root("scontrol", "update", f"nodename={node}", "state=resume")

    def kill(self, where: str) -> None:
        """As if the machine lost power."""
        self.whole = False
        engine.docker("kill", self._container(where))

    def report_down(self, node: str) -> None:
        """Have Slurm take a killed node for failed now, and not SlurmdTimeout after it fell silent."""
        # slurmctld tries to reach it first, and its answer may come too late for scontrol.
        words = ["scontrol", "update", f"nodename={node}", "state=down", "reason=test"]
        self.run(self.login, words, user="root", cwd="/", check=False)

    def restart(self, where: str) -> None:
        """Start a killed machine and wait until its daemons run; ``wait_idle`` waits for what Slurm says of its node."""
        engine.docker("start", self._container(where))
        services.wait_started(self._running, [self._machine(where)])

    def pause(self, where: str) -> None:
        """Freeze every process of a machine; its peers hear nothing more."""
        self.whole = False
        engine.pause(self._container(where))

    def unpause(self, where: str) -> None:
        """Let a paused machine go on."""
        engine.docker("unpause", self._container(where))

    def stop_daemon(self, where: str, daemon: str = "slurmctld") -> None:
        """End a daemon (slurmctld, slurmdbd, slurmd and so on); what else runs on the machine lives on."""
        self.whole = False
        self.run(where, ["/opt/daemon", "stop", daemon], user="root", cwd="/")

    def start_daemon(self, where: str, daemon: str = "slurmctld") -> None:
        """Start a stopped daemon and wait until it answers."""
        self.run(where, ["/opt/daemon", "start", daemon], user="root", cwd="/")

    def configure(self, **changes: str) -> None:
        """Replace lines of slurm.conf and start slurmctld anew with them; ``mend`` takes them back."""
        self.whole = False
        self._write_conf(changes)
        self._restart_controller()
        self.wait_idle()

    def wait_idle(self, seconds: float = services.READY_SECONDS) -> None:
        """Wait until slurmctld answers and every node is idle; ClusterError shows the logs of those that are not."""
        services.wait_idle(self._running, seconds)

    def cancel_all(self) -> None:
        """End every job now: scancel would leave TERM's grace, Slurm's KillWait, to what runs."""
        self.run(self.login, "scancel --user train; scancel --user root", user="root")
        if self._jobs():
            self._kill_all("-u", "train")
        deadline = time.monotonic() + STEP_SECONDS
        while self._jobs():
            if time.monotonic() > deadline:
                # A step that ended while slurmctld was away tells it so a minute later, and its node is not idle until then.
                self._kill_all("-x", "slurmstepd")
                break
            time.sleep(0.1)

    def mend(self) -> None:
        """Bring back every machine, daemon, node and setting that a test left broken, and end all jobs."""
        for machine, state in services.states(self.layout.name).items():
            if state == "paused":
                self.unpause(machine)
            elif state == "exited":
                self.restart(machine)
        for machine in self.layout.machines:
            self.run(machine, f"/opt/daemon start {self.layout.daemons(machine)}", user="root", cwd="/")
        if self._write_conf({}):
            self._restart_controller()
        self.cancel_all()
        services.wait_answering(self._running)
        broken = self._root("sinfo", "--noheader", "--Node", "--format=%N", "--states=drain,down,fail").stdout.split()
        for node in dict.fromkeys(broken):  # a node is shown once for each of its partitions
            self.resume(node)
        self.wait_idle()
        self.whole = True

    def settle(self) -> dict[str, list[Process]]:
        """Leave the cluster as a test wants to find it: no jobs, idle nodes, an empty shared directory, no process of a job.

        Returns the processes that outlived their jobs, which have been killed now.
        """
        if not self.whole:
            self.mend()
        elif self._jobs():
            self._end_jobs()
        left = self.wait_clean()
        for machine, found in left.items():
            self.run(machine, ["kill", "-KILL", *(str(p.pid) for p in found)], user="root", cwd="/", check=False)
        self.run(self.login, ["find", str(self.shared), "-mindepth", "1", "-delete"], user="root", cwd="/")
        return left

    def processes(self, where: str) -> list[Process]:
        """All processes of a machine, apart from this look itself."""
        seen = self._here.read(self._container(where))
        return processes.parse(self.run(where, processes.READ, user="root", cwd="/").stdout) if seen is None else seen

    def leftovers(self, where: str) -> list[Process]:
        """Processes that an idle machine does not have: what a job left alive, zombies included."""
        return processes.left(self.processes(where), SYSTEM)

    def all_leftovers(self) -> dict[str, list[Process]]:
        """Machine -> its leftovers, machines without any left out."""
        with ThreadPoolExecutor(4) as pool:
            found = dict(zip(self.layout.machines, pool.map(self.leftovers, self.layout.machines), strict=True))
        return {machine: left for machine, left in found.items() if left}

    def wait_clean(self, seconds: float = END_SECONDS) -> dict[str, list[Process]]:
        """Wait until nothing of a job is left on any machine; return what still is after ``seconds``."""
        deadline = time.monotonic() + seconds
        while (left := self.all_leftovers()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _machine(self, where: str) -> str:
        return next((node.machine for node in self.layout.nodes if node.name == where), where)

    def _container(self, where: str) -> str:
        return self._running.container(self._machine(where))

    def _root(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.login, argv, user="root", cwd="/")

    def _end_jobs(self) -> None:
        self.cancel_all()
        try:
            self.wait_idle(STEP_SECONDS)
        except ClusterError:
            self.mend()

    def _kill_all(self, *which: str) -> None:
        def kill(machine: str) -> None:
            self.run(machine, ["pkill", "-KILL", *which], user="root", cwd="/", check=False)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(kill, self.layout.machines[1:]))

    def _jobs(self) -> bool:
        """True when Slurm knows a job that has not ended, the ending ones included."""
        return bool(self._root("squeue", "--noheader", "--format=%i").stdout.strip())

    def _restart_controller(self) -> None:
        self.stop_daemon(self.login)
        self.start_daemon(self.login)
        self._root("scontrol", "reconfigure")

    def _write_conf(self, changes: dict[str, str]) -> bool:
        """True when that changed the file."""
        path, text = self._running.etc / "slurm.conf", slurm_conf(self.layout, changes)
        if path.read_text() == text:
            return False
        path.write_text(text)
        return True


def start(layout: Layout) -> SlurmCluster:
    """The cluster of a layout, started where it does not run yet."""
    return SlurmCluster(services.ensure(layout))


def why_not() -> str | None:
    """None when a fake Slurm cluster runs or can be started here, else the reason in one sentence."""
    return engine.why_no_engine() or interpreter_mounts()[1]

"""Where the benchmarks run: the containers of tests/cluster, a job folder of their own, and how each program is called."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks import measure
from benchmarks.measure import BenchFailed, Sample

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".cluster"
USER = "train"
LAUNCHER = (sys.executable, "-m", "launcher")
CURVE = "KexAlgorithms=curve25519-sha256"
"""what spares OpenSSH 9's sntrup761 key exchange, most of a short session's CPU time; to be fair to rivals"""


@dataclass(frozen=True)
class Place:
    """Job folders and files lie below ``scratch``, which the caller removes."""

    scratch: Path

    @property
    def home(self) -> Path:
        """$LAUNCHER_HOME of the measured commands."""
        return self.scratch / "home"

    def environment(self) -> dict[str, str]:
        """For every measured launcher."""
        # The measured launcher has its byte code, as an installed one has.
        return {"LAUNCHER_HOME": str(self.home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}

    def launcher(self, *words: str, cwd: Path | None = None, stdout: IO[bytes] | None = None) -> Sample:
        """Measure `launcher WORDS`."""
        return measure.run([*LAUNCHER, *words], cwd or self.scratch, self.environment(), stdout)

    def popen(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a launcher whose output is read meanwhile; what it says besides goes where ours goes."""
        environment = {**os.environ, **self.environment()}
        return subprocess.Popen(words, env=environment, cwd=self.scratch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def unmeasured(self, *words: str) -> None:
        """`launcher WORDS`; a measurement would last until all that it started has ended."""
        environment = {**os.environ, **self.environment()}
        done = subprocess.run([*LAUNCHER, *words], env=environment, cwd=self.scratch, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchFailed(done.stderr)

    def submit(self, nodes: int, *words: str, cluster: str = "fleet.yaml", stdout: IO[bytes] | None = None) -> Sample:
        """Measure `launcher submit` on the first ``nodes`` hosts of the fleet."""
        return self.launcher("submit", "--cluster", str(STATE / cluster), "--nodes", str(nodes), *words, stdout=stdout)

    def detach(self, nodes: int, *words: str) -> None:
        """Submit a job that goes on, on the first ``nodes`` hosts of the fleet; unmeasured."""
        self.unmeasured("submit", "--detach", "--cluster", str(STATE / "fleet.yaml"), "--nodes", str(nodes), *words)

    def newest(self) -> Path:
        """The folder of the job that was submitted last."""
        return max((self.home / "jobs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)

    def forget(self) -> None:
        """Remove all job folders here."""
        shutil.rmtree(self.home, ignore_errors=True)


def events(folder: Path) -> list[dict[str, Any]]:
    """A job's events."""
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def first(told: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    """The first event of a type; BenchFailed when the job has none."""
    found = next((event for event in told if event["type"] == kind), None)
    if found is None:
        raise BenchFailed(f"the job has no event {kind!r}")
    return found


def hosts(count: int) -> list[str]:
    """The first ``count`` hosts of the fleet."""
    try:
        names = (STATE / "fleet_hosts").read_text().split()
    except FileNotFoundError:
        names = []
    if len(names) < count:
        raise BenchFailed(f"{count} containers are needed, {len(names)} are there; start them: tests/cluster/cluster fleet 32")
    return names[:count]


def ssh(config: str = "fleet_ssh_config", *options: str) -> list[str]:
    """The system's ssh, as the containers want it."""
    return ["ssh", "-F", str(STATE / config), *(word for option in options for word in ("-o", option))]


def on_all(names: Sequence[str], text: str, *options: str) -> list[list[str]]:
    """One `ssh HOST TEXT` per host."""
    return [[*ssh("fleet_ssh_config", *options), name, text] for name in names]


def on_each(names: Sequence[str], text: str) -> None:
    """Do something on hosts, unmeasured."""
    measure.together(on_all(names, text))


def pdsh(names: Sequence[str], text: str, *options: str) -> Callable[[], Sample]:
    """pdsh over ssh; it exits as the worst of its commands (-S)."""
    extra = " ".join([f"-F {STATE}/fleet_ssh_config", *(f"-o {option}" for option in options)])
    words = ["pdsh", "-S", "-R", "ssh", "-l", USER, "-f", "32", "-w", ",".join(names), text]
    return lambda: measure.run(words, env={"PDSH_SSH_ARGS_APPEND": extra})


def clush(names: Sequence[str], text: str) -> Callable[[], Sample]:
    """clush, likewise."""
    words = ["clush", "-q", "-S", "-l", USER, "-f", "32", "-o", f"-F {STATE}/fleet_ssh_config", "-w", ",".join(names), text]
    return lambda: measure.run(words)


def have(program: str) -> bool:
    """Whether a rival is installed."""
    return shutil.which(program, path=os.environ.get("PATH")) is not None

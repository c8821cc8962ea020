"""The launcher as a person uses it on the log-in machine of a Slurm cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.slurm.handle import SlurmCluster

HELD = "backend: slurm\nslurm: {sbatch: {hold: true}}\n"
"""a cluster file whose jobs wait until they are released"""

TRAINED = """
import os, sys
print(os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:], flush=True)
open(os.path.join(os.environ["PAI_OUTPUT_MODEL"], "rank-" + os.environ["RANK"]), "w").close()
"""
"""stands for a training script: says where it is and its words, and saves a file.  In Slurm's queue torch trains, in
tests/estimator/test_example.py"""


class Desk:
    """The command line there, in the shared directory, with its home below it."""

    def __init__(self, slurm: SlurmCluster, **environment: str) -> None:
        self.slurm = slurm
        self.environment = environment
        self.jobs = Path(environment.get("LAUNCHER_HOME", slurm.shared / "home")) / "jobs"

    def words(self, *words: str) -> list[str]:
        """The command, for a process that is not waited for."""
        return self.slurm.argv(self.slurm.login, [self.slurm.python, "-m", "launcher", *words], env=self.environment)

    def run(self, *words: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """A command to its end; ``check`` is the exit code it must have."""
        done = subprocess.run(self.words(*words), capture_output=True, text=True, timeout=300, check=False)
        assert check is None or done.returncode == check, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def queued(self, *words: str) -> str:
        """Submit without waiting; the job's id."""
        return self.run("submit", "--backend", "slurm", "-d", *words).stdout.strip()

    def status(self, job: str = "latest") -> dict[str, Any]:
        """The document of `status`."""
        told: dict[str, Any] = json.loads(self.run("status", job, "-o", "json").stdout)
        return told

    def events(self, job: str = "latest") -> list[dict[str, Any]]:
        """What happened."""
        return [json.loads(line) for line in self.run("events", job, "-o", "json").stdout.splitlines()]

    def heard(self, job: str = "latest") -> list[dict[str, Any]]:
        """The same, read from the job folder here: for waiting, which would keep a core busy with commands."""
        folder = max(self.jobs.iterdir()) if job == "latest" else self.jobs / job
        path = folder / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def over(self, job: str = "latest") -> bool:
        """Whether the end is written."""
        return any(event["type"] == "end" for event in self.heard(job))

    def of_slurm(self, number: str) -> str:
        """What scontrol says of a job."""
        return self.slurm.run(self.slurm.login, ["scontrol", "--oneliner", "show", "job", number], check=False).stdout

    def file(self, name: str, text: str) -> str:
        """A file in the shared directory, which commands find by its name."""
        path = self.slurm.shared / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

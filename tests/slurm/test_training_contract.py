"""Hyperparameters and requirements on a real Slurm: in an allocation, and from the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.wheels import wheel
from tests.cluster.slurm.handle import SlurmCluster
from tests.slurm.desk import Desk


@pytest.fixture
def source(slurm: SlurmCluster) -> Path:
    """A source folder on the shared file system, and a cluster file whose nodes run the interpreter that has pip."""
    folder = slurm.shared / "training"
    wheel(folder / "wheels", "addon", "1.5")
    (folder / "requirements.txt").write_text("--no-index\n--find-links wheels\naddon\n")
    (slurm.shared / "cluster.yaml").write_text(f"backend: slurm\ndefaults: {{python: {slurm.python}}}\n")
    return folder


def test_what_is_installed_by_a_job_of_the_queue_serves_one_in_an_allocation(slurm: SlurmCluster, source: Path) -> None:
    """Built by one node, for the others see the same file system; no process is left."""
    desk = Desk(slurm)
    said = ("--nodes", "2", "--hp", "lr=0.1", "--source-dir", str(source), "--command", "addon-run; echo $PAI_USER_ARGS")
    done = desk.run("submit", "--backend", "slurm", *said)
    assert sorted(done.stdout.splitlines())[-4:] == ["[0] --lr 0.1", "[0] addon 1.5", "[1] --lr 0.1", "[1] addon 1.5"]
    told = next(event for event in desk.events() if event["type"] == "prepared")["nodes"]
    assert [entry["layer"]["built"] for entry in told] == [True, False]
    launcher = f"{slurm.python} -m launcher submit --nodes 2 --source-dir {source} -- addon-run"
    again = slurm.run(slurm.login, f"salloc --quiet -N2 {launcher}", env={"LAUNCHER_HOME": str(slurm.shared / "home")})
    assert {"[0] addon 1.5", "[1] addon 1.5"} <= set(again.stdout.splitlines())
    told = next(event for event in desk.events() if event["type"] == "prepared")["nodes"]
    assert [entry["layer"]["built"] for entry in told] == [False, False]

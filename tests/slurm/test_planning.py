"""A plan made in an allocation: its nodes, where each value came from, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.coordinator import allocated
from launcher.errors import UsageError
from launcher.model import Command, Host, JobSpec, Plan
from launcher.planning import Draft, Request, draft
from tests.slurm.programs import Programs

HELD = """JobId=7 JobName=interactive
     Nodes=m[1-2] CPU_IDs=0-1 Mem=200 GRES=gpu:a100:2(IDX:0-1)
     Nodes=n-three CPU_IDs=0 Mem=100 GRES=gpu:1(IDX:0)
"""


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A scontrol that speaks of three nodes, and an empty working directory."""
    made = Programs(tmp_path / "slurm")
    made.says("scontrol", HELD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAUNCHER_CLUSTER", raising=False)
    return made


def planned(programs: Programs, changes: dict[str, str] | None = None, **said: Any) -> Draft:
    environment = {
        **programs.environ,
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n-three,m[1-2]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_JOB_CPUS_PER_NODE": "1,2(x2)",
        **(changes or {}),
    }
    return draft(Request(words=("prog",), **said), environment)


def refusal(programs: Programs, changes: dict[str, str] | None = None, **said: Any) -> str:
    with pytest.raises(UsageError) as caught:
        planned(programs, changes, **said)
    return str(caught.value)


def test_an_allocation_is_the_inventory(programs: Programs, tmp_path: Path) -> None:
    """Slurm's order and names, what the job holds on each, our own interpreter; nobody need name anything."""
    plan = planned(programs).plan
    assert (plan.backend, plan.allocation, plan.batch) == ("slurm", "7", False)
    told = [(node.rank, node.host.name, node.host.cpus, node.host.gpus, node.host.python) for node in plan.nodes]
    assert told == [(0, "n-three", 1, 1, sys.executable), (1, "m1", 2, 2, sys.executable), (2, "m2", 2, 2, sys.executable)]
    assert {node.host.workdir for node in plan.nodes} == {str(tmp_path / "home")}
    assert plan.origins["backend"] == plan.origins["nodes"] == "the Slurm allocation 7"


def test_the_first_nodes_or_those_that_are_named(programs: Programs) -> None:
    """--hosts in its own order."""
    assert [node.host.name for node in planned(programs, nodes=2).plan.nodes] == ["n-three", "m1"]
    assert [node.host.name for node in planned(programs, hosts="m2,n-three").plan.nodes] == ["m2", "n-three"]
    assert [node.host.name for node in planned(programs, exclude="m[1-2]").plan.nodes] == ["n-three"]
    assert "--nodes 4, but the Slurm allocation 7 has 3 nodes\n    n-three\n    m1\n    m2\n" in refusal(programs, nodes=4)
    told = refusal(programs, hosts="m9")
    assert "the hosts cannot be chosen from the Slurm allocation 7" in told
    assert "--hosts: m9: no host of that name; the Slurm allocation 7 has n-three, m1, m2" in told and "inventory" not in told


def test_what_is_said_wins_over_the_allocation(programs: Programs, tmp_path: Path) -> None:
    """--backend, and an inventory with another one; a cluster file of Slurm's brings its defaults along."""
    assert planned(programs, backend="local").plan.backend == "local"
    (tmp_path / "cluster.yaml").write_text("hosts: [a]\n")
    assert planned(programs).plan.backend == "ssh"
    (tmp_path / "cluster.yaml").write_text("name: lab\nbackend: slurm\ndefaults: {venv: /opt/t, workdir: /scratch}\n")
    plan = planned(programs).plan
    assert (plan.backend, plan.cluster, plan.allocation) == ("slurm", "lab", "7")
    assert {(node.host.venv, node.host.python, node.host.workdir) for node in plan.nodes} == {("/opt/t", None, "/scratch")}


def test_more_gpus_than_the_job_holds_are_refused(programs: Programs, tmp_path: Path) -> None:
    """With both numbers."""
    (tmp_path / "cluster.yaml").write_text("backend: slurm\ndefaults: {gpus: 2}\n")
    assert "n-three: the job holds 1" in refusal(programs)


def test_nothing_detaches_from_a_batch_script(programs: Programs) -> None:
    """From salloc's shell it may."""
    assert "-d in a batch script" in refusal(programs, {"ENVIRONMENT": "BATCH"}, detached=True)
    assert planned(programs, detached=True).plan.detached


def test_one_of_several_tasks_is_told_so(programs: Programs) -> None:
    """A step of one task is a shell like any other."""
    step = {"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "8"}
    assert "srun has started this 8 times (step 3 of Slurm job 7)" in refusal(programs, step)
    assert planned(programs, {**step, "SLURM_STEP_NUM_TASKS": "1"}).plan.allocation == "7"


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"cpus": 4, "slurm": {"SLURM_GPUS_ON_NODE": "2"}}, None),
        ({"cpus": 8, "slurm": {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}}, None),
        ({"cpus": 1, "slurm": {"SLURM_GPUS_ON_NODE": "2"}}, "may use 1 CPUs, but the job holds 4"),
        ({"cpus": 4, "slurm": {"SLURM_GPUS_ON_NODE": "1"}}, "sees 1 GPUs, but the job holds 2"),
        ({"cpus": 4, "slurm": {}}, "sees 0 GPUs, but the job holds 2"),
        ({"cpus": 4, "slurm": {"SLURM_GPUS_ON_NODE": "2", "SLURM_STEP_GPUS": "0"}}, "disagree"),
    ],
)
def test_a_task_that_may_use_less_than_the_job_holds_is_refused(facts: dict[str, Any], sentence: str | None) -> None:
    """With both numbers, before anything starts."""
    error = allocated.complaint(Host("m1", "m1", cpus=4, gpus=2), facts)
    assert (error is None) == (sentence is None)
    assert sentence is None or sentence in str(error)


@pytest.mark.parametrize(("grace", "left"), [(30.0, 6.0), (5.0, 5.0)])
def test_the_grace_ends_before_slurms_own(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, grace: float, left: float
) -> None:
    """KillWait after its TERM Slurm kills; what does not fit is told."""
    programs.says("scontrol", "KillWait                = 10 sec\n")
    monkeypatch.setenv("PATH", programs.environ["PATH"])
    plan = Plan("job", JobSpec(Command(shell="true"), grace=grace), "slurm", "lab", (), "none", allocation="7")
    assert allocated.last_grace(plan) == left
    assert (allocated.grace_note(plan) is None) == (left == grace)

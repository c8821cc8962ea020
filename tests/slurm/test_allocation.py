"""The allocation, from an environment and from what scontrol says of its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import SlurmSilent, UsageError
from launcher.slurm.allocation import AllocatedNode, allocation, counts, step, step_options
from tests.slurm.programs import Programs

UNEQUAL = """JobId=7 JobName=interactive
   JOB_GRES=gpu:a100:4,gpu:1
     Nodes=m[1-2] CPU_IDs=0-1 Mem=200 GRES=gpu:a100:2(IDX:0-1)
     Nodes=n-three CPU_IDs=0 Mem=100 GRES=gpu:1(IDX:0)
   TresPerNode=gres:gpu:1
"""
"""what 22.05 prints of `salloc -N3 --exclusive --gres=gpu:1`"""


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """A scontrol that speaks of three nodes."""
    made = Programs(tmp_path)
    made.says("scontrol", UNEQUAL)
    return made


def environment(programs: Programs, **changes: str) -> dict[str, str]:
    """What salloc's shell finds."""
    return {
        **programs.environ,
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "m[1-2],n-three",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_JOB_CPUS_PER_NODE": "2(x2),1",
        "SLURM_CLUSTER_NAME": "lab",
        **changes,
    }


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4", [4]), ("4(x2)", [4, 4]), ("2(x3),1", [2, 2, 2, 1]), ("40,8", [40, 8]), ("1(x2),3,2(x3)", [1, 1, 3, 2, 2, 2])],
)
def test_counts_are_one_number_a_node(text: str, numbers: list[int]) -> None:
    """As in SLURM_JOB_CPUS_PER_NODE and SLURM_STEP_TASKS_PER_NODE."""
    assert counts(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "2(x)", "2(3)", "2x3", "1,,2", "1(x9999999)"])
def test_counts_that_cannot_be_read_are_an_error(text: str) -> None:
    """... and never taken for their first number."""
    with pytest.raises(ValueError, match="count"):
        counts(text)


def test_nodes_come_in_the_lists_order_with_what_the_job_holds(programs: Programs) -> None:
    """CPUs from the environment, GPUs and their type from scontrol, unequal nodes included."""
    given = allocation(environment(programs))
    assert given is not None
    assert given.nodes == (
        AllocatedNode("m1", 2, 2, "a100"),
        AllocatedNode("m2", 2, 2, "a100"),
        AllocatedNode("n-three", 1, 1, None),
    )
    assert (given.job_id, given.cluster, given.restart_count, given.in_step, given.batch) == ("7", "lab", 0, False, False)
    assert programs.calls("scontrol") == ["--details show job 7"]


def test_outside_of_an_allocation_there_is_none(programs: Programs) -> None:
    """And nobody is asked."""
    assert allocation({**programs.environ, "SLURM_CONF": "/etc/slurm.conf"}) is None
    assert programs.calls("scontrol") == []


def test_a_batch_script_a_requeue_and_a_step_are_known(programs: Programs) -> None:
    """From ENVIRONMENT, SLURM_RESTART_COUNT and SLURM_STEP_ID."""
    given = allocation(environment(programs, ENVIRONMENT="BATCH", SLURM_RESTART_COUNT="2", SLURM_STEP_ID="3"))
    assert given is not None
    assert (given.batch, given.restart_count, given.step_id, given.in_step) == (True, 2, "3", True)


def test_the_interactive_step_of_salloc_is_none_that_is_in_the_way() -> None:
    """With LaunchParameters=use_interactive_step the shell runs in a step of Slurm's own, which holds nothing."""
    assert step({"SLURM_STEP_ID": "4294967290"}) is None
    assert step({"SLURM_STEP_ID": "0"}) == "0"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"SLURM_JOB_NODELIST": "m[1-2"}, "SLURM_JOB_NODELIST: 'm[1-2' is no host list"),
        ({"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST: '' is no host list"),
        ({"SLURM_JOB_NUM_NODES": "4"}, "SLURM_JOB_NUM_NODES=4, but SLURM_JOB_NODELIST=m[1-2],n-three has 3"),
        ({"SLURM_JOB_NUM_NODES": "three"}, "SLURM_JOB_NUM_NODES=three is no number"),
        ({"SLURM_JOB_CPUS_PER_NODE": "2(x2"}, "SLURM_JOB_CPUS_PER_NODE: '2(x2' is no list of counts"),
        ({"SLURM_JOB_CPUS_PER_NODE": "2(x2)"}, "speaks of 2 nodes, SLURM_JOB_NODELIST of 3"),
        ({"SLURM_RESTART_COUNT": "?"}, "SLURM_RESTART_COUNT=? is no number"),
        ({"SLURM_GPUS_PER_NODE": "a100"}, "'a100' is no number of GPUs"),
        ({"SLURM_GPUS_PER_NODE": "a100:2"}, "SLURM_GPUS_PER_NODE=a100:2 was asked for, but the job holds 1 on n-three"),
        ({"SLURM_GPUS": "6"}, "SLURM_GPUS=6 was asked for, but the job holds 5 in all"),
        ({"SLURM_JOB_NODELIST": "m[1-2],n-four"}, "`scontrol show job -d 7` says nothing of node n-four"),
    ],
)
def test_what_cannot_be_read_or_disagrees_is_named(programs: Programs, changes: dict[str, str], sentence: str) -> None:
    """Both sides of it, and no guess."""
    with pytest.raises(UsageError) as caught:
        allocation(environment(programs, **changes))
    assert sentence in str(caught.value)


def test_every_problem_is_named_at_once(programs: Programs) -> None:
    """Not the first only."""
    changes = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "x", "SLURM_RESTART_COUNT": "y"}
    with pytest.raises(UsageError) as caught:
        allocation(environment(programs, **changes))
    assert len(caught.value.problems) == 3


def test_more_gpus_than_asked_for_are_no_problem(programs: Programs) -> None:
    """--exclusive gives the job all that the nodes have."""
    given = allocation(environment(programs, SLURM_GPUS_PER_NODE="1", SLURM_GPUS="3"))
    assert given is not None and [node.gpus for node in given.nodes] == [2, 2, 1]


def test_a_heterogeneous_job_is_refused_in_one_sentence(programs: Programs) -> None:
    """With what to do instead."""
    with pytest.raises(UsageError, match="heterogeneous, of 2 components") as caught:
        allocation(environment(programs, SLURM_HET_SIZE="2"))
    assert "ask for one component" in str(caught.value)


def test_a_scontrol_that_fails_is_an_error_with_its_own_words(programs: Programs) -> None:
    """Not an allocation without GPUs."""
    programs.says("scontrol", err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", status=1)
    with pytest.raises(SlurmSilent, match="scontrol failed") as caught:
        allocation(environment(programs))
    assert "Unable to contact slurm controller" in str(caught.value)


@pytest.mark.parametrize(
    ("out", "err", "status"),
    [
        ("", "slurm_load_jobs error: Invalid job id specified\n", 1),
        ("JobId=51 JobName=bash\n   JobState=COMPLETED Reason=None\n     Nodes=m[1-2] CPU_IDs=0 Mem=100 GRES=\n", "", 0),
    ],
)
def test_a_shell_that_has_outlived_its_allocation_is_told_so(programs: Programs, out: str, err: str, status: int) -> None:
    """Whether Slurm has forgotten the job or only ended it; its own words are there when it has any."""
    programs.says("scontrol", out, err=err, status=status)
    with pytest.raises(UsageError, match="Slurm has no such job that holds nodes") as caught:
        allocation(environment(programs))
    assert err.strip() in str(caught.value) and "unset SLURM_JOB_ID" in str(caught.value)


def test_a_step_asks_for_the_sum_of_gpus(programs: Programs) -> None:
    """Of its own nodes only; without GPUs it asks for none."""
    given = allocation(environment(programs))
    assert given is not None
    assert step_options(sum(node.gpus for node in given.nodes)) == ["--gpus=5"]
    assert step_options(sum(node.gpus for node in given.nodes[1:])) == ["--gpus=3"]
    assert step_options(0) == []

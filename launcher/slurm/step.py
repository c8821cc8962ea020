"""One task of a step of anybody's script: its node rank, and what it needs to know of the others, from the step alone."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.record import dataclass
from launcher.slurm import gpus
from launcher.slurm.allocation import counts, node_names, number, refuse_heterogeneous, step

_HOW = "start it as `srun -N NODES --ntasks-per-node=1 launcher exec -- COMMAND`"


@dataclass(frozen=True)
class Task:
    """The only task of its step on its node."""

    job_id: str
    step_id: str
    restart_count: int
    nodes: tuple[str, ...]
    """the step's nodes, by NodeName, in the step's order"""
    rank: int
    """the place of this node among them"""
    gpus: int | None
    """that this task may use; None where Slurm speaks of none"""

    @property
    def name(self) -> str:
        """The NodeName of this node."""
        return self.nodes[self.rank]


def task(environ: Mapping[str, str]) -> Task:
    """The task that ``environ`` belongs to.

    UsageError, with the command that would do, outside of an srun task, for one of several tasks on a node, for a step of a
    heterogeneous job, and for variables that cannot be read or that disagree.
    """
    job_id, step_id = environ.get("SLURM_JOB_ID"), step(environ)
    if not job_id or step_id is None or "SLURM_PROCID" not in environ:
        raise UsageError("this is no task of an srun step, so there is no rank to be worked out", next_step=_HOW)
    refuse_heterogeneous(environ, "and the nodes of its steps have no order that all tasks agree on")
    problems: list[str] = []
    nodes = node_names(environ, ("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES"), problems)
    _refuse_several(environ, problems)
    name = environ.get("SLURMD_NODENAME", "")
    if nodes and name not in nodes:
        problems.append(f"SLURMD_NODENAME={name} is none of the step's nodes, {environ['SLURM_STEP_NODELIST']}")
    count = _gpus(environ, problems)
    restarts = number(environ, "SLURM_RESTART_COUNT", problems)
    if problems:
        raise UsageError(f"step {step_id} of Slurm job {job_id} cannot be used", problems=problems, next_step=_HOW)
    return Task(job_id, step_id, restarts or 0, tuple(nodes), nodes.index(name), count)


def _refuse_several(environ: Mapping[str, str], problems: list[str]) -> None:
    """Tasks that share a node would all be the same node rank, and meet at the same port."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
    try:
        several = max(counts(text)) > 1
    except ValueError as error:
        problems.append(f"SLURM_STEP_TASKS_PER_NODE: {error}")
        return
    if several:
        problems.append(f"SLURM_STEP_TASKS_PER_NODE={text}: several tasks share a node; torchrun starts the processes of a node")


def _gpus(environ: Mapping[str, str], problems: list[str]) -> int | None:
    """The GPUs of this task, held against what was asked for a node or a task."""
    try:
        seen = gpus.on_node(environ)
    except ValueError as error:
        problems.append(str(error))
        return None
    for name in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"):
        text = environ.get(name, "0")
        try:
            wanted = gpus.asked(text).count
        except ValueError as error:
            problems.append(f"{name}: {error}")
            continue
        if wanted > (seen or 0):
            problems.append(
                f"{name}={text} was asked for, but this task sees {seen or 0} on {environ.get('SLURMD_NODENAME')}; "
                f"where fewer are meant, unset {name} before srun"
            )
    return seen

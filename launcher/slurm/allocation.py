"""The allocation that we are in: which nodes, in which order, with how many CPUs and GPUs each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.slurm import ask, gpus, hostlist

_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?\Z", re.ASCII)
_SPECIAL_STEPS = 0xFFFF_FFF0
"""step numbers from here on are Slurm's own: the batch script, salloc's interactive shell, the external step"""


@dataclass(frozen=True)
class AllocatedNode:
    """One node of the allocation, and what the job holds there."""

    name: str
    """its NodeName, which Slurm's commands understand; no address"""
    cpus: int | None
    gpus: int | None
    """None where nobody could tell"""
    gpu_type: str | None
    """None where GPUs have no type, or several"""


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave the job that this process belongs to."""

    job_id: str
    cluster: str | None
    nodes: tuple[AllocatedNode, ...]
    """in the order of SLURM_JOB_NODELIST; the first is node 0"""
    restart_count: int
    """how often Slurm has requeued the job"""
    step_id: str | None
    """the step that this process is a task of"""
    batch: bool
    """the allocation belongs to an sbatch script, and ends with it"""

    @property
    def in_step(self) -> bool:
        """True for a task of a step (`srun --pty bash`): a further step waits for this one's resources unless it overlaps."""
        return self.step_id is not None


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation of SLURM_JOB_ID, or None outside of one.

    GPUs are what `scontrol show job -d` says of each node; the environment knows them only of this node, and not with
    every way to ask for them.  UsageError, with every problem, for variables that cannot be read or that disagree, and
    for a heterogeneous job.
    """
    job_id = environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    if environ.get("SLURM_HET_SIZE", "1") not in ("", "1"):
        raise UsageError(
            f"Slurm job {job_id} is heterogeneous, of {environ['SLURM_HET_SIZE']} components; a launcher job cannot span them",
            next_step="ask for one component (no `:` in salloc's and sbatch's options, no `#SBATCH hetjob`)",
        )
    problems: list[str] = []
    names = _names(environ, problems)
    cpus = _cpus(environ, len(names), problems)
    given = _gpus(environ, job_id, names, problems)
    restarts = _number(environ, "SLURM_RESTART_COUNT", problems)
    if problems:
        raise UsageError(f"the environment of Slurm job {job_id} cannot be read", problems=problems)
    nodes = tuple(
        AllocatedNode(name, count, gpu.count if gpu else None, gpu.type if gpu else None)
        for name, count, gpu in zip(names, cpus, given, strict=True)
    )
    return Allocation(
        job_id,
        environ.get("SLURM_CLUSTER_NAME") or None,
        nodes,
        restarts or 0,
        step(environ),
        environ.get("ENVIRONMENT") == "BATCH",
    )


def step(environ: Mapping[str, str]) -> str | None:
    """The number of the step that this process is a task of; None in a batch script and in salloc's shell."""
    text = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    return text if text.isdigit() and int(text) < _SPECIAL_STEPS else None


def counts(text: str) -> list[int]:
    """The numbers of a list such as `2(x3),1`: 2, 2, 2, 1.  ValueError, with a sentence, for anything else."""
    numbers: list[int] = []
    for item in text.split(","):
        match = _COUNT.match(item)
        if match is None or len(numbers) + int(match[2] or 1) > hostlist.LIMIT:
            raise ValueError(f"{text!r} is no list of counts, such as 2(x3),1")
        numbers += [int(match[1])] * int(match[2] or 1)
    return numbers


def _names(environ: Mapping[str, str], problems: list[str]) -> list[str]:
    text = environ.get("SLURM_JOB_NODELIST", "")
    try:
        names = hostlist.expand(text)
    except ValueError as error:
        problems.append(f"SLURM_JOB_NODELIST: {error}")
        return []
    told = _number(environ, "SLURM_JOB_NUM_NODES", problems)
    if told is not None and told != len(names):
        problems.append(f"SLURM_JOB_NUM_NODES={told}, but SLURM_JOB_NODELIST={text} has {len(names)}")
    return names


def _number(environ: Mapping[str, str], name: str, problems: list[str]) -> int | None:
    text = environ.get(name)
    if text is None or (text.isascii() and text.isdigit()):
        return None if text is None else int(text)
    problems.append(f"{name}={text} is no number")
    return None


def _cpus(environ: Mapping[str, str], nodes: int, problems: list[str]) -> Sequence[int | None]:
    text = environ.get("SLURM_JOB_CPUS_PER_NODE")
    if text is None:
        return [None] * nodes
    try:
        numbers = counts(text)
    except ValueError as error:
        problems.append(f"SLURM_JOB_CPUS_PER_NODE: {error}")
        return [None] * nodes
    if len(numbers) != nodes and nodes:
        problems.append(f"SLURM_JOB_CPUS_PER_NODE={text} speaks of {len(numbers)} nodes, SLURM_JOB_NODELIST of {nodes}")
        return [None] * nodes
    return numbers


def _gpus(environ: Mapping[str, str], job_id: str, names: list[str], problems: list[str]) -> Sequence[gpus.Gpus | None]:
    told = ask.job_gres(job_id)
    per_node: list[gpus.Gpus | None] = []
    for name in names:
        try:
            per_node.append(None if told is None else gpus.gres(told.get(name, "")))
        except ValueError as error:
            problems.append(f"`scontrol show job -d {job_id}`, node {name}: {error}")
            per_node.append(None)
    try:
        return _compared(environ, names, per_node, problems)
    except ValueError as error:
        problems.append(str(error))
        return per_node


def _compared(
    environ: Mapping[str, str], names: list[str], per_node: list[gpus.Gpus | None], problems: list[str]
) -> list[gpus.Gpus | None]:
    """``per_node``, completed from --gpus-per-node and held against it and --gpus."""
    text = environ.get("SLURM_GPUS_PER_NODE")
    if text is not None:
        wanted = gpus.asked(text)
        for index, name in enumerate(names):
            found = per_node[index]
            if found is None:
                per_node[index] = wanted
            elif found.count != wanted.count:
                problems.append(f"SLURM_GPUS_PER_NODE={text} was asked for, but the job holds {found.count} on {name}")
    text = environ.get("SLURM_GPUS")
    held = [found.count for found in per_node if found is not None]
    if text is not None and len(held) == len(names) and sum(held) != gpus.asked(text).count:
        problems.append(f"SLURM_GPUS={text} was asked for, but the job holds {sum(held)} on {', '.join(names)}")
    return per_node

"""The allocation that we are in: which nodes, in which order, with how many CPUs and GPUs each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from launcher.errors import SlurmSilent, UsageError
from launcher.record import dataclass
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
    gpus: int
    """all that the job holds there.  A step sees as many only when it asks by :func:`step_options`"""
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
    for a heterogeneous job; SlurmSilent when scontrol does not answer.
    """
    job_id = environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    refuse_heterogeneous(environ, f"of {environ.get('SLURM_HET_SIZE')} components; a launcher job cannot span them")
    problems: list[str] = []
    names = node_names(environ, ("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"), problems)
    cpus = _cpus(environ, len(names), problems)
    given = _gpus(environ, job_id, names, problems)
    restarts = number(environ, "SLURM_RESTART_COUNT", problems)
    if problems:
        raise UsageError(f"the environment of Slurm job {job_id} cannot be read", problems=problems)
    nodes = tuple(AllocatedNode(name, count, gpu.count, gpu.type) for name, count, gpu in zip(names, cpus, given, strict=True))
    return Allocation(
        job_id,
        environ.get("SLURM_CLUSTER_NAME") or None,
        nodes,
        restarts or 0,
        step(environ),
        environ.get("ENVIRONMENT") == "BATCH",
    )


def step_options(gpus_in_all: int) -> list[str]:
    """What srun needs so that one task a node sees all GPUs that the job holds on a step's nodes, unequal ones included.

    Without it a step repeats the job's own request: of `--gpus-per-task=1 -n2` on one node a single task sees one GPU
    of two, and of `--exclusive` alone none.  `--gpus-per-node` is refused with unequal nodes; the sum is taken with every
    form of asking (tried on 22.05).
    """
    return [f"--gpus={gpus_in_all}"] if gpus_in_all else []


def refuse_heterogeneous(environ: Mapping[str, str], why: str) -> None:
    """UsageError in a job of several components; ``why`` goes on where its sentence stops."""
    if environ.get("SLURM_HET_SIZE", "1") not in ("", "1"):
        raise UsageError(
            f"Slurm job {environ['SLURM_JOB_ID']} is heterogeneous, {why}",
            next_step="ask for one component (no `:` in salloc's and sbatch's options, no `#SBATCH hetjob`)",
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


def node_names(environ: Mapping[str, str], variables: tuple[str, str], problems: list[str]) -> list[str]:
    """The nodes of a job or a step; ``variables`` have their list, and how many they are.  Notes what cannot be read."""
    listed, counted = variables
    text = environ.get(listed, "")
    try:
        names = hostlist.expand(text)
    except ValueError as error:
        problems.append(f"{listed}: {error}")
        return []
    told = number(environ, counted, problems)
    if told is not None and told != len(names):
        problems.append(f"{counted}={told}, but {listed}={text} has {len(names)} nodes")
    return names


def number(environ: Mapping[str, str], name: str, problems: list[str]) -> int | None:
    """The value of a variable, None where it is not set; notes what is no number."""
    text = environ.get(name)
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
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


def _gpus(environ: Mapping[str, str], job_id: str, names: list[str], problems: list[str]) -> list[gpus.Gpus]:
    told = _held(environ, job_id)
    held: list[gpus.Gpus] = []
    for name in names:
        if name not in told:
            problems.append(f"`scontrol show job -d {job_id}` says nothing of node {name}")
        try:
            held.append(gpus.gres(told.get(name, "")))
        except ValueError as error:
            problems.append(f"`scontrol show job -d {job_id}`, node {name}: {error}")
            held.append(gpus.Gpus(0, None))
    # In a step these variables tell what the step asked for, which may be less than the job did.
    if not problems and step(environ) is None:
        _compare(environ, names, held, problems)
    return held


def _held(environ: Mapping[str, str], job_id: str) -> dict[str, str]:
    """What the job holds on each of its nodes.  UsageError where it is over: shells and tmux outlive their allocation."""
    words: tuple[str, ...] = ()
    try:
        told = ask.job_gres(job_id, environ)
    except SlurmSilent as error:
        if not ask.is_invalid(error):
            raise
        told, words = {}, tuple(error.lines)
    if not told:
        raise UsageError(
            f"SLURM_JOB_ID={job_id}, but Slurm has no such job that holds nodes (any more)",
            problems=words,
            next_step="leave the shell of that allocation, or unset SLURM_JOB_ID",
        )
    return told


def _compare(environ: Mapping[str, str], names: list[str], held: list[gpus.Gpus], problems: list[str]) -> None:
    """Note where the job holds fewer GPUs than were asked for; --exclusive gives it more, which is well."""
    per_node, total = (environ.get(name, "0") for name in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS"))
    try:
        wanted, wanted_in_all = gpus.asked(per_node).count, gpus.asked(total).count
    except ValueError as error:
        problems.append(f"SLURM_GPUS_PER_NODE={per_node}, SLURM_GPUS={total}: {error}")
        return
    for name, found in zip(names, held, strict=True):
        if found.count < wanted:
            problems.append(f"SLURM_GPUS_PER_NODE={per_node} was asked for, but the job holds {found.count} on {name}")
    if sum(found.count for found in held) < wanted_in_all:
        problems.append(f"SLURM_GPUS={total} was asked for, but the job holds {sum(found.count for found in held)} in all")

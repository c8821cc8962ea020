"""The words of srun: how a step of one task a node is started, and what its complaints mean.

Facts tried on Slurm 22.05 with nodes of unequal size: without -c and GPU options every task gets all that the job holds
on its node; with -c the smallest node decides; options and bindings of a surrounding step, inherited as variables, cut
the new step down or make it fail.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from launcher import environments
from launcher.errors import NodeGone, SlurmSilent
from launcher.model import Plan
from launcher.record import dataclass
from launcher.slurm import allocation, ask

IMMEDIATE = 10
"""seconds that srun may wait for resources that another step holds"""
_KEPT = re.compile(
    r"SLURM_(CONF|CONF_SERVER|JWT|CLUSTER_NAME|JOB_ID|JOBID|JOB_NAME|JOB_USER|JOB_UID|JOB_GID|JOB_ACCOUNT|JOB_QOS|JOB_PARTITION|"
    r"JOB_START_TIME|JOB_END_TIME|JOB_NODELIST|JOB_CPUS_PER_NODE|RESTART_COUNT|ARRAY_\w+|SUBMIT_DIR|SUBMIT_HOST|TOPOLOGY_\w+)\Z"
)
"""what names the job or tells of it; every other variable of Slurm's is an option or a binding to some command of it"""
_SLURMS = re.compile(r"(SLURM|SLURMD|SRUN|SBATCH|SALLOC|PMI|PMI2|PMIX)_")
_OTHERS = re.compile(r"SSH_(CLIENT|CONNECTION|TTY)\Z")
"""what speaks of the log-in from which the allocation was made"""
_BUSY = re.compile(r"Unable to create step.*nodes are busy|step creation temporarily disabled", re.IGNORECASE)
_GONE = re.compile(r"Invalid job id|Job has expired|already complet", re.IGNORECASE)
_CANCELLED = re.compile(rb"error: \*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED AT ")
_MEMORY = re.compile(rb"oom[-_]kill event|: Out Of Memory$", re.MULTILINE)
_NO_PYXIS = re.compile(r"unrecognized option '--container-")
_PYXIS = re.compile(r"pyxis: (.*(?:fail|error|couldn't|could not|denied|not found).*)", re.IGNORECASE)
_NO_PYTHON = re.compile(r"execve\(\):? *(\S+): (.+)")


@dataclass(frozen=True)
class Order:
    """What a step is to be."""

    job: str
    """Slurm's number of the job"""
    nodes: tuple[str, ...]
    """NodeNames, in the order of ranks"""
    python: str
    """the interpreter of the tasks, on every node"""
    gpus: int = 0
    """all that the job holds on these nodes: a task sees as many as the step asks for"""
    overlap: bool = False
    """we are in a step ourselves, whose resources the new one must share"""
    container: tuple[str, ...] = ()
    """options of Slurm's plugin pyxis, which starts the tasks in a container"""
    program: str = "srun"
    immediate: int = IMMEDIATE


def order_of(plan: Plan, environ: Mapping[str, str]) -> Order:
    """The step for a plan's nodes; ``environ`` tells whether we are in a step ourselves."""
    assert plan.allocation is not None
    hosts = [node.host for node in plan.nodes]
    first = hosts[0]
    python = f"{first.venv}/bin/python" if first.venv else first.python or "python3"
    gpus = sum(host.gpus or 0 for host in hosts)
    inside = allocation.step(environ) is not None
    names = tuple(host.name for host in hosts)
    return Order(plan.allocation, names, os.path.expanduser(python), gpus, inside, _container(plan, first.workdir))


def _container(plan: Plan, workdir: str) -> tuple[str, ...]:
    """pyxis' options: the image, and our directory there, which is the same inside."""
    image = environments.parse(plan.spec.image) if plan.spec.image else None
    if image is None or image.kind != "pyxis":
        return ()
    return f"--container-image={image.name}", f"--container-mounts={workdir}:{workdir}"


def words(order: Order, boot: str) -> list[str]:
    """The command line; ``boot`` is the text for the interpreter's -c."""
    count = str(len(order.nodes))
    return [
        order.program,
        f"--jobid={order.job}",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(order.nodes)}",
        "--mem=0",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--immediate={order.immediate}",
        *allocation.step_options(order.gpus),
        *(["--overlap"] if order.overlap else []),
        *order.container,
        "--input=all",
        "--output=all",
        "--chdir=/",
        "--job-name=launcher",
        order.python,
        "-ISuc",
        boot,
    ]


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """What srun is started with, and hands on to the tasks: ours, without options and bindings of a surrounding step."""
    return {
        name: value
        for name, value in ours.items()
        if not _OTHERS.match(name) and (not _SLURMS.match(name) or _KEPT.match(name))
    }


def is_cancelled(said: bytes) -> bool:
    """Whether slurmstepd's words, as srun passes them on, say that Slurm ends the step or the job."""
    return _CANCELLED.search(said) is not None


def out_of_memory(said: bytes) -> bool:
    """Whether srun's last words say that the kernel killed processes of the step for their use of memory."""
    return _MEMORY.search(said) is not None


def failure(order: Order, status: int | None, lines: Sequence[str]) -> NodeGone:
    """Why the step did not start or is over, from srun's own words."""
    told, text = list(lines)[-6:], "\n".join(lines)
    where = f"Slurm job {order.job}"
    python = _NO_PYTHON.search(text)
    if python:
        step = "name one that every node has, with `python:` or `venv:` under `defaults:` in cluster.yaml"
        return NodeGone(f"{order.python} cannot be started on the nodes: {python[2]}", where=where, lines=told, next_step=step)
    if _NO_PYXIS.search(text):
        step = "name the image as apptainer://, docker:// or podman://, or ask for pyxis to be installed"
        return NodeGone("Slurm starts no containers here: its plugin pyxis is missing", where=where, lines=told, next_step=step)
    pyxis = _PYXIS.search(text)
    if pyxis:
        what, step = f"the container could not be started: {pyxis[1]}", "check the image's name"
        return NodeGone(what, where=where, lines=told, next_step=step)
    if _GONE.search(text):
        return NodeGone("the allocation is over", where=where, lines=told, next_step="launcher submit, in a new one")
    if _BUSY.search(text):
        others = _in_the_way(order.job)
        what = f"the nodes were not free within {order.immediate} s: " + (others or "another step of this job holds them")
        step = f"let it end, or end it: scancel {order.job}.<step>"
        return NodeGone(what, where=where, lines=told, next_step=step)
    what = f"the step ended (srun's exit status {status})" if status is not None else "the step did not start"
    return NodeGone(what, where=where, lines=told, next_step=f"look at `scontrol show job {order.job}`")


def _in_the_way(job: str) -> str:
    """The steps that run in the job, as `step 12.0 (bash, on m1)`."""
    try:
        running = ask.steps(job)
    except SlurmSilent:
        return ""
    return ", ".join(f"step {step.id} ({step.name}, on {step.nodes}) holds them" for step in running)

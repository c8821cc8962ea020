"""The nodes of an allocation as hosts of a job."""

from __future__ import annotations

import dataclasses
import sys

from launcher.errors import UsageError
from launcher.model import Host
from launcher.slurm.allocation import Allocation


def hosts(given: Allocation, template: Host) -> tuple[Host, ...]:
    """The hosts that the nodes of an allocation are, in its order; ``template`` says what holds for all of them.

    CPUs and GPUs are what the job holds there.  The interpreter, where none is named, is the one that runs this: the nodes
    of a Slurm cluster mostly see one file system, and each node's first word tells whether it is there.  UsageError when the
    template wants more GPUs than a node has.
    """
    wanted = template.gpus or 0
    lacking = [f"{node.name}: the job holds {node.gpus}" for node in given.nodes if node.gpus < wanted]
    if lacking:
        step = "ask Slurm for as many, or leave `gpus:` out"
        raise UsageError(f"`gpus: {wanted}` under `defaults:` is more than there are", problems=lacking, next_step=step)
    python = template.python or (None if template.venv else sys.executable)
    return tuple(
        dataclasses.replace(template, name=node.name, address=node.name, python=python, cpus=node.cpus, gpus=node.gpus)
        for node in given.nodes
    )

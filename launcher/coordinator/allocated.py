"""What a job inside of a Slurm allocation heeds: its share of each node, and the time that Slurm leaves it at the end.

What reads Slurm's words is loaded only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.errors import NodeUnusable, SlurmSilent
from launcher.model import Host, Plan

_LAST_SECONDS = 4.0
"""of KillWait, kept for the outputs"""


def complaint(host: Host, facts: Mapping[str, Any]) -> NodeUnusable | None:
    """Why the task on a node cannot use all that the job holds there; None when it can.

    Training with fewer GPUs or CPUs than were paid for goes on for days before anybody notices.
    """
    trouble = _less(host, facts)
    if trouble is None:
        return None
    step = "start it outside of a step (in salloc's shell, or as a line of the batch script)"
    if not facts["slurm"].get("SLURM_STEP_ID"):
        step = "look at `scontrol show job -d`"
    return NodeUnusable(trouble, where=host.name, next_step=step)


def _less(host: Host, facts: Mapping[str, Any]) -> str | None:
    if host.cpus is not None and int(facts["cpus"]) < host.cpus:
        return f"our task there may use {facts['cpus']} CPUs, but the job holds {host.cpus}"
    from launcher.slurm import gpus

    try:
        seen = gpus.on_node(facts["slurm"]) or 0
    except ValueError as error:
        return str(error)
    if host.gpus is not None and seen < host.gpus:
        return f"our task there sees {seen} GPUs, but the job holds {host.gpus}"
    return None


class FolderNotShared(NodeUnusable):
    """A node does not have the file system that LAUNCHER_HOME is on."""

    reason_code = "FolderNotShared"


def not_shared(plan: Plan, root: str, facts: Mapping[int, Mapping[str, Any]]) -> FolderNotShared | None:
    """The error for nodes that do not see the job folder ``root``; None where all see it.

    Only of a job that came from Slurm's queue and works beside its folder: one directory was chosen for the log-in machine
    and all nodes.
    """
    unseen = [node.host.name for node in plan.nodes if not facts[node.rank].get("sees")]
    if plan.template is None or not root.startswith(f"{plan.template.workdir}/") or not unseen:
        return None
    step = "set LAUNCHER_HOME to a directory that all nodes share, or `workdir:` under `slurm:` to one that each has for itself"
    return FolderNotShared("does not see the job folder", where=", ".join(unseen), next_step=step)


def last_grace(plan: Plan) -> float:
    """Seconds between TERM and KILL once Slurm ends the allocation: Slurm's own KILL comes KillWait after its TERM."""
    from launcher.slurm import ask

    try:
        return min(plan.spec.grace, max(1.0, ask.kill_wait() - _LAST_SECONDS))
    except SlurmSilent:
        return plan.spec.grace


def grace_note(plan: Plan) -> str | None:
    """The sentence about a grace that Slurm will not grant; None for one that fits."""
    left = last_grace(plan)
    if left >= plan.spec.grace:
        return None
    from launcher.slurm import ask

    return (
        f"when Slurm ends the allocation it kills everything {ask.kill_wait()} s after TERM (KillWait): "
        f"the grace will be {left:g} s then, not {plan.spec.grace:g} s"
    )


def requeue(plan: Plan, why: str) -> dict[str, Any]:
    """Put the job back into Slurm's queue: the event that says so, or why it cannot be.

    ``why`` is a reason code; `Requeued` where Slurm has done it by itself.
    """
    from launcher.slurm import ask, states
    from launcher.slurm.outlook import outlook

    assert plan.allocation is not None
    by = "slurm" if why == "Requeued" else "launcher"
    if by == "launcher":
        try:
            ask.requeue(plan.allocation)
        except SlurmSilent as error:
            # Slurm's signals to all of this batch step may have come before its answer.
            found = outlook(plan.allocation, plan.restarts)
            if found is None or found.reason_code != "Requeued":
                return {"type": "requeue failed", "message": "; ".join([error.what, *error.lines])}
    sentence = states.sentence(why) or "the training has made way"
    return {"type": "requeued", "requeue": plan.restarts + 1, "by": by, "reason_code": why, "message": sentence}

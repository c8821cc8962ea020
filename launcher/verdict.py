"""How a job ends: a pure function of what its events add up to.  Exit codes as in the command line's contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.policy import View, makes_way
from launcher.record import dataclass
from launcher.slurm.states import EXIT_CODES
from launcher.status import Status


@dataclass(frozen=True)
class Verdict:
    """How a job ends."""

    status: Status
    reason_code: str
    reason_message: str
    exit_code: int


def verdict(view: View, max_run_time: float | None = None, requeue: bool = False) -> Verdict:
    """The end that a finished view adds up to; exit codes as in the command line's contract.

    ``requeue``: a training that made way was to go on later, so its end here is none of its own.
    """
    if view.stopping == "allocation" or (view.revoked is not None and view.stopping is None and not _came_home(view)):
        return _taken(view.revoked or {})
    if view.broken is not None:
        code = int(view.broken.get("exit_code", 69))
        return Verdict(Status.INITIALIZE_FAILED, str(view.broken["reason_code"]), str(view.broken["message"]), code)
    if view.stopping == "cancel" or (view.cancel and not _came_home(view)):
        return Verdict(Status.TERMINATED, "Cancelled", "stopped by the user", 130)
    if view.stopping == "max_run_time":
        text = f"stopped after max_run_time, {max_run_time:g} s" if max_run_time else "stopped after max_run_time"
        return Verdict(Status.FAILED, "MaxRunTimeExceeded", text, 143)
    way = makes_way(view)
    if way is not None and (requeue or way == "Preempted"):
        return _made_way(view, way, requeue)
    if view.failure is not None:
        told = view.failure.get("exit_code")
        # A failure that a node tells with 0, or 256, which the shell would take for 0, is none the less one.
        code = 69 if told is None else int(told) if 0 < int(told) < 256 else 70
        return Verdict(Status.FAILED, _reason(view, view.failure), str(view.failure["message"]), code)
    if view.collect_error is not None:
        return Verdict(Status.FAILED, "CollectFailed", view.collect_error, 69)
    if view.publish_error is not None:
        return Verdict(Status.FAILED, "PublishFailed", view.publish_error, 69)
    return Verdict(Status.SUCCEED, "", "", 0)


def _taken(revoked: Mapping[str, Any]) -> Verdict:
    """Slurm took the nodes away."""
    code = str(revoked.get("reason_code") or "Cancelled")
    status = Status.TERMINATED if code == "Cancelled" else Status.FAILED
    return Verdict(status, code, str(revoked.get("message", "Slurm ended the job")), EXIT_CODES.get(code, 69))


def _made_way(view: View, code: str, requeue: bool) -> Verdict:
    """The training wrote what it had to and ended, and will not go on."""
    text = str((view.warning or {}).get("message"))
    if view.requeue_error is not None:
        text += f"; it could not be requeued: {view.requeue_error}"
    elif requeue:
        text += f"; it was requeued {view.requeues} times already (max_requeues)"
    return Verdict(Status.FAILED, code, text, EXIT_CODES.get(code, 69))


def _came_home(view: View) -> bool:
    """The command ran to its end, and its outputs are here: nothing was left to be stopped."""
    return view.starting and view.collected and view.collect_error is None and view.publish_error is None


def _reason(view: View, failure: Mapping[str, Any]) -> str:
    if view.out_of_memory and failure.get("signal") == "SIGKILL":
        return "OutOfMemory"
    node = view.nodes.get(failure["node"]) if failure.get("node") is not None else None
    if node is None or failure.get("exit_code") is not None:
        return "CommandFailed"
    if node.lost_for_good is not None:
        return "NodeLost"
    return {"agent lost": "AgentLost", "rebooted": "NodeRebooted"}.get(str((node.outcome or {}).get("kind")), "CommandFailed")

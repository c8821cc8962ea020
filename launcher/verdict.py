"""How a job ends: a pure function of what its events add up to.  Exit codes as in the command line's contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.policy import View
from launcher.status import Status


@dataclass(frozen=True)
class Verdict:
    """How a job ends."""

    status: Status
    reason_code: str
    reason_message: str
    exit_code: int


def verdict(view: View, max_run_time: float | None = None) -> Verdict:
    """The end that a finished view adds up to; exit codes as in the command line's contract."""
    if view.stopping == "allocation" or (view.revoked is not None and view.stopping is None and not _came_home(view)):
        return Verdict(Status.TERMINATED, "Cancelled", str((view.revoked or {}).get("message", "Slurm ended the job")), 130)
    if view.broken is not None:
        code = int(view.broken.get("exit_code", 69))
        return Verdict(Status.INITIALIZE_FAILED, str(view.broken["reason_code"]), str(view.broken["message"]), code)
    if view.stopping == "cancel" or (view.cancel and not _came_home(view)):
        return Verdict(Status.TERMINATED, "Cancelled", "stopped by the user", 130)
    if view.stopping == "max_run_time":
        text = f"stopped after max_run_time, {max_run_time:g} s" if max_run_time else "stopped after max_run_time"
        return Verdict(Status.FAILED, "MaxRunTimeExceeded", text, 143)
    if view.failure is not None:
        told = view.failure.get("exit_code")
        code = 69 if told is None else int(told) or 70
        return Verdict(Status.FAILED, _reason(view, view.failure), str(view.failure["message"]), code)
    if view.collect_error is not None:
        return Verdict(Status.FAILED, "CollectFailed", view.collect_error, 69)
    return Verdict(Status.SUCCEED, "", "", 0)


def _came_home(view: View) -> bool:
    """The command ran to its end, and its outputs are here: nothing was left to be stopped."""
    return view.starting and view.collected and view.collect_error is None


def _reason(view: View, failure: Mapping[str, Any]) -> str:
    node = view.nodes.get(failure["node"]) if failure.get("node") is not None else None
    if node is None or failure.get("exit_code") is not None:
        return "CommandFailed"
    if node.lost_for_good is not None:
        return "NodeLost"
    return {"agent lost": "AgentLost", "rebooted": "NodeRebooted"}.get(str((node.outcome or {}).get("kind")), "CommandFailed")

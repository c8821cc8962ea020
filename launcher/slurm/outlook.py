"""Why Slurm sends a job a signal, and how long it has: asked in the moment the signal came, since it says nothing itself.

`scontrol show job` tells it with and without accounting.  Tried on 22.05: while a job completes, JobState says only that;
a time limit is in Reason; a preemption sets PreemptTime, also while the partition's GraceTime runs and the job still does;
a requeue raises Restarts at once; what is left is a scancel.
"""

from __future__ import annotations

import time

from launcher.errors import SlurmSilent
from launcher.record import dataclass
from launcher.slurm import ask, states

PATIENCE = 3.0
"""seconds: there may be no more than KillWait until everything is killed"""
_REASONS = {"TimeLimit": "Timeout", "DeadLine": "Deadline", "NodeDown": "NodeFail", "OutOfMemory": "OutOfMemory"}
"""Slurm's reasons for an end, and our words"""
_EARLY = 65.0
"""seconds by which Slurm may send a warning too soon: it looks at time limits about once a minute"""


@dataclass(frozen=True)
class Outlook:
    """What becomes of a job."""

    reason_code: str | None
    """our word for why it ends, `Requeued` where it goes back into the queue; None: it does not, as far as Slurm tells"""
    ends_at: float | None = None
    """seconds since the epoch"""
    over: bool = False
    """its nodes are being taken away now"""

    @property
    def sentence(self) -> str:
        """For people."""
        known = states.sentence(self.reason_code) if self.reason_code else None
        return known or "somebody sent it a signal"


def outlook(job_id: str, restarts: int, warning: float | None = None, patience: float | None = None) -> Outlook | None:
    """What Slurm has in mind with a job that it had started ``restarts`` times before; None when it does not answer.

    ``warning``: seconds before a time limit at which the job wished to be warned, and it was sent that signal; an answer may
    then take a fifth of them.  ``patience``: seconds that it may take, where somebody knows better.
    """
    if patience is None:
        patience = PATIENCE if warning is None else max(PATIENCE, min(warning / 5, ask.PATIENCE))
    try:
        told = ask.job_fields(job_id, patience)
    except SlurmSilent:
        return None
    return read(told, restarts, warning, time.time())


def read(told: dict[str, str], restarts: int, warning: float | None, now: float) -> Outlook:
    """`outlook` of scontrol's fields; pure."""
    state = states.state(told.get("JobState", ""))
    ends_at = _time(told.get("EndTime", ""))
    preempted = _time(told.get("PreemptTime", "")) is not None
    if int(told.get("Restarts") or 0) > restarts:
        return Outlook("Requeued", None, True)
    if state.reason_code == "Running":
        if preempted:
            return Outlook("Preempted", ends_at)
        near = warning is not None and ends_at is not None and ends_at - now <= warning + _EARLY
        return Outlook("Timeout" if near else None, ends_at)
    reason = _REASONS.get(told.get("Reason", ""))
    if state.ended and state.reason_code not in ("Completed", "Failed"):
        reason = state.reason_code
    return Outlook(reason or ("Preempted" if preempted else "Cancelled"), ends_at, True)


def _time(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() else None

"""Where a job in Slurm's queue stands: what its folder tells, and what Slurm answers, taken together.

The folder is the truth as long as the batch step could write there.  Slurm is asked for what the folder cannot know: why
the job waits, and that its batch step is gone without a last word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.record import dataclass
from launcher.slurm.states import EXIT_CODES, waits_for
from launcher.status import Status

if TYPE_CHECKING:
    from launcher.policy import View
    from launcher.slurm.ask import NoAnswer, NoSuchJob, Report

_YOUNG_SECONDS = 60.0
"""so long after `submit` began, sbatch may still be at it"""


@dataclass(frozen=True)
class Standing:
    """A job in a few words."""

    status: Status
    coordinator: str
    """`queued`, `starting`, `alive`, `unknown`, `lost` or `ended`"""
    reason_code: str | None = None
    reason_message: str | None = None
    exit_code: int | None = None
    over: bool = False
    """Slurm has said that nothing of the job runs any more, and its folder has no end: this is it"""


@dataclass(frozen=True)
class Evidence:
    """What the folder has besides its events."""

    cancelled: bool = False
    """somebody wished it stopped"""
    age: float = 0.0
    """seconds since `submit` began"""
    log: tuple[str, ...] | None = None
    """the last lines of the batch step's log; None where there is no log"""
    beats: bool = False
    """the batch step has shown just now that it lives"""


def standing(view: View, answer: Report | NoSuchJob | NoAnswer | None, evidence: Evidence) -> Standing:
    """The folder's view and Slurm's answer, combined; pure.  ``answer`` None: it has no number that could be asked for."""
    from launcher.slurm.ask import NoAnswer, NoSuchJob

    if view.end is not None:
        end = view.end
        return Standing(view.status, "ended", end.get("reason_code"), end.get("reason_message"), int(end["exit_code"]))
    if answer is None:
        if evidence.age < _YOUNG_SECONDS:
            return Standing(view.status, "starting")
        return _lost("`submit` ended before sbatch had told the job's number", evidence)
    if isinstance(answer, NoAnswer):
        words = "; ".join(answer.words)
        return Standing(view.status, "unknown", None, f"Slurm does not answer: {words}" if words else "Slurm does not answer")
    if isinstance(answer, NoSuchJob):
        if evidence.beats:
            return Standing(view.status, "alive")
        return _lost("Slurm knows no such job any more, and it left no end", evidence)
    return _ended(view, answer, evidence) if answer.state.ended else _living(view, answer)


def _living(view: View, report: Report) -> Standing:
    if report.state.reason_code not in ("Running", "Completing", "Suspended"):
        why = f": {waits_for(report.reason)}" if report.reason else ""
        return Standing(Status.SUBMITTED, "queued", report.state.reason_code, f"{report.state.sentence}{why}")
    if view.coordinator is None and view.requeues and report.state.reason_code == "Completing":
        return Standing(Status.SUBMITTED, "queued", report.state.reason_code, "its nodes are given back; then it waits again")
    if view.coordinator is None:
        return Standing(Status.INITIALIZING, "starting")
    if report.state.reason_code == "Suspended":
        return Standing(view.status, "alive", report.state.reason_code, report.state.sentence)
    return Standing(view.status, "alive")


def _ended(view: View, report: Report, evidence: Evidence) -> Standing:
    """Slurm ended the job, or its batch step broke, before it could write the end."""
    code, sentence = report.state.reason_code, report.state.sentence
    if evidence.cancelled or code == "Cancelled":
        return _cancelled()
    if code in ("Failed", "Completed"):
        return _broke(view, report, evidence)
    why = f" ({report.reason})" if report.reason and report.reason.upper() != report.word.upper() else ""
    return Standing(Status.FAILED, "lost", code, f"{sentence}{why}", EXIT_CODES.get(code, 69), over=True)


def _cancelled() -> Standing:
    return Standing(Status.TERMINATED, "lost", "Cancelled", "stopped by the user", 130, over=True)


def _lost(sentence: str, evidence: Evidence) -> Standing:
    if evidence.cancelled:
        return _cancelled()
    return Standing(Status.FAILED, "lost", "Lost", sentence, 69, over=True)


def _broke(view: View, report: Report, evidence: Evidence) -> Standing:
    """The batch script itself ended, with whatever exit code, and without a word in the folder."""
    if view.coordinator is None and evidence.log is None:
        where = f" of {report.nodes[0]}" if report.nodes else ""
        sentence = (
            f"the batch step{where} left no trace in the job folder, so it does not see it\n"
            "  next: set LAUNCHER_HOME to a directory that this machine and all nodes share"
        )
        return Standing(Status.INITIALIZE_FAILED, "lost", "FolderNotShared", sentence, 69, over=True)
    how = f"signal {report.signal}" if report.signal else f"exit code {report.exit_code}" if report.exit_code else "no word"
    lines = "".join(f"\n    {line}" for line in evidence.log or ())
    status = Status.INITIALIZE_FAILED if view.coordinator is None else Status.FAILED
    return Standing(status, "lost", "BatchStepFailed", f"the batch step ended with {how}{lines}", 70, over=True)

"""Where a job in Slurm's queue stands: the whole table of what its folder tells and what Slurm answers."""

from __future__ import annotations

import pytest

from launcher.backends.standing import Evidence, Standing, standing
from launcher.policy import View, fold
from launcher.slurm.ask import NoAnswer, NoSuchJob, Report
from launcher.slurm.states import STATES, state
from launcher.status import Status

SUBMITTED = {"type": "submitted", "n": 0, "time": 1.0}
CREATED = {"type": "created", "n": 1, "time": 2.0, "nodes": [{"rank": 0, "host": "m1"}]}
COORDINATOR = {"type": "coordinator", "n": 2, "time": 3.0, "pid": 5, "host": "m1"}
STARTING = {"type": "starting", "n": 3, "time": 4.0, "attempt": 0}
REQUEUED = {"type": "requeued", "n": 4, "time": 5.0, "requeue": 1, "by": "slurm", "reason_code": "Requeued", "message": "m"}
END = {
    "type": "end",
    "n": 4,
    "time": 5.0,
    "status": "Failed",
    "reason_code": "CommandFailed",
    "reason_message": "no",
    "exit_code": 3,
}
WAITS = [SUBMITTED]
BEGUN = [SUBMITTED, CREATED, COORDINATOR]
RUNS = [*BEGUN, STARTING]


def view(events: list[dict[str, object]]) -> View:
    return fold(events)


def report(word: str, reason: str = "", exit_code: int | None = None, signal: int | None = None) -> Report:
    return Report(state(word), word, reason, 1.0, None, None, ("m1",), exit_code, signal, 0, "squeue")


GONE, SILENT = NoSuchJob(("Invalid job id specified",)), NoAnswer(("Unable to contact slurm controller",))
LOG = Evidence(log=("Traceback", "ImportError: x"))
WISHED = Evidence(cancelled=True)

TABLE = [
    # folder, Slurm, what else is there -> status, coordinator, reason_code, exit_code, over
    (WAITS, report("PENDING", "Priority"), LOG, ("Submitted", "queued", "Pending", None, False)),
    (WAITS, report("REQUEUE_HOLD"), LOG, ("Submitted", "queued", "Held", None, False)),
    (WAITS, report("CONFIGURING"), LOG, ("Submitted", "queued", "Configuring", None, False)),
    (WAITS, report("RUNNING"), LOG, ("Initializing", "starting", None, None, False)),
    (BEGUN, report("RUNNING"), LOG, ("Initializing", "alive", None, None, False)),
    (RUNS, report("RUNNING"), LOG, ("Running", "alive", None, None, False)),
    (RUNS, report("COMPLETING"), LOG, ("Running", "alive", None, None, False)),
    ([*RUNS, REQUEUED], report("COMPLETING"), LOG, ("Submitted", "queued", "Completing", None, False)),
    ([*RUNS, REQUEUED], report("RUNNING"), LOG, ("Initializing", "starting", None, None, False)),
    (RUNS, report("SUSPENDED"), LOG, ("Running", "alive", "Suspended", None, False)),
    (RUNS, report("PENDING", "BeginTime"), LOG, ("Submitted", "queued", "Pending", None, False)),
    (RUNS, report("SOMETHING_NEW"), LOG, ("Submitted", "queued", "Unknown", None, False)),
    # the end in the folder is the end, whatever Slurm says
    ([*RUNS, END], report("COMPLETED"), LOG, ("Failed", "ended", "CommandFailed", 3, False)),
    ([*RUNS, END], GONE, WISHED, ("Failed", "ended", "CommandFailed", 3, False)),
    ([*RUNS, END], None, LOG, ("Failed", "ended", "CommandFailed", 3, False)),
    # no answer is no knowledge
    (WAITS, SILENT, LOG, ("Submitted", "unknown", None, None, False)),
    (RUNS, SILENT, WISHED, ("Running", "unknown", None, None, False)),
    # Slurm has ended it, and its batch step had no time to say so
    (RUNS, report("TIMEOUT", "TimeLimit"), LOG, ("Failed", "lost", "Timeout", 143, True)),
    (RUNS, report("PREEMPTED"), LOG, ("Failed", "lost", "Preempted", 143, True)),
    (RUNS, report("DEADLINE"), LOG, ("Failed", "lost", "Deadline", 143, True)),
    (RUNS, report("NODE_FAIL", "NodeDown"), LOG, ("Failed", "lost", "NodeFail", 69, True)),
    (RUNS, report("OUT_OF_MEMORY"), LOG, ("Failed", "lost", "OutOfMemory", 137, True)),
    (WAITS, report("BOOT_FAIL"), LOG, ("Failed", "lost", "BootFail", 69, True)),
    (RUNS, report("CANCELLED by 1000"), LOG, ("Terminated", "lost", "Cancelled", 130, True)),
    (WAITS, report("CANCELLED"), LOG, ("Terminated", "lost", "Cancelled", 130, True)),
    # a wish to stop it explains every end
    (WAITS, report("FAILED", exit_code=1), WISHED, ("Terminated", "lost", "Cancelled", 130, True)),
    (WAITS, GONE, WISHED, ("Terminated", "lost", "Cancelled", 130, True)),
    # the batch step broke
    (WAITS, report("FAILED", exit_code=1), LOG, ("InitializeFailed", "lost", "BatchStepFailed", 70, True)),
    (RUNS, report("FAILED", signal=9), LOG, ("Failed", "lost", "BatchStepFailed", 70, True)),
    (RUNS, report("COMPLETED", exit_code=0), LOG, ("Failed", "lost", "BatchStepFailed", 70, True)),
    (WAITS, report("FAILED", exit_code=1), Evidence(log=None), ("InitializeFailed", "lost", "FolderNotShared", 69, True)),
    # Slurm has forgotten it, or its number is another job's
    (RUNS, GONE, LOG, ("Failed", "lost", "Lost", 69, True)),
    (WAITS, GONE, LOG, ("Failed", "lost", "Lost", 69, True)),
    (RUNS, GONE, Evidence(beats=True), ("Running", "alive", None, None, False)),
    # sbatch is at it, or was cut short
    (WAITS, None, Evidence(age=1.0), ("Submitted", "starting", None, None, False)),
    (WAITS, None, Evidence(age=100.0), ("Failed", "lost", "Lost", 69, True)),
]  # fmt: skip


@pytest.mark.parametrize(("events", "answer", "evidence", "expected"), TABLE)
def test_folder_and_slurm_together_say_where_a_job_stands(
    events: list[dict[str, object]],
    answer: Report | NoSuchJob | NoAnswer | None,
    evidence: Evidence,
    expected: tuple[str, str, str | None, int | None, bool],
) -> None:
    """The folder's end is the end; without one, Slurm's answer counts, and no answer counts for nothing."""
    found = standing(view(events), answer, evidence)
    assert (found.status.value, found.coordinator, found.reason_code, found.exit_code, found.over) == expected


@pytest.mark.parametrize("each", STATES, ids=lambda each: each.word)
def test_every_state_of_slurms_has_an_end_or_none(each: object) -> None:
    """A job is over exactly when its state in Slurm is, and an end has everything that an `end` event needs."""
    found = standing(view(RUNS), report(each.word), LOG)  # type: ignore[attr-defined]
    assert found.over == each.ended  # type: ignore[attr-defined]
    assert found.status.ended == found.over
    assert not found.over or (found.reason_code and found.reason_message and found.exit_code is not None)


def said(*arguments: object) -> str:
    found: Standing = standing(*arguments)  # type: ignore[arg-type]
    return str(found.reason_message)


def test_reasons_are_sentences_with_slurms_own_words() -> None:
    """Why it waits, what the batch step last printed, what to do about a folder that is not shared."""
    waits = "the job waits in Slurm's queue: "
    assert said(view(WAITS), report("PENDING", "Priority"), LOG) == waits + "Priority (others have their turn before it)"
    assert said(view(WAITS), report("PENDING", "QOSMaxJobsPerUserLimit"), LOG) == waits + "QOSMaxJobsPerUserLimit"
    assert "it will not start unless" in said(view(WAITS), report("PENDING", "PartitionConfig"), LOG)
    assert "down, drained or reserved" in said(view(WAITS), report("PENDING", "ReqNodeNotAvail, UnavailableNodes:m[1-2]"), LOG)
    assert said(view(RUNS), report("TIMEOUT", "TimeLimit"), LOG) == "the job's time limit was over (TimeLimit)"
    assert said(view(RUNS), SILENT, LOG) == "Slurm does not answer: Unable to contact slurm controller"
    broken = said(view(WAITS), report("FAILED", exit_code=1), LOG)
    assert broken == "the batch step ended with exit code 1\n    Traceback\n    ImportError: x"
    unseen = said(view(WAITS), report("FAILED", exit_code=1), Evidence())
    assert "the batch step of m1 left no trace in the job folder" in unseen and "set LAUNCHER_HOME" in unseen


def test_a_job_that_is_in_no_queue_yet_is_submitted() -> None:
    """The event is written before sbatch is called, and the batch step's own events take over from there."""
    assert [view(events).status for events in (WAITS, BEGUN, RUNS)] == [Status.SUBMITTED, Status.INITIALIZING, Status.RUNNING]

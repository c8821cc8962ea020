"""What follows from Slurm's warnings, and from its taking the nodes away: as a table, as in test_policy.py."""

from __future__ import annotations

import pytest

from launcher.policy import Rules, Step, decide, fold, next_deadline
from launcher.screen import sentence_of
from launcher.status import Status
from launcher.verdict import verdict
from tests.unit.stories import (
    COLLECTED,
    COORDINATOR,
    PASSED_ON,
    PREEMPTION,
    REQUEUE_FAILED,
    REQUEUED,
    RUNNING,
    SYNCED,
    TAKEN_BACK,
    WARNING,
    Event,
    agent,
    cancel,
    created,
    ended,
    failure,
    gone,
    outcome,
    reached,
    stopping,
)

HEARD = agent(0, "warned", signal="SIGUSR2", told=[{"local_rank": 0}], untold=[])
DEAF = agent(0, "warned", signal="SIGUSR2", told=[], untold=[{"local_rank": 0}])
WARNED = [*RUNNING, WARNING, PASSED_ON, HEARD]
SAVED = [*WARNED, *ended(0), *ended(1), failure(None, node=0) | {"failure": None}]
AGAIN = Rules(grace=30.0, requeue=True)
ONCE = Rules(grace=30.0)

TABLE: list[tuple[str, list[Event], float, Rules, Step, str]] = [
    ("a warning is passed on once", [*RUNNING, WARNING, PASSED_ON], 51, AGAIN, Step.WAIT, ""),
    ("a second one is another", [*WARNED, WARNING], 52, AGAIN, Step.WARN, ""),
    ("a preemption's TERM was Slurm's own", [*RUNNING, PREEMPTION], 51, AGAIN, Step.WAIT, ""),
    ("who is done first stops nobody who still saves", [*WARNED, outcome(0, 1)], 60, AGAIN, Step.WAIT, ""),
    ("but not for ever", [*WARNED, outcome(0, 1)], 80, AGAIN, Step.STOP, "failure"),
    ("without having heard of it, it is a failure like any other", [*RUNNING, WARNING, PASSED_ON, outcome(0, 1)], 60, AGAIN,
     Step.STOP, "failure"),
    ("a training that has made way goes on later", SAVED, 81, AGAIN, Step.REQUEUE, "Timeout"),
    ("unless nobody asked for that", SAVED, 81, ONCE, Step.COLLECT, ""),
    ("or its user wants an end", [*SAVED, cancel()], 81, AGAIN, Step.COLLECT, ""),
    ("or Slurm will not have it", [*SAVED, REQUEUE_FAILED], 91, AGAIN, Step.COLLECT, ""),
    ("or nobody heard of it", [*RUNNING, WARNING, PASSED_ON, DEAF, *ended(0), *ended(1), failure()], 81, AGAIN, Step.COLLECT, ""),
    ("a lost node is left behind", [*RUNNING, gone(0), stopping("failure"), *ended(1, 143), failure(None, node=0)], 81, AGAIN,
     Step.REQUEUE, "NodeFail"),
    ("what Slurm takes back is stopped", [*RUNNING, TAKEN_BACK], 51, ONCE, Step.STOP, "allocation"),
    ("and left when all is over", [*RUNNING, TAKEN_BACK, stopping("allocation"), *ended(0, 143), *ended(1, 143)], 60, ONCE,
     Step.REQUEUE, "Requeued"),
    ("the next start begins from the first step", [*SAVED, REQUEUED, created(1), COORDINATOR], 100, AGAIN, Step.REACH, ""),
    ("and brings the code again", [*SAVED, REQUEUED, created(1), COORDINATOR, reached(1)], 100, AGAIN, Step.SYNC, ""),
    ("with the numbers of attempts going on", [*SAVED, REQUEUED, created(1), COORDINATOR, reached(1), SYNCED], 100, AGAIN,
     Step.PROBE, ""),
]  # fmt: skip


@pytest.mark.parametrize(("story", "events", "now", "rules", "step", "why"), TABLE, ids=[row[0] for row in TABLE])
def test_what_follows_from_slurms_signals(
    story: str, events: list[Event], now: float, rules: Rules, step: Step, why: str
) -> None:
    """A story, a time, and the step with its reason that follows."""
    assert decide(fold(events), rules, now) == (step, why)


def test_a_failure_that_is_borne_has_its_deadline() -> None:
    """The loop wakes when the others have had their time."""
    assert next_deadline(fold([*WARNED, outcome(0, 1)]), AGAIN) == 80.0


def test_a_requeued_job_is_submitted_again_and_told_of_once() -> None:
    """Whoever writes it first: the coordinator, or the next start."""
    view = fold([*SAVED, REQUEUED])
    assert (view.status, view.attempt, view.requeues, view.nodes) == (Status.CREATED, 1, 1, {})
    queued = [{"type": "submitted", "time": 0.1}, *SAVED]
    assert fold([*queued, REQUEUED]).status is Status.SUBMITTED
    again = [*SAVED, REQUEUED, created(), COORDINATOR, reached()]
    assert fold([*again, REQUEUED]).reached and fold([*again, REQUEUED]).attempt == 1
    assert fold([*again, {**REQUEUED, "requeue": 2}]).attempt == 2


def taken(code: str | None) -> list[Event]:
    return [*RUNNING, {**TAKEN_BACK, "reason_code": code}, stopping("allocation"), *ended(0, 143), *ended(1, 143), COLLECTED]


PREEMPTED = [*RUNNING, PREEMPTION, *ended(0, 143), *ended(1, 143), failure(143), COLLECTED]
CANCELLED = {**TAKEN_BACK, "reason_code": "Cancelled"}
UNHEARD = {**TAKEN_BACK, "reason_code": "Cancelled", "unheard": True}
KILL = {"message": "rank 0 was killed", "node": 0, "exit_code": 137, "signal": "SIGKILL"}
KILLED = [*RUNNING, *ended(0, 137), *ended(1, 143), failure(137) | {"failure": KILL}, COLLECTED]
ENDINGS = [
    ("scancel", taken("Cancelled"), True, Status.TERMINATED, "Cancelled", 130),
    (
        "a scancel that the command heard of first",
        [*RUNNING, *ended(0, 143), *ended(1, 143), UNHEARD, failure(143), COLLECTED],
        False,
        Status.TERMINATED,
        "Cancelled",
        130,
    ),
    (
        "a scancel that was asked after while the command died of it",
        [*RUNNING, *ended(0, 143), *ended(1, 143), CANCELLED, failure(143), COLLECTED],
        False,
        Status.TERMINATED,
        "Cancelled",
        130,
    ),
    (
        "a scancel of what had failed, while its outputs came here",
        [*RUNNING, *ended(0, 3), *ended(1, 3), failure(3), CANCELLED, COLLECTED],
        False,
        Status.FAILED,
        "CommandFailed",
        3,
    ),
    ("Slurm did not say why", taken(None), True, Status.TERMINATED, "Cancelled", 130),
    ("the time limit", taken("Timeout"), True, Status.FAILED, "Timeout", 143),
    ("a failed node", taken("NodeFail"), True, Status.FAILED, "NodeFail", 69),
    ("memory", taken("OutOfMemory"), True, Status.FAILED, "OutOfMemory", 137),
    (
        "a process that was killed for its memory",
        [*KILLED, {"type": "out of memory", "time": 91.0}],
        False,
        Status.FAILED,
        "OutOfMemory",
        137,
    ),
    ("a process that was killed by somebody", KILLED, False, Status.FAILED, "CommandFailed", 137),
    ("preempted, and that was all", PREEMPTED, False, Status.FAILED, "Preempted", 143),
    ("made way without being asked to come back", [*SAVED, COLLECTED], False, Status.SUCCEED, "", 0),
    ("made way too often", [*SAVED, COLLECTED], True, Status.FAILED, "Timeout", 143),
    ("Slurm would not have it", [*SAVED, REQUEUE_FAILED, COLLECTED], True, Status.FAILED, "Timeout", 143),
]


@pytest.mark.parametrize(("story", "events", "asked", "status", "reason", "code"), ENDINGS, ids=[row[0] for row in ENDINGS])
def test_how_slurm_ends_a_job(story: str, events: list[Event], asked: bool, status: Status, reason: str, code: int) -> None:
    """``asked``: the job was to be requeued."""
    found = verdict(fold(events), None, asked)
    assert (found.status, found.reason_code, found.exit_code) == (status, reason, code)


RANKS = [{"pid": 7, "local_rank": 0, "rank": 4}, {"pid": 8, "local_rank": 1, "rank": None}]


@pytest.mark.parametrize(
    ("told", "untold", "sentence"),
    [
        (RANKS, [], "SIGUSR2 was delivered to rank 4, 1"),
        (RANKS[:1], RANKS[1:], "SIGUSR2 was delivered to rank 4, but rank 1 does not catch it"),
        ([], RANKS, "SIGUSR2 was not delivered: rank 4, 1 does not catch it"),
        ([], [{"pid": 9, "name": "python3"}], "SIGUSR2 was not delivered: python3 does not catch it"),
        ([], [], "SIGUSR2 was not delivered: no training process runs there yet"),
    ],
)
def test_whom_a_warning_reached_is_said(told: list[Event], untold: list[Event], sentence: str) -> None:
    """By rank, or by the name of a process that has none."""
    event = agent(0, "warned", signal="SIGUSR2", told=told, untold=untold)
    assert sentence_of(event, fold(RUNNING)) == f"node 0 (host0): {sentence}"


def test_what_slurm_did_is_said() -> None:
    """A warning, a requeue, and one that did not work."""
    view = fold(RUNNING)
    assert sentence_of(WARNING, view) == "Slurm sent SIGUSR2: time is short"
    assert sentence_of(REQUEUED, view) == "m: back in Slurm's queue (requeue 1, by launcher)"
    assert sentence_of(REQUEUE_FAILED, view) == "the job could not be requeued: disabled"


def test_what_lies_behind_an_event_does_not_take_its_words() -> None:
    """A reader folds all that is new before it says any of it: a requeue has no nodes, and the end before it has a name."""
    event = agent(0, "exited", exit_code=143, signal="SIGTERM")
    assert sentence_of(event, fold([*RUNNING, event, REQUEUED])) == "node 0: the command was killed by SIGTERM"

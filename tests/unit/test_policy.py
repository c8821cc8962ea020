"""What a job's events add up to, and what comes next: the policy as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.policy import STOP_MARGIN, Rules, Step, decide, fold, next_deadline
from launcher.status import Status
from launcher.verdict import verdict
from tests.unit.stories import (
    ADOPTED,
    BADLY,
    COLLECT_FAILED,
    COLLECTED,
    COORDINATOR,
    DIAGNOSED_WELL,
    FOLLOWING,
    FRESH,
    MASTER,
    PORT_RACE,
    RACES,
    READY,
    RUNNING,
    STARTING,
    SYNCED,
    TAKEN_BACK,
    WARNING,
    WELL,
    WHY_REVOKED,
    Event,
    broken,
    cancel,
    created,
    drained,
    end,
    ended,
    exited,
    failure,
    found,
    gone,
    lost,
    outcome,
    reached,
    revoked,
    stopping,
)

RULES = Rules(max_run_time=100.0, grace=30.0, node_patience=180.0)
ADOPTED_AND_FOLLOWING = [*ADOPTED, {"type": "reached", "time": 40.0, "nodes": []}, FOLLOWING]
KILLED = [
    *(*RUNNING, cancel(2), stopping("cancel", 2), *ended(0, 137), *ended(1, 137)),
    *(failure(137), COLLECT_FAILED, end("Terminated", 130)),
]
UNCOLLECTED = [*WELL, DIAGNOSED_WELL, COLLECT_FAILED, end("Failed", 69)]

Row = tuple[str, list[Event], float, Step, str]
TABLE: list[Row] = [
    # A job that goes well.
    ("a fresh job reaches its nodes", FRESH, 1, Step.REACH, ""),
    ("reached nodes get the code", [*FRESH, reached()], 2, Step.SYNC, ""),
    ("nodes with the code look for node 0", [*FRESH, reached(), SYNCED], 3, Step.PROBE, ""),
    ("with a master the command starts", READY, 4, Step.START, ""),
    ("a running job waits", RUNNING, 11, Step.WAIT, ""),
    ("one node's good end changes nothing for the others", [*RUNNING, *ended(0)], 20, Step.WAIT, ""),
    (
        "an outcome is not the end while log bytes are on their way",
        [*RUNNING, *ended(0), exited(1, 0), outcome(1)],
        20,
        Step.WAIT,
        "",
    ),
    ("when all is over the cause is looked for", WELL, 75, Step.DIAGNOSE, ""),
    ("then the outputs come here", [*WELL, DIAGNOSED_WELL], 81, Step.COLLECT, ""),
    ("then the end is written", [*WELL, DIAGNOSED_WELL, COLLECTED], 91, Step.FINISH, ""),
    ("an ended job is left alone", [*WELL, DIAGNOSED_WELL, COLLECTED, end("Succeed", 0)], 99, Step.LEAVE, ""),
    ("a job too slow to collect in its time is not stopped any more", [*WELL, DIAGNOSED_WELL], 1e6, Step.COLLECT, ""),
    # What goes wrong before the start.
    ("a node that cannot be reached ends the job", [*FRESH, broken()], 2, Step.FINISH, ""),
    ("a code that cannot be sent ends the job", [*FRESH, reached(), broken()], 2, Step.FINISH, ""),
    # A failing command.
    ("the first failure stops all nodes", [*RUNNING, exited(1, 3), outcome(1, 3)], 20, Step.STOP, "failure"),
    ("a lost agent is a failure", [*RUNNING, outcome(0, None, "agent lost")], 20, Step.STOP, "failure"),
    ("a command that could not be started is a failure", [*RUNNING, outcome(0, None, "not started")], 20, Step.STOP, "failure"),
    ("while they stop nothing more is done", [*RUNNING, outcome(1, 3), stopping("failure")], 60, Step.WAIT, ""),
    ("outputs are collected after a failure, too", [*BADLY, failure(3)], 81, Step.COLLECT, ""),
    ("a failed collection ends the job", [*WELL, DIAGNOSED_WELL, COLLECT_FAILED], 91, Step.FINISH, ""),
    # Slurm's signals; the rest of them in test_requeue.py.
    ("a warning is passed on", [*RUNNING, WARNING], 51, Step.WARN, ""),
    ("a job that Slurm takes back before it began is left", [*FRESH, TAKEN_BACK], 2, Step.REQUEUE, "Requeued"),
    # Cancels in each phase.
    ("cancelled before it began", [created(), COORDINATOR, cancel()], 2, Step.FINISH, ""),
    ("cancelled when reached", [*FRESH, reached(), cancel()], 2, Step.FINISH, ""),
    ("cancelled when synced", [*FRESH, reached(), SYNCED, cancel()], 3, Step.FINISH, ""),
    ("cancelled when probed", [*READY, cancel()], 4, Step.FINISH, ""),
    (
        "cancelled while it starts: the start is awaited, so that nothing is missed",
        [*READY, STARTING, cancel()],
        5,
        Step.START,
        "",
    ),
    ("cancelled while it runs", [*RUNNING, cancel()], 50, Step.STOP, "cancel"),
    ("killed while it runs", [*RUNNING, cancel(2)], 50, Step.KILL, "cancel"),
    ("revoked by Slurm before it began", [created(), COORDINATOR, revoked()], 2, Step.FINISH, ""),
    ("revoked by Slurm when probed", [*READY, revoked()], 4, Step.FINISH, ""),
    ("revoked by Slurm while it runs", [*RUNNING, revoked()], 50, Step.STOP, "allocation"),
    ("what Slurm ends is stopped once", [*RUNNING, revoked(), stopping("allocation")], 52, Step.WAIT, ""),
    ("a cancel kills what Slurm ends", [*RUNNING, revoked(), stopping("allocation"), cancel(2)], 52, Step.KILL, "allocation"),
    ("a cancel is obeyed once", [*RUNNING, cancel(), stopping("cancel")], 52, Step.WAIT, ""),
    ("a second cancel kills", [*RUNNING, cancel(), stopping("cancel"), cancel(2)], 52, Step.KILL, "cancel"),
    ("a kill is obeyed once", [*RUNNING, cancel(2), stopping("cancel", 2)], 52, Step.WAIT, ""),
    (
        "a cancel of a job that fails anyway waits for its end",
        [*RUNNING, outcome(1, 3), stopping("failure"), cancel()],
        52,
        Step.WAIT,
        "",
    ),
    ("a kill of a job that fails anyway", [*RUNNING, outcome(1, 3), stopping("failure"), cancel(2)], 52, Step.KILL, "failure"),
    (
        "a cancelled job is collected, too",
        [*RUNNING, cancel(), stopping("cancel"), *ended(0, 143), *ended(1, 143), failure()],
        81,
        Step.COLLECT,
        "",
    ),
    ("cancelled while it collects", [*WELL, DIAGNOSED_WELL, cancel(2), COLLECT_FAILED], 91, Step.FINISH, ""),
    # Time.
    ("max_run_time counts from the start of the command", RUNNING, 109.9, Step.WAIT, ""),
    ("max_run_time is over", RUNNING, 110.0, Step.STOP, "max_run_time"),
    ("max_run_time stops once", [*RUNNING, stopping("max_run_time")], 500, Step.WAIT, ""),
    (
        "max_run_time is of no account once the command is over, however late its logs come",
        [*RUNNING, exited(0, 0), outcome(0), exited(1, 0), outcome(1)],
        500,
        Step.WAIT,
        "",
    ),
    # Nodes out of reach.
    ("a node out of reach is waited for", [*RUNNING, lost(1, 20)], 100, Step.WAIT, ""),
    ("a node out of reach for too long is given up", [*RUNNING, lost(1, 20)], 200, Step.STOP, "max_run_time"),
    ("a node that is back counts again", [*RUNNING, lost(1, 20), found(1)], 105, Step.WAIT, ""),
    ("a node given up stops the others", [*RUNNING, lost(1, 20), gone(1)], 100, Step.STOP, "failure"),
    ("nobody waits for a node given up", [*RUNNING, gone(1), stopping("failure"), *ended(0, 143)], 80, Step.DIAGNOSE, ""),
    (
        "a node lost while the job stops is waited for",
        [*RUNNING, cancel(), stopping("cancel"), lost(1, 60)],
        60 + 30 + STOP_MARGIN - 1,
        Step.WAIT,
        "",
    ),
    (
        "a node lost while the job stops holds it up for its grace",
        [*RUNNING, cancel(), stopping("cancel"), lost(1, 60)],
        60 + 30 + STOP_MARGIN,
        Step.GIVE_UP,
        "1",
    ),
    (
        "all nodes lost while the job stops are given up, too",
        [*RUNNING, cancel(), stopping("cancel"), lost(0, 60), lost(1, 60)],
        60 + 30 + STOP_MARGIN,
        Step.GIVE_UP,
        "0",
    ),
    # A new coordinator.
    ("adopted before anything: begin again", [*FRESH, COORDINATOR], 40, Step.REACH, ""),
    ("adopted after reach: reach again", [*FRESH, reached(), COORDINATOR], 40, Step.REACH, ""),
    ("adopted after sync: reach again", [*FRESH, reached(), SYNCED, COORDINATOR], 40, Step.REACH, ""),
    ("adopted after sync and reached: not synced again", [*FRESH, reached(), SYNCED, COORDINATOR, reached()], 40, Step.PROBE, ""),
    ("adopted after probe and reached: the port stays", [*READY, COORDINATOR, reached()], 40, Step.START, ""),
    ("adopted while it starts: reach", [*READY, STARTING, COORDINATOR], 40, Step.REACH, ""),
    (
        "adopted while it starts and reached: start what is not started",
        [*READY, STARTING, COORDINATOR, reached()],
        40,
        Step.START,
        "",
    ),
    ("adopted while it runs: reach", ADOPTED, 40, Step.REACH, ""),
    ("adopted while it runs and following: wait", ADOPTED_AND_FOLLOWING, 40, Step.WAIT, ""),
    (
        "adopted while it stops: the wish is repeated",
        [*RUNNING, cancel(), stopping("cancel"), *ADOPTED_AND_FOLLOWING[len(RUNNING) :]],
        60,
        Step.STOP,
        "cancel",
    ),
    (
        "adopted after a node's end: its logs are drained again",
        [*RUNNING, *ended(0), *ADOPTED_AND_FOLLOWING[len(RUNNING) :]],
        60,
        Step.WAIT,
        "",
    ),
    (
        "adopted after the diagnosis: collect",
        [*WELL, DIAGNOSED_WELL, *ADOPTED_AND_FOLLOWING[len(RUNNING) :], drained(0), drained(1)],
        90,
        Step.COLLECT,
        "",
    ),
    (
        "adopted after the collection: nothing on the nodes is needed, and it may be gone",
        [*WELL, DIAGNOSED_WELL, COLLECTED, COORDINATOR],
        95,
        Step.FINISH,
        "",
    ),
    ("adopted after a failed collection, likewise", [*WELL, DIAGNOSED_WELL, COLLECT_FAILED, COORDINATOR], 95, Step.FINISH, ""),
    ("adopted after what kept it from starting", [*FRESH, broken(), COORDINATOR], 95, Step.FINISH, ""),
    ("adopted after the end", [*WELL, end("Succeed", 0), COORDINATOR], 99, Step.LEAVE, ""),
    (
        "cancelled with no coordinator: the new one reaches the nodes to stop them",
        [*RUNNING, COORDINATOR, cancel()],
        60,
        Step.REACH,
        "",
    ),
    (
        "a job stopped before, whose outputs are collected now, is not stopped again",
        [*KILLED, {"type": "resumed", "time": 400.0}, *ADOPTED_AND_FOLLOWING[len(RUNNING) :]],
        410,
        Step.WAIT,
        "",
    ),
    (
        "a job that succeeded, likewise, long after its max_run_time",
        [*UNCOLLECTED, {"type": "resumed", "time": 400.0}, *ADOPTED_AND_FOLLOWING[len(RUNNING) :]],
        410,
        Step.WAIT,
        "",
    ),
    # The race for MASTER_PORT.
    ("a lost race is a new attempt", [*BADLY, PORT_RACE], 81, Step.RETRY, ""),
    ("a new attempt probes again", [*BADLY, *RACES[:2]], 81, Step.PROBE, ""),
    (
        "after three races it is a failure",
        [*BADLY, *RACES, MASTER, STARTING, FOLLOWING, gone(0), gone(1), PORT_RACE],
        85,
        Step.COLLECT,
        "",
    ),
    ("a cancelled job does not race again", [*BADLY, cancel(), PORT_RACE], 81, Step.COLLECT, ""),
]


PREPARED: Event = {"type": "prepared", "time": 3.5, "nodes": [{"node": 0, "layer": "/l"}, {"node": 1}]}
TO_PREPARE: list[Row] = [
    ("the code comes first", [*FRESH, reached()], 2, Step.SYNC, ""),
    ("nodes with the code are made ready", [*FRESH, reached(), SYNCED], 3, Step.PREPARE, ""),
    ("ready nodes look for node 0", [*FRESH, reached(), SYNCED, PREPARED], 4, Step.PROBE, ""),
    ("cancelled meanwhile", [*FRESH, reached(), SYNCED, cancel()], 4, Step.FINISH, ""),
    ("adopted before it was done: again", [*FRESH, reached(), SYNCED, COORDINATOR, reached()], 9, Step.PREPARE, ""),
    ("adopted when it was done: not again", [*FRESH, reached(), SYNCED, PREPARED, COORDINATOR, reached()], 9, Step.PROBE, ""),
    ("what failed is the end", [*FRESH, reached(), SYNCED, broken()], 9, Step.FINISH, ""),
]


PUBLISHED: Event = {"type": "published", "time": 92.0, "channels": {"model": "s3://b/j/model/"}}
PUBLISH_FAILED: Event = {"type": "publish failed", "time": 92.0, "message": "nobody answers"}
HOME = [*WELL, DIAGNOSED_WELL, COLLECTED]
TO_PUBLISH: list[Row] = [
    ("what was collected is published", HOME, 91, Step.PUBLISH, ""),
    ("of a job that failed, too", [*BADLY, failure(), COLLECTED], 91, Step.PUBLISH, ""),
    ("by the next coordinator, which needs no node for that", [*HOME, COORDINATOR], 95, Step.PUBLISH, ""),
    ("then the end is written", [*HOME, PUBLISHED], 93, Step.FINISH, ""),
    ("a failure is the end, too", [*HOME, PUBLISH_FAILED], 93, Step.FINISH, ""),
    ("what is not here is not published", [*WELL, DIAGNOSED_WELL, COLLECT_FAILED], 91, Step.FINISH, ""),
    (
        "resumed, it is published and not collected again",
        [*HOME, PUBLISH_FAILED, end("Failed", 69), {"type": "resumed", "time": 99.0}, COORDINATOR],
        100,
        Step.PUBLISH,
        "",
    ),
    (
        "resumed, what was not collected is collected first",
        [*UNCOLLECTED, {"type": "resumed", "time": 99.0}, *ADOPTED_AND_FOLLOWING[len(RUNNING) :], *WELL[len(RUNNING) :]],
        410,
        Step.COLLECT,
        "",
    ),
]


@pytest.mark.parametrize(("story", "events", "now", "step", "why"), TO_PUBLISH, ids=[row[0] for row in TO_PUBLISH])
def test_a_job_that_publishes_does_so_once_everything_is_here(
    story: str, events: list[Event], now: float, step: Step, why: str
) -> None:
    """Others know no such step."""
    assert decide(fold(events), Rules(grace=30.0, publish=True), now) == (step, why)


@pytest.mark.parametrize(("story", "events", "now", "step", "why"), TABLE, ids=[row[0] for row in TABLE])
def test_every_step_follows_from_the_events_and_the_clock(
    story: str, events: list[Event], now: float, step: Step, why: str
) -> None:
    """Each row is a story, a time, and the step with its reason that follows."""
    assert decide(fold(events), RULES, now) == (step, why)


def test_the_table_has_every_step() -> None:
    """No step is left untried."""
    assert {row[3] for row in [*TABLE, *TO_PREPARE, *TO_PUBLISH]} == set(Step)


@pytest.mark.parametrize(("story", "events", "now", "step", "why"), TO_PREPARE, ids=[row[0] for row in TO_PREPARE])
def test_a_job_that_has_more_than_code_to_bring_does_so_before_the_probe(
    story: str, events: list[Event], now: float, step: Step, why: str
) -> None:
    """Jobs that have nothing to prepare know no such step: the same stories in the other table."""
    assert decide(fold(events), Rules(grace=30.0, prepare=True), now) == (step, why)


def test_one_lost_node_among_others_is_given_up_after_the_patience() -> None:
    """A node that stays silent while the others talk is lost, and the job ends."""
    rules, view = Rules(None, 30.0, 180.0), fold([*RUNNING, lost(1, 20)])
    assert decide(view, rules, 199.9) == (Step.WAIT, "")
    assert decide(view, rules, 200.0) == (Step.GIVE_UP, "1")


def test_when_no_node_can_be_reached_it_is_we_who_are_cut_off() -> None:
    """A laptop that sleeps for a night does not end its jobs."""
    view = fold([*RUNNING, lost(0, 20), lost(1, 21)])
    assert decide(view, Rules(None, 30.0, 180.0), 1e9) == (Step.WAIT, "")
    assert next_deadline(view, Rules(None, 30.0, 180.0)) is None


def test_a_node_whose_peers_have_ended_is_the_only_one_left_and_waited_for() -> None:
    """The last living node out of reach is no reason to give up: nobody else waits for it."""
    assert decide(fold([*RUNNING, *ended(0), lost(1, 20)]), Rules(None), 1e9) == (Step.WAIT, "")


@given(st.permutations([lost(1, 20.0), lost(1, 90.0), lost(1, 150.0)]))
def test_repeated_losses_do_not_prolong_the_patience(losses: list[Event]) -> None:
    """Only a reply resets the clock."""
    view = fold([*RUNNING, *losses])
    assert view.nodes[1].lost_since == losses[0]["time"]


@pytest.mark.parametrize("events", [row[1] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_deadline_is_when_time_alone_changes_the_decision(events: list[Event]) -> None:
    """Just before the deadline the loop waits, at the deadline it acts: it never spins and never oversleeps."""
    view = fold(events)
    if decide(view, RULES, 0)[0] is not Step.WAIT:
        return
    deadline = next_deadline(view, RULES)
    if deadline is None:
        assert decide(view, RULES, 1e12)[0] is Step.WAIT
    else:
        assert decide(view, RULES, deadline - 0.001)[0] is Step.WAIT
        assert decide(view, RULES, deadline)[0] is not Step.WAIT


Ending = tuple[str, list[Event], Status, str, int]
ENDINGS: list[Ending] = [
    ("success", [*WELL, DIAGNOSED_WELL, COLLECTED], Status.SUCCEED, "", 0),
    ("the first failing process's code", [*BADLY, failure(3), COLLECTED], Status.FAILED, "CommandFailed", 3),
    ("killed by a signal", [*BADLY, failure(137, signal="SIGKILL"), COLLECTED], Status.FAILED, "CommandFailed", 137),
    (
        "a node lost",
        [*RUNNING, gone(1), stopping("failure"), *ended(0, 143), failure(None, node=1), COLLECTED],
        Status.FAILED,
        "NodeLost",
        69,
    ),
    (
        "a failure and a failed collection: the failure counts",
        [*BADLY, failure(3), COLLECT_FAILED],
        Status.FAILED,
        "CommandFailed",
        3,
    ),
    ("nothing came here", [*WELL, DIAGNOSED_WELL, COLLECT_FAILED], Status.FAILED, "CollectFailed", 69),
    ("never started", [*FRESH, broken()], Status.INITIALIZE_FAILED, "NodesUnreachable", 69),
    ("never started for wrong arguments", [*FRESH, broken(2)], Status.INITIALIZE_FAILED, "NodesUnreachable", 2),
    ("cancelled before it began", [*FRESH, cancel()], Status.TERMINATED, "Cancelled", 130),
    (
        "cancelled while it ran",
        [*RUNNING, cancel(), stopping("cancel"), *ended(0, 143), *ended(1, 143), failure(), COLLECTED],
        Status.TERMINATED,
        "Cancelled",
        130,
    ),
    ("cancelled after a success was here", [*WELL, DIAGNOSED_WELL, COLLECTED, cancel()], Status.SUCCEED, "", 0),
    (
        "cancelled while the success was collected",
        [*WELL, DIAGNOSED_WELL, cancel(2), COLLECT_FAILED],
        Status.TERMINATED,
        "Cancelled",
        130,
    ),
    ("revoked by Slurm", [*RUNNING, revoked(), stopping("allocation"), *ended(0), *ended(1), failure(None), COLLECTED],
     Status.TERMINATED, "Cancelled", 130),
    ("revoked by Slurm, which said why later",
     [*RUNNING, revoked(), stopping("allocation"), WHY_REVOKED, *ended(0), *ended(1), failure(None), COLLECTED],
     Status.FAILED, "Timeout", 143),
    ("revoked before it began", [*READY, revoked(), broken()], Status.TERMINATED, "Cancelled", 130),
    ("a death by Slurm's TERM that was heard of first", [*RUNNING, stopping("failure"), revoked(51.5), failure(143), COLLECTED],
     Status.TERMINATED, "Cancelled", 130),
    ("revoked long after it had failed", [*BADLY, revoked(60), failure(3), COLLECTED], Status.FAILED, "CommandFailed", 3),
    ("revoked when all was done", [*WELL, DIAGNOSED_WELL, COLLECTED, revoked(90)], Status.SUCCEED, "", 0),
    ("a good end by Slurm's TERM that was heard of first", [*WELL, revoked(70.5), DIAGNOSED_WELL, COLLECTED],
     Status.TERMINATED, "Cancelled", 130),
    ("a good end while it was asked what the TERM means", [*WELL, revoked(69.9), DIAGNOSED_WELL, COLLECTED],
     Status.TERMINATED, "Cancelled", 130),
    ("cancelled after it had failed", [*BADLY, failure(3), cancel(), COLLECTED], Status.FAILED, "CommandFailed", 3),
    ("an exit code that a shell would take for 0", [*BADLY, failure(256), COLLECTED], Status.FAILED, "CommandFailed", 70),
    ("an exit code of nobody's", [*BADLY, failure(-1), COLLECTED], Status.FAILED, "CommandFailed", 70),
    (
        "too long",
        [*RUNNING, stopping("max_run_time"), *ended(0, 143), *ended(1, 143), failure(), COLLECTED],
        Status.FAILED,
        "MaxRunTimeExceeded",
        143,
    ),
]


@pytest.mark.parametrize(("story", "events", "status", "reason", "code"), ENDINGS, ids=[row[0] for row in ENDINGS])
def test_every_end_has_its_status_reason_and_exit_code(
    story: str, events: list[Event], status: Status, reason: str, code: int
) -> None:
    """The exit codes are the command line's contract."""
    found = verdict(fold(events), 100.0)
    assert (found.status, found.reason_code, found.exit_code) == (status, reason, code)
    assert found.reason_message or status is Status.SUCCEED


def test_a_lost_agent_is_named_in_the_reason() -> None:
    """Who reads only reason_code learns that the command did not fail by itself."""
    story = [
        *RUNNING,
        outcome(0, None, "agent lost"),
        stopping("failure"),
        drained(0),
        *ended(1, 143),
        failure(None, node=0),
        COLLECTED,
    ]
    found = verdict(fold(story))
    assert (found.status, found.reason_code, found.exit_code) == (Status.FAILED, "AgentLost", 69)


def test_folding_in_pieces_is_folding_at_once() -> None:
    """The coordinator folds event by event, a reader all at once: both see the same."""
    for _, events, _, _, _ in TABLE:
        view = None
        for event in events:
            view = fold([event], view)
        assert view == fold(events)

"""What a job's events add up to: the words for the job and its nodes, and what of them is remembered."""

from __future__ import annotations

from launcher.policy import fold
from tests.unit.stories import (
    BADLY,
    COORDINATOR,
    FRESH,
    PORT_RACE,
    RACES,
    READY,
    RUNNING,
    STARTING,
    WELL,
    agent,
    created,
    drained,
    end,
    ended,
    found,
    gone,
    lost,
    outcome,
    reached,
    started,
)


def test_the_status_words_follow_the_job() -> None:
    """Created, Initializing, Running, then the end's own."""
    words = [
        fold(events).status.value
        for events in ([created()], FRESH, READY, [*READY, STARTING], RUNNING, [*WELL, end("Succeed", 0)])
    ]
    assert words == ["Created", "Initializing", "Initializing", "Running", "Running", "Succeed"]


def test_node_words_follow_the_node() -> None:
    """waiting, reached, running, unreachable, ended or failed, lost."""
    stories = (
        [created()],
        [created(), reached()],
        RUNNING,
        [*RUNNING, lost(1, 20)],
        [*RUNNING, *ended(1)],
        [*RUNNING, *ended(1, 2)],
        [*RUNNING, gone(1)],
    )
    assert [fold(events).nodes[1].status for events in stories] == [
        "waiting",
        "reached",
        "running",
        "unreachable",
        "ended",
        "failed",
        "lost",
    ]


def test_an_event_of_an_earlier_attempt_says_nothing_of_this_one() -> None:
    """A slow node's old outcome must not end the new attempt."""
    view = fold([*BADLY, PORT_RACE, RACES[1], outcome(0, 1, attempt=0), drained(0, attempt=0), started(0, attempt=1)])
    assert view.nodes[0].outcome is None and not view.nodes[0].drained and view.nodes[0].started
    assert view.attempt == 1 and view.master is None and view.failure is None


def test_a_new_attempt_keeps_what_is_known_of_the_nodes() -> None:
    """Addresses and process counts stay; nothing is reached or synced again."""
    view = fold([*BADLY, PORT_RACE, RACES[1]])
    assert view.reached and view.synced and (view.nodes[1].address, view.nodes[1].nproc) == ("10.0.0.2", 2)


def test_workers_and_their_ends_are_remembered_in_order() -> None:
    """Which rank died first tells the cause from its consequences."""
    told = [
        agent(
            0, "workers", workers=[{"local_rank": 0, "rank": 0}, {"local_rank": 1, "rank": 1}, {"local_rank": None, "rank": None}]
        ),
        agent(0, "worker gone", local_rank=1),
        agent(0, "worker gone", local_rank=0),
    ]
    node = fold([*RUNNING, *told]).nodes[0]
    assert node.workers == {0: 0, 1: 1}
    assert [gone["local_rank"] for gone in node.workers_gone] == [1, 0]
    assert node.workers_gone[0]["seen"] < node.workers_gone[1]["seen"]


def test_the_first_outcome_counts() -> None:
    """An agent that is found lost after its outcome changes nothing."""
    assert fold([*RUNNING, outcome(0, 0), outcome(0, None, "agent lost")]).nodes[0].exit_code == 0


def test_unknown_events_are_passed_over() -> None:
    """A folder of a newer version can be read."""
    assert fold([*RUNNING, {"type": "something new", "time": 1.0}]).count == len(RUNNING) + 1


def test_a_missing_key_is_noted_and_forgotten_when_a_node_is_back() -> None:
    """`key unavailable` is a state, not a verdict."""
    story = [*RUNNING, lost(0, 20), {"type": "key unavailable", "time": 30.0, "node": 0, "message": "no key fits"}]
    assert fold(story).key_unavailable == "no key fits"
    assert fold([*story, found(0)]).key_unavailable is None
    assert fold([*story, COORDINATOR]).key_unavailable is None

"""Slurm's states, in all the ways in which its commands write them."""

from __future__ import annotations

import pytest

from launcher.slurm.states import STATES, UNKNOWN, JobState, state


@pytest.mark.parametrize("one", STATES, ids=lambda one: one.word)
def test_the_long_and_the_short_word_are_one_state(one: JobState) -> None:
    """squeue's %T and %t and sacct's columns mean the same."""
    assert state(one.word) == one
    assert not one.short or state(one.short) == one


@pytest.mark.parametrize(
    ("text", "reason", "ended"),
    [
        ("CANCELLED by 1000", "Cancelled", True),
        ("CANCELLED+", "Cancelled", True),
        ("OUT_OF_ME+", "OutOfMemory", True),
        ("TIMEOUT", "Timeout", True),
        ("PREEMPTED", "Preempted", True),
        ("NODE_FAIL", "NodeFail", True),
        ("DEADLINE", "Deadline", True),
        ("BOOT_FAIL", "BootFail", True),
        ("COMPLETED,COMPLETING", "Completing", False),
        ("RUNNING,RESIZING", "Running", False),
        ("COMPLET+", UNKNOWN, False),
        ("HIBERNATING", UNKNOWN, False),
        ("", UNKNOWN, False),
    ],
)
def test_what_commands_print_is_understood_or_unknown(text: str, reason: str, ended: bool) -> None:
    """A word from elsewhere is never taken for an end."""
    assert (state(text).reason_code, state(text).ended) == (reason, ended)


def test_ends_that_a_person_must_tell_apart_have_reasons_of_their_own() -> None:
    """One reason code each, and a sentence each."""
    ends = [one for one in STATES if one.ended]
    told = {one.word: one.reason_code for one in ends}
    apart = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"]
    assert len({told[word] for word in apart}) == len(apart)
    assert len({one.sentence for one in STATES}) == len(STATES)

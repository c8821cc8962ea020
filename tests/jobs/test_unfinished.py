"""Folders of jobs that nobody can go on with: submit was killed before they were whole, or no coordinator can read them."""

from __future__ import annotations

import os
import time

import pytest

from launcher import api
from launcher.backends import making
from launcher.store import Folder, Store
from tests.jobs.desk import Desk

JOB = "sleep-20250102-120000-abcd"


def left_behind(desk: Desk, seconds: float = 60.0) -> Folder:
    """What a submit leaves that is killed while it writes; it happened so long ago."""
    folder = Store(desk.home).create(JOB)
    folder.environment.write_text('{"all": {"TOKEN": "secret"}}')
    (folder.root / ".plan.json.4711.part").write_text("{")
    folder.code.mkdir()
    past = time.time() - seconds
    os.utime(folder.root, (past, past))
    return folder


@pytest.mark.parametrize("command", ["wait", "attach", "cancel"])
def test_what_a_killed_submit_left_is_ended_by_the_next_who_asks(local: Desk, command: str) -> None:
    """As CreateFailed, in a sentence; nothing of the environment stays, no process is started, and lists show it."""
    folder = left_behind(local)
    done = local.run(command, JOB, check=None)
    told = local.json("status", JOB)
    assert (told["status"], told["reason_code"], told["coordinator"]) == ("CreateFailed", "SubmitEnded", "ended")
    told_here = "CreateFailed" if command == "cancel" else "submit was killed before it had written the job down"
    assert told_here in done.stdout + done.stderr
    assert done.returncode == (0 if command == "cancel" else 130)
    assert {path.name for path in folder.root.iterdir()} <= {"events.jsonl", "coordinator.lock", "cancel"}
    assert "None" not in local.run("list").stdout


def test_a_submit_that_still_writes_is_not_taken_for_a_killed_one(local: Desk) -> None:
    """However long its snapshot takes."""
    folder = left_behind(local)
    with making.alone(folder) as is_ours:
        assert is_ours
        assert api.ensure_coordinator(folder) is None
    assert folder.read_events() == [] and folder.environment.exists()


def test_where_no_coordinator_can_work_the_last_lines_are_shown(local: Desk) -> None:
    """A few are tried; whoever waits is not left waiting."""
    folder = left_behind(local)
    folder.plan.write_text('{"job_id": 7}')
    done = local.run("wait", JOB, check=70)
    assert "one coordinator of the job after the other failed" in done.stderr
    assert "coordinator.log" in done.stderr and "Error" in done.stderr
    assert local.json("status", JOB)["coordinator"] != "ended"

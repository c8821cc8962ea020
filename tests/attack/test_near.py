"""The submitting side attacked: its folder removed, its processes killed, stopped and interrupted at odd moments."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess

from tests.jobs.desk import Desk, eventually, living


def test_a_removed_job_folder_stops_the_job(local: Desk) -> None:
    """Nobody could find it, or cancel it, any more; who watched it reads that."""
    process = local.start("--command", "sleep 600")
    local.happened("following")
    job, coordinator = local.folder().name, local.coordinator()
    shutil.rmtree(local.folder().rename(local.home / "away"), ignore_errors=True)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 70 and "folder was removed" in errors and "Traceback" not in errors
    eventually(lambda: not living(job), "nothing is left", 15)
    eventually(lambda: not living_pid(coordinator), "the coordinator is gone", 15)


def living_pid(pid: int) -> bool:
    """Whether a process lives."""
    from launcher import owner

    return owner.start_time(pid) is not None


def test_more_ctrl_c_than_needed_change_nothing(local: Desk) -> None:
    """Also those that come when the job is over, and we are about to exit."""
    process = local.start("--command", "sleep 600")
    local.happened("following")
    job = local.folder().name
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    assert process.returncode == 130
    local.run("wait", "--timeout", "30", job, check=130)
    eventually(lambda: not living(job), "nothing is left", 15)


def test_three_ctrl_c_at_once_cancel_before_they_leave(local: Desk) -> None:
    """They may come while the command line is busy and be heard together."""
    process = local.start("--command", "sleep 600")
    local.happened("following")
    job = local.folder().name
    os.kill(process.pid, signal.SIGSTOP)
    for _ in range(3):
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(30) == 130
    local.run("wait", "--timeout", "30", job, check=130)

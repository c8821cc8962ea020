"""The submitting side attacked: its folder removed, its processes killed, stopped and interrupted at odd moments."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.jobs.desk import PATIENCE, Desk, eventually, living


def test_a_removed_job_folder_stops_the_job(local: Desk) -> None:
    """Nobody could find it, or cancel it, any more; who watched it reads that."""
    process = local.start("--command", "sleep 600")
    local.happened("following")
    job, coordinator = local.folder().name, local.coordinator()
    shutil.rmtree(local.folder().rename(local.home / "away"), ignore_errors=True)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 70 and "folder was removed" in errors and "Traceback" not in errors
    eventually(lambda: not living(job), "nothing is left")
    eventually(lambda: not living_pid(coordinator), "the coordinator is gone")


def test_a_fault_of_a_new_coordinator_leaves_nothing_running(local: Desk) -> None:
    """It reaches the nodes that it had not reached yet, whatever its fault is, and stops what its predecessor had started."""
    job = local.detach("--nodes", "2", "--command", "sleep 600")
    coordinator = local.coordinator()
    os.kill(coordinator, signal.SIGKILL)
    eventually(lambda: not living_pid(coordinator), "the coordinator is gone")
    # No copy of a log can be made in a file; nobody foresaw that.
    shutil.rmtree(local.folder() / "logs")
    (local.folder() / "logs").write_text("")
    told = local.json("wait", job, check=70)
    assert told["reason_code"] == "InternalError" and "not reached" not in told["reason_message"]
    eventually(lambda: not living(job), "nothing is left")


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
    local.run("wait", "--timeout", "120", job, check=130)
    eventually(lambda: not living(job), "nothing is left")


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
    assert process.wait(PATIENCE) == 130
    local.run("wait", "--timeout", "120", job, check=130)


@pytest.mark.root
def test_a_full_disk_here_stops_no_job(tmp_path: Path) -> None:
    """What cannot be written down is waited for; with room again the job ends as if nothing had been."""
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(home)], check=True)
    try:
        inventory = tmp_path / "cluster.yaml"
        inventory.write_text(f"backend: local\ndefaults: {{workdir: {tmp_path}/work}}\n")
        desk = Desk(home, ("--cluster", str(inventory)))
        job = desk.detach("--command", f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; seq 1000; exit 3")
        fill(home / "stuffing")
        (tmp_path / "go").touch()
        log = desk.folder() / "coordinator.log"
        done = desk.run("submit", *desk.extra, "--command", "true", check=None)
        assert done.returncode in (2, 74) and "No space left" in done.stderr and "Traceback" not in done.stderr
        os.unlink(home / "stuffing")
        desk.run("wait", "--timeout", "120", job, check=3)
        assert desk.log(0, job=job) == b"".join(b"%d\n" % number for number in range(1, 1001))
        assert "Traceback" not in log.read_text()
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass

"""Jobs that go back into Slurm's queue and go on from their checkpoint: on a real Slurm, by us and by Slurm itself."""

from __future__ import annotations

import signal as signals
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.slurm.handle import SlurmCluster
from tests.jobs.desk import eventually
from tests.slurm.desk import Desk

TRAINS = """
import os, signal, sys, time
heard = []
signal.signal(getattr(signal, sys.argv[2]), lambda *_: heard.append(1))
rank, restart = os.environ["RANK"], os.environ["LAUNCHER_RESTART_COUNT"]
checkpoint = os.environ["PAI_OUTPUT_CHECKPOINTS"] + "rank-" + rank
if os.path.exists(checkpoint):
    print("restart", restart, "goes on from", open(checkpoint).read(), flush=True)
    open(os.environ["PAI_OUTPUT_MODEL"] + "model-" + rank, "w").write("done")
    sys.exit()
print("restart", restart, "begins", flush=True)
open(sys.argv[1] + rank, "w").close()
while not heard:
    time.sleep(0.02)
time.sleep(0.3 * int(rank))
with open(checkpoint, "w") as file:
    file.write("step 7")
sys.exit(int(sys.argv[3]))
"""
PATIENCE = 180.0
"""a requeued job waits some seconds for the scheduler, and for what it left on its nodes"""
LOW = "backend: slurm\nslurm: {partition: low, requeue: true}\n"


@pytest.fixture
def desk(slurm: SlurmCluster) -> Desk:
    return Desk(slurm)


def begin(desk: Desk, *words: str, on: str = "SIGUSR2", code: int = 0, nodes: int = 2) -> tuple[str, str]:
    """A training whose processes are ready; the job's id and Slurm's number."""
    desk.file("train.py", TRAINS)
    ready = desk.slurm.shared / "ready-"
    job = desk.queued("--nodes", str(nodes), *words, "--", "python3", f"{desk.slurm.shared}/train.py", str(ready), on, str(code))
    eventually(lambda: all(Path(f"{ready}{rank}").exists() for rank in range(nodes)), "the processes are ready", PATIENCE)
    return job, str(desk.status(job)["slurm_job_id"])


def requeued(desk: Desk, job: str) -> list[dict[str, Any]]:
    return [event for event in desk.heard(job) if event["type"] == "requeued"]


def test_a_job_that_made_way_comes_back_and_goes_on(desk: Desk) -> None:
    """We ask for it; the same folder, the logs of both starts apart, the checkpoint found, the restart counted."""
    job, number = begin(desk, "--requeue", code=3)
    desk.slurm.run(desk.slurm.login, ["scancel", "--batch", "--signal=USR2", number])
    desk.run("wait", job)
    told = desk.status(job)
    assert (told["status"], told["attempt"], told["slurm_job_id"]) == ("Succeed", 1, number)
    (event,) = requeued(desk, job)
    assert (event["requeue"], event["by"], event["reason_code"]) == (1, "launcher", "Interrupted")
    logs = desk.jobs / job / "logs"
    assert (logs / "node-0/stdout.log").read_text() == "restart 0 begins\n"
    assert (logs / "requeue-1/node-0/stdout.log").read_text() == "restart 1 goes on from step 7\n"
    assert sorted(desk.run("logs", job, "--node", "1").stdout.splitlines()) == [
        "[1] restart 0 begins",
        "[1] restart 1 goes on from step 7",
    ]
    assert sorted(path.name for path in (desk.jobs / job / "output/model").iterdir()) == ["model-0", "model-1"]


def test_a_job_that_was_requeued_often_enough_ends(desk: Desk) -> None:
    """With the reason, although its command exited with 0; without --requeue it is the command's success."""
    job, number = begin(desk, "--requeue", "--max-requeues", "0", nodes=1)
    desk.slurm.run(desk.slurm.login, ["scancel", "--batch", "--signal=USR2", number])
    desk.run("wait", job, check=69)
    told = desk.status(job)
    assert (told["status"], told["reason_code"]) == ("Failed", "Interrupted")
    assert "it was requeued 0 times already (max_requeues)" in told["reason_message"]


def test_a_preempted_job_saves_within_the_grace_and_comes_back(desk: Desk) -> None:
    """TERM plays the part of the warning; Slurm would not requeue a job that ends within the grace, so we do."""
    desk.file("low.yaml", LOW)
    job, _ = begin(desk, "--cluster", "low.yaml", on="SIGTERM")
    desk.slurm.run(desk.slurm.login, ["srun", "-w", "m1,m2", "--exclusive", "true"])
    desk.run("wait", job)
    (event,) = requeued(desk, job)
    assert (event["by"], event["reason_code"]) == ("launcher", "Preempted")
    assert [one["signal"] for one in desk.events(job) if one["type"] == "warning"] == ["SIGTERM"]
    assert "restart 1 goes on from step 7" in desk.run("logs", job).stdout


def test_a_preempted_job_that_is_not_to_be_requeued_says_so(desk: Desk) -> None:
    """Slurm takes the nodes, and the job has ended as Preempted."""
    desk.file("low.yaml", LOW.replace("true", "false"))
    job, _ = begin(desk, "--cluster", "low.yaml", on="SIGTERM", nodes=1)
    desk.slurm.run(desk.slurm.login, ["srun", "-w", "m1,m2,n-three", "--exclusive", "true"])
    desk.run("wait", job, check=143)
    told = desk.status(job)
    assert (told["status"], told["reason_code"]) == ("Failed", "Preempted")
    assert "a job of higher priority took the nodes" in told["reason_message"] and told["model_data"]


def test_scontrol_requeue_brings_a_job_back(desk: Desk) -> None:
    """By Slurm; training hears TERM, and its checkpoint is found when the job is let out of the queue again."""
    job, number = begin(desk, "--requeue", on="SIGTERM", nodes=1)
    held_again(desk, job, number)
    desk.slurm.run(desk.slurm.login, ["scontrol", "release", number])
    desk.run("wait", job)
    assert "restart 1 goes on from step 7" in desk.run("logs", job).stdout


def test_a_job_that_waits_again_can_be_cancelled(desk: Desk) -> None:
    """Out of the queue, after it ran once."""
    job, number = begin(desk, "--requeue", on="SIGTERM")
    held_again(desk, job, number)
    desk.run("cancel", job)
    assert desk.status(job)["status"] == "Terminated"
    assert not desk.slurm.run(desk.slurm.login, ["squeue", "--noheader", "--jobs", number], check=False).stdout.strip()


def held_again(desk: Desk, job: str, number: str) -> None:
    """Back into the queue by Slurm, and held there: nothing else decides how long it stays."""
    desk.slurm.run(desk.slurm.login, ["scontrol", "requeuehold", number])
    eventually(lambda: requeued(desk, job), "the coordinator has heard of it", PATIENCE)
    (event,) = requeued(desk, job)
    assert (event["by"], event["reason_code"]) == ("slurm", "Requeued")
    eventually(lambda: desk.status(job)["status"] == "Submitted", "its nodes are given back", PATIENCE)


def test_a_killed_node_is_left_behind(desk: Desk) -> None:
    """It held the batch step, so that nobody could say a word: Slurm starts the job anew on others, and status is right."""
    job, number = begin(desk, "--requeue", nodes=1)
    host = desk.status(job)["nodes"][0]["host"]
    desk.slurm.kill(host)
    desk.slurm.report_down(str(host))
    eventually(lambda: requeued(desk, job), "the next start tells of it", PATIENCE)
    eventually(lambda: [event["type"] for event in desk.heard(job)].count("following") == 2, "it runs again", PATIENCE)
    told = desk.status(job)
    assert told["status"] == "Running" and told["nodes"][0]["host"] != host
    desk.slurm.run(desk.slurm.login, ["scancel", "--batch", f"--signal={signals.SIGUSR1.name[3:]}", number])
    desk.run("wait", job, check=130)

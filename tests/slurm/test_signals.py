"""The warning before an allocation's end, and how Slurm ends a job: on a real Slurm, from its signal to the training process."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.cluster.slurm.handle import SlurmCluster
from tests.jobs.desk import eventually
from tests.slurm.desk import Desk

SAVES = """
import os, signal, sys, time
heard = []
signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
ready = sys.argv[1] + os.environ["RANK"]
open(ready, "w").close()
while not heard:
    time.sleep(0.02)
with open(os.environ["PAI_OUTPUT_MODEL"] + "saved-by-" + os.environ["RANK"], "w") as file:
    file.write("checkpoint")
"""
STUBBORN = "import sys, os, time; open(sys.argv[1] + os.environ['RANK'], 'w').close(); time.sleep(300)"
LIMITED = "backend: slurm\nslurm: {sbatch: {signal: B:USR1@50}, time: 60, mem: 10}\n"


@pytest.fixture
def desk(slurm: SlurmCluster) -> Desk:
    return Desk(slurm)


def begin(desk: Desk, text: str, *words: str, nodes: int = 2) -> tuple[str, str]:
    """A job whose processes are ready; its id and Slurm's number."""
    desk.file("train.py", text)
    command = ("--", "python3", str(desk.slurm.shared / "train.py"), str(desk.slurm.shared / "ready-"))
    job = desk.queued("--nodes", str(nodes), *words, *command)
    ready = [desk.slurm.shared / f"ready-{rank}" for rank in range(nodes)]
    eventually(lambda: all(path.exists() for path in ready), "the processes are ready")
    return job, str(desk.status(job)["slurm_job_id"])


def of_agents(desk: Desk, job: str, kind: str) -> list[dict[str, Any]]:
    return [one["event"] for one in desk.heard(job) if one["type"] == "agent" and one["event"]["type"] == kind]


def signal(desk: Desk, number: str, name: str = "USR2") -> None:
    desk.slurm.run(desk.slurm.login, ["scancel", "--batch", f"--signal={name}", number])


def limit(desk: Desk, number: str, end: str) -> None:
    """Move the end of a job's time limit, as an administrator may."""
    desk.slurm.run(desk.slurm.login, ["scontrol", "update", f"jobid={number}", f"endtime={end}"], user="root")


def test_a_warning_reaches_the_training_on_every_node(desk: Desk) -> None:
    """It saves and ends; the job ends as its command did."""
    job, number = begin(desk, SAVES)
    signal(desk, number)
    desk.run("wait", job)
    told = desk.status(job)
    assert told["status"] == "Succeed"
    assert sorted(path.name for path in (desk.jobs / job / "output/model").iterdir()) == ["saved-by-0", "saved-by-1"]
    (warning,) = [event for event in desk.events(job) if event["type"] == "warning"]
    assert (warning["signal"], warning["reason_code"], warning["message"]) == ("SIGUSR2", None, "somebody sent it a signal")
    assert [len(one["told"]) for one in of_agents(desk, job, "warned")] == [1, 1]


def test_a_training_that_does_not_catch_it_is_spared_and_named(desk: Desk) -> None:
    """And a second one, after scancel by hand: Terminated, with the model path of what was there."""
    job, number = begin(desk, STUBBORN)
    signal(desk, number)
    eventually(lambda: len(of_agents(desk, job, "warned")) == 2, "both nodes were told")
    shown = desk.run("events", job).stdout
    assert "node 0 (m1): SIGUSR2 was not delivered: python3 does not catch it" in shown
    assert desk.status(job)["status"] == "Running"
    desk.slurm.run(desk.slurm.login, ["scancel", number])
    desk.run("wait", job, check=130)
    told = desk.status(job)
    assert (told["status"], told["reason_code"]) == ("Terminated", "Cancelled")
    assert told["model_data"] == str(desk.jobs / job / "output/model")


def test_a_time_limit_warns_with_the_signal_that_was_chosen_and_ends_the_job(desk: Desk) -> None:
    """Slurm itself sends it; who goes on nevertheless ends as Timeout."""
    desk.file("limited.yaml", LIMITED)
    job, number = begin(desk, SAVES.replace("USR2", "USR1").replace("while not heard", "while True"), "--cluster", "limited.yaml")
    # Slurm counts minutes; where the limit is moved to, the signal comes as it would have, within half a minute.
    limit(desk, number, "now+75")
    eventually(lambda: of_agents(desk, job, "warned"), "it was warned")
    # scontrol makes a second of it, and slurmctld takes none that is over by the time it hears of it.
    limit(desk, number, "now+10")
    desk.run("wait", job, check=143)
    told = desk.status(job)
    assert (told["status"], told["reason_code"]) == ("Failed", "Timeout")
    assert "the job's time limit was over" in told["reason_message"] and told["model_data"]
    (warning,) = [event for event in desk.events(job) if event["type"] == "warning"]
    assert (warning["signal"], warning["reason_code"]) == ("SIGUSR1", "Timeout")
    eventually(lambda: "JobState=TIMEOUT" in desk.of_slurm(number), "Slurm's job is over")


def test_the_job_of_a_salloc_ends_with_it(desk: Desk) -> None:
    """scancel of the allocation: Terminated, the model path of what was there, and exit code 130."""
    desk.file("train.py", STUBBORN)
    command = f"{desk.slurm.python} -m launcher submit -- python3 {desk.slurm.shared}/train.py {desk.slurm.shared}/ready-"
    with subprocess.Popen(
        desk.slurm.argv(desk.slurm.login, f"salloc --quiet -N2 --job-name=ours {command}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as shell:
        eventually(lambda: (desk.slurm.shared / "ready-1").exists(), "it runs")
        desk.slurm.run(desk.slurm.login, ["scancel", "--name=ours"])
        shell.communicate(timeout=300)
    eventually(desk.over, "its end is written")
    told = desk.status()
    assert (told["status"], told["reason_code"], told["exit_code"]) == ("Terminated", "Cancelled", 130), json.dumps(told)
    assert told["model_data"]


def test_a_launcher_in_the_place_of_a_batch_script_hands_the_warning_on(desk: Desk) -> None:
    """`exec launcher submit` as its last line is what `--signal=B:USR2` reaches."""
    desk.file("train.py", SAVES)
    script = f"exec {desk.slurm.python} -m launcher submit -- python3 {desk.slurm.shared}/train.py {desk.slurm.shared}/ready-"
    words = ["sbatch", "--parsable", "-N2", "--output=out.log", f"--wrap={script}"]
    number = desk.slurm.run(desk.slurm.login, words).stdout.strip()
    eventually(lambda: all((desk.slurm.shared / f"ready-{rank}").exists() for rank in (0, 1)), "it runs")
    signal(desk, number)
    eventually(desk.over, "it ends")
    assert desk.status()["status"] == "Succeed"
    saved = desk.slurm.shared / "home/jobs" / desk.status()["job_id"] / "output/model"
    assert sorted(path.name for path in saved.iterdir()) == ["saved-by-0", "saved-by-1"]


def test_with_accounting_the_ends_are_told_apart_likewise(slurm_accounting: SlurmCluster) -> None:
    """A scancel that the coordinator hears of, and one that hardly leaves it the time."""
    desk = Desk(slurm_accounting)
    job, number = begin(desk, STUBBORN, nodes=1)
    desk.slurm.run(desk.slurm.login, ["scancel", number])
    desk.run("wait", job, check=130)
    assert [desk.status(job)[key] for key in ("status", "reason_code")] == ["Terminated", "Cancelled"]
    (desk.slurm.shared / "ready-0").unlink()
    job, number = begin(desk, STUBBORN, nodes=1)
    desk.slurm.run(desk.slurm.login, ["scancel", "--full", "--signal=KILL", number])
    desk.run("wait", job, check=130)
    assert [desk.status(job)[key] for key in ("status", "reason_code")] == ["Terminated", "Cancelled"]

"""A job from the log-in machine of a real Slurm: while it waits, while it runs, after, and when Slurm or its nodes fail."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster import engine
from tests.cluster.slurm.handle import SlurmCluster
from tests.jobs.desk import eventually
from tests.slurm.desk import HELD, Desk

SLEEP = ("--", "sh", "-c", "echo begun; sleep 300")


@pytest.fixture
def desk(slurm: SlurmCluster) -> Desk:
    return Desk(slurm)


def running(desk: Desk, job: str) -> dict[str, object]:
    """Wait until the command runs; the status document."""
    kinds = eventually(lambda: {event["type"] for event in desk.heard(job)} & {"following", "end"}, "the job runs")
    assert "following" in kinds, desk.events(job)
    return desk.status(job)


def test_a_job_that_waits_runs_what_was_submitted_and_needs_nobody_here(desk: Desk) -> None:
    """Its source changes meanwhile, nothing of ours lives on the log-in machine, and logs and wait know how it went."""
    desk.file("held.yaml", HELD)
    desk.file("src/train.py", "import os; print('old', os.environ['RANK'], flush=True)")
    words = ("--cluster", "held.yaml", "--nodes", "2", "--source-dir", "src", "--", "python3", "train.py")
    shown = desk.run("submit", "--dry-run", *words).stdout.partition("sbatch script:\n")[2]
    job = desk.queued(*words)
    assert desk.slurm.leftovers(desk.slurm.login) == []
    told = desk.status(job)
    assert (told["status"], told["coordinator"], told["reason_code"], told["nodes"]) == ("Submitted", "queued", "Pending", [])
    assert told["reason_message"].startswith("the job waits in Slurm's queue: JobHeldUser (its user holds it; ")
    submitted = (desk.jobs / job / f"slurm/{told['slurm_job_id']}_submission.sh").read_text()
    assert re.sub(r"python3-\d{8}-\d{6}-\w{4}", job, shown) == submitted
    desk.file("src/train.py", "print('new')")
    waiting = subprocess.Popen(desk.words("wait", job), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    desk.slurm.run(desk.slurm.login, ["scontrol", "release", str(told["slurm_job_id"])])
    assert waiting.wait(300) == 0
    assert sorted(desk.run("logs", job).stdout.splitlines()) == ["[0] old 0", "[1] old 1"]
    done = desk.status(job)
    assert (done["status"], [node["host"] for node in done["nodes"]]) == ("Succeed", ["m1", "m2"])
    eventually(lambda: "JobState=COMPLETED" in desk.of_slurm(str(told["slurm_job_id"])), "Slurm's job is over")


def test_an_attached_submit_ends_as_the_command_does_and_so_does_slurms_own_job(desk: Desk) -> None:
    """Exit code, failure and log; `dependency: afterok` would mean what it says."""
    done = desk.run(
        "submit", "--backend", "slurm", "--nodes", "2", "--", "sh", "-c", "[ $RANK = 0 ] || exit 3; sleep 600", check=3
    )
    assert "in Slurm's queue as job" in done.stderr and "exited with 3" in done.stderr
    told = desk.status()
    assert (told["status"], told["reason_code"], told["failure"]["host"]) == ("Failed", "CommandFailed", "m2")
    eventually(lambda: "JobState=FAILED" in desk.of_slurm(told["slurm_job_id"]), "Slurm's job is over")
    assert "ExitCode=3:0" in desk.of_slurm(told["slurm_job_id"])


def test_a_refusal_has_sbatchs_own_words_and_leaves_nothing(desk: Desk) -> None:
    """The job is CreateFailed; no variable of the log-in shell changed what was asked for."""
    desk.file("bad.yaml", "slurm: {partition: gpuu}\nbackend: slurm\n")
    done = desk.run("submit", "--cluster", "bad.yaml", "--", "true", check=2)
    assert "sbatch refused the job" in done.stderr and done.stderr.count("invalid partition specified: gpuu") == 1, done.stderr
    told = desk.status()
    assert (told["status"], told["reason_code"], told["exit_code"]) == ("CreateFailed", "SubmitFailed", 2)
    folder = Path(told["folder"])
    assert not (folder / "slurm").exists() and not (folder / "env.json").exists()
    assert desk.slurm.run(desk.slurm.login, ["squeue", "--noheader"]).stdout == ""
    desk.file("flag.yaml", "slurm: {sbatch: {no-such-option: 1}}\nbackend: slurm\n")
    assert "no-such-option" in desk.run("submit", "--cluster", "flag.yaml", "--", "true", check=2).stderr


def test_a_job_is_taken_out_of_the_queue(desk: Desk) -> None:
    """Its folder gets an end although no coordinator ever ran; scancel by hand is told apart from nothing."""
    desk.file("held.yaml", HELD)
    job = desk.queued("--cluster", "held.yaml", *SLEEP)
    assert desk.run("cancel", job).stdout == f"{job}: Terminated\n"
    told = desk.status(job)
    assert (told["status"], told["reason_code"], told["exit_code"]) == ("Terminated", "Cancelled", 130)
    assert [event["type"] for event in desk.events(job)] == ["submitted", "end"]
    assert "JobState=CANCELLED" in desk.of_slurm(told["slurm_job_id"])
    other = desk.queued("--cluster", "held.yaml", *SLEEP)
    desk.slurm.run(desk.slurm.login, ["scancel", desk.status(other)["slurm_job_id"]])
    assert [desk.status(other)[key] for key in ("status", "coordinator")] == ["Terminated", "lost"]
    assert [event["type"] for event in desk.events(other)] == ["submitted"], "status only reads"
    desk.run("wait", other, check=130)
    assert [event["type"] for event in desk.events(other)] == ["submitted", "end"]


def test_ctrl_c_of_an_attached_submit_stops_a_job_that_waits(desk: Desk) -> None:
    """As it does one that runs."""
    desk.file("held.yaml", HELD)
    said, pid = desk.slurm.shared / "said", desk.slurm.shared / "pid"
    script = f"echo $$ >pid; exec {desk.slurm.python} -m launcher submit --cluster held.yaml -- true 2>said"
    submit = subprocess.Popen(desk.slurm.argv(desk.slurm.login, script), stdout=subprocess.DEVNULL)
    eventually(lambda: said.exists() and "JobHeldUser" in said.read_text(), "submit says why the job waits")
    desk.slurm.run(desk.slurm.login, ["kill", "-INT", pid.read_text().strip()])
    assert submit.wait(300) == 130
    assert "stopping the job" in said.read_text()
    assert desk.status()["status"] == "Terminated"
    assert desk.slurm.run(desk.slurm.login, ["squeue", "--noheader"]).stdout == ""


def test_a_cancel_is_heard_on_another_machine_within_a_second(desk: Desk) -> None:
    """The command is stopped everywhere, and nothing of it is left."""
    job = desk.queued("--nodes", "2", *SLEEP)
    running(desk, job)
    assert desk.run("cancel", job).stdout == f"{job}: Terminated\n"
    heard = next(event["time"] for event in desk.events(job) if event["type"] == "cancel")
    assert heard - (desk.jobs / job / "cancel").stat().st_mtime < 8.0
    assert desk.slurm.wait_clean() == {}


def test_a_job_that_is_over_before_slurm_is_told_was_cancelled(slurm: SlurmCluster) -> None:
    """The batch step finds the wish in the folder, too, and may be faster than scancel."""
    late = slurm.shared / "late/scancel"
    late.parent.mkdir()
    real = slurm.run(slurm.login, "command -v scancel").stdout.strip()
    waits = "until scontrol show job $SLOW | grep -q JobState=FAILED; do sleep 0.1; done"
    late.write_text(f'#!/bin/sh\n{waits}\nexec {real} "$@"\n')
    late.chmod(0o755)
    job = Desk(slurm).queued("--nodes", "2", *SLEEP)
    number = str(running(Desk(slurm), job)["slurm_job_id"])
    path = slurm.run(slurm.login, "echo $PATH").stdout.strip()
    done = Desk(slurm, PATH=f"{late.parent}:{path}", SLOW=number).run("cancel", job)
    assert (done.stdout, done.stderr) == (f"{job}: Terminated\n", "")


def test_a_signal_alone_is_a_wish_too(desk: Desk) -> None:
    """What a network file system does not show yet is heard all the same."""
    job = desk.queued(*SLEEP)
    number = str(running(desk, job)["slurm_job_id"])
    desk.slurm.run(desk.slurm.login, ["scancel", "--batch", "--signal=INT", number])
    desk.run("wait", job, check=130)
    assert [event["level"] for event in desk.events(job) if event["type"] == "cancel"] == [2]


def test_a_batch_step_that_was_killed_is_told_from_slurms_answer(desk: Desk) -> None:
    """status shows it, wait writes it; and a number that is another job's now is no answer."""
    job = desk.queued(*SLEEP)
    running(desk, job)
    record = json.loads((desk.jobs / job / "coordinator.json").read_text())
    desk.slurm.run(record["host"], ["kill", "-9", str(record["pid"])])
    told = eventually(lambda: (one := desk.status(job))["status"] == "Failed" and one, "Slurm says that it is over")
    assert (told["coordinator"], told["reason_code"], told["exit_code"]) == ("lost", "BatchStepFailed", 70)
    kept = desk.jobs / job / "slurm.json"
    other = desk.queued("--", "true")
    desk.run("wait", other)
    text = kept.read_text()
    kept.write_text(text.replace(told["slurm_job_id"], desk.status(other)["slurm_job_id"]))
    # Until its heart has stopped for long enough, it may be our question that is wrong.
    desk.file(f"home/jobs/{job}/coordinator.json", json.dumps({**record, "heartbeat": time.time() - 60}))
    lost = desk.status(job)
    assert (lost["status"], lost["reason_code"]) == ("Failed", "Lost")
    kept.write_text(kept.read_text().replace(f"fake-{desk.slurm.layout.name}", "elsewhere"))
    elsewhere = desk.status(job)
    assert (elsewhere["status"], elsewhere["coordinator"]) == ("Running", "unknown")
    assert "the job to elsewhere" in elsewhere["reason_message"]
    kept.write_text(text)
    desk.run("wait", job, check=70)
    assert desk.events(job)[-1]["reason_code"] == "BatchStepFailed"


def test_while_slurmctld_is_away_nothing_is_known_and_nothing_is_stopped(desk: Desk) -> None:
    """The job goes on and ends as it would have, its last status is shown meanwhile, and sbatch's failure is a sentence.

    A batch step that lives finds the wish to cancel in the folder, and whoever waits finds the end there, so that nobody needs
    Slurm for either.
    """
    job, followed = (
        desk.queued("--", "sh", "-c", f"while [ ! -e {desk.slurm.shared}/{go} ]; do sleep 0.1; done") for go in ("go", "end")
    )
    cancelled = desk.queued(*SLEEP)
    for one in (job, followed, cancelled):
        running(desk, one)
    desk.slurm.stop_daemon(desk.slurm.login)
    told = desk.status(job)
    assert (told["status"], told["coordinator"]) == ("Running", "unknown")
    assert told["reason_message"].startswith("Slurm does not answer")
    assert "slurmctld did not answer sbatch" in desk.run("submit", "--backend", "slurm", "--", "true", check=69).stderr
    desk.run("cancel", cancelled)
    assert desk.status(cancelled)["status"] == "Terminated"
    desk.file("end", "")
    desk.run("wait", followed)
    desk.slurm.start_daemon(desk.slurm.login)
    assert desk.status(job)["coordinator"] == "alive"
    desk.file("go", "")
    desk.run("wait", job)


def test_a_home_that_the_nodes_do_not_share_is_a_sentence(slurm: SlurmCluster) -> None:
    """Where the batch step cannot write, Slurm's answer tells; where another node does not see the folder, that node does."""
    apart = Desk(slurm, LAUNCHER_HOME="/home/train/launcher")
    done = apart.run("submit", "--backend", "slurm", "--", "true", check=69)
    assert "left no trace in the job folder" in done.stderr and "set LAUNCHER_HOME" in done.stderr
    slurm.run(slurm.login, ["rm", "-r", "/home/train/launcher"])
    unseen = slurm.shared / "unseen"
    unseen.mkdir()
    unseen.chmod(0o777)
    container = slurm.argv("m2", "true")[-4]
    pid = engine.docker("inspect", "--format", "{{.State.Pid}}", container).strip()
    mount = ["nsenter", "--target", pid, "--mount"]
    subprocess.run([*mount, "mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(unseen)], check=True)
    try:
        half = Desk(slurm, LAUNCHER_HOME=str(unseen / "home"))
        done = half.run("submit", "--backend", "slurm", "--nodes", "2", "--", "true", check=69)
        assert "m2: does not see the job folder" in done.stderr
        assert half.status()["reason_code"] == "FolderNotShared"
    finally:
        subprocess.run([*mount, "umount", str(unseen)], check=True)


def test_nodes_may_work_on_disks_of_their_own(desk: Desk) -> None:
    """The code is brought to each, the model of each is fetched, and gc knows what it cannot reach."""
    desk.file("local.yaml", "slurm: {workdir: ~/work}\nbackend: slurm\n")
    desk.file("src/run.sh", "cp run.sh $PAI_OUTPUT_MODEL/$RANK; pwd")
    done = desk.run("submit", "--cluster", "local.yaml", "--nodes", "2", "--source-dir", "src", "--", "sh", "run.sh")
    assert sorted(path.name for path in Path(done.stdout.splitlines()[-1]).iterdir()) == ["0", "1"]
    assert "/home/train/work/node/jobs/" in done.stdout
    desk.run("submit", "--cluster", "local.yaml", "--name", "broken", "--", "false", check=1)
    assert "in reach of a Slurm job alone" in desk.run("gc", "--yes").stderr


def test_gc_leaves_a_job_that_waits_alone(desk: Desk) -> None:
    """And removes what an ended one left where this machine sees it."""
    desk.file("held.yaml", HELD)
    desk.file("src/x", "x")
    waiting = desk.queued("--cluster", "held.yaml", "--source-dir", "src", *SLEEP)
    desk.run("submit", "--backend", "slurm", "--source-dir", "src", "--name", "over", "--", "false", check=1)
    over = desk.status()["job_id"]
    assert (desk.slurm.shared / "home/node/jobs" / over).is_dir()
    desk.run("gc", "--yes")
    assert not (desk.slurm.shared / "home/node/jobs" / over).exists()
    assert not (desk.jobs / over / "code").exists() and (desk.jobs / waiting / "code").is_dir()
    assert [job["status"] for job in json.loads(desk.run("list", "-o", "json").stdout)["jobs"]] == ["Submitted", "Failed"]

"""`launcher submit` in an allocation of a real Slurm: salloc, a batch script, a step; and how Slurm ends such a job."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.cluster.slurm.handle import SlurmCluster
from tests.slurm.desk import TRAINED

TRAINER = """
import os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
print("up", flush=True)
end = time.monotonic() + 300
while not told and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(0.5)
with open(os.environ["PAI_OUTPUT_MODEL"] + "model-" + os.environ["RANK"], "w") as file:
    file.write(str(len(told)))
print("saved", flush=True)
"""
"""saves its model when it is told to end"""
UP = "$(grep -s -c '] up$' {})"
"""of a file: how many nodes run.  The whole line: a job's id may have an `up` in it"""


class Allocation:
    """Commands on the log-in machine, in allocations."""

    def __init__(self, slurm: SlurmCluster) -> None:
        self.slurm = slurm
        self.launcher = f"{slurm.python} -m launcher"
        (slurm.shared / "trainer.py").write_text(TRAINER)

    def salloc(self, options: str, script: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """A script in salloc's shell; `L` is the launcher."""
        text = f'L="{self.launcher}"; salloc --quiet {options} bash -c "$SCRIPT"'
        done = self.slurm.run(self.slurm.login, text, env={"SCRIPT": f'L="{self.launcher}"\n{script}'}, check=False)
        assert check is None or done.returncode == check, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def batch(self, options: str, script: str) -> str:
        """A batch script whose output goes to batch.out; its number."""
        (self.slurm.shared / "script").write_text(f'#!/bin/bash\nL="{self.launcher}"\n{script}\n')
        return self.slurm.run(self.slurm.login, f"sbatch --parsable {options} -o batch.out script").stdout.strip()

    def until(self, condition: str, seconds: int = 200) -> None:
        """Wait for a shell condition on the log-in machine."""
        words = ["timeout", str(seconds), "bash", "-c", f"until {condition}; do sleep 0.1; done"]
        if self.slurm.run(self.slurm.login, words, check=False).returncode != 0:
            shown = "squeue; squeue --steps; tail -n 40 batch.out home/jobs/*/events.jsonl home/jobs/*/coordinator.log"
            pytest.fail(f"not within {seconds} s: {condition}\n{self.slurm.run(self.slurm.login, shown, check=False).stdout}")

    def over(self, number: str) -> None:
        """Wait until Slurm has said that nothing of a job runs any more."""
        self.until(f'left=$(squeue -h -j {number}) && [ -z "$left" ]')

    def status(self) -> dict[str, Any]:
        """The document of the latest job."""
        told = self.slurm.run(self.slurm.login, f"{self.launcher} status latest -o json").stdout
        found: dict[str, Any] = json.loads(told)
        return found

    def models(self) -> dict[str, str]:
        """{name: content} of what was collected as the model."""
        from pathlib import Path

        return {path.name: path.read_text() for path in sorted(Path(self.status()["model_data"]).iterdir())}


@pytest.fixture
def here(slurm: SlurmCluster) -> Allocation:
    """The log-in machine, with nothing submitted yet."""
    return Allocation(slurm)


def test_unequal_nodes_are_used_whole_by_one_step(here: Allocation) -> None:
    """Order, ranks, GPUs and CPUs as the allocation has them; the job's exit code is salloc's."""
    together = f"touch {here.slurm.shared}/done-$RANK; until [ $(ls {here.slurm.shared}/done-* | wc -l) = 3 ]; do sleep 0.1; done"
    words = "$RANK $WORLD_SIZE $SLURMD_NODENAME $NPROC_PER_NODE $SLURM_GPUS_ON_NODE $(nproc) $SLURM_STEP_ID"
    script = f"$L submit --grace 2s --command 'echo {words}; squeue -h -s -o %i | wc -l; {together}; exit $((RANK == 2 ? 3 : 0))'"
    done = here.salloc("-N3 --exclusive", script, check=3)
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines() if line.startswith("[")]
    assert sorted(line for line in lines if " " in line) == ["0 3 m1 2 2 2 0", "1 3 m2 2 2 2 0", "2 3 n-three 1 1 1 0"]
    # A shell that is stopped while it sleeps says so.
    assert [line for line in lines if line.isdigit()] == ["1", "1", "1"]
    told = here.status()
    assert (told["backend"], told["status"], told["exit_code"]) == ("slurm", "Failed", 3)
    assert told["failure"]["host"] == "n-three"
    assert "ends with it" in done.stderr
    plan = json.loads(here.slurm.run(here.slurm.login, f"cat {told['folder']}/plan.json").stdout)
    assert plan["allocation"] and plan["origins"]["nodes"] == f"the Slurm allocation {plan['allocation']}"


def test_fewer_nodes_are_the_first_ones_and_more_are_refused(here: Allocation) -> None:
    """--hosts picks within the allocation; its first one is node 0."""
    script = """
$L submit --grace 2s --nodes 2 --command 'echo $RANK $SLURMD_NODENAME $WORLD_SIZE'
$L submit --grace 2s --hosts n-three,m2 --command 'echo $RANK $SLURMD_NODENAME $WORLD_SIZE'
$L submit --nodes 4 --command true; echo exit $?
$L submit --hosts m7 --command true; echo exit $?
"""
    done = here.salloc("-N3 --exclusive", script)
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines() if line.startswith("[")]
    assert sorted(lines) == ["0 m1 2", "0 n-three 2", "1 m2 2", "1 m2 2"]
    assert done.stdout.count("exit 2") == 2
    assert "--nodes 4, but the Slurm allocation" in done.stderr and "m7: no host of that name" in done.stderr


def test_torchrun_starts_a_script_on_two_nodes(here: Allocation) -> None:
    """From the source folder to the model, over the address that Slurm's nodes have."""
    source = here.slurm.shared / "src"
    source.mkdir()
    (source / "train.py").write_text(TRAINED)
    done = here.salloc("-N2 --exclusive", "$L submit --nproc-per-node 1 --source-dir src -- train.py --total_epochs 2")
    assert {"[0:0] 0 of 2 --total_epochs 2", "[1:1] 1 of 2 --total_epochs 2"} <= set(done.stdout.splitlines())
    assert done.stdout.splitlines()[-1].endswith("output/model") and here.models() == {"rank-0": "", "rank-1": ""}
    told = here.status()
    assert (told["status"], told["master_addr"]) == ("Succeed", here.slurm.address("m1"))


def test_a_step_in_the_way_is_named_within_seconds(here: Allocation) -> None:
    """Without a time limit srun would wait for it as long as it runs."""
    begun = "until squeue -h -s -o %j | grep -q holder; do sleep 0.1; done"
    script = f"srun -N2 -J holder sleep 600 & {begun}; $L submit --grace 2s --command true; code=$?; kill %1; exit $code"
    done = here.salloc("-N2 --exclusive", script, check=69)
    assert ".0 (holder, on m[1-2]) holds them" in done.stderr
    assert here.status()["reason_code"] == "NodesUnreachable"


def test_in_a_step_of_one_task_the_job_shares_its_resources(here: Allocation) -> None:
    """A shell that srun started may submit, too; where several tasks do, each is told that it is one of them."""
    script = """
srun -N1 -n1 --gres=gpu:1 $L submit --grace 2s --command 'echo got $SLURM_GPUS_ON_NODE'
srun -N1 -n2 $L submit --command true
"""
    done = here.salloc("-N1 -w m1 --exclusive", script, check=2)
    assert "got 2" in done.stdout
    assert "srun has started this 2 times" in done.stderr


@pytest.mark.parametrize("salloc", [True, False], ids=["salloc", "sbatch"])
def test_scancel_ends_a_job_with_the_model_of_what_was_there(here: Allocation, salloc: bool) -> None:
    """The command gets its TERM once, saves, and what it saved comes here before Slurm kills everything."""
    submit = f"$L submit --grace 5s --command 'python3 {here.slurm.shared}/trainer.py; true'"
    if salloc:
        cancel = f"(until [ {UP.format('out')} = 3 ]; do sleep 0.1; done; scancel $SLURM_JOB_ID) & "
        here.salloc("-N3 --exclusive", f"touch out; {cancel} {submit} > out", check=None)
    else:
        number = here.batch("-N3 --exclusive", submit)
        here.until(f'[ "{UP.format("batch.out")}" = 3 ]')
        here.slurm.run(here.slurm.login, ["scancel", number])
        here.over(number)
    told = here.status()
    assert (told["status"], told["reason_code"], told["exit_code"]) == ("Terminated", "Cancelled", 130)
    assert here.models() == {"model-0": "1", "model-1": "1", "model-2": "1"}


SLOW = """#!/bin/sh
case "$*" in *"show job"*) [ ! -e {shared}/ending ] || grep -q unsure {shared}/home/jobs/*/events.jsonl || exec sleep 600 ;; esac
exec {scontrol} "$@"
"""
"""a scontrol whose answers come late, once the job is being ended"""


def test_a_reason_that_slurm_tells_late_is_the_jobs_all_the_same(here: Allocation) -> None:
    """What stops need not wait for it; that it was the time limit, and nobody's scancel, is what the end says."""
    scontrol = here.slurm.run(here.slurm.login, "command -v scontrol").stdout.strip()
    late = here.slurm.shared / "late/scontrol"
    late.parent.mkdir()
    late.write_text(SLOW.format(shared=here.slurm.shared, scontrol=scontrol))
    late.chmod(0o755)
    submit = f"$L submit --grace 5s --command 'python3 {here.slurm.shared}/trainer.py'"
    number = here.batch("-N2 -t 60", f"export PATH={late.parent}:$PATH; {submit}")
    here.until(f'[ "{UP.format("batch.out")}" = 2 ]')
    (here.slurm.shared / "ending").touch()
    here.slurm.run(here.slurm.login, ["scontrol", "update", f"jobid={number}", "endtime=now+10"], user="root")
    here.over(number)
    told = here.status()
    assert (told["status"], told["reason_code"], told["exit_code"]) == ("Failed", "Timeout", 143)
    assert set(here.models()) == {"model-0", "model-1"}


@pytest.mark.parametrize("seconds", [0.0, 0.3, 0.8, 1.3])
def test_scancel_is_an_end_at_every_phase(here: Allocation, seconds: float) -> None:
    """However early it comes, the folder says how the job ended."""
    number = here.batch("-N3 --exclusive", "$L submit --grace 1s --command 'sleep 600'")
    here.until("grep -s -q ^job batch.out")
    here.slurm.run(here.slurm.login, f"sleep {seconds}; scancel {number}")
    here.over(number)
    assert (here.status()["status"], here.status()["reason_code"]) == ("Terminated", "Cancelled")


def test_a_batch_script_does_not_detach(here: Allocation) -> None:
    """The script would run on to its end, and the job with it."""
    here.over(here.batch("-N1", "$L submit -d --command true; echo exit $?"))
    told = (here.slurm.shared / "batch.out").read_text()
    assert "-d in a batch script" in told and "exit 2" in told


def test_with_its_coordinator_everything_of_a_job_ends(here: Allocation) -> None:
    """The step is a leash; the next coordinator tells what became of the job, in a new step."""
    find = "import glob,json; print(json.load(open(glob.glob('home/jobs/*/coordinator.json')[0]))['pid'])"
    kill = f"(until [ {UP.format('out')} = 3 ]; do sleep 0.1; done; kill -9 $({here.slurm.python} -c \"{find}\")) &"
    script = f"touch out; {kill} $L submit --grace 2s --command 'echo up; setsid env -i sleep 300 & sleep 301' > out"
    done = here.salloc("-N3 --exclusive", script, check=69)
    assert "a new one goes on" in done.stderr
    told = here.status()
    assert (told["status"], told["reason_code"]) == ("Failed", "AgentLost")


def test_the_grace_that_slurm_does_not_leave_is_told(here: Allocation) -> None:
    """KillWait is read from Slurm."""
    done = here.salloc("-N1", "$L submit --grace 60s --command true; $L submit --grace 5s --command true")
    assert done.stderr.count("kills everything 30 s after TERM (KillWait): the grace will be 26 s then, not 60 s") == 1


def test_flags_and_files_win_over_the_allocation(here: Allocation) -> None:
    """--backend local simulates; a cluster file of Slurm's agrees with the allocation and brings its defaults."""
    (here.slurm.shared / "lab.yaml").write_text("backend: slurm\ndefaults: {env: {SITE: lab}}\nslurm: {partition: normal}\n")
    script = """
$L submit --backend local --nodes 2 --command 'echo local $RANK $HOSTNAME'
$L submit --cluster lab.yaml --grace 2s --command 'echo slurm $RANK $SITE'
"""
    done = here.salloc("-N1 -w n-three", script)
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines() if line.startswith("[")]
    assert sorted(lines)[-1] == "slurm 0 lab" and len(lines) == 3

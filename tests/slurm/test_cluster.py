"""The fake Slurm clusters keep their promises: what other tests conclude from them is only worth as much."""

from __future__ import annotations

import time

import pytest

from tests.cluster.slurm.handle import SlurmCluster

REQUEUE_SECONDS = 180
"""slurmctld holds a requeued job back for 10 s, and looks at what preempts it every 30 s"""


def lines(slurm: SlurmCluster, where: str, command: str) -> list[str]:
    """Sorted stdout lines of a bash script run as train."""
    return sorted(slurm.run(where, command).stdout.splitlines())


def test_every_node_answers_srun_by_its_host_name(slurm: SlurmCluster) -> None:
    """One of the nodes has another name in Slurm than on its machine, and Slurm knows it by that alone."""
    assert lines(slurm, "login", "srun -N3 sh -c 'echo $SLURMD_NODENAME $(hostname) $(id -un)'") == [
        "m1 m1 train",
        "m2 m2 train",
        "n-three m3 train",
    ]
    refused = slurm.run("login", ["srun", "-w", "m3", "true"], check=False)
    assert "Invalid node name" in refused.stderr


def test_nodes_have_unequal_gpus_and_cpus(slurm: SlurmCluster) -> None:
    """A job that holds all nodes sees two of each on m1 and m2, one on the third, and is bound to as many CPUs."""
    step = "srun -N3 -n3 --ntasks-per-node=1 --mem=0 sh -c 'echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $(nproc)'"
    assert lines(slurm, "login", f"salloc -N3 --exclusive --gpus=5 {step}") == ["m1 2 2", "m2 2 2", "n-three 1 1"]
    assert lines(slurm, "login", "sinfo -h -p normal -N -o '%N %G'") == ["m1 gpu:a100:2", "m2 gpu:a100:2", "n-three gpu:1"]


def test_a_task_is_bound_to_what_it_asked_for(slurm: SlurmCluster) -> None:
    """Without asking for more a task has one CPU of a node with two: faults of binding show."""
    assert lines(slurm, "login", "srun -w m1 nproc") == ["1"]


def test_the_launcher_runs_on_a_node(slurm: SlurmCluster) -> None:
    """User train can run the launcher of this checkout with the interpreter of these tests, also as a task."""
    shown = slurm.run("n-three", [slurm.python, "-m", "launcher", "--help"])
    assert shown.stdout.startswith("Usage: launcher")
    assert slurm.run("login", ["srun", "-w", "m2", slurm.python, "-m", "launcher", "--help"]).stdout == shown.stdout


def test_one_directory_is_shared_and_the_home_is_not(slurm: SlurmCluster) -> None:
    """What is written below ``shared`` is seen everywhere, here included; /home/train is each machine's own."""
    slurm.run("login", "echo all > seen; echo mine > ~/seen")
    assert slurm.run("m2", "cat seen; ls ~/seen || echo none").stdout.split() == ["all", "none"]
    assert (slurm.shared / "seen").read_text() == "all\n"
    slurm.run("login", "rm ~/seen")


def test_sacct_needs_the_cluster_with_accounting(slurm: SlurmCluster) -> None:
    """Without accounting sacct fails and says why."""
    failed = slurm.run("login", ["sacct"], check=False)
    assert failed.returncode != 0 and "accounting storage is disabled" in failed.stderr.lower()


def test_sacct_knows_an_ended_job(slurm_accounting: SlurmCluster) -> None:
    """With accounting sacct tells how a job ended, also the one that was cancelled."""
    job = slurm_accounting.run("login", "sbatch --parsable -N2 --gpus=3 --wrap 'srun sleep 100'").stdout.strip()
    slurm_accounting.run("login", ["scancel", job])
    told = ""
    deadline = time.monotonic() + 120
    while "CANCELLED" not in told and time.monotonic() < deadline:
        told = slurm_accounting.run("login", ["sacct", "-X", "-n", "-j", job, "--parsable2", "-o", "JobID,State"]).stdout
        time.sleep(0.2)
    assert told.split() == [f"{job}|CANCELLED", "by", "1000"]


LOW_SCRIPT = """\
#!/bin/bash
srun -n1 -N1 bash -c 'trap "echo TERM >> said" TERM; echo began $SLURM_RESTART_COUNT >> said; while :; do sleep 300 & wait; done'
"""


def test_preemption_requeues(slurm: SlurmCluster) -> None:
    """A job of partition scavenge gives way to one of partition normal, and starts again by itself."""
    (slurm.shared / "low.sh").write_text(LOW_SCRIPT.replace(">> said\"", ">> said; kill %+; exit\""))
    slurm.run("login", "sbatch -p scavenge -N3 --exclusive --requeue low.sh")
    wait_for(slurm, "began\n")
    slurm.run("login", ["srun", "-N1", "true"])
    wait_for(slurm, "began 1\n")
    said = (slurm.shared / "said").read_text()
    assert said.index("began\n") < said.index("TERM\n") < said.index("began 1\n")


def test_a_grace_time_begins_with_a_term_to_the_steps(slurm: SlurmCluster) -> None:
    """A job of partition low has some seconds more: until slurmctld next looks at time limits, every 30 s."""
    (slurm.shared / "low.sh").write_text(LOW_SCRIPT)
    low = slurm.run("login", "sbatch --parsable -p low -N3 --exclusive --requeue low.sh").stdout.strip()
    wait_for(slurm, "began\n")
    slurm.run("login", ["sbatch", "-o", "/dev/null", "--wrap=true"])
    wait_for(slurm, "TERM\n")
    assert "PreemptTime=20" in slurm.run("login", ["scontrol", "--oneliner", "show", "job", low]).stdout


def wait_for(slurm: SlurmCluster, words: str) -> None:
    """Wait until a job has written words to the file ``said``."""
    deadline = time.monotonic() + REQUEUE_SECONDS
    path = slurm.shared / "said"
    while not path.exists() or words not in path.read_text():
        assert time.monotonic() < deadline, f"no {words!r} in {path.read_text() if path.exists() else 'no file'}"
        time.sleep(0.1)


def test_a_killed_node_comes_back(slurm: SlurmCluster) -> None:
    """A machine that lost power takes jobs again after its restart."""
    slurm.kill("n-three")
    slurm.restart("n-three")
    slurm.wait_idle()
    assert slurm.run("login", ["srun", "-w", "n-three", "hostname"]).stdout == "m3\n"


def test_slurmctld_can_be_away(slurm: SlurmCluster) -> None:
    """Without slurmctld commands fail, and its machine and the nodes live on."""
    slurm.stop_daemon("login", "slurmctld")
    assert "Unable to contact slurm controller" in slurm.run("login", ["squeue"], check=False).stderr
    slurm.start_daemon("login", "slurmctld")
    assert slurm.run("login", ["squeue", "--noheader"]).stdout == ""


def test_settings_can_be_tried_and_are_taken_back(slurm: SlurmCluster) -> None:
    """A site with other lines in slurm.conf is one call away, and gone with the test."""
    before = slurm.run("login", "scontrol show config | grep MpiParams").stdout
    slurm.configure(MpiParams="ports=12000-12100")
    assert lines(slurm, "login", "srun --mpi=none printenv SLURM_STEP_RESV_PORTS")[0].startswith("12")
    slurm.mend()
    assert slurm.run("login", "scontrol show config | grep MpiParams").stdout == before


@pytest.mark.parametrize("how", ["plain", "with the job's id"])
def test_what_a_job_leaves_is_seen_and_removed(slurm: SlurmCluster, how: str) -> None:
    """all_leftovers() is empty on an idle cluster and names a process that lives on; settle() ends it."""
    assert slurm.all_leftovers() == {}
    job_id = "j1" if how == "with the job's id" else None
    environment = {"LAUNCHER_JOB_ID": job_id} if job_id else {}
    # grep takes a NUL for the end of a line, and would find the words of setsid itself.
    begun = """until [ "$(tr '\\0' ' ' < /proc/$!/cmdline)" = 'sleep 300 ' ]; do sleep 0.05; done"""
    slurm.run("m1", f"setsid sleep 300 >/dev/null 2>&1 & {begun}", env=environment)
    ((machine, (left,)),) = slurm.all_leftovers().items()
    assert (machine, left.uid, left.argv, left.job_id) == ("m1", 1000, ("sleep", "300"), job_id)
    slurm.run("m1", ["kill", str(left.pid)], user="root")

"""The sbatch script: its whole text, and that what is shown is what is submitted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.backends import batch, detached
from launcher.errors import SlurmSilent, SubmitRefused
from launcher.model import Command, Host, JobSpec, Plan, SlurmOptions, to_json
from launcher.store import Folder, Store, read_json, write_json

SBATCH = """#!/bin/sh
env >"$SEEN/environment"
cat "$1" >"$SEEN/script"
[ -z "$SAYS" ] || { echo "$SAYS" >&2; exit 1; }
echo Submitted batch job 77
"""
"""a fake sbatch: the real one runs in test_login.py"""

GOLDEN = """#!/bin/bash

# Parameters
#SBATCH --account=vision
#SBATCH --chdir={chdir}
#SBATCH --constraint='ib&a100'
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --gpus-per-node=a100:8
#SBATCH --job-name=train-20250101-000000-abcd
#SBATCH --mail-type=END
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output={folder}/slurm/%j_0_log.out
#SBATCH --partition=gpu
#SBATCH --signal=B:USR2@90
#SBATCH --time=1-12:00:00

# setup
trap '' INT USR1 USR2

# command
export SUBMITIT_EXECUTOR=slurm
exec {python} -u -m submitit.core._submit {folder}/slurm
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with Slurm's commands on it; what the fake sbatch saw."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", "#!/bin/sh\n"), ("scancel", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path))
    monkeypatch.setenv("SAYS", "")
    return tmp_path


def plan(**options: Any) -> Plan:
    spec = JobSpec(Command(argv=("true",)), name="train", nodes=2)
    return Plan(
        job_id="train-20250101-000000-abcd",
        spec=spec,
        backend="slurm",
        cluster="lab",
        nodes=(),
        project="none",
        slurm=SlurmOptions(**options),
        template=Host("slurm", ""),
    )


def folder_in(home: Path) -> Folder:
    return Store(home).create(plan().job_id)


def test_the_whole_text(seen: Path) -> None:
    """Everything that was said is asked for, once; nothing that submitit would add by itself is."""
    folder = folder_in(seen / "home")
    options = {"partition": "gpu", "account": "vision", "time": "1-12:00:00", "gpus_per_node": "a100:8", "cpus_per_task": 8}
    asked = plan(**options, constraint="ib&a100", exclusive=True, sbatch={"mail-type": "END"})
    expected = GOLDEN.format(folder=folder.root, chdir=detached.directory(), python=sys.executable)
    assert batch.script(asked, folder) == expected


@pytest.mark.parametrize(
    ("options", "line", "there"),
    [
        ({}, "--time", False),
        ({}, "--wckey", False),
        ({}, "--partition", False),
        ({}, "--error", False),
        ({"sbatch": {"wckey": "mine"}}, "--wckey=mine", True),
        ({}, "#SBATCH --no-requeue\n", True),
        ({"sbatch": {"signal": "B:USR1@300"}}, "--signal=B:USR1@300", True),
        ({"sbatch": {"signal": "B:USR1@300"}}, "--signal=B:USR2", False),
        ({"sbatch": {"signal": "B:HUP@300"}}, "trap '' HUP INT USR1 USR2\n", True),
        ({"sbatch": {"comment": "it's; $HOME"}}, """--comment='it'"'"'s; $HOME'""", True),
        ({"mem": "0", "exclude": "n[1-2]", "nodelist": "n3", "dependency": "afterok:5", "qos": "q"}, "--mem=0\n", True),
    ],
)
def test_what_is_said_is_asked_for_and_nothing_else(seen: Path, options: Mapping[str, Any], line: str, there: bool) -> None:
    """No time limit of five minutes, no wckey, no second log; a value reaches sbatch as it was written."""
    assert (line in batch.script(plan(**options), folder_in(seen / "home"))) == there


def test_a_signal_that_comes_early_does_not_end_the_batch_step(seen: Path) -> None:
    """A warning comes at once where the time limit is shorter, a wish to cancel at any time: before the launcher listens."""
    script, last = batch.script(plan(time="1"), folder_in(seen / "home")).rstrip().rsplit("\n", 1)
    assert last.startswith("exec ")
    listens_not = "import os, signal; [os.kill(os.getpid(), signal.Signals[n]) for n in ('SIGUSR2', 'SIGUSR1', 'SIGINT')]"
    text = f'{script}\nexec {sys.executable} -c "{listens_not}"\n'
    assert subprocess.run(["bash"], input=text, text=True, check=False).returncode == 0


def test_what_is_shown_is_what_is_submitted(seen: Path) -> None:
    """Byte for byte; the number that sbatch told is kept, and the folder says that the job is in the queue."""
    folder = folder_in(seen / "home")
    shown = batch.script(plan(partition="gpu"), folder)
    assert batch.submit(plan(partition="gpu"), folder) == "77"
    assert (seen / "script").read_text() == shown == (folder.batch / "77_submission.sh").read_text()
    assert read_json(folder.slurm)["slurm_job_id"] == batch.number_of(folder) == "77"
    assert [event["type"] for event in folder.read_events()] == ["submitted"]


def test_sbatchs_own_words_are_the_error_and_nothing_half_written_stays(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is the person's to mend; a controller that is away is not."""
    folder = folder_in(seen / "home")
    monkeypatch.setenv("SAYS", "sbatch: error: invalid partition specified: gpuu")
    with pytest.raises(SubmitRefused, match="invalid partition specified: gpuu") as refused:
        batch.submit(plan(partition="gpuu"), folder)
    assert refused.value.exit_code == 2 and not folder.batch.exists()
    monkeypatch.setenv("SAYS", "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)")
    with pytest.raises(SlurmSilent, match="slurmctld did not answer sbatch"):
        batch.submit(plan(), folder)


def test_without_slurm_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is made."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SubmitRefused, match="no sbatch, srun, scancel in PATH"):
        batch.script(plan(), Folder(tmp_path / "job"))


def test_a_path_that_sbatch_would_misread_is_refused(seen: Path) -> None:
    """It puts the job's number in the place of %j."""
    with pytest.raises(SubmitRefused, match="a job folder with a % in its path"):
        batch.script(plan(), folder_in(seen / "50%job"))


def test_a_number_is_found_where_whoever_submitted_was_killed_before_it_was_written(seen: Path) -> None:
    """submitit names the script after it."""
    folder = folder_in(seen / "home")
    batch.submit(plan(), folder)
    folder.slurm.write_text('{"slurm_job_id": null, "submitted_at": 1}')
    assert batch.number_of(folder) == "77"


ENVIRONMENT = {
    **dict.fromkeys(("SLURM_CPU_BIND", "SLURM_JOB_ID", "SRUN_CPUS_PER_TASK", "SBATCH_EXPORT", "PMI_RANK"), "1"),
    **dict.fromkeys(("SUBMITIT_PREEMPT_SIGNAL", "CUDA_VISIBLE_DEVICES", "SALLOC_ACCOUNT", "SBATCH_REQUEUE"), "1"),
    "SLURM_CONF": "/etc/s",
    "SBATCH_ACCOUNT": "mine",
    "SBATCH_PARTITION": "p",
    "SBATCH_TIMELIMIT": "5",
    "PATH": "/bin",
    "NCCL_DEBUG": "INFO",
}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (SlurmOptions(), {"SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_TIMELIMIT"}),
        (SlurmOptions(partition="gpu", time="60"), {"SBATCH_ACCOUNT"}),
        (SlurmOptions(account="x", sbatch={"wckey": "y"}), {"SBATCH_PARTITION", "SBATCH_TIMELIMIT"}),
    ],
)
def test_sbatch_sees_nothing_of_another_job_and_no_variable_that_wins_over_the_file(
    options: SlurmOptions, kept: set[str]
) -> None:
    """In sbatch a variable wins over the script; a user's own account holds only where the file names none."""
    assert set(batch.environment_of_sbatch(ENVIRONMENT, options)) == {"PATH", "NCCL_DEBUG", "SLURM_CONF", *kept}


def test_our_own_environment_is_as_before(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sbatch must not see is not lost for us."""
    monkeypatch.setenv("SLURM_CPU_BIND", "quiet")
    batch.submit(plan(), folder_in(seen / "home"))
    assert os.environ["SLURM_CPU_BIND"] == "quiet"
    assert "SLURM_CPU_BIND" not in (seen / "environment").read_text()


MOUNTS = """/dev/sda1 / ext4 rw 0 0
tmpfs /scratch tmpfs rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/me/fast tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/tmp/x", "it lies in /tmp"),
        ("/var/tmp", "it lies in /var/tmp"),
        ("/dev/shm/a/b", "it lies in /dev/shm"),
        ("/scratch/me", "it is on a tmpfs"),
        ("/scratchy", None),
        ("/home/me/.launcher", None),
        ("/home/me/fast/x", "it is on a tmpfs"),
        ("/data", None),
    ],
)
def test_a_home_that_other_machines_will_hardly_see(path: str, why: str | None) -> None:
    """Only what is obvious: an ext4 here may be what a server exports."""
    assert batch.only_here(Path(path), MOUNTS) == why


def test_submitits_handlers_are_taken_back_before_anything_else(tmp_path: Path) -> None:
    """USR2 would make it requeue, TERM would be swallowed: a process with its handlers dies of TERM again, and outlives USR2."""
    text = """
import os, signal, sys
for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT):
    signal.signal(number, lambda *_: print("submitit", flush=True))
from launcher.backends import batch
batch._take_signals_back()
for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGINT, signal.SIGCONT, signal.SIGTERM):
    os.kill(os.getpid(), number)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (-15, "")


def test_slurm_may_requeue_what_shall_go_on(seen: Path) -> None:
    """And nothing else: a job that is started anew unasked would train from its beginning."""
    made = plan()
    text = batch.script(replace(made, spec=replace(made.spec, requeue=True)), folder_in(seen / "home"))
    assert "#SBATCH --requeue\n" in text and "no-requeue" not in text


def test_a_plan_without_nodes_is_whole(seen: Path) -> None:
    """Two nodes are asked for, and none is known."""
    made = plan()
    assert (made.batch, made.nodes, made.spec.nodes) == (True, (), 2)
    assert not replace(made, template=None).batch


END_BESIDE_A_THREAD = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from launcher.backends import batch

def coordinate(folder):
    ThreadPoolExecutor(1).submit(time.sleep, 300)
    print("told", flush=False)
    return 3

batch._given, batch._go_on, batch._coordinate = lambda: None, lambda *_: None, coordinate
batch.complete = lambda *_: None
batch.run_job(sys.argv[1])
"""


def test_a_batch_step_ends_with_its_job_whatever_a_thread_still_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication that was given up may hang on for minutes, and with it the nodes would be held."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    folder = Store().create("job-20250101-000000-abcd")
    write_json(folder.plan, to_json(plan()))
    done = subprocess.run([sys.executable, "-c", END_BESIDE_A_THREAD, folder.root], check=False, timeout=120)
    assert done.returncode == 3 and folder.coordinator_log.read_text() == "told\n"

"""The batch scripts of slurm/: three run on a real Slurm, two are read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.slurm.handle import SlurmCluster
from tests.jobs.desk import TRAINING

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "slurm").glob("*.sbatch"))
INTERRUPTED = """
import os, time
checkpoint = os.path.join(os.environ["PAI_OUTPUT_CHECKPOINTS"], "epoch")
done = int(open(checkpoint).read()) if os.path.exists(checkpoint) else 0
if os.environ["RANK"] == "0":
    print("restart", os.environ["LAUNCHER_RESTART_COUNT"], "begins after epoch", done, flush=True)
    open(checkpoint + ".new", "w").write(str(done + 1))
    os.rename(checkpoint + ".new", checkpoint)
if not done:
    time.sleep(600)
"""
"""trains one epoch, and then waits to be preempted; once there is a checkpoint, it ends"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound_and_explained(script: Path) -> None:
    """bash can read each, it has a name and a time limit, and the page says when to take it."""
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False).stderr == ""
    text = script.read_text()
    assert text.startswith("#!/bin/bash\n") and "#SBATCH --job-name=" in text and "#SBATCH --time=" in text
    assert f"[{script.name}]({script.name})" in (ROOT / "slurm/README.md").read_text()


def command(name: str) -> str:
    """The command that a script is there for, on one line."""
    text = (ROOT / "slurm" / name).read_text()
    return re.split(r"\n(?=(?:exec )?srun )", text)[-1].partition("\ncode=")[0].replace("\\\n", " ")


@pytest.mark.parametrize("name", ["exec-torchrun.sbatch", "requeue.sbatch", "pyxis.sbatch", "apptainer.sbatch"])
def test_every_step_has_one_task_a_node_and_falls_as_one(name: str) -> None:
    """And `launcher exec` is behind srun, not before it."""
    words = command(name).split()
    assert words[: words.index("srun")] in ([], ["exec"]) and {"--ntasks-per-node=1", "--kill-on-bad-exit=1"} <= set(words)
    assert words.index("torchrun") > words.index("exec", 2) > 2


def test_the_container_of_pyxis_has_what_exec_needs() -> None:
    """The sources, the packages, and a torchrun that does not see them."""
    text = command("pyxis.sbatch")
    assert '--container-image="$IMAGE"' in text and '--container-workdir="$PWD"' in text
    assert '--container-mounts="$PWD:$PWD,$PACKAGES:$PACKAGES:ro"' in text
    assert re.search(r'env PYTHONPATH="\$PACKAGES" python3 -m launcher exec -- +env -u PYTHONPATH torchrun ', text)


def test_three_packages_are_all_that_exec_needs(tmp_path: Path) -> None:
    """What pyxis.sbatch tells to install beside the image: with these alone it answers."""
    import click
    import ClusterShell

    for package in (ROOT / "launcher", Path(ClusterShell.__file__).parent, Path(click.__file__).parent):
        (tmp_path / package.name).symlink_to(package)
    environ = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    task = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NODELIST": "n[1-1]",
        "SLURMD_NODENAME": "n1",
    }
    words = [sys._base_executable, "-S", "-m", "launcher", "exec", "--", "printenv", "WORLD_SIZE"]  # type: ignore[attr-defined]
    done = subprocess.run(words, env=environ | task, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_apptainer_starts_below_exec() -> None:
    """So the container inherits what exec has set."""
    assert re.search(
        r'launcher" exec -- +apptainer exec --nv --bind "\$PWD" --pwd "\$PWD" "\$IMAGE" +torchrun ', command("apptainer.sbatch")
    )


@pytest.fixture
def project(slurm: SlurmCluster) -> Path:
    """A folder that all machines see, with the scripts and the example training."""
    folder = slurm.shared / "project"
    for name in ("slurm", "train_src"):
        shutil.copytree(ROOT / name, folder / name)
    subprocess.run(["chmod", "-R", "a+rwX", str(folder)], check=True)
    return folder


def batch(slurm: SlurmCluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """sbatch in the folder, with this environment of Python; its output goes to out.log there."""
    sbatch = ["sbatch", "--parsable", "--output=out.log", *words]
    return slurm.run(slurm.login, sbatch, cwd=folder, env={"VENV": sys.prefix}, check=False, timeout=TRAINING)


@pytest.mark.torch
def test_exec_torchrun(slurm: SlurmCluster, project: Path) -> None:
    """The example is trained on two nodes, by torchrun without a word of where it is."""
    done = batch(slurm, project, "--wait", "--nodelist=m1,m2", "slurm/exec-torchrun.sbatch")
    log = (project / "out.log").read_text()
    assert done.returncode == 0, log
    assert "0: epoch 10/10" in log
    assert (project / "output" / done.stdout.strip() / "model/model.pt").is_file()


@pytest.mark.torch
def test_requeue(slurm: SlurmCluster, project: Path) -> None:
    """A preempted job comes back under its number, with its log and its checkpoints, and goes on from there."""
    (project / "train_src/train_multinode.py").write_text(INTERRUPTED)
    job = batch(slurm, project, "--partition=scavenge", "--nodelist=m1,m2", "slurm/requeue.sbatch").stdout.strip()
    checkpoint = project / "output" / job / "checkpoints/epoch"
    slurm.run(slurm.login, f"until [ -e {checkpoint} ]; do sleep 0.2; done", timeout=TRAINING)
    slurm.run(slurm.login, "srun --exclusive --nodelist=m1,m2 true")
    slurm.run(slurm.login, f"until left=$(squeue -h -j {job}) && [ -z \"$left\" ]; do sleep 0.5; done", timeout=TRAINING)
    log = (project / "out.log").read_text()
    assert "0: restart 0 begins after epoch 0" in log and "0: restart 1 begins after epoch 1" in log, log
    assert "ExitCode=0:0" in slurm.run(slurm.login, ["scontrol", "show", "job", job]).stdout


def test_requeue_gives_up(slurm: SlurmCluster, project: Path) -> None:
    """A job that comes back more often than MAX_REQUEUES ends with a sentence."""
    done = batch(slurm, project, "--wait", "--export=ALL,MAX_REQUEUES=-1", "slurm/requeue.sbatch")
    assert done.returncode == 1 and "requeued" in (project / "out.log").read_text()


@pytest.mark.torch
def test_submit_in_allocation(slurm: SlurmCluster, project: Path) -> None:
    """All of the launcher in a batch job: the model is collected into the job folder, and the script ends as the job did."""
    done = batch(slurm, project, "--wait", "--nodelist=m1,m2", "slurm/submit-in-allocation.sbatch")
    log = (project / "out.log").read_text()
    assert done.returncode == 0, log
    model = Path(log.splitlines()[-1])
    assert (model / "model.pt").is_file() and model.is_relative_to(slurm.shared / "home/jobs")

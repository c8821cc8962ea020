"""Real training: the commands that people will type, with torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.engine import locked
from tests.cluster.handle import Cluster
from tests.jobs.desk import TRAINING, Desk

pytestmark = pytest.mark.torch

TRAIN = ("train_multinode.py", "--total_epochs", "4", "--save_every", "2")
TORCHRUN = (
    "torchrun --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT --nnodes=$WORLD_SIZE --node_rank=$RANK "
    "--nproc_per_node=2 train_multinode.py --total_epochs 4 --save_every 2"
)
MODULE = (
    "python -m torch.distributed.launch --master_addr=$MASTER_ADDR \\\n  --master_port=$MASTER_PORT --nnodes=$WORLD_SIZE \\\n"
    "  --node_rank=$RANK --nproc_per_node=2 train_multinode.py \\\n  --total_epochs 4 --save_every 2"
)


def weights(path: Path) -> str:
    """The numbers of a saved model, as text that is equal exactly when they are."""
    code = (
        "import sys,torch;m=torch.load(sys.argv[1],weights_only=True);print({k:v.tolist() for k,v in (m.get('model',m)).items()})"
    )
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights that torchrun makes without us, with as many processes.  Made once, whichever worker comes first."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with locked(shared / "bare.lock"):
        kept = shared / "bare.txt"
        if not kept.exists():
            kept.write_text(_trained(tmp_path_factory.mktemp("bare")))
        return kept.read_text()


def _trained(folder: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=4",
        str(Path("train_src").resolve() / TRAIN[0]),
    ]
    done = subprocess.run([*command, *TRAIN[1:]], cwd=folder, capture_output=True, text=True, timeout=TRAINING, check=False)
    assert done.returncode == 0, done.stderr
    return weights(folder / "output" / "model" / "model.pt")


def test_the_demo_trains_and_its_weights_are_those_of_bare_torchrun(local: Desk, bare: str) -> None:
    """Two simulated nodes of two processes; the model's path is the last line."""
    done = local.submit("--nodes", "2", "--nproc-per-node", "2", "--source-dir", "train_src", "--", *TRAIN, timeout=TRAINING)
    model = Path(done.stdout.splitlines()[-1])
    assert weights(model / "model.pt") == bare
    assert any(line.startswith("[0:0] epoch 4/4") for line in done.stdout.splitlines())
    assert local.json("model-data", "latest")["complete"] is True


def test_the_torchrun_command_of_pai_runs_word_for_word_over_ssh(remote: Desk, bare: str) -> None:
    """Verbatim, on two real nodes; per-rank logs are here."""
    remote.submit("--hosts", "node1,node2", "--source-dir", "train_src", "--command", TORCHRUN, timeout=TRAINING)
    assert weights(remote.folder() / "output" / "model" / "model.pt") == bare
    ranks = remote.folder() / "logs" / "node-1" / "ranks" / "attempt_0" / "restart_0"
    assert sorted(path.name for path in ranks.iterdir()) == ["0", "1"]
    assert remote.json("status", "latest")["nodes"][1]["nproc_per_node"] == 2


def test_the_module_form_over_several_lines_runs_too(local: Desk, bare: str) -> None:
    """python -m torch.distributed.launch, spread with backslashes."""
    local.submit("--nodes", "2", "--source-dir", "train_src", "--command", MODULE, timeout=TRAINING)
    assert weights(local.folder() / "output" / "model" / "model.pt") == bare


def test_the_failing_rank_is_named_with_its_traceback(remote: Desk, cluster: Cluster) -> None:
    """An exception on rank 3: exit code, rank, traceback and log path; the others are stopped within seconds."""
    words = ("--fail_at", "2", "--fail_rank", "3")
    said = ("--hosts", "node1,node2", "--nproc-per-node", "2", "--source-dir", "train_src", "--", *TRAIN, *words)
    remote.submit(*said, check=1, timeout=TRAINING)
    failure = remote.json("status", "latest")["failure"]
    assert (failure["node"], failure["host"], failure["local_rank"], failure["rank"], failure["exit_code"]) == (
        1,
        "node2",
        1,
        3,
        1,
    )
    assert failure["traceback"].startswith("Traceback (most recent call last):")
    assert failure["traceback"].splitlines()[-1] in Path(failure["log"]).read_text()


def test_job_file_form(local: Desk, tmp_path: Path) -> None:
    """job.yaml says it all."""
    (tmp_path / "job.yaml").write_text(
        json.dumps(
            {
                "name": "fromfile",
                "nodes": 1,
                "nproc_per_node": 1,
                "source_dir": str(Path("train_src").resolve()),
                "script": TRAIN[0],
                "args": list(TRAIN[1:]),
            }
        )
    )
    local.submit(str(tmp_path / "job.yaml"), timeout=TRAINING)
    assert local.folder().name.startswith("fromfile-")
    assert (local.folder() / "output" / "model" / "model.pt").exists()

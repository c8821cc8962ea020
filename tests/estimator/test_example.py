"""PAI's example, word for word but for its imports: with no inventory, on real machines, in Slurm's queue, in a notebook."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.slurm.handle import SlurmCluster
from tests.docs.pages import ROOT, text_of
from tests.estimator.conftest import LABEL
from tests.jobs.desk import TRAINING, Desk

TAIL = """
import json
import torch
from pathlib import Path
model = torch.load(Path(est.model_data()) / "model.pt", weights_only=True)
print("seen:" + json.dumps({"job": est.latest_job.training_job_id, "model": est.model_data(), "weights": sorted(model)}))
"""
WEIGHTS = ["0.bias", "0.weight", "2.bias", "2.weight"]


def example() -> str:
    """The first block of Python in the page."""
    found = re.search(r"```python\n(.*?)```", text_of("docs/estimator.md"), re.S)
    assert found
    return found[1]


def script(folder: Path) -> str:
    """The example as a program in a folder that has the training code."""
    shutil.copytree(ROOT / "train_src", folder / "train_src", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "example.py").write_text(example() + TAIL)
    return "example.py"


def seen(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the tail printed."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout.partition("seen:")[2])
    return told


def run_here(office: Desk) -> subprocess.CompletedProcess[str]:
    """The program, in an empty directory with the training code."""
    environment = {**office.environment, "PYTHONPATH": str(ROOT), "LAUNCHER_CONFIG": "none"}
    words = [sys.executable, script(Path.cwd())]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TRAINING, check=False)


def test_the_example_is_the_one_of_the_contract() -> None:
    """Its imports, and every argument."""
    text = example()
    assert "from launcher import Estimator" in text and "from launcher.images import retrieve" in text
    assert 'retrieve("pytorch", framework_version="1.12", accelerator_type="GPU").image_uri' in text
    assert '"--nproc_per_node=2 train_multinode.py --total_epochs 10 --save_every 5"' in text
    assert f'job_type="PyTorchJob", instance_type="{LABEL}", instance_count=2, base_job_name="pytorch-ddp")' in text


@pytest.mark.torch
def test_without_any_inventory(office: Desk) -> None:
    """Two simulated nodes, and two warnings that say what is ignored."""
    done = run_here(office)
    told = seen(done)
    assert told["weights"] == WEIGHTS and told["job"].startswith("pytorch-ddp-")
    assert Path(told["model"]) == office.folder() / "output" / "model"
    assert done.stderr.count(f"no instance_type; '{LABEL}' is ignored") == 1
    assert done.stderr.count("no `images:`") == 1
    assert any(line.startswith("[0:0] epoch") for line in done.stdout.splitlines()), done.stdout


@pytest.mark.torch
def test_on_real_machines_with_that_label(machines: Desk) -> None:
    """The first two of three become the nodes; nothing is ignored."""
    done = run_here(machines)
    told = seen(done)
    assert told["weights"] == WEIGHTS and "instance_type" not in done.stderr
    assert [node["host"] for node in machines.json("status", told["job"])["nodes"]] == ["node1", "node2"]


@pytest.mark.torch
def test_in_slurms_queue(slurm: SlurmCluster) -> None:
    """A cluster file that says so is all; the example is run on the log-in machine."""
    script(slurm.shared)
    (slurm.shared / "cluster.yaml").write_text("backend: slurm\n")
    for path in [slurm.shared / "train_src", *(slurm.shared / "train_src").iterdir()]:
        path.chmod(0o755)
    words = slurm.argv(slurm.login, [slurm.python, "example.py"], env={"PYTHONPATH": str(ROOT), "LAUNCHER_CONFIG": "none"})
    done = subprocess.run(words, capture_output=True, text=True, timeout=TRAINING, check=False)
    told = seen(done)
    assert told["weights"] == WEIGHTS and "Slurm knows no instance_type" in done.stderr
    assert "in Slurm's queue as job" in done.stderr


@pytest.mark.torch
def test_in_a_notebook(office: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells are the example; executed from beginning to end, in a kernel, whose event loop runs."""
    import nbclient
    import nbformat

    notebook = nbformat.read(ROOT / "docs/notebooks/pai_example.ipynb", as_version=4)
    cells = ["".join(cell.source) for cell in notebook.cells if cell.cell_type == "code"]
    assert "\n".join("\n".join(cells).split()).startswith("\n".join(example().split()))
    script(Path.cwd())
    here = os.fspath(Path.cwd())
    for name, value in {"PYTHONPATH": str(ROOT), "JUPYTER_PLATFORM_DIRS": "1", "IPYTHONDIR": here}.items():
        monkeypatch.setenv(name, value)
    nbclient.NotebookClient(notebook, timeout=TRAINING, kernel_name="python3", resources={"metadata": {"path": here}}).execute()
    outputs = ["".join(str(one.get("text", one.get("data"))) for one in cell.get("outputs", ())) for cell in notebook.cells]
    assert any("[0:0] epoch" in text for text in outputs), "fit streams the logs"
    assert any(str(WEIGHTS) in text for text in outputs) and any("[0, 10]" in text for text in outputs)
    assert any(str(office.home) in text for text in outputs)

"""The training example, started as a person starts it: by Python alone, by torchrun, by torch.distributed.launch."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.transports.sshd import held_port

SCRIPT = Path(__file__).parents[2] / "train_src" / "train_multinode.py"
WRITTEN = ["output/checkpoints/snapshot.pt", "output/model/metrics.json", "output/model/model.pt"]

pytestmark = pytest.mark.torch


def start(workdir: Path, words: Sequence[str], **env: str) -> subprocess.Popen[str]:
    """Start Python with ``words`` in ``workdir``, in an environment that knows of no other job."""
    workdir.mkdir(exist_ok=True)
    foreign = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "PET_", "TORCH", "PAI_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=workdir,
        env={**clean, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(workdir: Path, *options: str, module: str | None = None, code: int = 0) -> str:
    """Run the script to its end, alone or on two ranks by a module of torch; returns all that was printed."""
    launcher = ["-m", f"torch.distributed.{module}", "--nproc_per_node=2"] if module else []
    process = start(workdir, [*launcher, str(SCRIPT), *options])
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    return out + err


def train_on_two_nodes(workdir: Path, *options: str) -> None:
    """One plain Python per node, as a command that uses no torchrun is started on each; node 1 has folders of its own."""
    with held_port() as held:
        port = str(held.getsockname()[1])
        nodes = []
        for rank in range(2):
            place = workdir / ("output" if rank == 0 else "node-1")
            meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)}
            folders = {"PAI_OUTPUT_MODEL": str(place / "model"), "PAI_OUTPUT_CHECKPOINTS": str(place / "checkpoints")}
            nodes.append(start(workdir, [str(SCRIPT), *options], **meet, **folders))
        errors = [node.communicate(timeout=600)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], errors


def same_weights(one: Path, other: Path) -> bool:
    """Whether two saved models have the same numbers: torch writes those as the same bytes."""
    first, second = ((path / "output" / "model" / "model.pt").read_bytes() for path in (one, other))
    return first == second


def metrics(workdir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((workdir / "output" / "model" / "metrics.json").read_text())
    return found


def files(workdir: Path) -> list[str]:
    return sorted(str(path.relative_to(workdir)) for path in workdir.rglob("*") if path.is_file())


def test_it_runs_alone_and_its_loss_falls(tmp_path: Path) -> None:
    """Without any launcher it says one line per epoch and leaves a model, metrics, a snapshot, and nothing half-written."""
    out = train(tmp_path, "--total_epochs", "10", "--save_every", "5")
    found = metrics(tmp_path)
    assert found["history"] == sorted(found["history"], reverse=True)
    assert found["loss"] == found["history"][-1] < found["history"][0] / 4
    assert (found["epochs"], found["world_size"]) == (10, 1)
    assert [line.split()[1] for line in out.splitlines() if line.startswith("epoch ")] == [f"{n}/10" for n in range(1, 11)]
    assert files(tmp_path) == WRITTEN


def test_an_interrupted_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    """However two ranks are started: failed in epoch 4 and started again, they go on from epoch 2 and lose nothing by it."""
    options = ("--total_epochs", "5", "--save_every", "2")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train_on_two_nodes(whole, *options)
    assert files(whole) == WRITTEN  # only rank 0 writes
    fail = ("--fail_at", "4", "--fail_rank", "1")
    assert "rank 1 fails in epoch 4, as --fail_at asked" in train(broken, *options, *fail, module="run", code=1)
    assert files(broken) == ["output/checkpoints/snapshot.pt"]
    again = train(broken, *options, *fail, module="launch")
    assert "resumed from output/checkpoints/snapshot.pt after epoch 2" in again
    assert metrics(broken)["history"] == metrics(whole)["history"]
    assert metrics(broken)["world_size"] == 2
    assert same_weights(whole, broken)


@pytest.mark.xdist_group("torch")  # one process of tests loads it
@pytest.mark.parametrize("spelling", ["--local-rank=1", "--local_rank=1"])
def test_both_spellings_of_the_local_rank_are_taken(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.distributed.launch passes one of them, depending on torch's version."""
    monkeypatch.setattr(sys, "argv", ["train_multinode.py", spelling])
    assert runpy.run_path(str(SCRIPT))["parse_options"]().local_rank == 1


@pytest.mark.xdist_group("torch")  # one process of tests loads it
def test_an_impossible_option_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Zero epochs between snapshots is a usage error that names the option."""
    monkeypatch.setattr(sys, "argv", ["train_multinode.py", "--save_every", "0"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT))["parse_options"]()
    assert "--save_every must be at least 1" in capsys.readouterr().err

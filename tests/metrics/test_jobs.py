"""Metrics of whole jobs: from the command's output to `launcher metrics`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import api
from launcher.store import Folder
from tests.cluster.slurm.handle import SlurmCluster
from tests.jobs.desk import Desk, eventually
from tests.slurm.desk import Desk as SlurmDesk

LOSS = r"loss=loss=(\S+)"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "home", ("--backend", "local"))
    yield desk
    desk.end_everything()


def test_metrics_of_a_job(local: Desk) -> None:
    """Every node's numbers, by node and step, as text and as JSON lines; a job without metrics has no file and says so."""
    command = 'for i in 1 2 3; do echo "node $RANK loss=0.$i"; done; echo acc=nan >&2'
    local.submit("--nodes", "2", "--metric", LOSS, "--metric", "acc=acc=(.*)", "--command", command)
    lines = [json.loads(line) for line in local.run("metrics", "latest", "-o", "json").stdout.splitlines()]
    told = sorted((one["node"], one["step"], one["value"]) for one in lines if one["name"] == "loss")
    assert told == [(node, step, (step + 1) / 10) for node in (0, 1) for step in range(3)]
    assert [one["value"] for one in lines if one["name"] == "acc"] == ["nan", "nan"]
    assert local.run("metrics", "latest", "--name", "acc").stdout.count("acc  0  nan") == 2
    assert len(api.metrics(Folder(local.folder()))) == 8
    assert "no metric los" in local.run("metrics", "latest", "--name", "los", check=2).stderr
    local.submit("--command", "echo loss=1")
    assert "no metrics to collect" in local.run("metrics", "latest", check=2).stderr
    assert not (local.folder() / "metrics.jsonl").exists()


def test_metrics_of_processes_that_torchrun_starts(local: Desk) -> None:
    """Each has its own global rank."""
    source = local.home / "src"
    source.mkdir(parents=True)
    (source / "train.py").write_text("import os; print('loss=' + os.environ['RANK'])\n")
    (source / "job.yaml").write_text("source_dir: .\nscript: train.py\nnodes: 2\nnproc_per_node: 2\nmetrics: {loss: loss=(.*)}\n")
    local.submit(str(source / "job.yaml"))
    records = api.metrics(Folder(local.folder()))
    assert sorted((one["node"], one["local_rank"], one["rank"], one["value"]) for one in records) == [
        (0, 0, 0, 0.0), (0, 1, 1, 1.0), (1, 0, 2, 2.0), (1, 1, 3, 3.0),
    ]  # fmt: skip


def test_metrics_outlive_their_coordinator(local: Desk, tmp_path: Path) -> None:
    """Killed in the middle, the next one goes on; `metrics -f` shows each record once, to the end."""
    go = tmp_path / "go"
    command = f"echo loss=1; echo loss=2; until [ -e {go} ]; do sleep 0.1; done; echo loss=3"
    job = local.detach("--metric", LOSS, "--command", command)
    folder = Folder(local.folder())
    eventually(lambda: len(api.metrics(folder)) == 2, "two records")
    os.kill(local.coordinator(), signal.SIGKILL)
    go.touch()
    shown = local.run("metrics", job, "-f", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["value"] for line in shown] == [1.0, 2.0, 3.0]
    assert [one["step"] for one in api.metrics(folder)] == [0, 1, 2]


def test_wrong_definitions_are_told_before_anything_starts(local: Desk) -> None:
    """On the command line and in the plan."""
    assert "has no groups" in local.run("submit", "--metric", "a=x", "--command", "true", check=2).stderr
    wrong = local.run("submit", "--metric", "a=(x)", "--metric", "a=(y)", "--command", "true", check=2).stderr
    assert "--metrics" not in wrong and "a: defined twice" in wrong


@pytest.mark.cluster
def test_metrics_over_ssh(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The same from real machines."""
    cluster = request.getfixturevalue("cluster")
    desk = Desk(tmp_path / "home", ("--cluster", str(cluster.cluster_yaml)))
    desk.submit("--nodes", "2", "--metric", LOSS, "--command", "echo loss=$RANK")
    assert sorted(one["value"] for one in api.metrics(Folder(desk.folder()))) == [0.0, 1.0]
    desk.end_everything()


def test_metrics_in_slurms_queue(slurm: SlurmCluster) -> None:
    """Collected by the batch step; the wizard finds the partitions there."""
    desk = SlurmDesk(slurm, XDG_CONFIG_HOME=str(slurm.shared / "config"))
    desk.run("submit", "--backend", "slurm", "--nodes", "2", "--metric", LOSS, "--command", "echo loss=$RANK")
    lines = [json.loads(line) for line in desk.run("metrics", "latest", "-o", "json").stdout.splitlines()]
    assert sorted((one["node"], one["value"]) for one in lines) == [(0, 0.0), (1, 1.0)]
    found = desk.run("config", "--yes", "--name", "hpc", "--gpus", "1").stderr
    assert "backend: slurm" in found and "partition: normal" in found
    assert "hpc" in desk.run("config", "show").stdout

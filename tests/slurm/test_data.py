"""Data of a job in Slurm's queue: its batch step brings inputs, copies checkpoints and publishes as any coordinator does."""

from __future__ import annotations

import os

import pytest

from tests.cluster.slurm.handle import SlurmCluster
from tests.slurm.desk import Desk


@pytest.fixture
def desk(slurm: SlurmCluster) -> Desk:
    return Desk(slurm)


def test_a_queued_job_reads_its_share_goes_on_from_checkpoints_and_publishes(desk: Desk) -> None:
    """Two jobs in a row: the second is sent no data again, and finds what the first one wrote."""
    for name in ("a", "b"):
        desk.file(f"data/{name}", f"{name}\n")
    shared = desk.slurm.shared
    command = (
        "cat $PAI_INPUT_ALL/a; echo $RANK reads $(ls $PAI_INPUT_PART); cat $PAI_OUTPUT_CHECKPOINTS/* 2>/dev/null; "
        "sleep 0.1; echo from $SLURM_JOB_ID > $PAI_OUTPUT_CHECKPOINTS/of-$RANK; echo m > $PAI_OUTPUT_MODEL/m$RANK"
    )
    words = ["submit", "--backend", "slurm", "--nodes", "2", "--input", "all=data", "--input", "part=data", "--shard", "part"]
    words += ["--output-path", f"{shared}/out", "--checkpoints-path", f"{shared}/kept", "--command", command]
    first = desk.run(*words)
    job = desk.status()["job_id"]
    assert {"[0] a", "[1] a", "[0] 0 reads a", "[1] 1 reads b"} <= set(first.stdout.splitlines())
    assert first.stdout.splitlines()[-1] == f"{shared}/out/{job}/model/"
    assert sorted(os.listdir(shared / "out" / job / "model")) == ["m0", "m1"]
    assert sorted(os.listdir(shared / "kept")) == ["launcher-manifest.json", "of-0", "of-1"]
    second = desk.run(*words)
    assert f"[0] from {desk.status(job)['slurm_job_id']}" in second.stdout.splitlines()
    assert "bytes for m1" in first.stderr and "bytes for m" not in second.stderr

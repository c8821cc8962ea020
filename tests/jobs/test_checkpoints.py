"""Checkpoints that outlive a job's nodes: copied while it runs, whole, and found by the next job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.jobs.desk import Desk, eventually

RESUMES = (
    "cd $PAI_OUTPUT_CHECKPOINTS; n=$(cat step 2>/dev/null || echo 0); echo began at $n; "
    "echo $((n+1)) > step.part; mv step.part step; mkdir -p deep; echo $n > deep/$n"
)


def test_a_second_job_goes_on_from_the_first_one_s_checkpoints(desk: Desk, tmp_path: Path) -> None:
    """All nodes find them, may change them, and what changed is copied back at the end."""
    place = tmp_path / "checkpoints"
    command = f"if [ $RANK = 0 ]; then {RESUMES}; else ls $PAI_OUTPUT_CHECKPOINTS; fi"
    words = ("--nodes", "2", "--checkpoints-path", str(place), "--command", command)
    assert "[0] began at 0" in desk.submit(*words).stdout
    assert (place / "step").read_text() == "1\n"
    done = desk.submit(*words)
    assert "[0] began at 1" in done.stdout
    assert "checkpoints: going on from 2 files" in done.stderr
    assert "copying 2 file(s)" in done.stderr and "checkpoints stay there" not in done.stderr
    assert (place / "step").read_text() == "2\n" and (place / "deep" / "0").read_text() == "0\n"
    manifest = json.loads((place / "launcher-manifest.json").read_text())
    assert [file["path"] for file in manifest["files"]] == ["deep/0", "deep/1", "step"]
    assert not (desk.folder() / ".checkpoints").exists()


def test_an_earlier_job_s_checkpoints_are_gone_on_from_and_stay_as_they_are(local: Desk) -> None:
    """Its folder is read alone: what the new job writes is brought into its own, also where it fails."""
    local.submit("--collect", "checkpoints", "--command", RESUMES)
    first = local.at_rest() / "output" / "checkpoints"
    done = local.submit("--checkpoints-path", str(first), "--command", f"{RESUMES}; exit 3", check=3)
    assert "[0] began at 1" in done.stdout and f"going on from 2 files, 4 bytes of {first}" in done.stderr
    second = local.at_rest() / "output" / "checkpoints"
    assert (second / "step").read_text() == "2\n" and sorted(os.listdir(second / "deep")) == ["0", "1"]
    assert (first / "step").read_text() == "1\n" and sorted(os.listdir(first)) == ["deep", "step"]
    assert "[0] began at 2" in local.submit("--checkpoints-path", second.as_uri(), "--command", RESUMES).stdout
    words = ("--checkpoints-path", str(second / "none"))
    done = local.submit(*words, "--command", RESUMES)
    assert "[0] began at 0" in done.stdout and f"no checkpoints in {second}/none; the training begins anew" in done.stderr
    done = local.submit(*words, "--checkpoint-interval", "1s", "--command", "true", check=2)
    assert "an earlier job's checkpoints stay as they are: nothing is copied there" in done.stderr


def test_checkpoints_are_copied_while_the_job_runs_and_never_half(local: Desk, tmp_path: Path) -> None:
    """One that is still written waits for the next time; the manifest has only what is there."""
    place, go = tmp_path / "checkpoints", tmp_path / "go"
    command = (
        "cd $PAI_OUTPUT_CHECKPOINTS; echo whole > done; "
        f"while [ ! -e {go} ]; do echo more >> growing; sleep 0.3; done; rm done"
    )
    job = local.detach("--checkpoints-path", str(place), "--checkpoint-interval", "1s", "--command", command)
    eventually(lambda: (place / "launcher-manifest.json").exists(), "a first copy")
    manifest = json.loads((place / "launcher-manifest.json").read_text())
    assert [file["path"] for file in manifest["files"]] == ["done"]
    assert sorted(os.listdir(place)) == ["done", "launcher-manifest.json"]
    go.touch()
    local.run("wait", job)
    assert sorted(os.listdir(place)) == ["growing", "launcher-manifest.json"]


def test_a_lost_node_loses_no_checkpoint_that_was_copied(local: Desk, tmp_path: Path) -> None:
    """Its job is killed on the spot; the next one goes on."""
    place = tmp_path / "checkpoints"
    words = ("--checkpoints-path", str(place), "--checkpoint-interval", "1s", "--command")
    job = local.detach(*words, f"{RESUMES}; sleep 600")
    eventually(lambda: (place / "step").exists() and (place / "launcher-manifest.json").exists(), "a first copy")
    local.run("cancel", "--now", job)
    assert "[0] began at 1" in local.submit(*words, RESUMES).stdout


def test_trouble_here_stops_no_later_copy(local: Desk, tmp_path: Path) -> None:
    """It is told once, and the next copy is made when it is over."""
    place, go = tmp_path / "checkpoints", tmp_path / "go"
    command = f"while [ ! -e {go} ]; do sleep 0.1; done; echo x > $PAI_OUTPUT_CHECKPOINTS/x; sleep 600"
    job = local.detach("--checkpoints-path", str(place), "--checkpoint-interval", "1s", "--command", command)
    way = local.folder(job) / ".checkpoints"
    way.write_text("in the way")
    go.touch()
    said = "checkpoints were not copied"
    told = eventually(lambda: [event for event in local.events(job) if said in event.get("message", "")], "a warning")
    assert "File exists" in told[0]["message"]
    os.unlink(way)
    eventually(lambda: (place / "x").exists(), "a copy")
    local.run("cancel", "--now", job)


def test_an_interval_without_a_place_is_a_slip(local: Desk) -> None:
    """As is a place that is a file, or in the home directory of nobody."""
    done = local.submit("--checkpoint-interval", "1m", "--command", "true", check=2)
    assert "there is no checkpoints_path to copy checkpoints to" in done.stderr
    file = local.home.parent / "file"
    file.touch()
    done = local.submit("--checkpoints-path", str(file), "--command", "true", check=2)
    assert f"checkpoints_path: {file} is a file, and a folder is wanted" in done.stderr
    done = local.submit("--checkpoints-path", "~no-such/c", "--output-path", "~nor-such/o", "--command", "true", check=2)
    assert "checkpoints_path: ~no-such/c: there is no user no-such here" in done.stderr
    assert "output_path: ~nor-such/o: there is no user nor-such here" in done.stderr


@pytest.mark.cluster
def test_what_every_node_writes_is_copied_and_found_on_all(remote: Desk, tmp_path: Path) -> None:
    """Each of the nodes has a file system of its own, and each one's files are copied."""
    place = tmp_path / "checkpoints"
    words = ("--nodes", "2", "--checkpoints-path", str(place), "--checkpoint-interval", "1s", "--command")
    job = remote.detach(*words, "echo $RANK > $PAI_OUTPUT_CHECKPOINTS/rank-$RANK; sleep 600")
    eventually(lambda: (place / "rank-0").exists() and (place / "rank-1").exists(), "copies of both nodes")
    remote.run("cancel", "--now", job)
    done = remote.submit(*words, "cat $PAI_OUTPUT_CHECKPOINTS/rank-*")
    assert sorted(done.stdout.splitlines()[:-1]) == ["[0] 0", "[0] 1", "[1] 0", "[1] 1"]

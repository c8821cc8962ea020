"""A coordinator that loads its code while its job is still being planned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import __main__ as program
from launcher.agent import procs
from launcher.backends import detached
from launcher.backends.detached import Prepared
from launcher.store import Folder
from tests.jobs.desk import eventually


def test_without_a_job_it_ends_and_says_nothing() -> None:
    """Whether it heard of ssh or not, and also when whoever started it is gone without a word."""
    for told in (False, True):
        prepared = Prepared()
        if told:
            prepared.foresee_ssh()
        prepared.dismiss()
        assert prepared._process.wait(300) == 0


def test_what_it_is_told_in_pieces_is_put_together(tmp_path: Path) -> None:
    """ssh first, then the folder, each in a write of its own; a folder that is none is a fault, which its log tells."""
    home = tmp_path / "a\nb"
    home.mkdir()
    prepared = Prepared()
    prepared.foresee_ssh()
    prepared.start(Folder(home))
    assert prepared._process.wait(300) != 0
    assert (home / "coordinator.log").read_text().startswith("Traceback")


def test_one_that_died_is_replaced(tmp_path: Path) -> None:
    """Neither what is foreseen nor the job itself is lost with it."""
    prepared = Prepared()
    prepared._process.kill()
    prepared._process.wait()
    prepared.foresee_ssh()
    prepared.start(Folder(tmp_path))
    # The one that takes its place writes into the job's folder.
    assert (tmp_path / "coordinator.log").exists()


@pytest.mark.parametrize(
    ("typed", "starts"),
    [
        ("submit --command true", True),
        ("submit job.yaml", True),
        ("submit -- train.py --dry-run --help --backend slurm", True),
        ("submit --dry-run --command true", False),
        ("submit --help", False),
        ("submit --backend slurm --command true", False),
        ("submit --backend=slurm --command true", False),
        ("submit --backend local --command true", True),
        ("list", False),
        ("", False),
    ],
)
def test_only_a_command_that_starts_a_job_prepares_for_it(typed: str, starts: bool) -> None:
    """What stands behind `--` is the job's."""
    assert program._starts_a_job(typed.split()) is starts


def test_the_one_that_was_started_early_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; the next job of the same process gets another."""
    monkeypatch.setattr(detached, "_waiting", [])
    detached.prepare_early()
    (early,) = detached._waiting
    one, other = detached.prepare(), detached.prepare()
    assert one is early and other is not early
    for prepared in (one, other):
        prepared.dismiss()
        prepared._process.wait(300)


def test_a_submit_that_is_refused_leaves_no_coordinator(tmp_path: Path) -> None:
    """It ends with the command that it was started for."""
    environment = {**os.environ, "LAUNCHER_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-m", "launcher", "submit", "--nodes", "many"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    eventually(lambda: not procs.marked({"LAUNCHER_HOME": str(tmp_path / "home")}), "the coordinator is gone")
    assert not (tmp_path / "home" / "jobs").exists()

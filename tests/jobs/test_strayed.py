"""A command that writes its model into its working copy, not to $PAI_OUTPUT_MODEL: nobody has it but the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher import TrainingJob
from tests.jobs.desk import Desk


def test_a_model_in_the_working_copy_stays_and_its_place_is_told(desk: Desk, tmp_path: Path) -> None:
    """A relative path leads there; without a model the copies with new files stay, and gc wants the job to be named."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "old").write_text("was there before")
    command = "if [ $RANK = 1 ]; then mkdir -p results __pycache__; echo w > results/m.pt; echo c > __pycache__/a.pyc; fi"
    done = desk.submit("--nodes", "2", "--source-dir", str(tmp_path / "src"), "--command", command)
    job = desk.folder().name
    told = next(line for line in done.stderr.splitlines() if "into its working copy" in line)
    assert "the command wrote results/m.pt into its working copy, which stays there: /" in told
    assert "warning: the model is empty" in done.stderr
    copy = told.rpartition(": ")[2]
    assert told in desk.run("model-data", "latest").stderr.splitlines()
    # Where the file is now is asked of the nodes themselves.
    look = desk.submit("--nodes", "2", "--keep", "--command", f"cat {copy}/results/m.pt 2>/dev/null || true")
    assert "w" in [line.partition("] ")[2] for line in look.stdout.splitlines()]
    assert f"{job}: its command wrote no model, and the files it wrote" in desk.run("gc", "--yes").stderr
    assert job in desk.run("gc", job, "--yes").stdout


def test_only_a_success_without_a_model_keeps_its_working_copy(local: Desk, tmp_path: Path) -> None:
    """With a model, what lies beside it is the command's own affair; what was not written into is not kept either."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "old").write_text("was there before")
    for command in ("echo w > $PAI_OUTPUT_MODEL/w; echo more > beside", "cat old"):
        done = local.submit("--source-dir", str(tmp_path / "src"), "--command", command)
        assert "working copy" not in done.stderr
    assert list((local.home / "node" / "jobs").iterdir()) == []


def test_a_command_without_a_source_folder_may_stray_too(local: Desk) -> None:
    """Its working directory was empty; now it is not."""
    done = local.submit("--command", "for name in a b c d e; do echo w > $name; done")
    assert "the command wrote a, b, c and 2 more into its working copy" in done.stderr
    (job,) = (local.home / "node" / "jobs").iterdir()
    assert sorted(path.name for path in job.iterdir()) == ["code", "output"]


def test_a_notebook_is_told_of_it_too(local: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the warning that the model is empty."""
    local.submit("--command", "echo w > m.pt")
    monkeypatch.setenv("LAUNCHER_HOME", str(local.home))
    with pytest.warns(UserWarning, match=r"is empty.*\n.*the command wrote m\.pt into its working copy"):
        TrainingJob.get("latest").data("model")

"""What `launcher submit` says of a script that the nodes would not have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import warm


def submit(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.launcher(["submit", "--backend", "local", *words], env={**os.environ, "LAUNCHER_HOME": str(tmp_path / "home")})


def test_a_script_that_an_ignore_file_keeps_here_is_refused(tmp_path: Path) -> None:
    """It would be missed only on the nodes."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "train_local.py").write_text("")
    (source / ".gitignore").write_text("*_local.py\n")
    done = submit(tmp_path, "--source-dir", str(source), "--", "train_local.py")
    assert done.returncode == 2
    assert "train_local.py is in the source folder, but an ignore file" in done.stderr
    assert done.stderr.endswith("next: take it back in by a line `!train_local.py` in .launcherignore\n")


@pytest.mark.parametrize("said", ["here/src/train.py", "trian.py"])
def test_a_script_that_is_not_there_is_guessed(tmp_path: Path, said: str) -> None:
    """A path of which the source folder is a part already, and a slip."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text("")
    done = submit(tmp_path, "--source-dir", str(source), "--", said)
    assert done.returncode == 2
    assert done.stderr.endswith("next: name the script relative to --source-dir: did you mean train.py?\n")


def test_a_command_whose_variables_were_filled_in_here_is_refused(tmp_path: Path) -> None:
    """In double quotes they are empty before the launcher sees them."""
    done = submit(tmp_path, "--nodes", "2", "--command", "torchrun --master_addr= --master_port= --nnodes= --node_rank= train.py")
    assert done.returncode == 2
    assert "the command names no master" in done.stderr and "in single quotes" in done.stderr


def test_a_torchrun_that_is_on_no_node_is_warned_of(tmp_path: Path) -> None:
    """On one node there is nothing to tell it."""
    warning = "nothing in `torchrun train.py` tells torchrun which of the 2 nodes it is on"
    assert warning in submit(tmp_path, "--dry-run", "--nodes", "2", "--command", "torchrun train.py").stderr
    assert warning in submit(tmp_path, "--dry-run", "--nodes", "2", "--", "torchrun", "train.py").stderr
    assert "tells torchrun" not in submit(tmp_path, "--dry-run", "--nodes", "1", "--command", "torchrun train.py").stderr

"""Jobs whose code comes from a repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.git.conftest import Repository
from tests.jobs.desk import Desk


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "home", ("--backend", "local"))
    yield desk
    desk.end_everything()


def test_a_job_runs_what_its_branch_has(local: Desk, repository: Repository) -> None:
    """The snapshot is that commit, clean; no clone is left."""
    done = local.submit("--git", repository.url, "--branch", "side", "--source-dir", "src", "--", "train.py")
    assert "side" in done.stdout and f"cloning {repository.url}, branch side" in done.stderr
    told = json.loads((local.folder() / "code.json").read_text())
    assert told["git"] == {"commit": repository.commits["aside"], "dirty": False} and list(told["files"]) == ["train.py"]
    assert not (local.folder() / "clone").exists()


def test_a_job_file_names_a_repository(local: Desk, repository: Repository) -> None:
    """A folder relative to the file; what is wrong is told with its place."""
    path = repository.work.parent / "job.yaml"
    path.write_text(f"git:\n  repo: ./repo.git\n  commit: {repository.commits['first']}\ncommand: cat src/train.py\n")
    assert "one" in local.submit(str(path)).stdout
    path.write_text("git: {repo: 'ext::sh -c id', brnch: x, commit: 12345}\ncommand: x\n")
    assert "git.brnch: unknown key; allowed: repo, branch, commit" in local.run("submit", str(path), check=2).stderr
    path.write_text("git: {repo: 'ext::sh -c id', commit: 12345}\ncommand: x\n")
    assert "a program that git would start" in local.run("submit", str(path), check=2).stderr


def test_nothing_is_left_of_a_job_that_cannot_be_cloned(local: Desk, repository: Repository) -> None:
    """Nor of one whose script is not in the repository."""
    for words, text in (
        (("--git", repository.url, "--branch", "nope", "--command", "true"), "Remote branch nope"),
        (("--git", repository.url, "--source-dir", "src", "--", "nope.py"), "there is no nope.py in the source folder"),
        (("--git", repository.url, "--source-dir", "../x", "--command", "true"), "a folder of the repository"),
        (("--branch", "main", "--command", "true"), "belong to --git"),
    ):
        assert text in local.run("submit", *local.extra, *words, check=2).stderr
    assert not list((local.home / "jobs").glob("*"))


def test_a_token_is_nowhere_in_the_folder_nor_on_the_screen(local: Desk, repository: Repository) -> None:
    """Neither in the plan of a dry run."""
    url = f"https://t0ken@127.0.0.1:1/{repository.bare.name}"
    done = local.run("submit", *local.extra, "--git", url, "--command", "true", "--dry-run")
    assert "t0ken" not in done.stdout + done.stderr and "https://****@127.0.0.1:1" in done.stdout
    done = local.run("submit", *local.extra, "--git", url, "--command", "true", check=2)
    assert "t0ken" not in done.stdout + done.stderr

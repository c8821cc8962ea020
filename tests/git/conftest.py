"""A bare repository with two branches, a tag, and a folder of code."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class Repository:
    """A bare repository and the work tree that it is filled from."""

    bare: Path
    work: Path
    commits: dict[str, str] = field(default_factory=dict)
    """{what it is: full name}"""

    @property
    def url(self) -> str:
        return f"file://{self.bare}"

    def git(self, *words: str) -> str:
        """git in the work tree."""
        quiet = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "protocol.file.allow=always"]
        done = subprocess.run(["git", *quiet, *words], cwd=self.work, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, name: str, text: str) -> None:
        """One more commit: the training script prints ``text``."""
        (self.work / "src").mkdir(exist_ok=True)
        (self.work / "src/train.py").write_text(f"print({text!r})\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", name)
        self.commits[name] = self.git("rev-parse", "HEAD")

    def push(self) -> None:
        self.git("push", "-q", "--all", str(self.bare))
        self.git("push", "-q", "--tags", str(self.bare))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    made = Repository(tmp_path / "repo.git", tmp_path / "repo-work")
    made.work.mkdir()
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(made.bare)], check=True)
    made.git("init", "-q", "-b", "main")
    made.commit("first", "one")
    made.git("tag", "v1")
    made.commit("second", "two")
    made.git("checkout", "-q", "-b", "side", "v1")
    made.commit("aside", "side")
    made.git("checkout", "-q", "main")
    made.push()
    return made

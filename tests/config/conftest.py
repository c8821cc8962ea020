"""A person's home with an inventory, a config that names it, and nobody else's variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Person:
    """Where a person's files lie."""

    home: Path
    work: Path
    """the working directory, without an inventory of its own"""

    @property
    def config(self) -> Path:
        return self.home / ".config/launcher/config.yaml"

    def says(self, text: str) -> Path:
        """Write the user's config."""
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(text)
        return self.config


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    for name in [name for name in os.environ if name.startswith("LAUNCHER_")]:
        monkeypatch.delenv(name)
    made = Person(tmp_path / "home", tmp_path / "work")
    made.work.mkdir()
    made.home.mkdir()
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(made.home / ".config"))
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "jobs"))
    monkeypatch.chdir(made.work)
    (made.home / "lab.yaml").write_text("name: its-own\nhosts: [a, b]\n")
    return made

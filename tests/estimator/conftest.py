"""A home of jobs for code that runs in this very process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import session
from tests.jobs.desk import Desk


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """An empty directory, no inventory, no config of anybody's; nothing outlives the test."""
    for name in ("LAUNCHER_CLUSTER", "LAUNCHER_BACKEND", "LAUNCHER_NAME"):
        monkeypatch.delenv(name, raising=False)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAUNCHER_CONFIG", "none")
    monkeypatch.setattr(session, "_default", [])
    desk = Desk(tmp_path / "home")
    yield desk
    desk.end_everything()

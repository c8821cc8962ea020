"""Nodes that nothing else built: one sshd per node on a loopback port, each with a home directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.nodes import Nodes
from tests.jobs.desk import Desk


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes; their desk is `nodes.desk`."""
    made = Nodes(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Desk]:
    """Nodes simulated on this machine."""
    made = Desk(tmp_path / "home", ("--backend", "local"))
    yield made
    made.end_everything()

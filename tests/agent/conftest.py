"""A node for each test, with nothing of it left alive afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.far import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node whose Python is the oldest at hand; after the test no process of it may be left."""
    made = Node(tmp_path)
    yield made
    made.close()

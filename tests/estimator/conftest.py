"""A home of jobs for code that runs in this very process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import session
from tests.cluster.handle import Cluster
from tests.jobs.desk import Desk, eventually

LABEL = "ecs.gn6i-c24g1.12xlarge"
"""what PAI's example asks for"""


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


@pytest.fixture
def machines(office: Desk, cluster: Cluster) -> Iterator[Desk]:
    """Three real hosts with that label, named by a cluster file in the directory."""
    hosts = "".join(f"  - {{name: {name}, python: {sys.executable}, instance_type: {LABEL}}}\n" for name in ("node1", "node2"))
    hosts += f"  - {{name: node3, instance_type: {LABEL}}}\n"
    Path("cluster.yaml").write_text(f"name: lab\nbackend: ssh\nhosts:\n{hosts}ssh: {{config: {cluster.ssh_config}}}\n")
    yield office
    office.end_everything()
    for host in cluster.hosts:
        eventually(lambda host=host: not cluster.leftovers(host), f"nothing of ours on {host}")

"""Desks: one that simulates nodes here, one that has the fake cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.handle import Cluster
from tests.jobs.desk import Desk, eventually


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Desk]:
    """Nodes simulated on this machine."""
    desk = Desk(tmp_path / "home", ("--backend", "local"))
    yield desk
    desk.end_everything()


@pytest.fixture
def remote(request: pytest.FixtureRequest, tmp_path: Path, cluster: Cluster) -> Iterator[Desk]:
    """The fake cluster's nodes over real ssh; afterwards nothing of ours may be alive there."""
    assert request.node.get_closest_marker("cluster"), "without the mark it would run beside others on the same nodes"
    desk = Desk(tmp_path / "home", ("--cluster", str(cluster.cluster_yaml)))
    yield desk
    cluster.mend()
    desk.end_everything()
    for host in cluster.hosts:
        eventually(lambda host=host: not cluster.leftovers(host), f"nothing of ours on {host}: {cluster.leftovers(host)}")


# What is asked for by name while a test runs is not seen at collection: the mark tells that one needs the cluster.
@pytest.fixture(params=["local", pytest.param("remote", marks=pytest.mark.cluster)])
def desk(request: pytest.FixtureRequest) -> Desk:
    """Both kinds: one test body over every way to reach nodes."""
    made: Desk = request.getfixturevalue(request.param)
    return made

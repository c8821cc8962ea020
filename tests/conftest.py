"""The fake cluster as a fixture, and what happens where it cannot be had.

A test that takes ``cluster`` is marked so by itself.  Without root or a container engine such tests are left out, and
the summary says which; with LAUNCHER_REQUIRE_CLUSTER=1, as in CI, their absence is an error instead.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.cluster import handle
from tests.cluster.handle import Cluster

_left_out = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The running fake cluster.  It is shared by all workers and lives on after them: `make test` takes it down."""
    return handle.start()


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to begin, once and not in every worker, where the cluster is asked for and cannot be had."""
    if os.environ.get("LAUNCHER_REQUIRE_CLUSTER") != "1" or hasattr(config, "workerinput"):
        return
    reason = handle.why_not()
    if reason is not None:
        raise pytest.UsageError(f"LAUNCHER_REQUIRE_CLUSTER=1, but there is no fake cluster: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs the cluster; leave it out where there is none to be had."""
    for item in items:
        if "small_disk" in getattr(item, "fixturenames", ()):
            item.add_marker("root")
    wanting = [item for item in items if "cluster" in getattr(item, "fixturenames", ())]
    for item in wanting:
        item.add_marker("cluster")
    wanting = [item for item in items if item.get_closest_marker("cluster")]
    for item in wanting:
        # One worker runs all of them in turn: some pause or kill what others use.
        item.add_marker(pytest.mark.xdist_group("cluster"))
    if not wanting or handle.why_not() is None:
        wanting = []
    if os.geteuid() != 0:
        wanting += [item for item in items if item.get_closest_marker("root")]
    if not wanting:
        return
    left = set(map(id, wanting))
    items[:] = [item for item in items if id(item) not in left]
    config.hook.pytest_deselected(items=wanting)
    config.stash[_left_out] = sorted({item.nodeid.partition("::")[0] for item in wanting})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under xdist: a worker hands what it left out to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_left_out, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker left out."""
    if hasattr(node, "workeroutput"):  # a worker that crashed has none
        node.config.stash[_left_out] = node.workeroutput["left_out"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and how to get it."""
    files = config.stash.get(_left_out, [])
    if files:
        terminalreporter.write_line(
            f"LEFT OUT: tests that need the fake cluster or root, in {', '.join(files)}: "
            f"{handle.why_not() or 'this is not root'}. `make test` as root on Debian sets it up and runs them.",
            yellow=True,
        )

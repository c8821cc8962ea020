"""The fake clusters as fixtures, and what happens where they cannot be had.

A test that takes ``cluster`` is marked so by itself, one that takes ``slurm`` or ``slurm_accounting`` is marked ``slurm``.
Without root or a container engine such tests are left out, and the summary says which; with LAUNCHER_REQUIRE_CLUSTER=1,
as in CI, their absence is an error instead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.cluster import handle
from tests.cluster.handle import Cluster
from tests.cluster.slurm import handle as slurm_handle
from tests.cluster.slurm.handle import SlurmCluster
from tests.cluster.slurm.layout import ACCOUNTING, PLAIN, TWIN

FIXTURES = {"cluster": "cluster", "slurm": "slurm", "slurm_accounting": "slurm"}
"""fixture -> mark of the tests that take it"""
WHY_NOT = {"cluster": handle.why_not, "slurm": slurm_handle.why_not}
"""mark -> function that says why its tests cannot run here"""
SECOND_HALF = {"test_login.py", "test_on_slurm.py", "test_requeue.py", "test_signals.py", "test_step.py"}
"""files of tests/slurm that a worker of xdist runs on the twin, beside those of all other files: both last about as long"""
TOGETHER = {"jobs", "s3"}
"""fixtures that are made once and take seconds: one worker of xdist runs all tests that take one"""

TORCH_SECONDS = 1200
"""a test that trains has hung after that: on two cores that others use, too, a training takes minutes"""

_left_out = pytest.StashKey[list[str]]()
# Where the tests are started in the background these are ignored, and would be by every process that they start.
for _ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, signal.default_int_handler if _ignored is signal.SIGINT else signal.SIG_DFL)
# Whoever runs the tests may have clusters of their own.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
# Examples are the same ones in every run, and may take as long as a busy machine lets them.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The running fake cluster.  It is shared by all workers and lives on after them: `make test` takes it down."""
    return handle.start()


@pytest.fixture(scope="session")
def _slurm_clusters() -> Callable[[str], SlurmCluster]:
    layouts = {layout.name: layout for layout in (PLAIN, TWIN, ACCOUNTING)}
    return cache(lambda name: slurm_handle.start(layouts[name]))


@pytest.fixture
def slurm(request: pytest.FixtureRequest, _slurm_clusters: Callable[[str], SlurmCluster]) -> Iterator[SlurmCluster]:
    """A fake Slurm cluster without accounting: no jobs, all nodes idle, ``slurm.shared`` empty; a test may break anything."""
    yield from _settled(_slurm_clusters(_cluster_of("slurm", request.path)))


@pytest.fixture
def slurm_accounting(_slurm_clusters: Callable[[str], SlurmCluster]) -> Iterator[SlurmCluster]:
    """The same with accounting: nodes a1 and a2, slurmdbd on the login machine."""
    yield from _settled(_slurm_clusters(ACCOUNTING.name))


def _settled(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    if not cluster.whole:
        cluster.settle()
    yield cluster
    left = cluster.settle()
    assert not left, f"outlived the jobs of this test: {left}"


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to begin, once and not in every worker, where the clusters are asked for and cannot be had."""
    if os.environ.get("LAUNCHER_REQUIRE_CLUSTER") != "1" or hasattr(config, "workerinput"):
        return
    for mark, why_not in WHY_NOT.items():
        reason = why_not()
        if reason is not None:
            raise pytest.UsageError(f"LAUNCHER_REQUIRE_CLUSTER=1, but tests marked {mark} cannot run: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a cluster; leave it out where there is none to be had."""
    for item in items:
        _mark(item)
    # xdist hands out the groups first, and then what is left in this order: nothing long may come at the end.
    items.sort(key=lambda item: item.get_closest_marker("torch") is None)
    wanting = [item for mark in WHY_NOT for item in items if item.get_closest_marker(mark)]
    if wanting:
        missing = {mark for mark, why_not in WHY_NOT.items() if why_not() is not None}
        wanting = [item for item in wanting if any(item.get_closest_marker(mark) for mark in missing)]
    if os.geteuid() != 0:
        wanting += [item for item in items if item.get_closest_marker("root")]
    if not wanting:
        return
    left = set(map(id, wanting))
    items[:] = [item for item in items if id(item) not in left]
    config.hook.pytest_deselected(items=wanting)
    config.stash[_left_out] = sorted({item.nodeid.partition("::")[0] for item in wanting})


def _mark(item: pytest.Item) -> None:
    taken = getattr(item, "fixturenames", ())
    if "small_disk" in taken:
        item.add_marker("root")
    if item.get_closest_marker("torch") and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(TORCH_SECONDS))
    for mark in {FIXTURES[name] for name in taken if name in FIXTURES}:
        item.add_marker(mark)
    # One worker runs all tests of a cluster in turn: some pause or kill what others use.
    groups = {_cluster_of(name, item.path) for name in taken if name in FIXTURES}
    if item.get_closest_marker("cluster"):
        groups.add("cluster")
    if len(groups) > 1:
        raise pytest.UsageError(f"{item.nodeid} takes two clusters, and would meet the tests of one of them")
    for group in groups or TOGETHER.intersection(taken):
        item.add_marker(pytest.mark.xdist_group(group))


def _cluster_of(fixture: str, test: Path) -> str:
    """Which cluster the fixture hands to the tests of a file.  A run without xdist needs one of a kind."""
    if fixture == "slurm":
        return (TWIN if "PYTEST_XDIST_WORKER" in os.environ and test.name in SECOND_HALF else PLAIN).name
    return ACCOUNTING.name if fixture == "slurm_accounting" else fixture


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
        reason = next(filter(None, (why_not() for why_not in WHY_NOT.values())), "this is not root")
        terminalreporter.write_line(
            f"LEFT OUT: tests that need a fake cluster or root, in {', '.join(files)}: "
            f"{reason}. `make test` as root on Debian sets it up and runs them.",
            yellow=True,
        )

"""What a failed step says to the person."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.coordinator.steps import Steps
from launcher.errors import HostKeyUnknown, LauncherError, NodesFailed, NodeUnusable
from launcher.model import Command
from launcher.planning import Request, draft
from launcher.policy import Step, View
from launcher.store import Folder


@pytest.mark.parametrize("together", [False, True], ids=["one node", "several"])
@pytest.mark.parametrize(
    ("file", "advice"),
    [("cluster.yaml", "launcher trust n1"), ("my lab.yaml", "launcher trust n1 --cluster 'my lab.yaml'")],
    ids=["found unnamed", "named"],
)
def test_the_advice_to_trust_a_host_can_be_typed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, advice: str, together: bool
) -> None:
    """An inventory that had to be named for the job has to be named for `launcher trust`, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCHER_CLUSTER", raising=False)
    Path(file).write_text("hosts: [{name: n1, address: 192.0.2.1}, n2]\n")
    named = None if file == "cluster.yaml" else file
    plan = draft(Request(cluster=named, command=Command(shell="true")), {}).plan
    unknown = HostKeyUnknown("nobody knows it", where="n1", next_step="compare, then: launcher trust n1")
    error: LauncherError = NodesFailed("not every node can be reached", [unknown]) if together else unknown
    event = Steps(plan, Folder(tmp_path), lambda event: None, View).failed(Step.REACH, error)
    assert event["message"].endswith(f"  next: compare, then: {advice}")


def test_a_failed_probe_keeps_its_advice_where_the_inventory_was_named(tmp_path: Path) -> None:
    """What is gathered of several nodes has a next step of its own."""
    (tmp_path / "lab.yaml").write_text("hosts: [n1, n2]\n")
    plan = draft(Request(cluster=str(tmp_path / "lab.yaml"), command=Command(shell="true")), {}).plan
    error = NodesFailed("no address of node 0 is reached", [NodeUnusable("cannot reach node 0 (n1)", where="n2")])
    error.next_step = "open the training ports"
    event = Steps(plan, Folder(tmp_path), lambda event: None, View).failed(Step.PROBE, error)
    assert event["message"].endswith("    n2: cannot reach node 0 (n1)\n  next: open the training ports")

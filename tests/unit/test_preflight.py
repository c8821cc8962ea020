"""What is said of nodes that were looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import HostUnreachable, NodesFailed, NodeUnusable
from launcher.model import Command, Host, JobSpec, Node, Plan
from launcher.preflight.findings import judge
from launcher.preflight.report import Report, Seen

FACTS: dict[str, Any] = {
    "hostname": "h", "user": "train", "gpus": 8, "cpus": 4, "free_bytes": 10**12, "free_inodes": 10**6, "rsync": "/usr/bin/rsync",
    "reached_at": ["192.0.2.1"], "logout": {}, "python": "/usr/bin/python3",
}  # fmt: skip
MASTER = {"address": "192.0.2.1", "port": 23456}


def seen(rank: int, *, host: dict[str, Any] | None = None, facts: dict[str, Any] | None = None, **more: Any) -> Seen:
    """A node that has everything, but for what is said."""
    whole: dict[str, Any] = {"clock": 0.0, "python": "/usr/bin/python3", "versions": ("3.11.2", "2.4.0"), **more}
    name = f"n{rank}"
    return Seen(rank, Host(name, name, **(host or {})), {**FACTS, **(facts or {})}, **whole)


def report(*nodes: Seen, errors: tuple[Any, ...] = (), lenient: tuple[str, ...] = (), **spec: Any) -> Report:
    """What is said of them, of a job that torchrun would start."""
    settled = JobSpec(**{"command": Command(script=("train.py",)), **spec})
    places = tuple(Node(one.rank, one.host) for one in nodes)
    plan = Plan(
        job_id="check", spec=settled, backend="ssh", cluster="lab", inventory=None, nodes=places, project="p", created_at=0.0
    )
    return judge(plan, nodes, errors, (), MASTER, lenient=lenient, installs=False)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No jobs of anybody's."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    return tmp_path


def test_nodes_that_have_everything_are_passed_over_in_silence() -> None:
    """Small differences are none: a third number of Python's version, a second of clock."""
    told = report(seen(0), seen(1, versions=("3.11.9", "2.4.0"), clock=1.0))
    assert told.ok and not told.errors and not told.warnings


@pytest.mark.parametrize(
    ("node", "kind", "words"),
    [
        (seen(1, versions=("3.9.2", "2.4.0")), "PythonDiffers", ("3.11: n0", "3.9: n1")),
        (seen(1, versions=None), "PythonSilent", ("n1: /usr/bin/python3 does not say",)),
        (seen(1, clock=-7.25), "ClocksDiffer", ("up to 7 s apart", "n1: 7.2 s behind this machine")),
        (seen(1, facts={"free_bytes": 5_000_000}), "LittleSpace", ("n1: 5.0 MB are free in ~/.launcher",)),
        (seen(1, facts={"free_inodes": 12}), "LittleSpace", ("12 more files",)),
        (seen(1, host={"gpus": 9}), "FewerGpus", ("n1: the inventory says 9 GPUs, and 8 can be seen",)),
        (seen(1, facts={"logout": {"kill": True}}), "LogOut", ("n1: a log-out there ends all processes of train",)),
        (seen(1, greeting=b"Welcome!\nhave fun\n"), "NoisyShell", ("n1: start-up files", "    have fun")),
        (seen(1, jobs={"a-20250102-120000-abcd": True, "b": False}), "JobRuns", ("not submitted from here",)),
        (seen(1, pulls=True, versions=None, python=None), "ImageNotThere", ("n1: ", "pulls it first")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_start_does_not_mind_is_a_warning(node: Seen, kind: str, words: tuple[str, ...]) -> None:
    """With the node it is about, and without keeping a job from starting."""
    told = report(seen(0), node)
    assert told.ok and [finding.kind for finding in told.warnings] == [kind]
    assert not [word for word in words if word not in told.warnings[0].text]
    assert 1 in told.warnings[0].nodes


def test_a_job_that_is_over_is_told_from_one_that_runs(home: Path) -> None:
    """By its folder here; what still runs of the one can be ended."""
    created = {"type": "created", "time": 1, "nodes": [{"rank": 0, "host": "n0"}]}
    why = {"reason_code": "Succeed", "reason_message": "", "exit_code": 0, "model": None}
    for name, last in (
        ("over", {"type": "end", "time": 2, "status": "Succeed", **why}),
        ("runs", {"type": "following", "time": 2}),
    ):
        (home / "jobs" / name).mkdir(parents=True)
        (home / "jobs" / name / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (created, last)))
    told = report(seen(0, jobs={"over": True, "runs": True}))
    assert {finding.kind: finding.next_step for finding in told.warnings} == {
        "JobLeft": "launcher gc over",
        "JobRuns": "launcher status runs",
    }


def test_differing_torch_is_an_error_unless_that_is_allowed() -> None:
    """Processes of different versions hang; a plain command starts none."""
    nodes = seen(0), seen(1, versions=("3.11.2", "2.5.0")), seen(2)
    told = report(*nodes)
    assert [(finding.kind, finding.nodes) for finding in told.errors] == [("TorchDiffers", (0, 1, 2))]
    assert list(told.errors[0].lines) == ["2.4.0: n0, n2", "2.5.0: n1"]
    allowed = report(*nodes, lenient=("TorchDiffers",))
    assert allowed.ok and [finding.kind for finding in allowed.warnings] == ["TorchDiffers"]
    assert report(*nodes, command=Command(shell="hostname")).ok


def test_a_script_without_torch_cannot_start() -> None:
    """torchrun is torch's."""
    nodes = seen(0, versions=("3.11.2", None)), seen(1, versions=("3.11.2", None))
    told = report(*nodes)
    assert [finding.text.splitlines()[0] for finding in told.errors] == [
        "n0, n1: there is no torch in /usr/bin/python3, which starts scripts"
    ]
    assert report(*nodes, command=Command(argv=("hostname",))).ok


def test_errors_that_were_gathered_are_told_one_by_one_but_the_probes_is_one() -> None:
    """Each with its node."""
    away = HostUnreachable("nothing answers there", where="n1", next_step="ssh n1")
    pairs = [NodeUnusable("cannot reach node 0 (n0)", where="n1", lines=["192.0.2.1 port 5: refused"])]
    probe = NodesFailed("no address of node 0 (n0) is reached by every other node", pairs)
    probe.next_step = "open the ports"
    both = NodesFailed("not every node answers", [NodeUnusable("a", where="n0"), NodeUnusable("b", where="n1")])
    told = report(seen(0), seen(1), errors=(away, both, probe))
    assert [(finding.kind, finding.nodes) for finding in told.errors] == [
        ("HostUnreachable", (1,)), ("NodeUnusable", (0,)), ("NodeUnusable", (1,)), ("NoMasterAddress", ()),
    ]  # fmt: skip
    assert "n1: cannot reach node 0 (n0)" in told.errors[-1].text


def test_of_a_node_zero_that_is_away_no_address_is_told() -> None:
    """Another one stood for it."""
    gone = Seen(0, Host("n0", "n0"), None)
    told = report(gone, seen(1), errors=(HostUnreachable("nothing answers there", where="n0"),))
    document = told.document()
    assert (document["ok"], document["master_addr"], document["master_port"]) == (False, None, None)
    assert document["nodes"][0]["reached"] is False and document["nodes"][0]["user"] is None
    assert document["errors"][0]["hosts"] == ["n0"]

"""What a manifest says of the job that made the files."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

import pytest

import launcher
from launcher.model import Command, JobSpec, Plan
from launcher.provenance import provenance

PLAN = Plan("j-20260101-000000-aaaa", JobSpec(Command(script=("train.py", "--lr", "0.1")), name="j"), "ssh", "lab", (), "p")
NODES = [
    {"rank": rank, "host": f"n{rank}", "address": f"10.0.0.{rank}", "hostname": f"h{rank}", "nproc": 2, "gpus": 2,
     "python_version": "3.11.2", "user": "u"}
    for rank in range(2)
]
EVENTS = [
    {"type": "reached", "nodes": NODES},
    {"type": "following", "time": 7.0},
    {"type": "reached", "nodes": []},
    {"type": "following", "time": 9.0, "adopted": True},
]
CODE = {"digest": "d" * 64, "bytes": 12, "git": {"commit": "c" * 40, "dirty": True}}


def test_a_model_can_be_traced_to_source_command_nodes_and_versions() -> None:
    """The first start counts, and a coordinator that adopted the job forgot none of its nodes."""
    told = provenance(PLAN, CODE, EVENTS, {0: "2.4.0", 1: "2.4.0"}, 11.0)
    assert told["source"] == {"commit": "c" * 40, "dirty": True, "digest": "d" * 64, "bytes": 12}
    assert told["command"] == {"script": ["train.py", "--lr", "0.1"]}
    assert (told["started_at"], told["collected_at"], told["processes"], told["torch"]) == (7.0, 11.0, 4, "2.4.0")
    assert [(node["rank"], node["host"], node["address"], node["torch"]) for node in told["nodes"]] == [
        (0, "n0", "10.0.0.0", "2.4.0"),
        (1, "n1", "10.0.0.1", "2.4.0"),
    ]


def test_versions_that_differ_are_told_node_by_node() -> None:
    """No one of them is given out for the version of all."""
    told = provenance(PLAN, None, EVENTS, {0: "2.4.0", 1: None}, 11.0)
    assert (told["torch"], told["source"]) == (None, None)
    assert [node["torch"] for node in told["nodes"]] == ["2.4.0", None]


def test_secrets_among_the_hyperparameters_are_masked() -> None:
    """The manifest travels with the model."""
    plan = replace(PLAN, spec=replace(PLAN.spec, hyperparameters={"lr": 0.1, "api_key": "hush"}))
    told = provenance(plan, None, EVENTS, {}, 11.0)
    assert told["hyperparameters"] == {"lr": 0.1, "api_key": "****"}


def test_the_package_tells_its_version() -> None:
    """launcher.__version__ is what was installed, and among the names there are; others are an AttributeError."""
    assert launcher.__version__ == version("launcher") and "__version__" in dir(launcher)
    with pytest.raises(AttributeError, match="no attribute '__author__'"):
        _ = launcher.__author__

"""What made a model: source, command, hyperparameters, nodes and versions, so that it can be traced.  Pure.

    job_id, name, created_at, started_at, collected_at    the job
    source        {commit, dirty, digest, bytes} of the code, as at submit; null for a job without a source folder
    command       {script, argv or shell}; hyperparameters, secrets among them masked; image; labels
    processes     how many the nodes started in all
    nodes         [{rank, host, address, hostname, nproc, gpus, python_version, torch}]
    torch         the version that every node has; null where they differ, or none was found
    launcher      our own version
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from launcher.environ import is_secret
from launcher.model import MASK, Plan, to_json

_OF_A_NODE = ("rank", "host", "address", "hostname", "nproc", "gpus", "python_version")


def provenance(
    plan: Plan, code: Mapping[str, Any] | None, events: Iterable[Mapping[str, Any]], torch: Mapping[int, str | None], now: float
) -> dict[str, Any]:
    """The manifest's `made_by`: ``code`` is the content of code.json, ``torch`` each node's version, where it is known."""
    reached: list[Mapping[str, Any]] = []
    started = None
    for event in events:
        if event.get("type") == "reached":
            reached = event.get("nodes") or reached
        started = event.get("time") if event.get("type") == "following" and started is None else started
    nodes = [{**{key: node.get(key) for key in _OF_A_NODE}, "torch": torch.get(node["rank"])} for node in reached]
    versions = set(torch.values())
    spec = plan.spec
    return {
        "job_id": plan.job_id,
        "name": spec.name,
        "created_at": plan.created_at,
        "started_at": started,
        "collected_at": now,
        "source": code and _source(code),
        "command": {key: value for key, value in to_json(spec.command).items() if value is not None},
        "hyperparameters": {key: MASK if is_secret(key) else value for key, value in spec.hyperparameters.items()},
        "image": spec.image,
        "labels": dict(spec.labels),
        "processes": sum(node["nproc"] or 0 for node in nodes),
        "nodes": nodes,
        "torch": next(iter(versions)) if len(versions) == 1 else None,
        "launcher": own_version(),
    }


def _source(code: Mapping[str, Any]) -> dict[str, Any]:
    git = code.get("git") or {"commit": None, "dirty": None}
    return {**git, "digest": code["digest"], "bytes": code["bytes"]}


def own_version() -> str | None:
    """The launcher's; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("launcher")
    except PackageNotFoundError:
        # A checkout that was never installed.
        return None

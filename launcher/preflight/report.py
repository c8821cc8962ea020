"""What was seen, and what is said of it: as a document, and as lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from launcher.errors import LauncherError, NodesFailed
from launcher.model import Host, Plan
from launcher.record import dataclass


@dataclass
class Seen:
    """One node, as far as it could be looked at."""

    rank: int
    host: Host
    facts: Mapping[str, Any] | None
    """what its hello told; None where it was not reached"""
    greeting: bytes = b""
    """what its log-in shell printed before our program began"""
    clock: float | None = None
    """seconds that it is ahead of this machine's"""
    jobs: Mapping[str, bool] = field(default_factory=dict)
    """{job id: whether processes of it live}"""
    python: str | None = None
    """the interpreter that the command would have"""
    versions: tuple[str, str | None] | None = None
    """its version, and that of its torch (None: it has none); None where it did not answer"""
    pulls: bool = False
    """a start would pull the image first"""

    @property
    def address(self) -> str | None:
        """Where it was reached."""
        if self.facts is None:
            return None
        return str((self.facts["reached_at"] or [self.host.internal_address or self.host.address])[0])


@dataclass(frozen=True)
class Finding:
    """Something to know: what, on which nodes, the last lines, the next step."""

    kind: str
    """a word for programs: see docs/json.md"""
    message: str
    nodes: tuple[int, ...] = ()
    """ranks; none where it is about all of them, or about none"""
    where: str = ""
    lines: Sequence[str] = ()
    next_step: str = ""

    @property
    def text(self) -> str:
        """All of it, for people."""
        return str(LauncherError(self.message, where=self.where, lines=self.lines, next_step=self.next_step))

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """As an entry of `errors` and `warnings`."""
        told = {"kind": self.kind, "nodes": list(self.nodes), "hosts": [names[rank] for rank in self.nodes]}
        return {**told, "message": self.message, "lines": list(self.lines), "next_step": self.next_step or None}


def of_error(error: LauncherError, plan: Plan) -> list[Finding]:
    """An error as a start would tell it; one that only gathers others is these."""
    if isinstance(error, NodesFailed) and not error.next_step:
        return [finding for one in error.errors for finding in of_error(one, plan)]
    ranks = tuple(node.rank for node in plan.nodes if node.host.name == error.where)
    # Only the probe's error gathers others and has a next step of its own.
    kind = "NoMasterAddress" if isinstance(error, NodesFailed) else type(error).__name__
    return [Finding(kind, error.what, ranks, error.where, error.lines, error.next_step)]


@dataclass
class Report:
    """A whole look."""

    plan: Plan
    nodes: Sequence[Seen]
    errors: Sequence[Finding]
    warnings: Sequence[Finding]
    master: Mapping[str, Any] | None
    """address and port that every node has reached; None where there is none, or node 0 was not reached itself"""

    @property
    def ok(self) -> bool:
        """Whether a job could start."""
        return not self.errors

    def document(self) -> dict[str, Any]:
        """The document of `check -o json`."""
        names = [one.host.name for one in self.nodes]
        chosen = self.master or {"address": None, "port": None}
        return {
            "schema_version": 1,
            "ok": self.ok,
            "backend": self.plan.backend,
            "cluster": self.plan.cluster,
            "image": self.plan.spec.image,
            "master_addr": chosen["address"],
            "master_port": chosen["port"],
            "nodes": [_node(one) for one in self.nodes],
            "errors": [finding.document(names) for finding in self.errors],
            "warnings": [finding.document(names) for finding in self.warnings],
        }


def _node(one: Seen) -> dict[str, Any]:
    facts = one.facts or {}
    python, torch = one.versions or (None, None)
    kept = {key: facts.get(key) for key in ("hostname", "user", "gpus", "cpus", "free_bytes")}
    return {
        "rank": one.rank,
        "host": one.host.name,
        "reached": one.facts is not None,
        "address": one.address,
        "python": one.python,
        "python_version": python,
        "torch": torch,
        **kept,
        "workdir": one.host.workdir,
        "rsync": None if one.facts is None else bool(facts["rsync"]),
        "clock_ahead": None if one.clock is None else round(one.clock, 3) + 0.0,
        "jobs": sorted(name for name, alive in one.jobs.items() if alive),
    }


HEADINGS = ("NODE", "HOST", "ADDRESS", "USER", "PYTHON", "TORCH", "GPUS", "FREE", "RSYNC", "CLOCK")


def cells(one: Seen) -> tuple[str, ...]:
    """A node's line of the table."""
    if one.facts is None:
        return (str(one.rank), one.host.name, *["-"] * (len(HEADINGS) - 2))
    from launcher.code import size_text

    facts, (python, torch) = one.facts, one.versions or (None, None)
    interpreter = " ".join(word for word in (one.python, python) if word)
    clock = "-" if one.clock is None else f"{round(one.clock, 1) + 0.0:+.1f} s"
    found = (one.address, facts["user"], interpreter, torch, facts["gpus"], size_text(int(facts["free_bytes"])))
    return (str(one.rank), one.host.name, *(str(cell if cell not in (None, "") else "-") for cell in found),
            "yes" if facts["rsync"] else "no", clock)  # fmt: skip

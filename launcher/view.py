"""A job and its nodes, as their events tell: what `launcher.policy` folds, and decides upon."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from launcher.record import dataclass
from launcher.status import Status


@dataclass
class NodeView:
    """One node, as its events tell."""

    rank: int
    host: str
    address: str | None = None
    nproc: int | None = None
    pid: int | None = None
    started: bool = False
    exit_code: int | None = None
    exited_at: int | None = None
    """number of the event that told the command's end: a smaller one was heard of first"""
    outcome: dict[str, Any] | None = None
    drained: bool = False
    drained_at: float = 0.0
    """seconds since the epoch, by the coordinator's clock"""
    empty: bool = False
    """its output channels had nothing in them when all was told"""
    bare: bool = False
    """its working copy had nothing in it then"""
    lost_since: float | None = None
    lost_for_good: str | None = None
    log_begins: int = 0
    """bytes of its stderr.log that are of earlier attempts"""
    workers_gone: list[dict[str, Any]] = field(default_factory=list)
    workers: dict[int, int] = field(default_factory=dict)
    """{local rank: global rank}"""

    @property
    def finished(self) -> bool:
        """True when nothing runs here any more, as far as can be known; bytes of its logs may still be on their way."""
        return self.outcome is not None or self.lost_for_good is not None

    @property
    def over(self) -> bool:
        """True when nothing more can come from this node in this attempt."""
        return (self.drained and self.outcome is not None) or self.lost_for_good is not None

    @property
    def failed(self) -> bool:
        """True when the command did not end well here."""
        if self.lost_for_good is not None:
            return True
        return self.outcome is not None and (self.outcome.get("kind") != "exited" or self.outcome.get("exit_code") != 0)

    @property
    def status(self) -> str:
        """A word for people."""
        if self.lost_for_good is not None:
            return "lost"
        if self.outcome is not None:
            return "failed" if self.failed else "ended"
        if self.lost_since is not None:
            return "unreachable"
        return "running" if self.started else "reached" if self.address else "waiting"


@dataclass
class View:
    """A job, as its events tell."""

    nodes: dict[int, NodeView] = field(default_factory=dict)
    attempt: int = 0
    races: int = 0
    """how often it was begun anew since MASTER_PORT was lost to somebody"""
    submitted_at: float | None = None
    """when it was put into a batch system's queue"""
    created_at: float | None = None
    started_at: float | None = None
    """when the command ran on all nodes"""
    ended_at: float | None = None
    reached: bool = False
    """by the coordinator that lives now"""
    synced: bool = False
    prepared: dict[int, dict[str, Any]] | None = None
    """{rank: what was made ready there}; None: nothing was, yet"""
    master: tuple[str, int] | None = None
    interfaces: dict[int, str | None] = field(default_factory=dict)
    groups: list[list[int]] = field(default_factory=list)
    """nodes that share a file system; every node is in one group"""
    starting: bool = False
    following: bool = False
    """by the coordinator that lives now"""
    cancel: int = 0
    revoked: dict[str, Any] | None = None
    """how Slurm said that it ends the job"""
    warning: dict[str, Any] | None = None
    """the last sign that the allocation ends soon"""
    warnings: int = 0
    """how many of them came"""
    passed_on: int = 0
    """how many of them the nodes were told of"""
    heeded: bool = False
    """a training process heard of it and knows what to do: when it ends now, it has made way"""
    requeues: int = 0
    """how often Slurm had put the job back into its queue"""
    requeue_error: str | None = None
    out_of_memory: bool = False
    """Slurm says that processes of the job were killed for their use of memory"""
    stopping: str | None = None
    stopping_at: float = 0.0
    stop_level: int = 0
    broken: dict[str, Any] | None = None
    """what kept the job from starting"""
    diagnosed: bool = False
    failure: dict[str, Any] | None = None
    port_race: bool = False
    collected: bool = False
    left: dict[int, list[str]] = field(default_factory=dict)
    """{node: output channels of which something stayed there}"""
    strayed: dict[int, dict[str, Any]] = field(default_factory=dict)
    """{node: `code`, `count` and `files`}: what was written into working copies where the model's channel got nothing"""
    collect_error: str | None = None
    collecting: bool = False
    published: dict[str, str] | None = None
    """{channel: URI} of what was copied to where the job publishes it"""
    publish_error: str | None = None
    model: str | None = None
    end: dict[str, Any] | None = None
    coordinator: dict[str, Any] | None = None
    key_unavailable: str | None = None
    count: int = 0

    @property
    def status(self) -> Status:
        """PAI's word for where the job is."""
        if self.end is not None:
            return Status(self.end["status"])
        if self.started_at is not None or self.starting:
            return Status.RUNNING
        if self.coordinator is not None:
            return Status.INITIALIZING
        return Status.CREATED if self.submitted_at is None else Status.SUBMITTED

    @property
    def ending(self) -> bool:
        """Somebody wants the job's end: its user, or Slurm."""
        return self.cancel > 0 or self.revoked is not None

    @property
    def to_be_published(self) -> bool:
        """Everything is here, and was not copied to where it is published, nor did that fail."""
        tried = self.published is not None or self.publish_error is not None
        return self.collected and self.collect_error is None and not tried

    @property
    def taken_back(self) -> bool:
        """Slurm ends the job in order to put it back into its queue."""
        return self.revoked is not None and self.revoked.get("reason_code") == "Requeued"

    def rank_of(self, node: int, local_rank: int | None) -> int | None:
        """A process's global rank, as the processes themselves said, else counted from what each node was told to start."""
        if local_rank is None:
            return None
        seen = self.nodes.get(node)
        if seen is not None and local_rank in seen.workers:
            return seen.workers[local_rank]
        return sum(other.nproc or 1 for other in self.nodes.values() if other.rank < node) + local_rank

    @property
    def all_over(self) -> bool:
        return bool(self.nodes) and all(node.over for node in self.nodes.values())

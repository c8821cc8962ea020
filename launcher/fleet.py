"""All agents of one job as one: reach them, ask them all, follow them as one stream of events.

What the nodes tell comes out of ``tell`` as {"node": rank, ...}; connections that break come back by themselves (see link).
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from launcher.agent import wire
from launcher.errors import NodeError, gathered
from launcher.link import Address, Following, Link
from launcher.model import Node, Plan
from launcher.replica import Replica
from launcher.store import Folder
from launcher.transports import Way

T = TypeVar("T")
Tell = Callable[[dict[str, Any]], None]


_FILES, _FILES_OF_A_NODE = 256, 80
"""that may be open at once: of the coordinator's own, and a node's connections and logs"""


def _allow_files(wanted: int) -> None:
    """Let this process have so many files open, or as many as it may; a usual limit of 1024 is that of some ten nodes.

    Where it is enough it stays as it is: the commands of simulated nodes inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower one besides
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def marks(plan: Plan, rank: int) -> dict[str, str]:
    """What in a process's environment says that it belongs to this node of this job."""
    return {"LAUNCHER_JOB_ID": plan.job_id, "NODE_RANK": str(rank)}


class Fleet:
    """One link per node of the plan; in a Slurm allocation all of them through one step."""

    def __init__(self, plan: Plan, folder: Folder, tell: Tell) -> None:
        self.plan = plan
        self._folder = folder
        self._tell = tell
        self.revoked = threading.Event()
        """set when Slurm has sent TERM to the step: every process on every node gets it, the command's as well"""
        self.out_of_memory: Callable[[], bool] = lambda: False
        """once all sessions have ended: whether Slurm says that processes were killed for their use of memory"""
        self._way = self._shared_way()
        _allow_files(_FILES + _FILES_OF_A_NODE * len(plan.nodes))
        self.links = {node.rank: Link(self._address(node), self._hear) for node in plan.nodes}
        self._others: list[Link] = []
        self._replicas: dict[int, Replica] = {}
        self._over = threading.Event()
        threading.Thread(target=self._keep_alive, name="beats", daemon=True).start()

    def _shared_way(self) -> Way | None:
        """What the links have in common; each loads what others need not."""
        if self.plan.backend == "ssh":
            from launcher.transports.gateways import SshWay

            return SshWay(self.plan.ssh)
        return self._step() if self.plan.backend == "slurm" else None

    def _step(self) -> Way:
        from launcher.slurm import ask
        from launcher.transports.srun import order_of
        from launcher.transports.step import Step

        made = Step(order_of(self.plan, os.environ), self._hear_signal, ask.srun_port_range)
        self.out_of_memory = made.out_of_memory
        return made

    def _address(self, node: Node) -> Address:
        return Address(self.plan.backend, node.host, node.rank, self.plan.job_id, self._way or self.plan.ssh, self.plan.requeue)

    def another(self, rank: int) -> Link:
        """One more link to a node, for what must not hold up the first; whoever asks connects and closes it."""
        made = Link(self._address(self.plan.nodes[rank]), self._hear)
        self._others = [*(link for link in self._others if not link.closing.is_set()), made]
        return made

    def _hear_signal(self, name: str, signal: str) -> None:
        rank = next(node.rank for node in self.plan.nodes if node.host.name == name)
        if signal == "SIGTERM":
            self.revoked.set()
            self._tell({"type": "heard", "node": rank, "signal": signal})

    def _hear(self, text: str) -> None:
        self._tell({"type": "note", "message": text})

    def reach(self, asked: Mapping[str, Any], progress: Callable[[int], None]) -> dict[int, dict[str, Any]]:
        """Connect to all nodes at once; {rank: what the hello told}, which is ``asked`` further arguments.

        Raises NodesFailed with every node's error.
        """
        return settled("not every node can be reached", *self.try_reach(asked, progress))

    def each(self, work: Callable[[Link], T], complaint: str, ranks: Iterable[int] | None = None) -> dict[int, T]:
        """``work`` on every link (or those of ``ranks``) at once, a thread each; raises NodesFailed with every NodeError."""
        return settled(complaint, *self.try_each(work, ranks))

    def ask_all(self, op: str, complaint: str, each: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        """The same request to the nodes in ``each`` (with its arguments), all sent before the first reply is awaited."""
        return settled(complaint, *self.try_all(op, each))

    def try_reach(
        self, asked: Mapping[str, Any], progress: Callable[[int], None]
    ) -> tuple[dict[int, dict[str, Any]], dict[int, NodeError]]:
        """As `reach`, with what went wrong beside what was told, by rank."""
        nonce = os.urandom(8).hex()
        asked = {**asked, "sees": str(self._folder.root)}

        def hello(link: Link) -> dict[str, Any]:
            reply = link.connect(nonce=nonce, python=link.host.python, venv=link.host.venv, **asked)
            progress(link.rank)
            return reply

        return self.try_each(hello)

    def try_each(
        self, work: Callable[[Link], T], ranks: Iterable[int] | None = None
    ) -> tuple[dict[int, T], dict[int, NodeError]]:
        """As `each`, with what went wrong beside what was done, by rank."""
        results: dict[int, T] = {}
        errors: dict[int, Exception] = {}

        def one(rank: int) -> None:
            try:
                results[rank] = work(self.links[rank])
            except Exception as error:  # noqa: BLE001 - carried to the caller, who raises it
                errors[rank] = error

        chosen = list(self.links if ranks is None else ranks)
        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results, _of_nodes(errors)

    def try_all(self, op: str, each: Mapping[int, Mapping[str, Any]]) -> tuple[dict[int, dict[str, Any]], dict[int, NodeError]]:
        """As `ask_all`, with what went wrong beside the replies, by rank."""
        return self._all(each, lambda link: link.post(op, **each[link.rank]), Link.wait)

    def _all(
        self, ranks: Iterable[int], send: Callable[[Link], int], wait: Callable[[Link, int], dict[str, Any]]
    ) -> tuple[dict[int, dict[str, Any]], dict[int, NodeError]]:
        """As `try_each`, for what is a request and its reply: no thread needs to wait for either."""
        errors: dict[int, NodeError] = {}
        replies: dict[int, dict[str, Any]] = {}
        numbers: dict[int, int] = {}
        for rank in ranks:
            try:
                numbers[rank] = send(self.links[rank])
            except NodeError as error:
                errors[rank] = error
        for rank, number in numbers.items():
            try:
                replies[rank] = wait(self.links[rank], number)
            except NodeError as error:
                errors[rank] = error
        return replies, errors

    def start(self, attempt: int, each: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        """Start the command on every node, or go on with it where it was started before, and follow."""
        complaint = "the command could not be started on every node"

        def begin(link: Link) -> int:
            return link.begin(self._following(link.rank, attempt), "node_start", **each[link.rank])

        return settled(complaint, *self._all(each, begin, Link.followed))

    def resume(self, attempt: int) -> None:
        """Follow commands that were started by an earlier coordinator; each link connects when it can."""
        for rank, link in self.links.items():
            following = self._following(rank, attempt)
            for event in self._replica(rank).events():
                self._tell({"type": "agent", "node": rank, "event": event})
            link.resume(following)

    def _following(self, rank: int, attempt: int) -> Following:
        def tell(event: dict[str, Any]) -> None:
            if event.pop("from", None) == "agent":
                self._tell({"type": "agent", "node": rank, "event": event})
            else:
                self._tell({**event, "node": rank})

        return Following(attempt, marks(self.plan, rank), self._replica(rank), tell)

    def _replica(self, rank: int) -> Replica:
        """Where a node's logs go, from when on there are some."""
        if rank not in self._replicas:
            self._replicas[rank] = Replica(self._folder.node_logs(rank))
        return self._replicas[rank]

    def _keep_alive(self) -> None:
        while not self._over.wait(wire.BEAT_SECONDS / 2):
            for link in [*self.links.values(), *self._others]:
                link.beat()

    def close(self, polite: bool = True, release: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        """End all sessions; with ``polite`` return only when the agents are gone.

        ``release``: what is removed there before, {rank: arguments of `node_release`}; raises NodesFailed, when all have
        ended, where that did not work.
        """
        self._over.set()
        try:
            self.each(lambda link: link.close(polite, (release or {}).get(link.rank)), "not everything could be removed")
        finally:
            if self._way is not None:
                self._way.close(polite)
            for replica in self._replicas.values():
                replica.close()


def settled(complaint: str, results: dict[int, T], errors: Mapping[int, NodeError]) -> dict[int, T]:
    """The results of a phase; raises NodesFailed with every error of it where there is one."""
    if errors:
        raise gathered(complaint, [error for _, error in sorted(errors.items())])
    return results


def _of_nodes(errors: Mapping[int, Exception]) -> dict[int, NodeError]:
    """The same; any other error than a node's is a fault of ours, and raised."""
    for error in errors.values():
        if not isinstance(error, NodeError):
            raise error
    return {rank: error for rank, error in errors.items() if isinstance(error, NodeError)}

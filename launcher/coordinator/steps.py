"""What each step of the loop does: it acts on the fleet and returns the events that say what came of it."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable
from typing import Any

from launcher import environ, torchrun
from launcher.coordinator import allocated, environment, layer, master, reach
from launcher.coordinator.checkpoints import Checkpoints
from launcher.coordinator.collecting import Collecting
from launcher.coordinator.prepare import Work, prepare
from launcher.coordinator.progress import Progress
from launcher.errors import CollectFailed, LauncherError, LinkLost, NodeError
from launcher.fleet import Fleet, settled
from launcher.hyperparameters import variables
from launcher.model import Plan, to_json
from launcher.policy import Step, View
from launcher.store import Folder, read_json

Event = dict[str, Any]
_SLURMS_TERM = 1.0
"""seconds within which the TERM of one scancel reaches the coordinator and the step"""
_REASONS = {Step.REACH: "NodesUnreachable", Step.SYNC: "SyncFailed", Step.PREPARE: "PrepareFailed",
            Step.PROBE: "NoMasterAddress", Step.START: "StartFailed"}


class Steps:
    """The acting half of the coordinator.  ``tell`` takes events that come while a step runs."""

    def __init__(self, plan: Plan, folder: Folder, tell: Callable[[Event], None], view: Callable[[], View]) -> None:
        self._plan = plan
        self._folder = folder
        self._tell = tell
        self._view = view
        self._fleet: Fleet | None = None
        self._facts: dict[int, dict[str, Any]] = {}
        self._collecting = Collecting(plan, folder, tell)
        self._checkpoints = Checkpoints(plan, folder, tell)

    def action(self, step: Step, why: str) -> Callable[[], list[Event]]:
        """What to call for a step; ``why`` as `decide` gave it."""
        actions: dict[Step, Callable[[], list[Event]]] = {
            Step.REACH: self._reach,
            Step.SYNC: self._sync,
            Step.PREPARE: self._prepare,
            Step.PROBE: self._probe,
            Step.START: self._start,
            Step.WARN: self._warn,
            Step.STOP: lambda: self._stop(why, self._grace(why), 1),
            Step.KILL: lambda: self._stop(why, 0, 2),
            Step.GIVE_UP: lambda: self._give_up(int(why)),
            Step.DIAGNOSE: self._diagnose,
            Step.RETRY: self._retry,
            Step.COLLECT: self._collect,
            Step.PUBLISH: self._collecting.publish,
        }
        return actions[step]

    def failed(self, step: Step, error: LauncherError) -> Event:
        """The event that says that a long step failed."""
        if step is Step.COLLECT:
            return {"type": "collect failed", "message": str(error)}
        if step is Step.PUBLISH:
            return {"type": "publish failed", "message": str(error)}
        reason = getattr(error, "reason_code", None) or _REASONS[step]
        told = str(reach.naming_inventory(error, self._plan))
        return {"type": "broken", "step": step.name, "reason_code": reason, "message": told, "exit_code": error.exit_code}

    def abandon(self) -> None:
        """Hang up on every node at once; what a running step still does fails."""
        self._collecting.stop.set()
        self._checkpoints.abandon()
        if self._fleet is not None:
            self._fleet.close(polite=False)
            self._fleet = None

    def kill_begun(self, killed: set[int]) -> set[int]:
        """While some node is still told to begin, kill the job on those that have, but ``killed``; their ranks."""
        if self._fleet is None:
            return set()
        ranks = [rank for rank, node in self._view().nodes.items() if node.started and not node.over and rank not in killed]
        self._wish(ranks, 0, "cancel")
        return set(ranks)

    def let_nothing_run(self) -> str | None:
        """Before a fault of ours ends the job: what runs is ended now; a sentence about hosts where it may still run."""
        from launcher.coordinator.last_stop import stop_now

        fleet, self._fleet = self._fleet, None
        view = self._view()
        over = {rank for rank, node in view.nodes.items() if node.finished}
        # Before the start only a node that we talk to can have been told to begin.
        here = {rank for rank, link in fleet.links.items() if link.connected} if fleet is not None else set()
        running = [node for node in self._plan.nodes if node.rank not in over and (view.starting or node.rank in here)]
        untold = stop_now(self._plan, running, fleet, view.attempt)
        if fleet is not None:
            with contextlib.suppress(LauncherError):
                fleet.close()
        if not untold:
            return None
        step = f"launcher gc {self._folder.job_id} ends what still runs there"
        return f"not reached to stop the command: {', '.join(untold)}\n  next: {step}"

    def greet_again(self, rank: int) -> None:
        """A node is back: tell it what it may have missed."""
        view = self._view()
        node = view.nodes[rank]
        if view.stopping and not (node.drained and node.outcome):
            self._wish([rank], 0 if view.stop_level > 1 else self._grace(view.stopping), view.stopping)
        elif view.warning is not None and view.passed_on == view.warnings:
            self._pass_on([rank], view)

    def requeue(self, why: str) -> list[Event]:
        """Have Slurm put the job back into its queue, unless it has (``why`` is `Requeued`), and let the agents go."""
        event = allocated.requeue(self._plan, why)
        fleet = self._fleet
        if event["type"] == "requeued" and fleet is not None:
            self._fleet = None
            with contextlib.suppress(LauncherError):
                fleet.close()
        return [event]

    def clean_up(self, success: bool) -> list[Event]:
        """Remove what a success leaves on the nodes, and let the agents go."""
        fleet, self._fleet = self._fleet or self._call_again(), None
        if fleet is None:
            return []
        view = self._view()
        finished = (success and not self._plan.spec.keep) or not view.starting
        kept = {rank: self._left_there(rank) for rank in self._leaders(fleet)} if finished else {}
        try:
            fleet.close(release=kept)
        except LauncherError as error:
            return [{"type": "note", "message": f"{error}; `launcher gc` removes it later"}]
        return [{"type": "out of memory"}] if fleet.out_of_memory() else []

    def _call_again(self) -> Fleet | None:
        """Where a cancel cut a step short, the nodes still have what it brought; whoever cancels twice does not wait for that."""
        view = self._view()
        if not self._facts or view.starting or view.cancel > 1:
            return None
        fleet = Fleet(self._plan, self._folder, self._tell)
        try:
            fleet.each(lambda link: link.connect(python=link.host.python, venv=link.host.venv), "not every node answers again")
        except LauncherError as error:
            self._note(f"{error}; `launcher gc` removes what was brought there")
        return fleet

    def _left_there(self, rank: int) -> dict[str, Any]:
        """What stays on the node's file system, whichever of its nodes was asked: channels, and a working copy in which
        a command wrote that has no model."""
        view = self._view()
        group = next((group for group in view.groups if rank in group), [rank])
        channels = sorted({channel for other in group for channel in view.left.get(other, [])})
        return {"keep": channels, "code": any(other in view.strayed for other in group)}

    def _leaders(self, fleet: Fleet) -> list[int]:
        """One node of each file system, of those that can be asked just now."""
        groups = self._view().groups or [[rank] for rank in fleet.links]
        return [found[0] for found in ([rank for rank in group if fleet.links[rank].connected] for group in groups) if found]

    def _reach(self) -> list[Event]:
        view = self._view()
        self._fleet = Fleet(self._plan, self._folder, self._tell)
        if view.starting and all(node.started for node in view.nodes.values()):
            # Adopted: everything runs already; each link connects when it can, and nobody waits for the slowest.
            return [{"type": "reached", "nodes": []}]
        total = len(self._plan.nodes)
        count = Progress(lambda done, _: self._tell({"type": "progress", "step": "reach", "done": done, "total": total}), total)
        asked = reach.question(self._plan, self._folder, no_code=not self._folder.code.is_dir())
        try:
            self._facts = self._fleet.reach(asked, lambda rank: count.update(rank, 1, 1))
        except LauncherError:
            if view.starting:
                # A coordinator before us may have started the command on some of them.
                untold = self.let_nothing_run()
                if untold:
                    self._note(f"warning: {untold}")
            raise
        unseen = allocated.not_shared(self._plan, str(self._folder.root), self._facts)
        if unseen is not None:
            raise unseen
        settled("not every node can run the command", {}, reach.complaints(self._plan, self._facts))
        nodes = [self._reached_node(rank) for rank in sorted(self._facts)]
        reached = {"type": "reached", "nodes": nodes, "groups": reach.groups(self._facts)}
        if environ.starts_processes(self._plan.spec.command):
            reached["processes"] = sum(node["nproc"] for node in nodes)
        return [reached, *({"type": "note", "message": f"warning: {text}"} for text in reach.warnings(self._plan, self._facts))]

    def _reached_node(self, rank: int) -> Event:
        facts, node = self._facts[rank], self._plan.nodes[rank]
        address = (facts["reached_at"] or [node.host.internal_address or node.host.address])[0]
        kept = ("hostname", "user", "python", "python_version", "boot_id", "gpus", "job_dir")
        entry = {"rank": rank, "host": node.host.name, "address": address}
        return {**entry, "nproc": environ.processes(self._plan, node, facts), **{key: facts[key] for key in kept}}

    def _sync(self) -> list[Event]:
        assert self._fleet is not None
        leaders = self._file_systems()
        if not self._folder.code.is_dir():
            nothing = {"way": None, "files": 0, "bytes": 0, "mirror_seconds": 0.0, "copy_seconds": 0.0}
            nodes = [{"node": rank, "host": self._plan.nodes[rank].host.name, **nothing} for rank in leaders]
            return [{"type": "synced", "nodes": nodes}]
        from launcher import code
        from launcher.sync import Shipment, sync

        shipment = Shipment(self._folder.code, code.load(self._folder.root / "code.json").manifest())
        told_sizes = {"type": "progress", "step": "sync", "unit": "bytes"}
        sizes = Progress(lambda done, total: self._tell({**told_sizes, "done": done, "total": total}), len(leaders))
        try:
            reports = self._fleet.each(
                lambda link: sync(link, shipment, self._plan.project, lambda done, total: sizes.update(link.rank, done, total)),
                "the code could not be brought to every node",
                leaders,
            )
        finally:
            shipment.close()
        notes = list(dict.fromkeys(note for report in reports.values() for note in report.notes))
        kept = ("host", "way", "files", "bytes", "mirror_seconds", "copy_seconds")
        told = [{"node": rank, **{key: getattr(report, key) for key in kept}} for rank, report in sorted(reports.items())]
        return [{"type": "synced", "nodes": told}, *({"type": "note", "message": note} for note in notes)]

    def _prepare(self) -> list[Event]:
        assert self._fleet is not None
        groups = self._view().groups
        work = Work(self._plan, self._folder, self._fleet, self._facts, groups, self._user_environment, self._tell, {})
        return [prepare(work)]

    def _probe(self) -> list[Event]:
        assert self._fleet is not None
        chosen = master.choose(self._plan, self._fleet, self._facts, self._user_environment(0))
        return [{"type": "master", **chosen}]

    def _start(self) -> list[Event]:
        assert self._fleet is not None
        view = self._view()
        if not self._facts:
            self._fleet.resume(view.attempt)
            self._checkpoints.begin(self._fleet, self._file_systems())
            return [{"type": "following", "adopted": True}]
        # Heard of by the loop before any node is told: whoever adopts the job then knows that commands may run.
        self._tell({"type": "starting", "attempt": view.attempt})
        requests = {node.rank: self._request(node.rank, view) for node in self._plan.nodes}
        try:
            self._fleet.start(view.attempt, requests)
        except NodeError as error:
            return self._start_failed([error])
        except LauncherError as error:
            return self._start_failed(getattr(error, "errors", [error]))
        self._checkpoints.begin(self._fleet, self._file_systems())
        return [{"type": "following"}]

    def _start_failed(self, errors: list[Any]) -> list[Event]:
        """A node that refused is gone; one whose connection broke may have started, and its link comes back to see."""
        ranks = {node.host.name: node.rank for node in self._plan.nodes}
        refused = [error for error in errors if error.where in ranks and not isinstance(error, LinkLost)]
        gone: list[Event] = [{"type": "gone", "node": ranks[error.where], "message": error.what} for error in refused]
        return [*gone, {"type": "following"}]

    def _request(self, rank: int, view: View) -> dict[str, Any]:
        node, facts = self._plan.nodes[rank], self._facts[rank]
        assert view.master is not None
        nproc = environ.processes(self._plan, node, facts)
        place = environ.Place(facts, nproc, view.interfaces.get(rank), (view.prepared or {}).get(rank, {}))
        settings = {k: v for k, v in torchrun.settings(self._plan.spec.grace, "").items() if k != "PET_LOG_DIR"}
        orders = environ.orders(self._plan, node, place, view.master, self._user_environment(rank), settings)
        image, added = place.prepared.get("image", {}), place.prepared.get("layer", {})
        python = added.get("python") or image.get("python") or facts["python"]
        argv = layer.over(added, _argv(self._plan, rank, str(python), view.master, nproc))
        there = environment.place_of(
            self._plan, rank, facts, image, attempt=view.attempt, mounts=layer.mounts(added), inputs=place.prepared.get("data")
        )
        start = environment.inside(self._plan, there, environment.Start(argv, orders, facts["bin"]))
        return {**start.request(), "grace": self._plan.spec.grace}

    def _user_environment(self, rank: int) -> dict[str, str]:
        """The real values for one node: its host's own of cluster.yaml, and over them what the person set for the job."""
        nodes, everywhere = self._set_by_the_user
        return {**nodes.get(str(rank), {}), **everywhere}

    @functools.cached_property
    def _set_by_the_user(self) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        """(for a node's rank as text, for all nodes), as it was at submit; read once for however many nodes."""
        stored = read_json(self._folder.environment) or {"all": {}, "nodes": {}}
        return stored["nodes"], {**stored["all"], **variables(stored.get("hyperparameters", {}))}

    def _warn(self) -> list[Event]:
        """Have the training processes on every node told what Slurm told us."""
        view = self._view()
        self._pass_on([rank for rank, node in view.nodes.items() if not node.over], view)
        return [{"type": "passed on", "count": view.warnings}]

    def _pass_on(self, ranks: list[int], view: View) -> None:
        """The same warning is heeded once, however often a node hears of it."""
        assert self._fleet is not None and view.warning is not None
        if view.warning["signal"] == "SIGTERM":
            return
        meant = environ.starts_processes(self._plan.spec.command)
        wish: dict[str, Any] = {"number": view.warnings, "signal": int(signal.Signals[view.warning["signal"]]), "ranks": meant}
        for rank in ranks:
            with contextlib.suppress(NodeError):
                self._fleet.links[rank].post("node_warn", attempt=view.attempt, **wish)

    def _stop(self, reason: str, grace: float, level: int) -> list[Event]:
        view = self._view()
        self._wish([rank for rank, node in view.nodes.items() if not node.over], grace, reason)
        return [{"type": "stopping", "reason": reason, "level": level, "grace": grace}]

    def _grace(self, reason: str) -> float:
        return allocated.last_grace(self._plan) if reason == "allocation" else self._plan.spec.grace

    def _wish(self, ranks: list[int], grace: float, reason: str) -> None:
        """Nodes out of reach hear of it when they are back, from `greet_again`."""
        assert self._fleet is not None
        # Where the coordinator's own TERM came first, Slurm's to the step is on its way, if it was Slurm's.
        told = reason == "allocation" and self._fleet.revoked.wait(_SLURMS_TERM)
        for rank in ranks:
            try:
                self._fleet.links[rank].post("node_stop", attempt=self._view().attempt, grace=grace, reason=reason, told=told)
            except NodeError:
                continue

    def _give_up(self, rank: int) -> list[Event]:
        node = self._view().nodes[rank]
        for_ = time.time() - (node.lost_since or time.time())
        return [{"type": "gone", "node": rank, "message": f"out of reach for {for_:.0f} s; what ran there may still run"}]

    def _retry(self) -> list[Event]:
        """Attempts share their node's log files; where the next one's lines begin is noted."""
        logs = {node.rank: self._folder.node_logs(node.rank) / "stderr.log" for node in self._plan.nodes}
        begins = {str(rank): path.stat().st_size for rank, path in logs.items() if path.exists()}
        attempt = self._view().attempt + 1
        again = {"type": "attempt", "attempt": attempt, "why": "lost the race for MASTER_PORT", "log_begins": begins}
        if self._plan.allocation and self._fleet is not None:
            self._fleet.close()
            self._fleet = None
            again["step"] = "new"
        return [again]

    def _diagnose(self) -> list[Event]:
        from launcher.diagnosis import diagnose  # most jobs need none

        found = diagnose(self._view(), self._plan, self._folder)
        return [{"type": "diagnosis", "failure": to_json(found.failure), "port_race": found.port_race}]

    def _collect(self) -> list[Event]:
        assert self._fleet is not None
        view = self._view()
        there = [rank for rank in self._file_systems() if view.nodes[rank].lost_for_good is None]
        try:
            self._checkpoints.finish({rank: self._fleet.links[rank] for rank in there})
        except LinkLost as error:
            raise CollectFailed(f"the checkpoints could not be fetched: {error.what}", where=error.where) from error
        return self._collecting.collect(self._fleet, view)

    def _file_systems(self) -> list[int]:
        """The first node of each file system."""
        return [group[0] for group in self._view().groups]

    def _note(self, text: str) -> None:
        self._tell({"type": "note", "message": text})


def _argv(plan: Plan, rank: int, python: str, address: tuple[str, int], nproc: int) -> list[str]:
    command = plan.spec.command
    if command.script is not None:
        return torchrun.command_line(
            command.script,
            python,
            master_addr=address[0],
            master_port=address[1],
            nnodes=len(plan.nodes),
            node_rank=rank,
            nproc=nproc,
        )
    return list(command.argv) if command.argv is not None else ["/bin/sh", "-c", command.shell or ""]

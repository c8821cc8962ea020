"""State is a fold of events, and what comes next is a pure function of the state.

`fold` turns a job's events into a View; `decide` looks at a View and the clock and names the next Step.  Nothing here
reads a file, a clock or a network: everything is tested as a table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.record import dataclass
from launcher.status import Status
from launcher.view import NodeView as NodeView  # noqa: PLC0414 - handed on
from launcher.view import View as View  # noqa: PLC0414 - handed on

MAX_PORT_RACES = 3
"""how often a lost race for MASTER_PORT is answered by a new attempt"""
REVOKED_MARGIN = 2.0
"""seconds: Slurm sends TERM to all processes at once, and a command's death by it may be heard of before the signal itself"""
STOP_MARGIN = 10.0
"""seconds beyond the grace that a stopping job waits for a node out of reach"""


class Step(enum.Enum):
    """What the coordinator does next."""

    REACH = "connect to every node"
    SYNC = "bring the code to every node"
    PREPARE = "make ready on every node what the command needs besides its code"
    PROBE = "find the address and port of node 0"
    START = "start the command on every node, or go on following it"
    WARN = "pass a warning of Slurm's on to the training processes"
    WAIT = "wait for the next event"
    GIVE_UP = "take a node that stays silent for lost"
    STOP = "stop the command on every node, with grace"
    KILL = "end the command on every node now"
    DIAGNOSE = "find out what went wrong first"
    RETRY = "start again with another port"
    REQUEUE = "go back into Slurm's queue, to go on from the checkpoint that was written"
    COLLECT = "bring the outputs here"
    PUBLISH = "copy the outputs to where the job publishes them"
    FINISH = "write the end"
    LEAVE = "the job is over"


def fold(events: Iterable[Mapping[str, Any]], view: View | None = None) -> View:
    """The view that these events add up to, on top of ``view`` if one is given (which is changed)."""
    view = view or View()
    for event in events:
        view.count += 1
        handler = _FOLDS.get(str(event.get("type")))
        try:
            if handler is not None:
                handler(view, event)
        except (KeyError, TypeError, ValueError, AttributeError):
            # A spoiled line of the file says nothing; the job, and the list of all jobs, must still be readable.
            continue
    return view


def _submitted(view: View, event: Mapping[str, Any]) -> None:
    view.submitted_at = event["time"]


def _created(view: View, event: Mapping[str, Any]) -> None:
    view.created_at = event["time"]
    for entry in event["nodes"]:
        view.nodes[entry["rank"]] = NodeView(entry["rank"], entry["host"])


def _coordinator(view: View, event: Mapping[str, Any]) -> None:
    view.coordinator = {"pid": event["pid"], "host": event["host"]}
    view.reached = view.following = view.collecting = False
    view.key_unavailable = None
    # A step that the last coordinator began and did not live to finish is taken again by this one.
    view.stop_level = 0
    for node in view.nodes.values():
        node.drained = False
        node.lost_since = None


def _reached(view: View, event: Mapping[str, Any]) -> None:
    view.reached = True
    view.groups = event.get("groups") or view.groups
    for entry in event["nodes"]:
        node = view.nodes[entry["rank"]]
        node.address, node.nproc = entry["address"], entry["nproc"]


def _synced(view: View, event: Mapping[str, Any]) -> None:
    view.synced = True


def _prepared(view: View, event: Mapping[str, Any]) -> None:
    view.prepared = {entry["node"]: {key: value for key, value in entry.items() if key != "node"} for entry in event["nodes"]}


def _master(view: View, event: Mapping[str, Any]) -> None:
    view.master = (event["address"], event["port"])
    view.interfaces = {int(rank): name for rank, name in event["interfaces"].items()}


def _starting(view: View, event: Mapping[str, Any]) -> None:
    view.starting = True


def _following(view: View, event: Mapping[str, Any]) -> None:
    view.following = True
    view.started_at = view.started_at or event["time"]


def _agent(view: View, event: Mapping[str, Any]) -> None:
    """An event of a node's agent; one of an earlier attempt says nothing about this one."""
    told, node = event["event"], view.nodes[event["node"]]
    if told.get("attempt") != view.attempt:
        return
    kind = told["type"]
    if kind == "started":
        node.started, node.pid = True, told.get("pid")
    elif kind == "workers":
        for worker in told["workers"]:
            if worker.get("local_rank") is not None and worker.get("rank") is not None:
                node.workers[worker["local_rank"]] = worker["rank"]
    elif kind == "warned":
        view.heeded = view.heeded or bool(told.get("told"))
    elif kind == "worker gone":
        node.workers_gone.append({**told, "seen": view.count})
    elif kind == "exited":
        node.exit_code, node.exited_at = told.get("exit_code"), view.count
    elif kind == "outcome" and node.outcome is None:
        node.outcome = dict(told)
        node.exit_code = told.get("exit_code")
        node.exited_at = node.exited_at or view.count


def _drained(view: View, event: Mapping[str, Any]) -> None:
    node = view.nodes[event["node"]]
    if event["attempt"] == view.attempt:
        node.drained, node.drained_at = True, float(event.get("time", 0.0))
        node.empty, node.bare = bool(event.get("empty")), bool(event.get("bare"))
        if node.outcome is None:
            # Everything it has to tell is here.
            node.lost_for_good, node.exited_at = "what its agent wrote there was removed or damaged", view.count


def _lost(view: View, event: Mapping[str, Any]) -> None:
    node = view.nodes[event["node"]]
    node.lost_since = node.lost_since or event["time"]


def _found(view: View, event: Mapping[str, Any]) -> None:
    view.nodes[event["node"]].lost_since = None
    view.key_unavailable = None


def _gone(view: View, event: Mapping[str, Any]) -> None:
    view.nodes[event["node"]].lost_for_good = event["message"]
    view.nodes[event["node"]].exited_at = view.count


def _key_unavailable(view: View, event: Mapping[str, Any]) -> None:
    view.key_unavailable = event["message"]


def _broken(view: View, event: Mapping[str, Any]) -> None:
    view.broken = dict(event)


def _cancel(view: View, event: Mapping[str, Any]) -> None:
    view.cancel = max(view.cancel, event["level"])


def _revoked(view: View, event: Mapping[str, Any]) -> None:
    view.revoked = view.revoked or dict(event)
    # While it was asked what the signal means, the command may have died of it.
    died = view.stopping is None and not view.diagnosed and any(node.failed for node in view.nodes.values())
    late = view.stopping == "failure" and event["time"] - view.stopping_at < REVOKED_MARGIN
    if died or late or _ended_by(view, event["time"]) or event.get("unheard"):
        view.stopping = "allocation"


def _why_revoked(view: View, event: Mapping[str, Any]) -> None:
    view.revoked = {**(view.revoked or {}), "reason_code": event["reason_code"], "message": event["message"]}


def _ended_by(view: View, at: float) -> bool:
    """Whether the signal that was heard at that time may be why the command ended well on all nodes."""
    well = view.stopping is None and view.all_over and not any(node.failed for node in view.nodes.values())
    return well and at - max(node.drained_at for node in view.nodes.values()) < REVOKED_MARGIN


def _warning(view: View, event: Mapping[str, Any]) -> None:
    view.warning, view.warnings = dict(event), view.warnings + 1
    if event["signal"] == "SIGTERM":
        # Slurm has sent it to every process itself.
        view.passed_on, view.heeded = view.warnings, True


def _passed_on(view: View, event: Mapping[str, Any]) -> None:
    view.passed_on = event["count"]


def _requeued(view: View, event: Mapping[str, Any]) -> None:
    """Slurm has it again: nothing of what was reached or started holds any more, and other nodes may come."""
    if event["requeue"] <= view.requeues:
        return
    kept = View(attempt=view.attempt + 1, submitted_at=view.submitted_at, requeues=event["requeue"], count=view.count)
    view.__dict__.update(kept.__dict__)


def _out_of_memory(view: View, event: Mapping[str, Any]) -> None:
    view.out_of_memory = True


def _requeue_failed(view: View, event: Mapping[str, Any]) -> None:
    view.requeue_error = event["message"]


def _stopping(view: View, event: Mapping[str, Any]) -> None:
    if view.stopping is None:
        view.stopping_at = event["time"]
    view.stopping = view.stopping or event["reason"]
    view.stop_level = max(view.stop_level, event["level"])


def _diagnosis(view: View, event: Mapping[str, Any]) -> None:
    view.diagnosed = True
    view.failure = event.get("failure")
    view.port_race = bool(event.get("port_race"))


def _attempt(view: View, event: Mapping[str, Any]) -> None:
    view.attempt, view.races = event["attempt"], view.races + 1
    view.master, view.starting, view.following = None, False, False
    view.stopping, view.stop_level, view.diagnosed, view.failure, view.port_race = None, 0, False, None, False
    # A new step has new agents.
    view.reached = view.reached and not event.get("step")
    for rank, node in view.nodes.items():
        begins = int(event.get("log_begins", {}).get(str(rank), 0))
        view.nodes[rank] = NodeView(rank, node.host, node.address, node.nproc, log_begins=begins)


def _collecting(view: View, event: Mapping[str, Any]) -> None:
    view.collecting = True


def _collected(view: View, event: Mapping[str, Any]) -> None:
    view.collected, view.model = True, event.get("model")
    view.left = {int(rank): list(channels) for rank, channels in event.get("left", {}).items()}
    view.strayed = {int(rank): dict(told) for rank, told in event.get("strayed", {}).items()}


def _collect_failed(view: View, event: Mapping[str, Any]) -> None:
    view.collected, view.collect_error = True, event["message"]


def _published(view: View, event: Mapping[str, Any]) -> None:
    view.published, view.publish_error = dict(event["channels"]), None
    view.model = view.published.get("model", view.model)


def _publish_failed(view: View, event: Mapping[str, Any]) -> None:
    view.publish_error = event["message"]


def _resumed(view: View, event: Mapping[str, Any]) -> None:
    view.end, view.ended_at = None, None
    # What was brought here whole need not be brought again.
    view.collected = view.collected and view.collect_error is None and view.publish_error is not None
    view.collect_error = view.publish_error = None
    # Who asks for the outputs now takes back that the collection was to be left; a job that was stopped stays stopped.
    view.cancel = 0


def _end(view: View, event: Mapping[str, Any]) -> None:
    view.ended_at = event["time"]
    view.end = {**event, "status": Status(event["status"]).value, "exit_code": int(event["exit_code"])}


_FOLDS = {
    "submitted": _submitted,
    "created": _created,
    "coordinator": _coordinator,
    "reached": _reached,
    "synced": _synced,
    "prepared": _prepared,
    "master": _master,
    "starting": _starting,
    "following": _following,
    "agent": _agent,
    "drained": _drained,
    "lost": _lost,
    "found": _found,
    "gone": _gone,
    "key unavailable": _key_unavailable,
    "broken": _broken,
    "cancel": _cancel,
    "revoked": _revoked,
    "why revoked": _why_revoked,
    "warning": _warning,
    "passed on": _passed_on,
    "requeued": _requeued,
    "requeue failed": _requeue_failed,
    "out of memory": _out_of_memory,
    "stopping": _stopping,
    "diagnosis": _diagnosis,
    "attempt": _attempt,
    "collecting": _collecting,
    "collected": _collected,
    "collect failed": _collect_failed,
    "published": _published,
    "publish failed": _publish_failed,
    "resumed": _resumed,
    "end": _end,
}


@dataclass(frozen=True)
class Rules:
    """The parts of a job's specification that decisions depend on, all in seconds."""

    max_run_time: float | None = None
    grace: float = 30.0
    node_patience: float = 180.0
    """how long one node may be out of reach while others are not"""
    requeue: bool = False
    """a job that has made way, or lost a node, goes back into Slurm's queue"""
    prepare: bool = False
    """the command needs more than its code to be made ready on the nodes"""
    publish: bool = False
    """what was collected is copied to a URI"""


def decide(view: View, rules: Rules, now: float) -> tuple[Step, str]:
    """The next step; with STOP and KILL the reason (`failure`, `cancel`, `allocation`, `max_run_time`), with GIVE_UP a rank.

    With REQUEUE it is the reason code, `Requeued` where Slurm has done so already.
    """
    if view.end is not None:
        return Step.LEAVE, ""
    if view.taken_back and (view.all_over or not view.starting):
        return Step.REQUEUE, "Requeued"
    if rules.publish and view.to_be_published:
        return Step.PUBLISH, ""
    # What was collected needs no node any more; a coordinator before us may have cleaned them up already.
    if view.broken is not None or view.collected or (view.ending and not view.starting):
        return Step.FINISH, ""
    if not view.reached:
        return Step.REACH, ""
    if not view.starting:
        return _before_the_start(view, rules), ""
    if not view.following:
        return Step.START, ""
    return _supervise(view, rules, now)


def _before_the_start(view: View, rules: Rules) -> Step:
    if not view.synced:
        return Step.SYNC
    if rules.prepare and view.prepared is None:
        return Step.PREPARE
    return Step.PROBE if view.master is None else Step.START


def _supervise(view: View, rules: Rules, now: float) -> tuple[Step, str]:
    if view.all_over:
        return _conclude(view, rules)
    if view.passed_on < view.warnings:
        return Step.WARN, ""
    reason = _why_stop(view, rules, now)
    if reason and view.stop_level == 0:
        return (Step.KILL if view.cancel > 1 else Step.STOP), reason
    if view.cancel > 1 and view.stop_level < 2:
        return Step.KILL, reason or "cancel"
    for node in view.nodes.values():
        due = _gives_up_at(view, node, rules)
        if due is not None and now >= due:
            return Step.GIVE_UP, str(node.rank)
    return Step.WAIT, ""


def _gives_up_at(view: View, node: NodeView, rules: Rules) -> float | None:
    """When a node out of reach counts as lost.

    While no node at all can be reached it is rather we who are cut off, and the job goes on without us; but once the
    user wants an end, a node that cannot be told holds it up for no longer than its grace.
    """
    if node.lost_since is None or node.over:
        return None
    if view.stopping:
        return node.lost_since + rules.grace + STOP_MARGIN
    alone = all(other.lost_since is not None or other.over for other in view.nodes.values())
    return None if alone else node.lost_since + rules.node_patience


def _why_stop(view: View, rules: Rules, now: float) -> str | None:
    finished = all(node.finished for node in view.nodes.values())
    if view.stopping:
        # Told again by whoever took over from a coordinator, where it may not have been heard.
        return None if finished else view.stopping
    if view.cancel:
        return "cancel"
    if view.revoked is not None:
        return "allocation"
    if any(node.failed for node in view.nodes.values()) and now >= _bears_until(view, rules):
        return "failure"
    limit = None if finished else _run_until(view, rules)
    return "max_run_time" if limit is not None and now >= limit else None


def _bears_until(view: View, rules: Rules) -> float:
    """While training makes way, a node that is done first must not cut short what the others write."""
    return float(view.warning["time"]) + rules.grace if view.heeded and view.warning else 0.0


def _run_until(view: View, rules: Rules) -> float | None:
    return None if rules.max_run_time is None or view.started_at is None else view.started_at + rules.max_run_time


def _conclude(view: View, rules: Rules) -> tuple[Step, str]:
    if not view.diagnosed:
        return Step.DIAGNOSE, ""
    if view.port_race and view.races < MAX_PORT_RACES and not view.ending:
        return Step.RETRY, ""
    why = makes_way(view) or ("NodeFail" if any(node.lost_for_good for node in view.nodes.values()) else None)
    if why and rules.requeue and not view.ending and view.requeue_error is None and view.stopping in (None, "failure"):
        return Step.REQUEUE, why
    return Step.COLLECT, ""


def makes_way(view: View) -> str | None:
    """The reason code of a training that has heard that its allocation ends, and has ended before; None for any other."""
    return str((view.warning or {}).get("reason_code") or "Interrupted") if view.heeded else None


def next_deadline(view: View, rules: Rules) -> float | None:
    """When, in seconds since the epoch, `decide` would answer differently without any event."""
    times = [_gives_up_at(view, node, rules) for node in view.nodes.values()]
    if not view.stopping and not all(node.finished for node in view.nodes.values()):
        times.append(_run_until(view, rules))
        if any(node.failed for node in view.nodes.values()):
            times.append(_bears_until(view, rules))
    return min((at for at in times if at is not None), default=None)

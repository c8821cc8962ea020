"""Events of a job as short calls, so that a test's story reads as one list."""

from __future__ import annotations

from typing import Any

from launcher.policy import MAX_PORT_RACES

Event = dict[str, Any]

COORDINATOR: Event = {"type": "coordinator", "pid": 1, "host": "here", "time": 1.0}
SYNCED: Event = {"type": "synced", "time": 3.0, "nodes": []}
MASTER: Event = {
    "type": "master",
    "time": 4.0,
    "address": "10.0.0.1",
    "port": 23456,
    "interfaces": {"0": "eth0", "1": "eth1"},
    "origin": "automatic",
}
STARTING: Event = {"type": "starting", "time": 5.0, "attempt": 0}
FOLLOWING: Event = {"type": "following", "time": 10.0}
COLLECTED: Event = {"type": "collected", "time": 90.0, "model": "/jobs/x/output/model"}
COLLECT_FAILED: Event = {"type": "collect failed", "time": 90.0, "message": "half of it is missing"}
WARNING: Event = {"type": "warning", "time": 50.0, "signal": "SIGUSR2", "reason_code": "Timeout", "message": "time is short"}
PREEMPTION: Event = {**WARNING, "signal": "SIGTERM", "reason_code": "Preempted"}
PASSED_ON: Event = {"type": "passed on", "time": 50.1, "count": 1}
REQUEUED: Event = {"type": "requeued", "time": 90.0, "requeue": 1, "by": "launcher", "reason_code": "Timeout", "message": "m"}
REQUEUE_FAILED: Event = {"type": "requeue failed", "time": 90.0, "message": "disabled"}
WHY_REVOKED: Event = {"type": "why revoked", "time": 55.0, "reason_code": "Timeout", "message": "its time limit was over"}
TAKEN_BACK: Event = {"type": "revoked", "time": 50.0, "signal": "SIGTERM", "reason_code": "Requeued", "message": "m"}
DIAGNOSED_WELL: Event = {"type": "diagnosis", "time": 80.0, "failure": None, "port_race": False}
PORT_RACE: Event = {"type": "diagnosis", "time": 80.0, "failure": {"message": "bind", "exit_code": 1}, "port_race": True}


def created(nodes: int = 2) -> Event:
    return {"type": "created", "time": 0.5, "nodes": [{"rank": rank, "host": f"host{rank}"} for rank in range(nodes)]}


def reached(nodes: int = 2) -> Event:
    entries = [{"rank": rank, "address": f"10.0.0.{rank + 1}", "nproc": 2} for rank in range(nodes)]
    return {"type": "reached", "time": 2.0, "nodes": entries, "groups": [[rank] for rank in range(nodes)]}


def agent(node: int, word: str, attempt: int = 0, **details: Any) -> Event:
    return {"type": "agent", "time": 11.0, "node": node, "event": {"type": word, "attempt": attempt, **details}}


def started(node: int, attempt: int = 0) -> Event:
    return agent(node, "started", attempt, pid=100 + node)


def exited(node: int, code: int, attempt: int = 0) -> Event:
    return agent(node, "exited", attempt, exit_code=code, signal=None)


def outcome(node: int, code: int | None = 0, kind: str = "exited", attempt: int = 0) -> Event:
    return agent(node, "outcome", attempt, kind=kind, exit_code=code, signal=None, survivors=[])


def drained(node: int, attempt: int = 0) -> Event:
    return {"type": "drained", "time": 70.0, "node": node, "attempt": attempt}


def ended(node: int, code: int = 0) -> list[Event]:
    """All that is heard of a command which ends."""
    return [exited(node, code), outcome(node, code), drained(node)]


def lost(node: int, at: float) -> Event:
    return {"type": "lost", "time": at, "node": node, "message": "silent"}


def found(node: int) -> Event:
    return {"type": "found", "time": 60.0, "node": node}


def gone(node: int) -> Event:
    return {"type": "gone", "time": 60.0, "node": node, "message": "out of reach for 180 s"}


def cancel(level: int = 1) -> Event:
    return {"type": "cancel", "time": 50.0, "level": level}


def revoked(at: float = 50) -> Event:
    return {"type": "revoked", "time": at, "node": 0, "signal": "SIGTERM", "message": "Slurm ends job 7"}


def stopping(reason: str, level: int = 1) -> Event:
    return {"type": "stopping", "time": 51.0, "reason": reason, "level": level, "grace": 30.0}


def failure(code: int | None = 1, **more: Any) -> Event:
    return {
        "type": "diagnosis",
        "time": 80.0,
        "failure": {"message": "rank 1 exited", "exit_code": code, **more},
        "port_race": False,
    }


def broken(code: int = 69) -> Event:
    return {"type": "broken", "time": 2.0, "reason_code": "NodesUnreachable", "message": "host1: no route", "exit_code": code}


def end(status: str, code: int) -> Event:
    return {"type": "end", "time": 99.0, "status": status, "reason_code": "", "reason_message": "", "exit_code": code}


FRESH = [created(), COORDINATOR]
READY = [*FRESH, reached(), SYNCED, MASTER]
RUNNING = [*READY, STARTING, started(0), started(1), FOLLOWING]
WELL = [*RUNNING, *ended(0), *ended(1)]
BADLY = [*RUNNING, *ended(1, 3), stopping("failure"), *ended(0, 143)]
ADOPTED = [*RUNNING, COORDINATOR]

RACES = [
    event
    for n in range(1, MAX_PORT_RACES + 1)
    for event in (PORT_RACE, {"type": "attempt", "time": 81.0, "attempt": n, "why": "port"})
]

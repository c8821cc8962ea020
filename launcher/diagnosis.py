"""What went wrong first: from every node's outcome and logs to one Failure.

The first failure is the cause, the others are its consequences.  A rank that dies by itself is heard of within
milliseconds (its agent watches its pidfd), torchrun's own end comes later, so the ranks' ends decide where they are known.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launcher.model import Failure, Plan
from launcher.policy import NodeView, View
from launcher.record import dataclass
from launcher.store import Folder
from launcher.torchrun.report import Report, bind_failed, is_consequence, last_lines, last_traceback, log_hint, parse_report

_TAIL = 256 * 1024


@dataclass(frozen=True)
class Diagnosis:
    """The failure, and whether it is a lost race for MASTER_PORT that a new attempt mends."""

    failure: Failure | None
    port_race: bool = False


def diagnose(view: View, plan: Plan, folder: Folder) -> Diagnosis:
    """Reads the replicas of the logs in ``folder``; a job that was stopped by its user, or ended well, has no failure."""
    failed = [node for node in view.nodes.values() if node.failed]
    if not failed or view.stopping in ("cancel", "max_run_time"):
        return Diagnosis(None)
    suspects = sorted((_suspect(node, view, folder) for node in failed), key=lambda suspect: suspect.order)
    failure = suspects[0].failure
    return Diagnosis(failure, _lost_port_race(view, plan, folder))


@dataclass(frozen=True)
class _Suspect:
    order: tuple[int, int, int]
    """(stopped by us, only a consequence, number of the event that told the end)"""
    failure: Failure


def _suspect(node: NodeView, view: View, folder: Folder) -> _Suspect:
    if node.lost_for_good is not None:
        what = f"node {node.rank} ({node.host}) is lost: {node.lost_for_good}"
        return _Suspect((0, 0, node.exited_at or 0), Failure(what, node.rank, node.host))
    outcome = node.outcome or {}
    if outcome.get("kind") != "exited":
        return _Suspect((0, 0, node.exited_at or 0), _without_exit(node, outcome, folder))
    report = parse_report(tail(folder.node_logs(node.rank) / "stderr.log", node.log_begins))
    if report is None:
        return _plain(node, folder)
    return _of_ranks(node, view, folder, report)


def _without_exit(node: NodeView, outcome: dict[str, object], folder: Folder) -> Failure:
    log = str(folder.node_logs(node.rank) / "stderr.log")
    if outcome.get("kind") == "not started":
        what = f"the command could not be started on node {node.rank} ({node.host}): {outcome.get('message')}"
        return Failure(what, node.rank, node.host, exit_code=127, log=log, hint="is the program installed there, and in PATH?")
    if outcome.get("kind") == "rebooted":
        what = f"node {node.rank} ({node.host}) was started anew while the command ran"
        return Failure(what, node.rank, node.host, log=log, hint="its system log may tell why")
    what = (
        f"agent lost: the agent of node {node.rank} ({node.host}) ended without a word; everything it had started was ended too"
    )
    return Failure(what, node.rank, node.host, log=log, hint="somebody, or the kernel's OOM killer, may have killed it")


def _plain(node: NodeView, folder: Folder) -> _Suspect:
    """A command without torchrun, or a torchrun that itself failed."""
    log = folder.node_logs(node.rank) / "stderr.log"
    text = tail(log, node.log_begins)
    outcome = node.outcome or {}
    signal = outcome.get("signal")
    what = f"the command on node {node.rank} ({node.host}) {ended(node.exit_code, signal)}"
    traceback = last_traceback(text)
    spoken, log = (None, log) if traceback else _spoken(log, text)
    failure = Failure(
        what,
        node.rank,
        node.host,
        exit_code=node.exit_code,
        signal=signal,
        traceback=traceback,
        last_lines=spoken,
        log=str(log),
        hint=log_hint(text, signal),
    )
    by_us = signal in ("SIGTERM", "SIGKILL") or node.exit_code in (137, 143)
    return _Suspect((int(by_us), int(is_consequence(text)), node.exited_at or 0), failure)


def _of_ranks(node: NodeView, view: View, folder: Folder, report: Report) -> _Suspect:
    """The rank that died first of those that died by themselves."""
    ends = {gone["local_rank"]: gone["seen"] for gone in node.workers_gone if gone.get("local_rank") is not None}
    late = node.exited_at or 0
    candidates = []
    for rank in report.by_themselves:
        log = folder.rank_log(node.rank, view.attempt, rank.local_rank)
        text = tail(log)
        order = (int(rank.signal == "SIGTERM"), int(is_consequence(text)), ends.get(rank.local_rank, late))
        candidates.append((order, rank, log, text))
    order, rank, log, text = min(candidates, key=lambda candidate: candidate[0])
    number = rank.rank if rank.rank is not None else node.workers.get(rank.local_rank)
    name = f"rank {number}" if number is not None else f"local rank {rank.local_rank}"
    what = f"{name} on node {node.rank} ({node.host}) {ended(rank.exit_code, rank.signal)}"
    # Of a signal torchrun's message says nothing that is not told already.
    traceback = last_traceback(text) or (None if rank.signal else rank.message)
    spoken, log = (None, log) if traceback else _spoken(log, text)
    failure = Failure(
        what,
        node.rank,
        node.host,
        rank.local_rank,
        number,
        rank.exit_code,
        rank.signal,
        traceback,
        spoken,
        str(log),
        log_hint(text, rank.signal),
    )
    return _Suspect(order, _with_last_line(failure))


def _spoken(log: Path, text: str) -> tuple[str | None, Path]:
    """(last lines of a stderr.log that has this text, else of the stdout.log beside it, None for neither; which log it is)."""
    beside = log.with_name("stdout.log")
    lines = last_lines(text)
    if lines is None and (lines := last_lines(tail(beside))) is not None:
        return lines, beside
    return lines, log


def _with_last_line(failure: Failure) -> Failure:
    if not failure.traceback:
        return failure
    return replace(failure, message=f"{failure.message}: {failure.traceback.strip().splitlines()[-1]}")


def ended(exit_code: int | None, signal: str | None) -> str:
    """`exited with 3`, `was killed by SIGKILL`."""
    return f"was killed by {signal}" if signal else f"exited with {exit_code}"


def _lost_port_race(view: View, plan: Plan, folder: Folder) -> bool:
    """Node 0 could not bind MASTER_PORT, no worker had begun anywhere, and the port was our choice."""
    if plan.master.port is not None or "MASTER_PORT" in plan.spec.env or any(node.workers for node in view.nodes.values()):
        return False
    first = view.nodes[0]
    return first.failed and bind_failed(tail(folder.node_logs(0) / "stderr.log", first.log_begins))


def tail(path: Path, begin: int = 0) -> str:
    """The last part of a log from byte ``begin`` on, undecodable bytes replaced; "" when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(begin, path.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""

"""The one loop of one job: fold what was told, decide, act, write down.

An event is written before the next step is taken, so that a coordinator that dies anywhere is replaced by one that
knows as much.  Long steps run in a thread; the loop goes on hearing of cancels and of the nodes meanwhile.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from launcher.agent.watch import ARRIVED, Watch
from launcher.coordinator.clock import Clock
from launcher.coordinator.notice import Notices
from launcher.coordinator.owner import Owner
from launcher.coordinator.prepare import needed
from launcher.coordinator.steps import Steps
from launcher.errors import LauncherError
from launcher.model import Plan, from_json
from launcher.policy import Rules, Step, decide, fold, next_deadline
from launcher.slurm import warning
from launcher.status import Status
from launcher.store import Folder, read_json, write_json
from launcher.verdict import verdict

if TYPE_CHECKING:
    from launcher.metrics.collect import Collector

_DURABLE = {"starting", "attempt", "diagnosis", "collected", "requeued", "end"}
"""events that must be on the disk before anything follows from them"""
_LONG = {Step.REACH, Step.SYNC, Step.PREPARE, Step.PROBE, Step.START, Step.COLLECT, Step.PUBLISH}
"""steps that the loop does not wait for"""
_SILENT = {"still lost", "none of Slurm's"}
_ROOM_SECONDS = 1.0
"""between two tries to write on a full disk"""
_LOOK_SECONDS = 60.0
"""between two looks at the clock, where there is something to wait for"""
_sorted = json.JSONEncoder(sort_keys=True).encode
_FOLDER_MISSED = 5
"""looks in a row, a fifth of a second apart at most, that did not find the job's folder"""


class Coordinator:
    """A job's state, the queue of what is told of it, and the steps that move it on."""

    def __init__(self, folder: Folder, owner: Owner) -> None:
        self._owner = owner
        self._clock = Clock()
        plan = read_json(folder.plan)
        self._plan = from_json(Plan, plan)
        self._folder = folder = Folder(folder.root, self._plan.requeue)
        spec = self._plan.spec
        again = spec.requeue and self._plan.requeue < spec.max_requeues
        due = {"prepare": needed(self._plan, folder), "publish": spec.publishes}
        self._rules = Rules(spec.max_run_time, spec.grace, requeue=again, **due)
        # Signal handlers put into it: of the queues this one alone never waits for a lock that the interrupted code may hold.
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        known = folder.read_events()
        self._known = {_identity(event) for event in known if event.get("type") == "agent"}
        self.view = fold(known)
        self._saved: Status | None = None
        self._signalled = 0
        """how strongly a signal wished for an end"""
        self._warned = 0
        """how many warnings came to us"""
        self._notices = Notices(self._plan, self._told.put) if self._plan.allocation else None
        self._steps = Steps(self._plan, folder, self._told.put, lambda: self.view)
        self._metrics = self._collector() if spec.metrics else None

    def run(self) -> None:
        """Coordinate until the end is written, or until somebody takes over."""
        # In Slurm nobody else could go on with the job, and TERM is how it says that the allocation ends.
        on_term: dict[str, Any] = {"type": "heard", "node": None, "signal": "SIGTERM"} if self._notices else {"type": "leave"}
        signal.signal(signal.SIGTERM, lambda *_: self._told.put(dict(on_term)))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if self._notices:
            signal.signal(self._notices.signal, self._note_warning)
        for level, name in warning.cancel_signals(self._plan.slurm).items() if self._plan.batch else ():
            signal.signal(getattr(signal, name), functools.partial(self._note_wish, level))
        # Held back while we were loaded.
        held = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held | ({self._notices.signal} if self._notices else set()))
        if self.view.created_at is None:
            nodes = [{"rank": node.rank, "host": node.host.name} for node in self._plan.nodes]
            self._record({"type": "created", "nodes": nodes, "time": self._plan.created_at})
        self._record({"type": "coordinator", "pid": os.getpid(), "host": socket.gethostname()})
        self._owner.on_replaced = lambda: self._told.put({"type": "leave"})
        threading.Thread(target=self._watch_for_cancel, name="cancel", daemon=True).start()
        while self._learn() and self._act(*decide(self.view, self._rules, self._clock.now())):
            self._save_state()

    def _note_wish(self, level: int, *_: Any) -> None:
        self._signalled = max(self._signalled, level)

    def _note_warning(self, *_: Any) -> None:
        self._warned += 1

    def _learn(self) -> bool:
        """What Slurm's signal means is known before anything is decided; False to leave the job."""
        while self._notices and self._notices.open:
            if not self._take(self._told.get()):
                return False
        return True

    def give_up(self, error: Exception) -> None:
        """A fault of ours: write it down as the job's end, if there is none yet."""
        if self.view.end is None:
            untold = self._steps.let_nothing_run()
            message = f"a fault of the launcher itself: {type(error).__name__}: {error}; see {self._folder.coordinator_log}"
            if untold:
                message += f"\n  {untold}"
            self._end({"status": "Failed", "reason_code": "InternalError", "reason_message": message, "exit_code": 70})

    def _act(self, step: Step, why: str) -> bool:
        if step is Step.LEAVE:
            return False
        if step is Step.WAIT:
            return self._wait()
        if step in (Step.DIAGNOSE, Step.FINISH) and self._notices and self._notices.doubts(self.view):
            self._notices.hear({"node": None, "signal": "SIGTERM", "unheard": True})
            return True
        if step is Step.FINISH and self._notices and self._notices.unsure:
            return self._take(self._told.get())
        if step is Step.FINISH:
            return self._finish()
        if step is Step.REQUEUE:
            return self._requeue(why)
        action = self._steps.action(step, why)
        if step in _LONG:
            return self._attend(action, step)
        self._record_all(action())
        return True

    def _wait(self) -> bool:
        """Take what is told until something is, or until time alone changes the decision."""
        deadline = next_deadline(self.view, self._rules)
        # A machine that slept has another time than such a timeout.
        left = None if deadline is None else min(max(0.0, deadline - self._clock.now()), _LOOK_SECONDS)
        try:
            first = self._told.get(timeout=left)
        except queue.Empty:
            return True
        return self._take(first) and self._take_waiting()

    def _take_waiting(self) -> bool:
        while True:
            try:
                if not self._take(self._told.get_nowait()):
                    return False
            except queue.Empty:
                return True

    def _attend(self, action: Callable[[], list[dict[str, Any]]], step: Step) -> bool:
        """Run a long step in a thread, and hear of everything else until it is done or the user wants an end."""
        # What an abandoned step comes to in the end is no answer to the question that this one asks.
        mine = object()
        threading.Thread(target=self._run_step, args=(action, step, mine), name=step.name, daemon=True).start()
        before, killed = self.view.cancel, set[int]()
        while True:
            event = self._told.get()
            if event.get("of") is mine:
                if "error" in event:
                    raise event["error"]
                self._record_all(event["events"])
                return True
            if not self._take(event):
                return False
            unwanted = step is Step.PUBLISH and self.view.cancel > before
            if self.view.cancel > 1 or unwanted or (self.view.ending and not self.view.starting):
                if step is Step.START or (step is Step.REACH and self.view.starting):
                    # What may run there can be stopped only when this is over; what is known to run is not kept waiting for it.
                    killed |= self._steps.kill_begun(killed)
                    continue
                self._steps.abandon()
                if step is Step.COLLECT:
                    self._record(
                        {"type": "collect failed", "message": "the collection was cancelled; the outputs are still on the nodes"}
                    )
                if step is Step.PUBLISH:
                    self._record({"type": "publish failed", "message": "publishing was cancelled; the outputs are whole here"})
                return True

    def _run_step(self, action: Callable[[], list[dict[str, Any]]], step: Step, whose: object) -> None:
        try:
            self._told.put({"type": "done", "of": whose, "events": action()})
        except LauncherError as error:
            self._told.put({"type": "done", "of": whose, "events": [self._steps.failed(step, error)]})
        except Exception as error:  # noqa: BLE001 - raised again by the loop, which owns the job's end
            self._told.put({"type": "done", "of": whose, "error": error})

    def _take(self, event: dict[str, Any]) -> bool:
        """Write down what was told and react at once where that cannot wait; False to leave the job to somebody else."""
        kind = event["type"]
        if kind == "leave":
            return False
        if kind == "done" or kind in _SILENT:
            return True
        if kind in ("heard", "answered", "why revoked", "no answer") and self._notices:
            about = self._of_slurm(event, self._notices)
            if about is None:
                return True
            event, kind = about, about["type"]
        if kind == "folder gone":
            raise FileNotFoundError(f"the job's folder was removed: {self._folder.root}")
        if kind == "agent":
            identity = _identity(event)
            if identity in self._known:
                return True
            self._known.add(identity)
        if kind == "key unavailable":
            self._owner.report(kind)
            if self.view.key_unavailable:
                return True
        self._record(event)
        if kind == "found":
            self._owner.report(None)
            self._steps.greet_again(event["node"])
        return True

    def _of_slurm(self, event: dict[str, Any], notices: Notices) -> dict[str, Any] | None:
        """The event that is to be written down of what was told of a signal of Slurm's; None for one that says nothing new."""
        if event["type"] == "no answer":
            raise event["error"]
        if event["type"] == "heard":
            notices.hear({key: value for key, value in event.items() if key != "type"})
            return None
        if event["type"] == "why revoked":
            notices.unsure = False
            return event if event["reason_code"] is not None else None
        event = notices.answered(event["event"])
        kind, known = event["type"], self.view.warning or {}
        old = kind == "revoked" and self.view.revoked is not None
        again = kind == "warning" and known.get("signal") == event["signal"] == "SIGTERM"
        return None if kind in _SILENT or old or again else event

    def _finish(self) -> bool:
        if self._metrics is not None and self.view.starting:
            # Slurm gives little time for an end that it wants.
            self._metrics.finish(60.0 if self.view.revoked is None else 3.0)
            self._take_waiting()
        self._record_all(self._steps.clean_up(verdict(self.view).exit_code == 0))
        end = verdict(self.view, self._plan.spec.max_run_time, self._plan.spec.requeue)
        self._folder.environment.unlink(missing_ok=True)
        status = {"status": end.status.value, "reason_code": end.reason_code, "reason_message": end.reason_message}
        self._end({**status, "exit_code": end.exit_code})
        return False

    def _requeue(self, why: str) -> bool:
        """Back into Slurm's queue; the next coordinator of the job is the batch step of its next start."""
        self._record_all(self._steps.requeue(why))
        if self.view.requeue_error is not None:
            return True
        self._save_state()
        return False

    def _end(self, end: Mapping[str, Any]) -> None:
        self._record({"type": "end", **end, "model": self.view.model})
        self._save_state()

    def _record_all(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self._record(event)

    def _record(self, event: dict[str, Any]) -> None:
        event = {"n": self.view.count, "time": self._clock.now(), **event}
        self._once_there_is_room(lambda: self._folder.append(event, durable=event["type"] in _DURABLE))
        fold([event], self.view)
        if event["type"] == "following" and self._metrics is not None:
            self._metrics.start()

    def _collector(self) -> Collector:
        from launcher.backends.detached import directory
        from launcher.metrics.collect import Collector

        def note(sentence: str) -> None:
            self._told.put({"type": "note", "message": sentence})

        return Collector(self._folder.root, self._plan.spec.metrics, lambda *place: self.view.rank_of(*place), note, directory())

    def _once_there_is_room(self, write: Callable[[], None]) -> None:
        """Nothing may follow from what is not written down, and a full disk here is no reason to stop what runs there."""
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                log(f"{error.strerror}: {self._folder.root}; waiting for room")
                # Nobody tells of room that was made.
                time.sleep(_ROOM_SECONDS)

    def _save_state(self) -> None:
        """For `list`, which folds the events itself where this is not up to date: so a change of the status is enough."""
        view = self.view
        if view.status is not self._saved or view.end is not None:
            self._saved = view.status
            state = {
                "status": view.status.value,
                "events_bytes": self._folder.events.stat().st_size,
                "started_at": view.started_at,
                "ended_at": view.ended_at,
                "exit_code": view.end["exit_code"] if view.end else None,
                "model_data": view.model,
            }
            self._once_there_is_room(lambda: write_json(self._folder.state, state))

    def _watch_for_cancel(self) -> None:
        # The wish is renamed into place; what we write there ourselves all the while is none.
        watch, level, missed, told, trouble = Watch(ARRIVED), 0, 0, 0, ""
        watch.add(str(self._folder.root))
        while missed < _FOLDER_MISSED:
            while told < self._warned and self._notices:
                told += 1
                self._told.put({"type": "heard", "node": None, "signal": signal.Signals(self._notices.signal).name})
            wished = self._signalled
            try:
                missed = 0 if self._folder.root.exists() else missed + 1
                wished = max(wished, self._folder.cancel_level())
            except OSError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log(f"{trouble}; looking again for a wish to cancel")
            if wished > level:
                level = wished
                self._told.put({"type": "cancel", "level": level})
            watch.wait()
        # Nobody could find the job any more, or cancel it.
        self._told.put({"type": "folder gone"})


def _identity(event: Mapping[str, Any]) -> tuple[Any, str]:
    return event["node"], _sorted(event["event"])


def log(text: str) -> None:
    """A line for coordinator.log."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", file=sys.stderr, flush=True)

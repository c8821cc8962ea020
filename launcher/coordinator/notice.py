"""Signals of Slurm's become events: each is asked after, since the same TERM may be a scancel, a limit, or a preemption."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from launcher.errors import SlurmSilent
from launcher.model import Plan
from launcher.policy import View
from launcher.slurm import warning

if TYPE_CHECKING:
    from launcher.slurm.outlook import Outlook

Event = dict[str, Any]


class Notices:
    """Asks Slurm in a thread, one question at a time; ``tell`` gets `revoked` and `warning` events."""

    def __init__(self, plan: Plan, tell: Callable[[Event], None]) -> None:
        self._plan = plan
        self._tell = tell
        self.signal, self._seconds = warning.of(plan.slurm)
        self.open = False
        """a question is not answered yet: what ends meanwhile may end because of it"""
        self.unsure = False
        """Slurm ends the job, and has not said why; it is asked once more"""
        self._missed: Event | None = None
        self._doubted: int | None = None

    def hear(self, event: Event) -> None:
        """A signal came: ``event`` has its name, and the node whose task heard it."""
        event = {"time": time.time(), **event}
        if self.open:
            # All tasks hear of one signal at about the same time; a later one may be another.
            self._missed = event
            return
        self.open = True
        threading.Thread(target=self._find_out, args=(event,), daemon=True).start()

    def doubts(self, view: View) -> bool:
        """Whether something failed for which Slurm may be to blame: its TERM can end a command or a step before we hear of it.

        True once for each attempt; then `hear` of a signal that is ``unheard``.
        """
        failed = view.broken is not None or any(node.failed for node in view.nodes.values())
        known = view.ending or view.warning is not None or view.stopping not in (None, "failure")
        if known or not failed or self._doubted == view.attempt:
            return False
        self._doubted = view.attempt
        return True

    def answered(self, event: Event) -> Event:
        """The answer to a question, which is none any more."""
        self.open, missed = False, self._missed
        self._missed = None
        self.unsure = self.unsure or bool(event.get("unsure"))
        if missed is not None and missed["signal"] != event["signal"]:
            self.hear(missed)
        return event

    def _find_out(self, event: Event) -> None:
        try:
            answer = self._ask(event)
            self._tell({"type": "answered", "event": answer})
            if answer.get("unsure"):
                self._tell({"type": "why revoked", **self._late()})
        except Exception as error:  # noqa: BLE001 - raised again by the loop, which waits for the answer
            self._tell({"type": "no answer", "error": error})

    def _late(self) -> Event:
        """Why Slurm ends the job, for the end's record; a slurmctld that ends many jobs at once is slow to say it."""
        from launcher.slurm import ask
        from launcher.slurm.outlook import outlook

        assert self._plan.allocation is not None
        try:
            patience = ask.kill_wait() / 3
        except SlurmSilent:
            return {"reason_code": None}
        found = outlook(self._plan.allocation, self._plan.restarts, patience=patience)
        if found is None or not found.over:
            return {"reason_code": None}
        return {"reason_code": found.reason_code, "message": self._ends(found)}

    def _ask(self, event: Event) -> Event:
        from launcher.slurm.outlook import Outlook, outlook

        warned = event["signal"] == signal.Signals(self.signal).name
        assert self._plan.allocation is not None
        found = outlook(self._plan.allocation, self._plan.restarts, self._seconds if warned else None)
        if event.get("unheard") and (found is None or (found.reason_code != "Preempted" and not found.over)):
            return {**event, "type": "none of Slurm's"}
        if warned:
            found = found or Outlook(None)
            return {**_told(event, found), "type": "warning", "message": _near(found)}
        if found is None:
            message = f"Slurm ends job {self._plan.allocation}: scancel, or its time limit"
            return {**event, "type": "revoked", "reason_code": "Cancelled", "message": message, "unsure": True}
        if found.reason_code == "Preempted" and not found.over:
            return {**_told(event, found), "type": "warning", "message": _near(found)}
        found = found if found.reason_code else Outlook("Cancelled")
        return {**event, "type": "revoked", "reason_code": found.reason_code, "message": self._ends(found)}

    def _ends(self, found: Outlook) -> str:
        return f"Slurm ends job {self._plan.allocation}: {found.sentence}"


def _told(event: Event, found: Outlook) -> Event:
    return {**event, "reason_code": found.reason_code, "ends_at": found.ends_at}


def _near(found: Outlook) -> str:
    """What a warning means."""
    if found.reason_code is None:
        return found.sentence
    sentence = {"Timeout": "the job's time limit is near"}.get(found.reason_code, found.sentence)
    if found.ends_at is None:
        return sentence
    return f"{sentence}: it ends at {time.strftime('%H:%M:%S', time.localtime(found.ends_at))}"

"""`launcher check`: looks at the machines as a job's first steps would, at all of them at once; starts nothing, leaves nothing.

What a start would refuse is an error, told by the functions that a start calls, in its words.  A node with an error hides
nothing of the others: whatever can still be asked is asked, and everything is told together.  What a start does not look at
and a person would rather know is a warning; see `findings`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import environ
from launcher.coordinator import environment, layer, master, reach
from launcher.coordinator.prepare import Work
from launcher.coordinator.version import python_of
from launcher.errors import LauncherError, LinkLost, NodeError
from launcher.fleet import Fleet
from launcher.preflight.findings import judge
from launcher.preflight.report import Report, Seen
from launcher.preflight.ring import around
from launcher.store import Folder, Store

if TYPE_CHECKING:
    from launcher.link import Link
    from launcher.model import Plan
    from launcher.planning import Draft

__all__ = ["Report", "look"]

_PATIENCE = 20.0
"""seconds that a node may take to answer what can be answered at once"""


def look(drafted: Draft, lenient: Collection[str] = (), progress: Callable[[str], None] = lambda text: None) -> Report:
    """Look at every node of the plan; returns what was seen and all that is to be said of it.

    ``lenient``: kinds of findings that are to be warnings where they would be errors.  ``progress`` gets sentences on what
    takes time.  Raises UsageError for what submit would refuse before it reaches anybody.
    """
    preflight = _Preflight(drafted, progress)
    try:
        report = preflight.report(lenient)
    except BaseException:
        preflight.end(at_once=True)
        raise
    preflight.end()
    return report


def _as_a_job(plan: Plan) -> Folder:
    """The folder that the job would have, with the source folder as it is now in the place of its copy; it is never made."""
    folder = Folder(Store().jobs / plan.job_id)
    if plan.spec.source_dir is not None and plan.spec.git is None:
        folder.code = Path(plan.spec.source_dir)
    return folder


class _Preflight:
    """One look, from the first connection to the last."""

    def __init__(self, drafted: Draft, progress: Callable[[str], None]) -> None:
        self._plan, self._stored, self._progress = drafted.plan, drafted.environment, progress
        self._said = list(drafted.warnings)
        self._folder = _as_a_job(self._plan)
        # The requirements are read before anybody is called.
        layer.wanted(self._plan, self._folder)
        self._fleet = Fleet(self._plan, self._folder, self._hear)
        self._facts: dict[int, dict[str, Any]] = {}
        self._errors: list[LauncherError] = []

    def report(self, lenient: Collection[str]) -> Report:
        """All that there is to see."""
        plan = self._plan
        asked = {**reach.question(plan, self._folder, no_code=True), "passing": True}
        self._facts, errors = self._fleet.try_reach(asked, lambda rank: None)
        self._note(errors)
        facts, links = {rank: self._of_the_job(rank, told) for rank, told in self._facts.items()}, self._fleet.links
        seen = [Seen(node.rank, node.host, facts.get(node.rank), links[node.rank].greeting) for node in plan.nodes]
        self._note(reach.complaints(plan, facts))
        if self._facts:
            self._look_around(seen)
        chosen = self._probe() if self._facts else None
        self._said += reach.warnings(plan, facts)
        installs = layer.wanted(plan, self._folder)
        return judge(plan, seen, self._errors, self._said, chosen, lenient=lenient, installs=installs)

    def _of_the_job(self, rank: int, told: dict[str, Any]) -> dict[str, Any]:
        """In an allocation a node's GPUs are those that the job holds there; whether its tasks see them, is complained of."""
        held = self._plan.nodes[rank].host.gpus if self._plan.allocation else None
        return told if held is None else {**told, "gpus": held}

    def _look_around(self, seen: list[Seen]) -> None:
        """What each node has beside its hello: clock, jobs, the environment of the command."""
        told, errors = self._fleet.try_each(_clock_and_jobs, list(self._facts))
        self._note(errors)
        for rank, (clock, jobs) in told.items():
            seen[rank].clock = clock
            seen[rank].jobs = {name: here["alive"] for name, here in jobs.items() if name != self._plan.job_id}
        work = Work(self._plan, self._folder, self._fleet, self._facts, reach.groups(self._facts), self._user, self._hear, {})
        images = self._images(work, seen) if environment.wanted(self._plan) else {rank: {} for rank in work.machines}
        there = {rank: image for rank, image in images.items() if rank in self._facts}
        pythons = {rank: image.get("python") or self._facts[rank]["python"] for rank, image in there.items()}
        answers, errors = self._fleet.try_each(
            lambda link: python_of(self._plan, link, self._facts[link.rank], images[link.rank], self._user(link.rank)),
            [rank for rank, python in pythons.items() if python],
        )
        self._note(errors)
        for one in seen:
            # Simulated nodes are one machine.
            machine = 0 if self._plan.backend == "local" else one.rank
            if one.facts is not None:
                one.python, one.versions = pythons.get(machine), answers.get(machine)

    def _images(self, work: Work, seen: list[Seen]) -> dict[int, Mapping[str, Any]]:
        """{rank: what is known of the job's image}, of nodes on which the command could run in it."""
        found, errors = environment.find(work, pull=False)
        self._note(errors)
        for rank, told in found.items():
            seen[rank].pulls = "absent" in told and rank not in errors
        return {rank: told for rank, told in found.items() if "absent" not in told and rank not in errors}

    def _probe(self) -> Mapping[str, Any] | None:
        """Which address of node 0 all others reach; and whether neighbours reach each other."""
        try:
            chosen = master.choose(self._plan, self._fleet, self._facts, self._user(0))
        except LauncherError as error:
            self._errors.append(error)
            return None
        if self._plan.backend != "local" and environ.starts_processes(self._plan.spec.command):
            self._errors += around(self._plan, self._fleet, self._facts, chosen)
        return chosen

    def _note(self, errors: Mapping[int, NodeError]) -> None:
        """Errors of one phase, in the order of the nodes; a node that is out of reach is not asked again."""
        for rank, error in sorted(errors.items()):
            # What keeps a whole step of Slurm's from starting is the same for every node of it.
            if not any(error is other for other in self._errors):
                self._errors.append(error)
            if isinstance(error, LinkLost):
                self._facts.pop(rank, None)

    def _user(self, rank: int) -> dict[str, str]:
        """The real values of what the person set for a node."""
        return {**self._stored["nodes"].get(str(rank), {}), **self._stored["all"]}

    def _hear(self, event: dict[str, Any]) -> None:
        """What is told meanwhile: a warning stays, anything else is how it goes on."""
        text = str(event.get("message", ""))
        if text.startswith("warning: "):
            self._said.append(text.removeprefix("warning: "))
        elif event["type"] == "note":
            self._progress(text)

    def end(self, *, at_once: bool = False) -> None:
        """Let go of every node.  What the look has made there is gone when this returns, or soon after an end ``at_once``."""
        links = self._fleet.links
        if at_once:
            # The agent removes it by itself, once its session is over, whatever it was doing.
            self._fleet.try_each(lambda link: link.close(polite=False))
        with contextlib.suppress(LauncherError):
            self._fleet.close(release={rank: {} for rank, link in links.items() if link.connected})


def _clock_and_jobs(link: Link) -> tuple[float, dict[str, Any]]:
    """(seconds that the node's clock is ahead of ours, the jobs that it knows of); raises NodeErrors."""
    before = time.time()
    there = link.ask("preflight_clock", timeout=_PATIENCE)["time"]
    ahead = there - (before + time.time()) / 2
    return ahead, link.ask("node_jobs", timeout=_PATIENCE)["jobs"]

"""What is made ready on the nodes once the code is there, and before anybody looks for node 0's port.

Each part is one function that asks the nodes, all at once, and returns what their commands must know; together that is
the event `prepared`.  A part may be taken again at any time: by the coordinator that finds it unfinished, and after a
requeue.  A job of which no part has anything to do has no such step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.agent.layout import HYPERPARAMETERS
from launcher.coordinator import data, environment, layer
from launcher.hyperparameters import texts
from launcher.record import dataclass
from launcher.store import read_json

if TYPE_CHECKING:
    from launcher.fleet import Fleet
    from launcher.model import Plan
    from launcher.store import Folder

Made = dict[int, dict[str, Any]]
"""{rank: what the command of that node must know}; JSON, for it becomes part of the event"""


@dataclass(frozen=True)
class Work:
    """What the parts work with."""

    plan: Plan
    folder: Folder
    fleet: Fleet
    facts: Mapping[int, Mapping[str, Any]]
    """{rank: what its hello told}"""
    groups: Sequence[Sequence[int]]
    """ranks that share a file system"""
    environment: Callable[[int], dict[str, str]]
    """the real values of what the person set for a node, by its rank"""
    tell: Callable[[dict[str, Any]], None]
    """takes events"""
    made: Made
    """what the parts before have made"""

    @property
    def leaders(self) -> list[int]:
        """One node of each file system: what lies there is made once."""
        return [group[0] for group in self.groups]

    @property
    def machines(self) -> list[int]:
        """A node of each machine: simulated ones are this one."""
        return [0] if self.plan.backend == "local" else sorted(self.facts)

    def where(self, rank: int) -> str:
        """A node's machine, for people."""
        return "this machine" if self.plan.backend == "local" else self.plan.nodes[rank].host.name

    def note(self, text: str) -> None:
        """A sentence for people."""
        self.tell({"type": "note", "message": text})

    def progress(self, done: int, total: int, **more: Any) -> None:
        """How far it is; ``unit`` may be `bytes`, ``what`` a few words on what is being done."""
        self.tell({"type": "progress", "step": "prepare", "done": done, "total": total, **more})


@dataclass(frozen=True)
class Part:
    """One thing that may have to be made ready."""

    wanted: Callable[[Plan, Folder], bool]
    """whether this job needs it; asked before every decision of a coordinator's life begins, so it must be quick"""
    make: Callable[[Work], Made]
    """does it; raises NodeErrors, with a ``reason_code`` where `PrepareFailed` is not precise enough"""


def _configuration(work: Work) -> Made:
    """hyperparameters.json in the config folder, all values as texts."""
    stored = read_json(work.folder.environment) or {}
    values = texts(stored.get("hyperparameters", {}))
    files = {"files": {HYPERPARAMETERS: values}}
    complaint = "hyperparameters.json could not be written on every node"
    work.fleet.ask_all("prepare_config", complaint, dict.fromkeys(work.leaders, files))
    return {}


PARTS: tuple[Part, ...] = (
    Part(wanted=environment.wanted, make=environment.make),
    Part(wanted=lambda plan, folder: bool(plan.spec.hyperparameters), make=_configuration),
    Part(wanted=layer.wanted, make=layer.make),
    Part(wanted=data.wanted, make=data.make),
    # What a container is given of the data is known when it is there.
    Part(wanted=environment.wanted_inputs, make=environment.find_inputs),
)
"""in the order in which they are made"""


def needed(plan: Plan, folder: Folder) -> bool:
    """Whether the job has anything to prepare."""
    return any(part.wanted(plan, folder) for part in PARTS)


def prepare(work: Work) -> dict[str, Any]:
    """Make everything ready; the event that tells what was made.  Raises NodeErrors: the first part that fails ends it."""
    for part in PARTS:
        if part.wanted(work.plan, work.folder):
            for rank, more in part.make(work).items():
                work.made.setdefault(rank, {}).update(more)
    return {"type": "prepared", "nodes": [{"node": rank, **work.made.get(rank, {})} for rank in sorted(work.facts)]}

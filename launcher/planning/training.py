"""What the training itself is told, and what it needs installed: hyperparameters, labels, requirements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher import environ, requirements
from launcher.cluster import parse_label
from launcher.errors import UsageError
from launcher.hyperparameters import plain, problems
from launcher.model import MASK
from launcher.planning.request import Request, Settings
from launcher.record import dataclass

if TYPE_CHECKING:
    from launcher.cluster.jobfile import JobFile


@dataclass(frozen=True)
class Training:
    """What a job is told beside its environment, with the real values."""

    hyperparameters: Mapping[str, Any]
    labels: Mapping[str, str]
    requirements: tuple[str, ...] | None
    """lines for pip; None: those of the source folder"""

    @property
    def shown(self) -> dict[str, Any]:
        """The fields of a JobSpec, as they may be shown and stored readable."""
        lines = None if self.requirements is None else requirements.masked(self.requirements)
        return {"hyperparameters": masked(self.hyperparameters), "labels": dict(self.labels), "requirements": lines}

    @property
    def stored(self) -> dict[str, Any]:
        """What the coordinator needs in full: readable by the user alone, gone with the job's end."""
        lines = {"requirements": list(self.requirements)} if self.requirements else {}
        return {**({"hyperparameters": dict(self.hyperparameters)} if self.hyperparameters else {}), **lines}


def training_of(request: Request, job: JobFile | None, settings: Settings) -> Training:
    """Flags over the job file, name by name; UsageError lists what cannot be."""
    hyperparameters = plain(settings.merged("hyperparameters", "--hp"))
    wrong = problems(hyperparameters)
    if wrong:
        raise UsageError("these hyperparameters cannot be passed on", problems=wrong, next_step="--hp NAME=VALUE sets one")
    return Training(hyperparameters, _labels(settings), _requirements(request, job, settings))


def _requirements(request: Request, job: JobFile | None, settings: Settings) -> tuple[str, ...] | None:
    """Empty lines ask for nothing, so that an empty one alone switches off what the source folder asks for."""
    in_file = job.requirements if job else None
    said = in_file if request.requirements is None else request.requirements
    if said is None:
        return None
    settings.origins["requirements"] = "job file" if request.requirements is None else "--requirement"
    return tuple(line for line in said if line.strip())


def _labels(settings: Settings) -> dict[str, str]:
    found = settings.merged("labels", "--label")
    wrong = []
    for name, value in found.items():
        try:
            parse_label(name, value)
        except (ValueError, TypeError, AttributeError) as error:
            wrong.append(f"{name!r}: {error if isinstance(error, ValueError) else 'name and text are texts'}")
    if wrong:
        raise UsageError("these labels cannot be", problems=wrong, next_step="--label NAME=TEXT sets one")
    return found


def masked(value: Any) -> Any:
    """Hyperparameters as they may be shown: what is called like a secret is none of anybody's business."""
    if isinstance(value, Mapping):
        return {name: MASK if environ.is_secret(str(name)) else masked(item) for name, item in value.items()}
    return [masked(item) for item in value] if isinstance(value, list) else value

"""Everything that is wrong with a request, once one thing is: whoever mends that should not run into the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher.errors import UsageError
from launcher.metrics import definitions
from launcher.planning.asked import command_of, spec_of
from launcher.planning.data import data_of
from launcher.planning.images import image_of
from launcher.planning.places import cluster_of, nodes_of
from launcher.planning.request import Request, Settings
from launcher.planning.source import git_of, source_of
from launcher.planning.training import training_of
from launcher.planning.variables import user_environment

if TYPE_CHECKING:
    from launcher.cluster.jobfile import JobFile


def all_of(
    first: UsageError, request: Request, job: JobFile | None, settings: Settings, environment: Mapping[str, str]
) -> UsageError:
    """What to raise for the error that was met: that very one, or one that tells of all, each with its place and next step."""
    found = {str(first): first}
    for step in _steps(request, job, settings, environment, found):
        _try(step, found)
    if len(found) == 1:
        return first
    problems = [line for text in found for line in text.splitlines()]
    return UsageError("several things cannot be", problems=problems, next_step="mend all of these")


def _try(step: Callable[[], Any], found: dict[str, UsageError]) -> Any:
    """What the step gives; None, and its error in ``found``, where it gives nothing."""
    try:
        return step()
    except UsageError as error:
        found.setdefault(str(error), error)
        return None


def _steps(
    request: Request, job: JobFile | None, settings: Settings, environment: Mapping[str, str], found: dict[str, UsageError]
) -> Iterator[Callable[[], Any]]:
    """All that can be looked at by itself, or with nothing but what is right."""
    cluster = _try(lambda: cluster_of(settings, environment), found)
    command = _try(lambda: command_of(request, settings), found)
    yield lambda: user_environment(request, job, settings, environment)
    yield lambda: training_of(request, job, settings)
    yield lambda: source_of(settings, git_of(settings))
    yield lambda: definitions(settings.get("metrics", ()), settings.origins["metrics"])
    if command is not None:
        yield lambda: spec_of(settings, command, {}, 1, [])
    if cluster is not None:
        yield lambda: image_of(settings, cluster)
        if cluster.backend != "slurm" or settings.allocation is not None:
            yield lambda: nodes_of(settings, cluster, [])
        yield lambda: data_of(settings, cluster.backend, max(settings.get("nodes") or 1, 1), settings.get("collect") or ())

"""Which torch the command of a node had: its own interpreter is asked, the one below its requirements and in its image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher import environments
from launcher.coordinator import environment, layer
from launcher.errors import NodeError
from launcher.model import Plan

if TYPE_CHECKING:
    from launcher.link import Link

_SECONDS, _PATIENCE = 15.0, 20.0
"""how long the interpreter may take, and how long its node's answer"""
_LONGEST = 100
"""characters of what can be a version"""
_LOOK = "from importlib.metadata import version; print(version('torch'))"
"""nothing of torch is imported"""


def torch_of(plan: Plan, link: Link, facts: Mapping[str, Any], made: Mapping[str, Any]) -> str | None:
    """The version; None where there is none, or it cannot be told.  ``facts`` and ``made``: what the node told and was given."""
    image, added = made.get("image", {}), made.get("layer", {})
    python = added.get("python") or image.get("python") or facts.get("python")
    if python is None:
        return None
    try:
        if not image:
            told = link.ask("outputs_torch", timeout=_PATIENCE, python=python).get("torch")
        else:
            told = _asked_inside(plan, link, facts, layer.over(added, [str(python), "-c", _LOOK]), image, layer.mounts(added))
    except NodeError:
        return None
    return told if isinstance(told, str) and len(told) < _LONGEST else None


def _asked_inside(
    plan: Plan, link: Link, facts: Mapping[str, Any], argv: list[str], image: Mapping[str, Any], mounts: tuple[str, ...]
) -> str | None:
    """As the command ran: in a container of its own, or with what its modules or its conda environment set."""
    place = environment.place_of(plan, link.rank, facts, image, purpose="torch", mounts=mounts)
    variables = {"PAI_WORKING_DIR": f"{facts['job_dir']}/code/"}
    wrapped = environments.wrap(environment.environment_of(plan), argv, variables, place)
    answer = link.ask("environment_run", timeout=_PATIENCE, **environment.run_request(wrapped, _SECONDS))
    return str(answer["stdout"]).strip() or None if answer["status"] == 0 else None

"""Which torch the command of a node has: its own interpreter is asked, the one below its requirements and in its image."""

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
_BOTH = """import sys
print("%d.%d.%d" % sys.version_info[:3])
try:
    from importlib.metadata import version
    print(version("torch"))
except Exception:
    print("-")"""


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
            told = asked_inside(plan, link, facts, layer.over(added, [str(python), "-c", _LOOK]), image, layer.mounts(added))
    except NodeError:
        return None
    return told if isinstance(told, str) and len(told) < _LONGEST else None


def python_of(
    plan: Plan, link: Link, facts: Mapping[str, Any], image: Mapping[str, Any], user: Mapping[str, str]
) -> tuple[str, str | None] | None:
    """(version of the Python that the command would have, of its torch or None); None where it does not answer.

    ``user``: the variables that the command is given there.  Raises NodeErrors.
    """
    argv = [str(image.get("python") or facts["python"]), "-c", _BOTH]
    told = (asked_inside(plan, link, facts, argv, image, user=user) or "").split("\n")
    if len(told) < 2 or not all(0 < len(word) < _LONGEST for word in told[-2:]):
        return None
    return told[-2], None if told[-1] == "-" else told[-1]


def asked_inside(
    plan: Plan, link: Link, facts: Mapping[str, Any], argv: list[str], image: Mapping[str, Any],
    mounts: tuple[str, ...] = (), user: Mapping[str, str] | None = None,
) -> str | None:  # fmt: skip
    """What a program prints that is run as the command is: in a container, or with what modules or a conda environment set."""
    place = environment.place_of(plan, link.rank, facts, image, purpose="torch", mounts=mounts)
    variables = {**(user or {}), "PAI_WORKING_DIR": f"{facts['job_dir']}/code/"}
    wrapped = environments.wrap(environment.environment_of(plan), argv, variables, place)
    answer = link.ask("environment_run", timeout=_PATIENCE, **environment.run_request(wrapped, _SECONDS))
    return str(answer["stdout"]).strip() or None if answer["status"] == 0 else None

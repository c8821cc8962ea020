"""The part of `prepare` that installs a job's requirements, and the command as it finds them.

On each node they become a layer over the environment that the command runs in: the node's own, or the job's image.  A
layer is built once for the same requirements and the same environment, and kept for the jobs to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import NodeUnusable
from launcher.store import read_json

if TYPE_CHECKING:
    from launcher.coordinator.prepare import Made, Work
    from launcher.model import Plan
    from launcher.requirements import Requirements
    from launcher.store import Folder


class NotInstalled(NodeUnusable):
    """A job's requirements could not be installed on a node."""

    reason_code = "RequirementsFailed"


def of(plan: Plan, folder: Folder) -> Requirements:
    """The job's requirements, in full; UsageError where they cannot be used."""
    from launcher import requirements

    stored = read_json(folder.environment) or {}
    return requirements.read(folder.code, stored.get("requirements", plan.spec.requirements))


def wanted(plan: Plan, folder: Folder) -> bool:
    """Whether there is anything to install."""
    return plan.spec.may_install(folder.code) and bool(of(plan, folder))


def make(work: Work) -> Made:
    """{rank: {"layer": where it is}}; raises NodesFailed, or a NodeUnusable."""
    from launcher.coordinator.installation import Installation

    return Installation(work).done()


_SHIM = 'PATH=$1:$PATH PYTHONPATH=$2${PYTHONPATH:+:$PYTHONPATH}; export PATH PYTHONPATH; shift 2; exec "$@"'


def over(layer: Mapping[str, Any], argv: Sequence[str]) -> list[str]:
    """The command, with the layer before everything that its environment has; ``layer`` as `make` told, {} for none.

    It is put there last, inside, for what an image sets is known only there.  The programs of the environment below (its
    torchrun, say) have its interpreter, which finds the layer by PYTHONPATH.
    """
    return ["/bin/sh", "-c", _SHIM, "sh", layer["bin"], layer["site"], *argv] if layer else list(argv)


def mounts(layer: Mapping[str, Any]) -> tuple[str, ...]:
    """The directories that a container must see for it."""
    return (str(Path(layer["bin"]).parent),) if layer else ()

"""What a node is asked when it is reached, and what is said of its answer: by a job's first step, and by `launcher check`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from launcher.coordinator import allocated, environment, layer
from launcher.errors import HostKeyChanged, HostKeyUnknown, LauncherError, NodeError, NodesFailed, NodeUnusable
from launcher.model import Plan
from launcher.store import Folder

Facts = Mapping[int, Mapping[str, Any]]
"""{rank: what its hello told}"""
_FOUND_UNNAMED = ("built-in", "LAUNCHER_CLUSTER", "./cluster.yaml", "the default of ")
"""how origins begin of an inventory that every command finds by itself"""


def question(plan: Plan, folder: Folder, *, no_code: bool) -> dict[str, Any]:
    """Further arguments of the hello; ``no_code``: no working copy is going to come."""
    # What an image or the requirements bring is looked for once the code is there.
    later = environment.wanted(plan) or layer.wanted(plan, folder)
    asked = {"programs": [] if later else list(environment.programs(plan)), "no_code": no_code}
    return {**asked, "channels": list(plan.spec.outputs)} if plan.spec.outputs else asked


def complaints(plan: Plan, facts: Facts) -> dict[int, NodeError]:
    """{rank: why it cannot run the command} of the nodes that cannot: a program is not there, Slurm gave less than it said."""
    # Simulated nodes are one machine, which lacks a program once.
    ranks = [min(facts)] if plan.backend == "local" and facts else sorted(facts)
    found = {rank: _complaint(plan, rank, facts[rank]) for rank in ranks}
    return {rank: error for rank, error in found.items() if error is not None}


def _complaint(plan: Plan, rank: int, told: Mapping[str, Any]) -> NodeError | None:
    host = plan.nodes[rank].host
    missing = [name for name, path in told["programs"].items() if path is None]
    needs_python = plan.spec.command.script is not None and not environment.wanted(plan)
    if missing or (needs_python and not told["python"]):
        return _not_found(", ".join(missing) or "python3", host.name, plan.backend)
    lacking = allocated.complaint(host, told) if plan.allocation else None
    return lacking or (ended_by_log_out(host.name, told) if plan.detached else None)


def _not_found(names: str, host: str, backend: str) -> NodeUnusable:
    """What to do about a program that a node does not have."""
    if backend == "local":
        step = "install it, or name it by its path"
        return NodeUnusable(f"there is no {names} in PATH here", where="this machine", next_step=step)
    step = "name the environment that has it with `python:` or `venv:` in cluster.yaml"
    return NodeUnusable(f"no {names} in the PATH of a non-interactive log-in there", where=host, next_step=step)


def ended_by_log_out(host: str, told: Mapping[str, Any]) -> NodeUnusable | None:
    """The sentence about a node on which no job outlives a log-out, None for any other."""
    if not told["logout"].get("kill"):
        return None
    what = f"a log-out there ends all processes of {told['user']} (KillUserProcesses=yes), a detached job too"
    return NodeUnusable(what, where=host, next_step="loginctl enable-linger, on that node")


def warnings(plan: Plan, facts: Facts) -> list[str]:
    """What may go wrong later, a sentence each, nodes with the same trouble in one."""
    short = allocated.grace_note(plan) if plan.allocation else None
    notes = [short] if short else []
    ipc = [told["hostname"] for _, told in sorted(facts.items()) if told["logout"].get("remove_ipc")]
    if not ipc:
        return notes
    text = "when the last log-in of this user ends, logind removes shared memory there (RemoveIPC), which data loaders use"
    return [*notes, f"{', '.join(dict.fromkeys(ipc))}: {text}; `loginctl enable-linger` there prevents it"]


def groups(facts: Facts) -> list[list[int]]:
    """Nodes that found the same mark share a file system: what lies there is brought and fetched once."""
    found: dict[str, list[int]] = {}
    for rank in sorted(facts):
        found.setdefault(facts[rank]["directory_id"], []).append(rank)
    return list(found.values())


def naming_inventory(error: LauncherError, plan: Plan) -> LauncherError:
    """The same error, its `launcher trust HOST` with the option without which HOST would mean nothing there."""
    said = [name for name in ("cluster", "hostfile") if not plan.origins.get(name, "built-in").startswith(_FOUND_UNNAMED)]
    if not said or plan.inventory is None:
        return error
    if isinstance(error, NodesFailed):
        for one in error.errors:
            naming_inventory(one, plan)
        told = NodesFailed(error.what, error.errors)
        told.next_step = error.next_step
        return told
    if isinstance(error, (HostKeyUnknown, HostKeyChanged)):
        error.next_step += f" --{said[0]} {shlex.quote(plan.inventory)}"
    return error

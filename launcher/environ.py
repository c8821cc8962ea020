"""The environment of the command on one node: a pure function of the plan and of what the node told.

Three layers come together on the node: its own environment, less what must not be inherited; defaults, which give way
to what is set there; and settings, which win.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from launcher import channels
from launcher.model import MASK, Command, Node, Plan
from launcher.record import dataclass
from launcher.torchrun import static_node, uses_launcher

DROPPED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_*",
    "TORCHELASTIC_*",
    "PET_*",
    "NODE_RANK",
    "NNODES",
    "NPROC_PER_NODE",
    "LAUNCHER_*",
    "PAI_*",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
)
"""names that are never inherited on a node: they speak of another job, or of the connection that started the agent"""
ALLOWED = ("NCCL_*", "GLOO_*", "TORCH_*", "CUDA_*", "OMP_*", "HF_*", "WANDB_*")
"""what goes along from the submitting side unasked"""
_NOT_UNASKED = ("CUDA_VISIBLE_DEVICES", "*_HOME", "*_PATH", "*_DIR", "*_ROOT", "*_CACHE")
"""of those, the ones that speak of the submitting machine; --forward-env can name them"""
_NEVER = ("HOME", "PATH", "PWD", "OLDPWD", "SHELL", "SSH_*", "SLURM_*", "TERM", "DISPLAY", "XDG_*", "LS_COLORS", "_")
"""what no pattern takes along"""
_SECRET = ("*KEY*", "*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*CREDENTIAL*")
_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "NPROC_PER_NODE", "LAUNCHER_*", "PAI_*")


def forwarded(environment: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    """What of the submitting side's environment goes along."""
    return {name: value for name, value in sorted(environment.items()) if _goes_along(name, patterns)}


def _goes_along(name: str, patterns: Sequence[str]) -> bool:
    if _matches(name, _NEVER) or _matches(name, DROPPED):
        return False
    return _matches(name, patterns) or (_matches(name, ALLOWED) and not _matches(name, _NOT_UNASKED))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_ours(name: str) -> bool:
    """True for the names that only the launcher sets; MASTER_ADDR and MASTER_PORT are the user's to choose."""
    return _matches(name, _OURS)


def is_secret(name: str) -> bool:
    """True when the value of a variable of that name is shown to nobody."""
    return _matches(name.upper(), _SECRET)


def masked(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment as it may be shown and stored readable."""
    return {name: MASK if is_secret(name) else value for name, value in environment.items()}


@dataclass(frozen=True)
class Place:
    """What is known of one node when the command is about to start."""

    facts: Mapping[str, Any]
    """the hello's reply"""
    nproc: int
    interface: str | None
    """that carried the probe; None when there was none"""
    prepared: Mapping[str, Any] = field(default_factory=dict)
    """what was made ready there"""


@dataclass(frozen=True)
class Orders:
    """How the node makes the command's environment out of its own."""

    settings: dict[str, str]
    defaults: dict[str, str]
    drop: tuple[str, ...]


def orders(
    plan: Plan, node: Node, place: Place, master: tuple[str, int], user: Mapping[str, str], torchrun: Mapping[str, str]
) -> Orders:
    """The environment for one node.

    ``user`` holds the real values of what the person set for it (flags, job file, cluster.yaml, forwarded variables);
    ``torchrun`` what its version wants set.  The names are PAI's (see the table in the docs), then ours.
    """
    job_dir = str(place.facts["job_dir"])
    folders = Folders(f"{job_dir}/code/", f"{job_dir}/input/config/", f"{job_dir}/output/")
    settings = contract(plan.job_id, master, len(plan.nodes), node.rank, place.nproc, folders, restarts=plan.restarts)
    settings |= _data(plan, folders, place.prepared.get("inputs", {}))
    defaults = {**_defaults(len(plan.nodes), place.interface), **torchrun}
    # MASTER_ADDR and MASTER_PORT of the user are in ``master`` already: they were checked there.
    own = {name: value for name, value in user.items() if name not in settings}
    slice_ = _gpu_slice(plan, node, place.facts)
    return Orders({**slice_, **own, **settings}, {k: v for k, v in defaults.items() if k not in own}, DROPPED)


@dataclass(frozen=True)
class Folders:
    """Where the command's files lie on its node; each path ends with a slash, as PAI's do."""

    working: str
    config: str
    output: str
    """one folder below it for each channel"""


def contract(
    job_id: str, master: tuple[str, int], nodes: int, rank: int, nproc: int, folders: Folders, *, restarts: int = 0
) -> dict[str, str]:
    """What the command finds on every node, whoever starts it: PAI's names, then ours."""
    return {
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        "WORLD_SIZE": str(nodes),
        "RANK": str(rank),
        "NODE_RANK": str(rank),
        "NNODES": str(nodes),
        "NPROC_PER_NODE": str(nproc),
        "LAUNCHER_JOB_ID": job_id,
        "LAUNCHER_RESTART_COUNT": str(restarts),
        "PAI_WORKING_DIR": folders.working,
        "PAI_CONFIG_DIR": folders.config,
        **{channels.variable(channels.OUTPUT, channel): f"{folders.output}{channel}/" for channel in channels.CHANNELS},
    }


def _data(plan: Plan, folders: Folders, inputs: Mapping[str, str]) -> dict[str, str]:
    """Where the command's own channels are: outputs, and inputs (as the node told)."""
    outputs = {channels.variable(channels.OUTPUT, channel): f"{folders.output}{channel}/" for channel in plan.spec.outputs}
    return {**outputs, **{channels.variable(channels.INPUT, channel): path for channel, path in inputs.items()}}


def _defaults(nodes: int, interface: str | None) -> dict[str, str]:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if nodes > 1 and interface else ()
    return {"PYTHONUNBUFFERED": "1", **dict.fromkeys(names, interface or "")}


def of_task(inherited: Mapping[str, str], settings: Mapping[str, str], interface: str | None) -> dict[str, str]:
    """The environment of a command that takes this process's place, with ``settings`` of :func:`contract`."""
    kept = {name: value for name, value in inherited.items() if not _matches(name, DROPPED)}
    master = (settings["MASTER_ADDR"], settings["MASTER_PORT"])
    torchrun = static_node(settings["NNODES"], settings["NODE_RANK"], settings["NPROC_PER_NODE"], master)
    return {**_defaults(int(settings["NNODES"]), interface), **kept, **torchrun, **settings}


def _gpu_slice(plan: Plan, node: Node, facts: Mapping[str, Any]) -> dict[str, str]:
    """A simulated node's share of this machine's GPUs; a real node's CUDA_VISIBLE_DEVICES is its own."""
    if plan.backend != "local" or not facts.get("gpu_ids"):
        return {}
    share = local_gpus(facts["gpu_ids"], node.rank, len(plan.nodes))
    return {"CUDA_VISIBLE_DEVICES": ",".join(share)}


def local_gpus(ids: Sequence[str], rank: int, nodes: int) -> list[str]:
    """The GPUs of simulated node ``rank`` of ``nodes``: contiguous shares, the first ones larger by at most one."""
    small, extra = divmod(len(ids), nodes)
    start = rank * small + min(rank, extra)
    return list(ids[start : start + small + (rank < extra)])


def starts_processes(command: Command) -> bool:
    """Whether torchrun, or another launcher of processes, is what the command starts; any other program runs once per node."""
    return command.script is not None or uses_launcher(command.shell or command.argv or "")


def processes(plan: Plan, node: Node, facts: Mapping[str, Any]) -> int:
    """How many processes the node starts: the user's number, its slots, its GPUs, else one."""
    if plan.spec.nproc_per_node is not None:
        return plan.spec.nproc_per_node
    if node.host.slots is not None:
        return node.host.slots
    if plan.backend == "local":
        return len(local_gpus(facts.get("gpu_ids", ()), node.rank, len(plan.nodes))) or 1
    gpus = node.host.gpus if node.host.gpus is not None else int(facts.get("gpus", 0))
    return gpus or 1

"""The part of `prepare` that finds the job's image on every node, and the command as it runs inside.

All nodes at once, and before anything starts: a runtime that does not answer, an image that cannot be had, a program
that is not in it are sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher import environments
from launcher.coordinator import layer
from launcher.environ import Orders
from launcher.environments import Environment, Place, Wrapped
from launcher.errors import NodeError, NodeUnusable, gathered
from launcher.model import Plan
from launcher.record import dataclass
from launcher.reply import sentence

if TYPE_CHECKING:
    from launcher.coordinator.prepare import Made, Work

_SECONDS = 120
"""how long a container may take to start and look around"""
_MARK = "launcher-found:"
_LOOK = f'for program; do echo "{_MARK}$program=$(command -v "$program")"; done'
_STEPS = {
    "venv": "make it there, or name another: --image venv:/path",
    "conda": "name one that is there: --image conda:NAME",
    "module": "`module avail`, on that node, lists what there is",
    "docker": "install docker there and let this user use it (group docker); `docker pull`, or `docker load`, brings an image",
    "podman": "install podman there; `podman pull`, or `podman load`, brings an image",
    "apptainer": "install apptainer there; `apptainer pull` makes an image file",
}
"""what to do about an environment that is not there"""


def environment_of(plan: Plan) -> Environment | None:
    """The environment of a job's command; None: the node's own."""
    return environments.parse(plan.spec.image) if plan.spec.image else None


def wanted(plan: Plan, folder: object = None) -> bool:
    """Whether there is anything to look for; what pyxis brings is there with the step."""
    environment = environment_of(plan)
    return environment is not None and environment.kind != "pyxis"


def make(work: Work) -> Made:
    """{rank: {"image": what is known of it there}}; raises NodesFailed, or a NodeUnusable."""
    found, errors = find(work)
    if errors:
        raise gathered(f"{work.plan.spec.image} cannot be used on every node", [error for _, error in sorted(errors.items())])
    return {rank: {"image": {**found[rank if rank in found else 0], **_logs(work, rank)}} for rank in work.facts}


def find(work: Work, *, pull: bool = True) -> tuple[dict[int, dict[str, Any]], dict[int, NodeError]]:
    """({rank: what is known of the image there}, {rank: why it cannot be used}), of a node of each machine.

    Without ``pull`` an image that is not there stays away, and is known as `absent`: why it cannot be had, or "" where it can.
    """
    environment = environment_of(work.plan)
    assert environment is not None
    request = {"kind": environment.kind, "name": environment.name, "programs": list(programs(work.plan)), "pull": pull}
    found, errors = work.fleet.try_all("environment_find", dict.fromkeys(work.machines, request))
    for rank, told in found.items():
        if told.get("absent"):
            what = f"{environment.kind} has no image {environment.name}, and it can hardly be pulled: {sentence(told['absent'])}"
            step = f"`{environment.kind} pull {environment.name}` there tells more; `{environment.kind} load` needs no registry"
            errors[rank] = NodeUnusable(what, where=work.where(rank), next_step=step)
    there = {rank: told for rank, told in found.items() if "absent" not in told}
    if environment.contained:
        there, unusable = _look_inside(work, environment, there)
        errors |= unusable
    for rank, error in errors.items():
        if isinstance(error, NodeUnusable):
            error.where, error.next_step = work.where(rank), error.next_step or _STEPS[environment.kind]
    lacking = {rank: lack for rank, told in there.items() if (lack := _lacks(work, rank, told)) is not None}
    if len({told.get("id") for told in there.values()}) > 1:
        work.note(f"warning: {environment.name} is not the same image on every node; `{environment.kind} pull` there makes it so")
    return {**found, **there}, {**errors, **lacking}


def _logs(work: Work, rank: int) -> dict[str, str]:
    """Where the node's agent reads the logs of ranks (launcher.agent.layout)."""
    requeue = f"-{work.plan.requeue}" if work.plan.requeue else ""
    return {"logs": f"{work.facts[rank]['job_dir']}/rank-{rank}/spool{requeue}/ranks"}


def _look_inside(
    work: Work, environment: Environment, found: Mapping[int, dict[str, Any]]
) -> tuple[dict[int, dict[str, Any]], dict[int, NodeError]]:
    """With what a first container of the image, in all like the command's, has in its PATH; and where there can be none."""
    names = list(dict.fromkeys(["python3", "python", *programs(work.plan)]))
    requests: dict[int, Mapping[str, Any]] = {}
    for rank, told in found.items():
        place = place_of(work.plan, rank, work.facts[rank], told, purpose="look")
        wrapped = environments.wrap(environment, ["/bin/sh", "-c", _LOOK, "sh", *names], work.environment(rank), place)
        requests[rank] = run_request(wrapped, _SECONDS)
    answers, errors = work.fleet.try_all("environment_run", requests)
    complete: dict[int, dict[str, Any]] = {}
    for rank, answer in answers.items():
        lines = [line.removeprefix(_MARK) for line in str(answer["stdout"]).splitlines() if line.startswith(_MARK)]
        paths = {name: path or None for name, _, path in (line.partition("=") for line in lines)}
        if paths:
            complete[rank] = {**found[rank], "python": paths.get("python3") or paths.get("python"), "programs": paths}
        else:
            said = str(answer["stderr"]).strip().splitlines()[-5:]
            what = f"no container of the image {environment.name} can be started"
            errors[rank] = NodeUnusable(what, where=work.where(rank), lines=said)
    return complete, errors


def _lacks(work: Work, rank: int, told: Mapping[str, Any]) -> NodeError | None:
    """What of the interpreter and the programs that the command begins with is not inside, None where all are."""
    # What the requirements may bring is looked for when they are installed.
    asked = [] if layer.wanted(work.plan, work.folder) else programs(work.plan)
    needed = {name: told["programs"].get(name) for name in asked}
    if work.plan.spec.command.script is not None:
        needed["python3"] = told["python"]
    missing = [name for name, path in needed.items() if not path]
    if not missing:
        return None
    what = f"there is no {', '.join(missing)} in {work.plan.spec.image}"
    return NodeUnusable(what, where=work.where(rank), next_step="name an image that has it, or its path")


def wanted_inputs(plan: Plan, folder: object = None) -> bool:
    """Whether there is data that a container has to be given."""
    environment = environment_of(plan)
    return bool(plan.spec.inputs) and environment is not None and environment.contained


def find_inputs(work: Work) -> Made:
    """{rank: {"data": {channel: where its data really is}}}, once they are there: the last part of all."""
    paths = {rank: dict(work.made.get(rank, {}).get("inputs", {})) for rank in work.facts}
    requests = {rank: {"paths": sorted(of_node.values())} for rank, of_node in paths.items()}
    told = work.fleet.ask_all("environment_resolve", "not every node has the job's data", requests)
    return {
        rank: {"data": {channel: {"path": path, **told[rank]["paths"][path]} for channel, path in of_node.items()}}
        for rank, of_node in paths.items()
    }


def programs(plan: Plan) -> Sequence[str]:
    """Programs that must be in PATH on every node for the command to begin; only what is certain is asked."""
    command = plan.spec.command
    if command.argv is not None:
        return [] if "/" in command.argv[0] else [command.argv[0]]
    first = (command.shell or "").split()[:1]
    return first if first and first[0] in ("torchrun", "python", "python3") else []


def place_of(
    plan: Plan, rank: int, facts: Mapping[str, Any], told: Mapping[str, Any], *, attempt: int = 0, purpose: str | None = None,
    mounts: Sequence[str] = (), inputs: Mapping[str, Mapping[str, Any]] | None = None,
) -> Place:  # fmt: skip
    """A node as `environments.wrap` knows it; ``told`` is what is known of the image there."""
    return Place(plan.job_id, rank, attempt, str(facts["job_dir"]), told, tuple(mounts), inputs or {}, purpose)


def run_request(wrapped: Wrapped, seconds: float) -> dict[str, Any]:
    """The arguments of `environment_run`."""
    stop = list(wrapped.stop) if wrapped.stop else None
    return {"argv": list(wrapped.argv), "env": dict(wrapped.env), "stop": stop, "seconds": seconds}


@dataclass(frozen=True)
class Start:
    """What `node_start` is asked for, apart from what is the same in every job."""

    argv: Sequence[str]
    orders: Orders
    bin: str | None
    """the directory to put first in PATH"""
    stop: Sequence[str] | None = None

    def request(self) -> dict[str, Any]:
        """The arguments of `node_start`."""
        orders = self.orders
        variables = {"env": orders.settings, "defaults": orders.defaults, "drop": list(orders.drop)}
        return {"argv": list(self.argv), **variables, "bin": self.bin, "stop": self.stop and list(self.stop)}


def inside(plan: Plan, place: Place, start: Start) -> Start:
    """A command's start, as it is inside the job's image."""
    environment = environment_of(plan)
    orders = start.orders
    if environment is None or environment.kind == "pyxis":
        return start
    if not environment.contained:
        wrapped = environments.wrap(environment, start.argv, orders.settings, place)
        return Start(wrapped.argv, Orders(dict(wrapped.env), orders.defaults, orders.drop), place.told["bin"])
    # There is nothing of the node's own that a default could give way to.
    wrapped = environments.wrap(environment, start.argv, {**orders.defaults, **orders.settings}, place)
    return Start(wrapped.argv, Orders(dict(wrapped.env), {}, orders.drop), None, wrapped.stop)

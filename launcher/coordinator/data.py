"""Data before the start: inputs brought to the nodes, and a look whether outputs can be written where they are to go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher import uri as uris
from launcher.channels import NODE
from launcher.coordinator.progress import Progress
from launcher.errors import LauncherError
from launcher.store import read_json

if TYPE_CHECKING:
    from launcher.coordinator.prepare import Made, Work
    from launcher.inputs import Cargo
    from launcher.link import Link
    from launcher.model import Input, Plan
    from launcher.store import Folder


def make(work: Work) -> Made:
    """{rank: {"inputs": {channel: path there}}}.  Raises LauncherErrors of which reason_code is InputFailed."""
    with _reason("OutputPathFailed"):
        _try_places(work)
    if work.plan.spec.goes_on_from is not None:
        from launcher.coordinator.checkpoints import Checkpoints

        with _reason("InputFailed"):
            Checkpoints(work.plan, work.folder, work.tell).restore({rank: work.fleet.links[rank] for rank in work.leaders})
    made: Made = {rank: {"inputs": {}} for rank in work.facts if work.plan.spec.inputs}
    with _reason("InputFailed"):
        for one in work.plan.spec.inputs:
            there = _link(work, one) if one.source.startswith(NODE) else _bring(work, one)
            for rank, path in there.items():
                made[rank]["inputs"][one.channel] = path
    return made


def wanted(plan: Plan, folder: Folder) -> bool:
    """Whether a job has data to bring, or a place for its outputs that may not be there."""
    return bool(plan.spec.inputs or plan.spec.publishes or plan.spec.goes_on_from)


@contextlib.contextmanager
def _reason(code: str) -> Iterator[None]:
    try:
        yield
    except LauncherError as error:
        error.reason_code = code  # type: ignore[attr-defined]  # what the coordinator writes as the job's reason
        raise


def _try_places(work: Work) -> None:
    """Before a training that could not be published: a file is written where the outputs go, and removed."""
    spec = work.plan.spec
    places = dict.fromkeys(place for place in (spec.output_path, *spec.outputs.values(), spec.checkpoints_path) if place)
    if not places:
        return
    from launcher.objects import Depot

    for place in places:
        depot = Depot(place)
        name = f".{work.plan.job_id}-{work.plan.requeue}.try"
        depot.put(name, b"")
        depot.remove(name)


def _askers(work: Work, one: Input) -> list[int]:
    """A share is every node's own; else one node of each file system asks for all."""
    return sorted(work.facts) if one.shard else work.leaders


def _for_all(work: Work, paths: dict[int, str]) -> dict[int, str]:
    """What was told to the first node of a file system holds for the others."""
    return {rank: paths[rank if rank in paths else group[0]] for group in work.groups for rank in group}


def _link(work: Work, one: Input) -> dict[int, str]:
    """A path on the nodes, used there as it is; it must be on all of them, whoever shares the job's folder."""
    source = one.source[len(NODE) :]
    nodes = len(work.facts)
    asked = {
        rank: {"channel": one.channel, "source": source, "share": [rank, nodes] if one.shard else None} for rank in work.facts
    }
    try:
        told = work.fleet.ask_all("inputs_link", f"input {one.channel}: not every node has {source}", asked)
    except LauncherError as error:
        if not os.path.exists(source):
            error.next_step = f"check the path of input {one.channel}: it is not on this machine either"
        raise
    return {rank: str(reply["path"]) for rank, reply in told.items()}


def _bring(work: Work, one: Input) -> dict[int, str]:
    from launcher.inputs import Carrier, local_cargo, remote_cargo, share

    remote = uris.is_uri(one.source)
    recorded = {} if remote else read_json(work.folder.inputs)
    cargo = remote_cargo(one.source) if remote else local_cargo(one.channel, one.source, recorded[one.channel])
    askers = _askers(work, one)
    parts: dict[int, Cargo] = {rank: share(cargo, rank, len(askers)) if one.shard else cargo for rank in askers}
    carrier = Carrier(one.channel, work.note)
    progress = Progress(lambda done, total: work.progress(done, total, unit="bytes", what=f"input {one.channel}"), len(askers))

    def bring(link: Link) -> str:
        rank = link.rank
        python = str(work.facts[rank]["python"]) if remote and work.facts[rank].get("python") else None
        whose = rank if one.shard else None
        return carrier.bring(link, parts[rank], python, whose, lambda done, total: progress.update(rank, done, total))

    try:
        paths = work.fleet.each(bring, f"input {one.channel} could not be brought to every node", askers)
    finally:
        carrier.close()
    return _for_all(work, paths)

"""The end of a job's course: bring the outputs here with a manifest of what made them, and publish them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from launcher.coordinator.checkpoints import CHANNEL
from launcher.coordinator.progress import Progress
from launcher.errors import CollectFailed, LinkLost
from launcher.model import Plan
from launcher.policy import View
from launcher.provenance import provenance
from launcher.store import Folder

if TYPE_CHECKING:
    from launcher.fleet import Fleet
    from launcher.link import Link
    from launcher.manifest import Manifest
    from launcher.publish import Copied

Event = dict[str, Any]
_TRIES = 4
_SHOWN = 20
"""conflicts that an event names; the manifest has all"""
_PUBLISHING = {"type": "progress", "step": "publish", "unit": "bytes"}


class Collecting:
    """What brings the outputs of one job home."""

    def __init__(self, plan: Plan, folder: Folder, tell: Callable[[Event], None]) -> None:
        self._plan, self._folder, self._tell = plan, folder, tell
        self.stop = threading.Event()
        """set when nobody wants what is being published any more"""

    def collect(self, fleet: Fleet, view: View) -> list[Event]:
        """Bring the channels of all nodes that can be reached here.  Raises CollectFailed."""
        from launcher.outputs import collect

        self._tell({"type": "collecting"})
        reachable = [rank for rank, node in view.nodes.items() if node.lost_for_good is None]
        groups = [[rank for rank in group if rank in reachable] for group in view.groups]
        everywhere = groups
        # Of nodes that share a file system a later one may have written after the first had told.
        groups = [group for group in groups if not all(view.nodes[rank].empty for rank in group)]
        peers = {rank: fleet.links[rank] for rank in reachable}

        def made_by(anything: bool) -> dict[str, Any]:
            return self._made_by(fleet, reachable if anything else [])

        pause = threading.Event()
        for attempt in range(_TRIES):
            try:
                spec = self._plan.spec
                to = self._folder.output
                manifest = collect(peers, groups, to, spec.collect, self._note, made_by, spec.collect_if_room)
                summary = {**self._summary(manifest), "strayed": self._strayed(fleet, view, everywhere, manifest)}
                return [{"type": "collected", "model": str(self._folder.output / "model"), **summary}, *_lacking(manifest)]
            except LinkLost as error:
                if attempt == _TRIES - 1:
                    raise CollectFailed(f"the outputs could not be fetched: {error.what}", where=error.where) from error
                self._note(f"{error}; trying again")
                # The link connects again by itself, at the latest after its longest pause.
                pause.wait(2.0**attempt)
        raise AssertionError("unreachable")

    def _summary(self, manifest: Manifest) -> Event:
        """What of the manifest belongs into an event; model.json has the rest."""
        left: dict[str, set[str]] = {}
        unasked: dict[str, set[str]] = {}
        for entry in manifest.left:
            left.setdefault(str(entry.node), set()).add(entry.channel)
            # Checkpoints with a place of their own are there by now.
            if entry.kind == "unasked" and not (entry.channel == CHANNEL and self._plan.spec.checkpoints_path):
                unasked.setdefault(str(entry.node), set()).add(entry.channel)
        told = [
            f"{conflict.path}: node {conflict.node}'s was taken, others differ on {conflict.others}"
            for conflict in manifest.conflicts
        ]
        size = sum(file.size for file in manifest.files)
        counts = {"files": len(manifest.files), "bytes": size, "left_files": len(manifest.left)}
        return {**counts, "conflicts": told[:_SHOWN], "left": _sorted(left), "unasked": _sorted(unasked)}

    def _strayed(self, fleet: Fleet, view: View, groups: list[list[int]], manifest: Manifest) -> Event:
        """What a success without a model has written into its working copies, by node.

        A relative path leads there as often as not, and with the working copy it would be gone.
        """
        modelled = any(file.path.partition("/")[0] == "model" for file in manifest.files)
        if modelled or self._plan.spec.keep or view.stopping or view.failure:
            return {}
        leaders = [group[0] for group in groups if group and not all(view.nodes[rank].bare for rank in group)]
        found, errors = fleet.try_all("outputs_strayed", {rank: {} for rank in leaders})
        for error in errors.values():
            self._note(f"warning: what the command wrote into its working copy is not known: {error}")
        return {str(rank): told for rank, told in found.items() if told["count"]}

    def publish(self) -> list[Event]:
        """Copy what was collected to where the job's outputs are published.  Raises StorageFailed."""
        from launcher.manifest import load
        from launcher.objects import Stopped
        from launcher.publish import publish, summary, targets

        manifest = load(self._folder.output)
        copied: list[Copied] = []
        channels: dict[str, str] = {}
        try:
            for target, names in targets(self._plan, manifest):
                copied.append(publish(self._folder.output, target, self._note, self._told_bytes(), self.stop))
                channels.update(names)
        except Stopped:
            return []
        return [{"type": "published", "channels": channels, **summary(copied)}]

    def _told_bytes(self) -> Callable[[int, int], None]:
        report = Progress(lambda done, total: self._tell({**_PUBLISHING, "done": done, "total": total}), 1)
        return lambda done, total: report.update(0, done, total)

    def _made_by(self, fleet: Fleet, ranks: list[int]) -> dict[str, Any]:
        from launcher.coordinator.version import torch_of

        events = self._folder.read_events()
        reached = {node["rank"]: node for event in events if event["type"] == "reached" for node in event.get("nodes", [])}
        prepared = {node["node"]: node for event in events if event["type"] == "prepared" for node in event.get("nodes", [])}

        def version(link: Link) -> str | None:
            return torch_of(self._plan, link, reached.get(link.rank, {}), prepared.get(link.rank, {}))

        versions = fleet.each(version, "not every node told its version of torch", ranks)
        path = self._folder.root / "code.json"
        code = json.loads(path.read_bytes()) if path.exists() else None
        return provenance(self._plan, code, events, versions, time.time())

    def _note(self, text: str) -> None:
        self._tell({"type": "note", "message": text})


def _lacking(manifest: Manifest) -> list[Event]:
    """What was asked for and is not here: warnings, and no success when the model is not whole."""
    missing = manifest.missing()
    notes = [f"warning: {entry}; it stays there" for entry in missing[:_SHOWN]]
    if len(missing) > _SHOWN:
        notes.append(f"warning: {len(missing) - _SHOWN} more stay there; output/model.json names them")
    events: list[Event] = [{"type": "note", "message": note} for note in notes]
    if gaps := manifest.gaps():
        others = f" (and {len(gaps) - 1} more)" if len(gaps) > 1 else ""
        events.append({"type": "collect failed", "message": f"the model is not whole: {gaps[0]}{others}"})
    return events


def _sorted(channels: Mapping[str, set[str]]) -> dict[str, list[str]]:
    return {rank: sorted(names) for rank, names in channels.items()}

"""A job's requirements on their way onto all of its nodes, and what is said of it meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from posixpath import dirname
from typing import TYPE_CHECKING, Any

from launcher import environments
from launcher.agent import layer as builder
from launcher.coordinator import environment, layer
from launcher.environ import DROPPED
from launcher.errors import NodeError, NodeUnusable, gathered
from launcher.store import read_json

if TYPE_CHECKING:
    from launcher.coordinator.prepare import Made, Work
    from launcher.link import Link

_TOLD_SECONDS = 0.5
_LAST_LINES = 15
_WHOLE: dict[str, Any] = {"python": str, "bin": str, "site": str, "built": bool, "seconds": (int, float), "programs": dict}
"""what is told of a layer"""
_CONTAINER_FREE = ("MASTER_ADDR", "MASTER_PORT")
"""variables of the user's that are not there yet"""
_STEPS = (
    (("Failed to establish a new connection", "Temporary failure in name resolution", "Name or service not known",
      "Network is unreachable", "Connection refused", "No route to host", "ConnectTimeout", "Read timed out", "ProxyError",
      "Cannot connect to proxy", "SSLError", "CERTIFICATE_VERIFY_FAILED"),
     "the node does not reach the package index: --env PIP_INDEX_URL=… or HTTPS_PROXY=… names a way, `--find-links DIR` and "
     "`--no-index` in the requirements take packages from a folder"),
    (("Invalid requirement", "is not a valid wheel filename", "Usage:\n  pip install", "no such option"), "mend that line"),
    (("No matching distribution", "Could not find a version"),
     "check name and version, and that there is one for this Python; --env PIP_INDEX_URL=… names another index"),
    (("ResolutionImpossible", "conflicting dependencies"), "loosen one of these requirements"),
    (("No space left on device", "Disk quota exceeded"), "free some space there, or name another `workdir:` in cluster.yaml"),
)  # fmt: skip
"""what pip says, and what to do about it"""


class Installation:
    """One job's requirements on all of its nodes."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._log = _Log(work)
        self._asked = layer.of(work.plan, work.folder)
        code = read_json(work.folder.root / "code.json") or {}
        self._code = str(code.get("digest")) if self._asked.local else None

    def done(self) -> Made:
        """Every node is asked for what it has; then one of each file system builds what is missing, then the others."""
        work = self._work
        ranks = work.machines
        found = self._all(ranks, build=False)
        for some in (work.leaders, ranks):
            missing = [rank for rank in some if rank in found and not found[rank]]
            found |= self._all(missing, build=True) if missing else {}
        self._check(found)
        told = {rank: {key: value for key, value in made.items() if key != "programs"} for rank, made in found.items()}
        return {rank: {"layer": told[rank if rank in told else 0]} for rank in work.facts}

    def _all(self, ranks: Sequence[int], *, build: bool) -> dict[int, dict[str, Any]]:
        if build:
            self._log.begin(ranks)
        try:
            complaint = "the requirements could not be installed on every node"
            return self._work.fleet.each(lambda link: self._ask(link, build=build), complaint, ranks)
        finally:
            self._log.close()

    def _ask(self, link: Link, *, build: bool) -> dict[str, Any]:
        rank = link.rank
        reply = link.ask("layer_build", on_data=lambda _, __, chunk: self._log.take(rank, chunk), **self._request(rank, build))
        told = reply["layer"]
        if told == {} and not build:
            return {}
        if not isinstance(told, dict) or not all(isinstance(told.get(key), kind) for key, kind in _WHOLE.items()):
            raise self._failed(rank, told if isinstance(told, dict) else {}, reply["status"])
        if build:
            self._log.ended(rank)
        return {key: told[key] for key in _WHOLE}

    def _request(self, rank: int, build: bool) -> dict[str, Any]:
        work, asked = self._work, self._asked
        facts, image = work.facts[rank], work.made.get(rank, {}).get("image", {})
        layers = f"{dirname(dirname(str(facts['job_dir'])))}/layers"
        python = str(image.get("python") or facts["python"] or "python3")
        argv = [python, f"{layers}/asked/{work.plan.job_id}-{rank}/build.py"]
        place = environment.place_of(work.plan, rank, facts, image, purpose="requirements", mounts=(layers,))
        variables = {name: value for name, value in work.environment(rank).items() if name not in _CONTAINER_FREE}
        wrapped = environments.wrap(environment.environment_of(work.plan), argv, variables, place)
        order = {
            "lines": list(asked.lines), "constraints": list(asked.constraints), "local": asked.local, "code": self._code,
            "image": image.get("id") or work.plan.spec.image, "build": build,
            "programs": list(environment.programs(work.plan)),
        }  # fmt: skip
        return {
            "script": Path(builder.__file__).read_text(encoding="utf-8"), "order": order, "argv": list(wrapped.argv),
            "env": dict(wrapped.env), "drop": list(DROPPED), "bin": image.get("bin") or (None if image else facts["bin"]),
            "stop": list(wrapped.stop) if wrapped.stop else None,
        }  # fmt: skip

    def _failed(self, rank: int, told: Mapping[str, Any], status: int) -> layer.NotInstalled:
        lines = self._log.last_lines(rank)
        what = _plain(told.get("error") or f"the installation of the requirements ended with exit status {status}")
        said = "\n".join(lines)
        step = _plain(told.get("step") or "") or next((step for words, step in _STEPS if any(word in said for word in words)), "")
        step = str(step or "mend the requirements; `requirements: []` in a job file, or --requirement '', installs nothing")
        step = f"{step}; all it said: {self._log.path(rank)}"
        return layer.NotInstalled(what, where=self._work.where(rank), lines=lines, next_step=step)

    def _check(self, found: Mapping[int, Mapping[str, Any]]) -> None:
        """The programs that the command begins with are there now, if they were not before."""
        errors: list[NodeError] = []
        for rank, made in found.items():
            missing = [name for name, path in made["programs"].items() if path is None]
            if missing:
                what = f"there is no {', '.join(missing)} in PATH, and none of the requirements brings it"
                step = "add it to the requirements, or name the environment that has it with `python:` or `venv:` in cluster.yaml"
                errors.append(NodeUnusable(what, where=self._work.where(rank), next_step=step))
        if errors:
            raise gathered("not every node can run the command", errors)


def _plain(said: Any) -> str:
    """Words of a node as they may stand in a terminal."""
    return "".join(letter for letter in str(said) if letter.isprintable())


class _Log:
    """What the installations print: kept in the job folder, their last lines as progress.  Shared by the nodes' threads."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._files: dict[int, Any] = {}
        self._last: dict[int, bytes] = {}
        self._building: dict[int, bool] = {}
        self._told = 0.0

    def path(self, rank: int) -> Path:
        """Where all of it is."""
        return self._work.folder.root / "prepare" / f"requirements-node-{rank}.log"

    def begin(self, ranks: Sequence[int]) -> None:
        """Say that it is going on."""
        names = ", ".join(dict.fromkeys(self._work.where(rank) for rank in ranks))
        self._building = dict.fromkeys(ranks, False)
        self._work.note(f"installing the requirements on {names}; what pip says is in {self.path(ranks[0]).parent}")
        self._work.progress(0, len(ranks))

    def take(self, rank: int, chunk: bytes) -> None:
        """What one of them printed."""
        with self._lock:
            if rank not in self._files:
                self.path(rank).parent.mkdir(exist_ok=True)
                self._files[rank] = self.path(rank).open("ab")
            self._files[rank].write(chunk)
            self._files[rank].flush()
            self._last[rank] = (self._last.get(rank, b"") + chunk)[-(1 << 14) :]
            if time.monotonic() - self._told >= _TOLD_SECONDS:
                self._told = time.monotonic()
                self._tell(rank)

    def ended(self, rank: int) -> None:
        """One of them is done."""
        with self._lock:
            self._building[rank] = True
            self._tell(rank)

    def _tell(self, rank: int) -> None:
        done = sum(self._building.values())
        words = (self.last_lines(rank) or [""])[-1]
        self._work.progress(done, len(self._building), what=f"{self._work.plan.nodes[rank].host.name}: {words[:100]}")

    def last_lines(self, rank: int) -> list[str]:
        """The last lines that one of them printed."""
        lines = self._last.get(rank, b"").decode(errors="replace").splitlines()
        return [_plain(line) for line in lines if line.strip()][-_LAST_LINES:]

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files = {}

"""The job folder: the only place where the asking and the acting half of the house meet.

Every file has one writer:

    job.json plan.json env.json code/ code.json inputs.json   submit, before the coordinator starts
    slurm.json slurm/                             submit, and submitit for it; the batch step writes its log there
    cancel                                        whoever cancels (written whole, renamed into place)
    events.jsonl state.json coordinator.json coordinator.log checkpoints.json   the coordinator
    metrics.jsonl                                 the coordinator's thread for metrics
    logs/node-<rank>/                             that node's link, a thread of the coordinator
    output/                                       the coordinator, at the end

A file is written under a temporary name, flushed to disk and renamed; events are appended, a line at a time.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.agent.lines import add_line
from launcher.errors import JobNotFound, UsageError
from launcher.keep import home

LATEST = "latest"
_STALE = 10
"""times in a row that a file may be replaced while it is read"""
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""made once: `json.dumps` makes one at every call that asks for something of its own"""


def new_job_id(base: str, now: float) -> str:
    """`<base name>-<YYYYMMDD>-<HHMMSS>-<4 random letters>`, local time; base is reduced to letters, digits, `.`, `_`, `-`."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in base).strip("-._") or "job"
    letters = "".join(chr(ord("a") + byte % 26) for byte in os.urandom(4))
    return f"{safe[:80]}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{letters}"


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace ``path`` by ``content``: a reader sees the old bytes or the new ones, never a part."""
    # A process of another machine, or container, may have our number.
    part = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """As `write_atomically`, with a JSON document that people can read."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n", mode)


def read_json(path: Path) -> Any:
    """The JSON document at ``path``, None when there is none or it is not whole."""
    try:
        return json.loads(_content(path).decode("utf-8", "surrogateescape"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def _content(path: Path) -> bytes:
    """All of a file, of one state: on NFS one that another machine replaces while it is read is no file any more (ESTALE)."""
    for _ in range(_STALE):
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return path.read_bytes()


class Folder:
    """Paths and small files of one job."""

    def __init__(self, root: Path, requeue: int = 0) -> None:
        """``requeue``: how often Slurm had put the job back; the logs of each start are apart."""
        self.root = root
        self.job_id = root.name
        self.plan = root / "plan.json"
        self.job = root / "job.json"
        self.environment = root / "env.json"
        self.events = root / "events.jsonl"
        self.state = root / "state.json"
        self.owner = root / "coordinator.json"
        self.lock = root / "coordinator.lock"
        self.coordinator_log = root / "coordinator.log"
        self.cancel = root / "cancel"
        self.inputs = root / "inputs.json"
        self.slurm = root / "slurm.json"
        self.batch = root / "slurm"
        self.code = root / "code"
        self.logs = root / "logs" / f"requeue-{requeue}" if requeue else root / "logs"
        self.clone = root / "clone"
        """of a git repository, while submit takes the snapshot"""
        self.output = root / "output"
        self.metrics = root / "metrics.jsonl"

    def node_logs(self, rank: int) -> Path:
        """Where the logs of one node are."""
        return self.logs / f"node-{rank}"

    def rank_log(self, node: int, attempt: int, local_rank: int, which: str = "stderr") -> Path:
        """The newest log of one process: that of torchrun's last restart."""
        top = self.node_logs(node) / "ranks" / f"attempt_{attempt}"
        found = sorted(top.glob(f"*restart_*/{local_rank}/{which}.log"), key=lambda p: p.stat().st_mtime_ns)
        return found[-1] if found else top / "restart_0" / str(local_rank) / f"{which}.log"

    def as_it_lies(self, told: str | None) -> str | None:
        """A path in this folder that the job wrote down, as it is now: LAUNCHER_HOME may have been moved."""
        _, found, rest = (told or "").partition(f"/jobs/{self.job_id}/")
        return str(self.root / rest) if found and rest.startswith(("output/", "logs/")) else told

    def append(self, event: Mapping[str, Any], durable: bool = False) -> None:
        """Add an event in one write; ``durable`` waits until it is on the disk."""
        line = _compact(event).encode("utf-8", "replace") + b"\n"
        add_line(self.events, line, 0o644, durable)

    def read_events(self) -> list[dict[str, Any]]:
        """All events so far; a line that is not whole yet is left out."""
        try:
            lines = self.events.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [event for event in map(parse_event, lines) if event is not None]

    def read_plan(self) -> dict[str, Any]:
        """What plan.json says, for whoever only looks; nothing where there is none, or not what a plan is made of."""
        stored = read_json(self.plan)
        return stored if isinstance(stored, dict) and _is_plan(stored) else {}

    def cancel_level(self) -> int:
        """0: nobody cancelled; 1: stop with grace; 2: kill now."""
        wish = read_json(self.cancel)
        return int(wish.get("level", 1)) if isinstance(wish, dict) else 0


def _is_plan(stored: Mapping[str, Any]) -> bool:
    """Whether what is asked of a plan without reading it as one can be asked of this."""
    spec, nodes = stored.get("spec", {}), stored.get("nodes", [])
    if not isinstance(spec, dict) or not isinstance(nodes, list) or not isinstance(stored.get("origins", {}), dict):
        return False
    hosts = [node["host"] for node in nodes if isinstance(node, dict) and "rank" in node and isinstance(node.get("host"), dict)]
    kinds: dict[str, tuple[type, ...]] = {
        "collect": (list,), "collect_if_room": (list,), "metrics": (list,), "outputs": (dict,), "labels": (dict,),
        "command": (dict,), "output_path": (str, type(None)), "checkpoints_path": (str, type(None)),
        "nodes": (int, type(None)), "nproc_per_node": (int, type(None)),
    }  # fmt: skip
    fits = all(isinstance(spec[key], kind) for key, kind in kinds.items() if key in spec)
    named = all(isinstance(one, dict) and "name" in one for one in [*hosts, *(spec.get("metrics", []) if fits else [])])
    return fits and named and len(hosts) == len(nodes) and all(isinstance(name, str) for name in spec.get("collect", []))


def parse_event(line: bytes) -> dict[str, Any] | None:
    """A line of events.jsonl; None when it is not whole (its writer died) or no event at all."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(event, dict) and isinstance(event.get("type"), str) and isinstance(event.get("time"), (int, float))
    return event if whole else None


class Store:
    """All jobs of one $LAUNCHER_HOME."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or home()
        self.jobs = self.root / "jobs"

    def create(self, job_id: str) -> Folder:
        """An empty folder for a new job, readable by the user alone."""
        try:
            self.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
            root = self.jobs / job_id
            root.mkdir(mode=0o700)
        except OSError as error:
            step = "name a writable place by LAUNCHER_HOME"
            raise UsageError(f"cannot make the job folder: {error.strerror}", where=str(self.jobs), next_step=step) from error
        return Folder(root)

    def folders(self, beginning: str = "") -> Iterator[Folder]:
        """The folder of every job whose id begins so, oldest first; which that is, is read from each of them."""
        try:
            entries = [entry for entry in os.scandir(self.jobs) if entry.is_dir() and not entry.name.startswith(".")]
        except FileNotFoundError:
            return
        except OSError as error:
            step = "name another place by LAUNCHER_HOME"
            raise UsageError(f"the jobs cannot be read: {error.strerror}", where=str(self.jobs), next_step=step) from error
        found = [Folder(Path(entry.path)) for entry in entries if entry.name.startswith(beginning)]
        yield from sorted(found, key=lambda folder: (_created(folder), folder.job_id))

    def find(self, name: str) -> Folder:
        """The job of that id, of that unique prefix, or the `latest`; JobNotFound names the candidates."""
        exact = self.jobs / name
        if name and "/" not in name and name not in (".", "..", LATEST) and os.path.isdir(exact):
            return Folder(exact)
        if name == LATEST:
            found = list(self.folders())[-1:]
        else:
            found = list(self.folders(name)) if name else []
        if len(found) == 1:
            return found[0]
        raise _not_found(name, found, list(self.folders()), self.jobs)


def _created(folder: Folder) -> float:
    """When a job was submitted, as its job.json has it, in seconds since the epoch; before that is written, as its id has it.

    The id alone would not do: it tells the local time, of which some hour comes twice a year, and which another terminal, or
    cron, may count otherwise; and of jobs of one second it tells no order.
    """
    try:
        told = read_json(folder.job)
    except OSError:  # one job that cannot be read must not hide the others
        told = None
    created = told.get("created_at") if isinstance(told, dict) else None
    if isinstance(created, (int, float)):
        return created
    day, _, hour = folder.job_id[-20:-5].partition("-")  # the id ends in -YYYYMMDD-HHMMSS-xxxx
    try:
        parts = int(day[:4]), int(day[4:6]), int(day[6:]), int(hour[:2]), int(hour[2:4]), int(hour[4:])
        return time.mktime((*parts, 0, 0, -1))
    except (ValueError, OverflowError):
        return 0.0


def _not_found(name: str, found: list[Folder], folders: list[Folder], where: Path) -> JobNotFound:
    if found:
        what = f"{name!r} is the beginning of {len(found)} jobs{', the last of which are' if len(found) > 5 else ''}"
        return JobNotFound(what, problems=[folder.job_id for folder in found[-5:]], next_step="give more of the name")
    if not folders:
        return JobNotFound(f"no job {name!r}: there are no jobs yet", where=str(where), next_step="launcher submit --help")
    import difflib

    names = [folder.job_id for folder in folders]
    close = difflib.get_close_matches(name, names, n=3) or names[-3:]
    return JobNotFound(f"no job {name!r}", where=str(where), problems=close, next_step="launcher list")

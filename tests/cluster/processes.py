"""A look into the process table of a container: from this machine where that sees it, else from within."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.engine import ClusterError, docker

READ = (
    "/usr/bin/python3",
    "-c",
    r"""
import json, os
found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/stat") as f:
            stat = f.read().rpartition(")")[2].split()
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            argv = f.read().decode(errors="replace").split("\0")[:-1]
        with open(f"/proc/{pid}/comm") as f:
            comm = f.read().strip()
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        continue
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            environ = dict(e.partition("=")[::2] for e in f.read().decode(errors="replace").split("\0"))
    except OSError:  # a zombie has none
        environ = {}
    if int(pid) != os.getpid():
        found.append([int(pid), int(stat[1]), uid, argv or [comm], environ.get("LAUNCHER_JOB_ID"), stat[0]])
print(json.dumps(found))
""",
)
"""command that is run in a container, as root, and whose stdout ``parse`` takes; it does not show itself"""


@dataclass(frozen=True)
class Process:
    """A process of a container, as /proc tells it; ``job_id`` is LAUNCHER_JOB_ID of its environment."""

    pid: int
    ppid: int
    uid: int
    argv: tuple[str, ...]
    job_id: str | None
    state: str
    """one letter: R, S, D, T, Z"""


class FromHere:
    """The process tables of containers as this machine's own shows them: a hundredth of what a command in a container costs.

    A process has the pid that it has in its container.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, str]] = {}
        """container -> pid of its first process here, and the name of its pid namespace"""

    def read(self, container: str) -> list[Process] | None:
        """All processes of a container, None where they are not seen: it is not running, or we are not root on its machine."""
        namespace = self._namespace(container)
        if namespace is None:
            return None
        ours, parents, inside = _namespace_of(os.getpid()), {}, set()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            its = _namespace_of(pid)
            if its == namespace:
                inside.add(pid)
            elif its not in (None, ours):
                parents[pid] = _parent_of(pid)
        # A namespace of its own within the container's does not hide a process there either.
        while more := {pid for pid, parent in parents.items() if parent in inside} - inside:
            inside |= more
        return list(filter(None, map(_seen, sorted(inside))))

    def _namespace(self, container: str) -> str | None:
        first, namespace = self._first.get(container, (0, ""))
        if not first or _namespace_of(first) != namespace:
            try:
                first = int(docker("inspect", "--format", "{{.State.Pid}}", container))
            except ClusterError:
                return None
            namespace = (_namespace_of(first) if first else None) or ""
            if namespace in ("", _namespace_of(os.getpid())):
                return None
            self._first[container] = (first, namespace)
        return namespace


def _seen(pid: int) -> Process | None:
    """A process of a container, with the numbers that it has there; None when it is gone."""
    proc = Path(f"/proc/{pid}")
    try:
        lines = (proc / "status").read_text(errors="replace").splitlines()
        told = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        argv = (proc / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        uid = proc.stat().st_uid
        parent = _pids_of(int(told["PPid"]))
    except OSError:
        return None
    try:
        environ = dict(e.partition("=")[::2] for e in (proc / "environ").read_bytes().decode(errors="replace").split("\0"))
    except OSError:  # a zombie has none
        environ = {}
    inner, ppid = int(told["NSpid"].split()[1]), parent[1] if len(parent) > 1 else 0
    return Process(inner, ppid, uid, tuple(argv or [told["Name"]]), environ.get("LAUNCHER_JOB_ID"), told["State"][0])


def _pids_of(pid: int) -> list[int]:
    """The numbers of a process, in our namespace and in each further down to its own; none for 0, the parent of a first one."""
    if not pid:
        return []
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return [int(word) for line in lines if line.startswith("NSpid:") for word in line.split()[1:]]


def _parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None


def _namespace_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def parse(output: str) -> list[Process]:
    """All processes that READ has found."""
    found = json.loads(output)
    return [Process(pid, ppid, uid, tuple(argv), job, state) for pid, ppid, uid, argv, job, state in found]


def left(processes: Iterable[Process], system: tuple[str, ...]) -> list[Process]:
    """Those whose command line begins as none of ``system``, and zombies."""
    return [p for p in processes if p.state == "Z" or not " ".join(p.argv).startswith(system)]

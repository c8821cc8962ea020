"""A look into the process table of a container."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

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
        with open(f"/proc/{pid}/environ", "rb") as f:
            environ = dict(e.partition("=")[::2] for e in f.read().decode(errors="replace").split("\0"))
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        continue
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


def parse(output: str) -> list[Process]:
    """All processes that READ has found."""
    found = json.loads(output)
    return [Process(pid, ppid, uid, tuple(argv), job, state) for pid, ppid, uid, argv, job, state in found]


def left(processes: Iterable[Process], system: tuple[str, ...]) -> list[Process]:
    """Those whose command line begins as none of ``system``, and zombies."""
    return [p for p in processes if p.state == "Z" or not " ".join(p.argv).startswith(system)]

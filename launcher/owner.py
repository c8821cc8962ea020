"""Who coordinates a job: the record coordinator.json, and whether the process it names still lives."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FRESH_SECONDS = 30.0
"""a record of another host counts as alive while its heartbeat is younger"""


def here() -> dict[str, Any]:
    """The record of this process, without its heartbeat."""
    pid = os.getpid()
    return {"host": os.uname().nodename, "boot_id": boot_id(), "pid": pid, "start_time": start_time(pid)}


def is_alive(record: Mapping[str, Any] | None, now: float | None = None) -> bool:
    """Whether the process of a record lives: by the process table on its own host, by its heartbeat elsewhere."""
    if not record:
        return False
    if record["host"] != os.uname().nodename:
        return (time.time() if now is None else now) - float(record.get("heartbeat", 0)) < FRESH_SECONDS
    return bool(record["boot_id"] == boot_id() and record["start_time"] == start_time(int(record["pid"])) is not None)


def elsewhere(record: Mapping[str, Any] | None) -> str | None:
    """The name of the other host that a record is of; None where it is of this one."""
    return str(record["host"]) if record and record["host"] != os.uname().nodename else None


def send(record: Mapping[str, Any] | None, number: int) -> bool:
    """Send a signal to the process of a record; False where it is gone, or one of another machine."""
    if not record or not is_alive(record) or record["boot_id"] != boot_id():
        return False
    try:
        os.kill(int(record["pid"]), number)
    except ProcessLookupError:
        return False  # it has ended since we looked
    return True


def boot_id() -> str:
    """A word that changes when this machine starts anew; "" where the system has none to offer."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_time(pid: int) -> str | None:
    """When a process started, as the system words it; None when there is no such process (a zombie is none)."""
    if sys.platform.startswith("linux"):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    # macOS and the BSDs have no /proc.
    import subprocess

    told = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return told.stdout.strip() or None

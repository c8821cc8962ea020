"""What containers take from this machine: free addresses, and the interpreter that runs the tests."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.engine import ClusterError, docker

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".cluster"
NODE_PYTHON = (3, 11)
"""the interpreter of Debian bookworm, for environments whose base interpreter is the system's own"""


def checkout_hash() -> str:
    """Part of the names of this checkout's containers: two checkouts on one machine do not meet."""
    return hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]


def free_subnets(record: Path, project: str, names: Sequence[str], seed: str = "") -> dict[str, str]:
    """Name -> first three bytes of a free /24 network of 10/8: adjacent ones, the same at every start of this checkout.

    ``record``: file that remembers them; ``project``: begins the names of networks that do not count, being our own.
    """
    if record.exists():
        found: dict[str, str] = json.loads(record.read_text())
        return found
    others = [name for name in docker("network", "ls", "--format", "{{.Name}}").split() if not name.startswith(project)]
    subnets = docker("network", "inspect", "--format", "{{range .IPAM.Config}}{{.Subnet}} {{end}}", *others).split()
    start = int(hashlib.sha256(f"{ROOT}{seed}".encode()).hexdigest()[:4], 16)
    for step in range(4096):
        number = (start + step) % 4096
        second, third = 208 + number // 128, number % 128 * 2
        chosen = {name: f"10.{second}.{third + n}" for n, name in enumerate(names)}
        if not any(net.startswith(f"{prefix}.") for net in subnets for prefix in chosen.values()):
            record.write_text(json.dumps(chosen))
            return chosen
    raise ClusterError("no free /24 network left between 10.208.0.0 and 10.239.255.0")


def interpreter_mounts() -> tuple[list[str], str | None]:
    """Directories to mount so that a Debian bookworm can run this interpreter; empty, and why, when it cannot."""
    paths = {os.path.abspath(p) for p in (sys.prefix, sys.base_prefix)}
    paths |= {os.path.realpath(p) for p in paths}
    if "/usr" in paths and sys.version_info[:2] != NODE_PYTHON:
        return [], "the system's own Python here is not the one of Debian bookworm"
    return outermost(paths - {"/usr"}), None


def outermost(paths: set[str]) -> list[str]:
    """Those that lie in no other of them."""
    return sorted(p for p in paths if not any(p.startswith(other + "/") for other in paths))

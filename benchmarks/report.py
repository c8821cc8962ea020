"""What comes out: one line per promise, with what was measured, the rival, the bound, and whether it holds."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_UNITS = {"ratio": "{:.2f} ×", "s": "{:.2f} s", "ms": "{:.1f} ms", "MiB": "{:.0f} MiB", "%": "{:.1f} %", "": "{:.0f}"}
"""how a figure of each unit is written"""
_RIVALS = (("ssh", "-V"), ("pdsh", "-V"), ("clush", "--version"), ("rsync", "--version"))


@dataclass(frozen=True)
class Line:
    """One comparison."""

    bench: str
    what: str
    ours: str
    rival: str
    figure: float
    unit: str
    """of ``figure`` and ``bound``: a key of _UNITS"""
    bound: float | None
    """the most that ``figure`` may be; None: for information"""

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None where there is none."""
        return None if self.bound is None else self.figure <= self.bound


def seconds(value: float) -> str:
    """A time for the table."""
    return f"{value * 1000:.0f} ms" if value < 0.2 else f"{value:.2f} s"


def ratio(bench: str, what: str, ours: float, rival: float, bound: float | None) -> Line:
    """A line about a time in parts of a rival's."""
    return Line(bench, what, seconds(ours), seconds(rival), ours / rival, "ratio", bound)


def markdown(lines: Sequence[Line]) -> str:
    """The table."""
    rows = [["", "ours", "rival", "figure", "bound", "holds"]]
    for line in lines:
        written = _UNITS[line.unit].format
        bound = "" if line.bound is None else f"≤ {written(line.bound)}"
        holds = {True: "yes", False: "**no**", None: ""}[line.holds]
        rows.append([f"{line.bench}: {line.what}", line.ours, line.rival, written(line.figure), bound, holds])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def document(lines: Iterable[Line], machine: Sequence[str]) -> dict[str, Any]:
    """The same for machines."""
    return {"schema_version": 1, "machine": list(machine), "lines": [{**asdict(line), "holds": line.holds} for line in lines]}


def machine() -> list[str]:
    """Where this was measured, a sentence each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, Linux {platform.release().split('-')[0]}, {_system()}",
        ", ".join([f"Python {platform.python_version()}", *(_first_line(*words) for words in _RIVALS)]),
        "the nodes are containers (sshd, Slurm) on the same machine: walls include their work, client CPU does not",
        f"load average {' '.join(f'{value:.1f}' for value in os.getloadavg())} at the end",
    ]


def _processor() -> str:
    told = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in told if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _system() -> str:
    try:
        fields = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    except OSError:
        return sys.platform
    return fields.get("PRETTY_NAME", sys.platform).strip('"')


def _first_line(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return f"no {words[0]}"
    return " ".join((done.stdout + done.stderr).split("\n")[0].split()[:3]).rstrip(",")

"""What a coordinator costs while it holds 32 nodes that each print a line a second."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

from benchmarks.measure import BenchFailed, wait_until_quiet
from benchmarks.place import Place, hosts
from benchmarks.report import Line

MEMORY_MIB, CPU_PERCENT = 120.0, 10.0
_NODES, _SECONDS = 32, 15.0
_COMMAND = "i=0; while [ $i -lt 600 ]; do echo line $i; i=$((i+1)); sleep 1; done"


def coordinator32(place: Place, runs: int) -> list[Line]:
    """Memory (resident) and CPU time over 15 seconds, each the median of ``runs`` stretches."""
    hosts(_NODES)
    wait_until_quiet()
    place.detach(_NODES, "--grace", "1s", "--command", _COMMAND)
    folder = place.newest()
    try:
        pid = json.loads((folder / "coordinator.json").read_text())["pid"]
        stretches = [_stretch(pid) for _ in range(max(runs, 1))]
        resident = _memory(pid)
        lines = sum(len((folder / "logs" / f"node-{rank}" / "stdout.log").read_bytes().splitlines()) for rank in range(_NODES))
    finally:
        # This waits for the coordinator's end, too: it is ours to reap.
        place.launcher("cancel", folder.name)
    if lines < _NODES * _SECONDS * len(stretches) * 0.8:
        raise BenchFailed(f"only {lines} lines came")
    percent = statistics.median(stretches) / _SECONDS * 100
    return [
        Line("coordinator32", "memory of the coordinator", f"{resident:.0f} MiB", "", resident, "MiB", MEMORY_MIB),
        Line("coordinator32", "of one core, a line a second from each", f"{percent:.1f} %", "", percent, "%", CPU_PERCENT),
    ]


def _stretch(pid: int) -> float:
    before = _cpu(pid)
    time.sleep(_SECONDS)
    return _cpu(pid) - before


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # utime and stime of proc(5), counted from the field behind the name
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """MiB at the peak (VmHWM)."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(fields["VmHWM"].split()[0]) / 1024

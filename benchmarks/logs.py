"""Eight nodes that print as fast as they can, against `ssh ... > file`."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import BenchFailed, Sample, median_wall, rounds, together
from benchmarks.place import CURVE, Place, hosts, on_all
from benchmarks.report import Line, ratio

OVER_SSH = 2.5
MEMORY_MIB = 200.0
"""not promised as a number, but `bounded`: an eighth of what flows through would be more"""
_NODES, _LINES, _WIDTH = 8, 200_000, 100
_COMMAND = f"yes {'x' * (_WIDTH - 1)} | head -n {_LINES}"


def logs8(place: Place, runs: int) -> list[Line]:
    """The whole job; its copies of the logs are the files, compared byte by byte; what it shows besides goes to /dev/null."""
    names = hosts(_NODES)
    peaks: list[float] = []
    samples = rounds(runs, {
        "ours": lambda: _ours(place, peaks),
        "ssh": lambda: _rival(place, names),
        "ssh, curve25519": lambda: _rival(place, names, CURVE),
    })
    wall = {name: median_wall(of) for name, of in samples.items()}
    megabytes = _NODES * _LINES * _WIDTH / 1e6
    return [
        ratio("logs8", f"{megabytes:.0f} MB of lines, files byte-equal, against ssh > file", wall["ours"], wall["ssh"], OVER_SSH),
        ratio("logs8", "against ssh > file with curve25519", wall["ours"], wall["ssh, curve25519"], None),
        Line("logs8", "memory of the coordinator at its peak", f"{max(peaks):.0f} MiB", "", max(peaks), "MiB", MEMORY_MIB),
    ]


def _ours(place: Place, peaks: list[float]) -> Sample:
    place.forget()
    over = threading.Event()
    watcher = threading.Thread(target=_watch_memory, args=(place, over, peaks))
    watcher.start()
    try:
        with open(os.devnull, "wb") as shown:
            sample = place.submit(_NODES, "--command", _COMMAND, stdout=shown)
    finally:
        over.set()
        watcher.join()
    wanted = _WIDTH * _LINES
    for rank in range(_NODES):
        _compare(place.newest() / "logs" / f"node-{rank}" / "stdout.log", wanted)
    return sample


def _rival(place: Place, names: list[str], *options: str) -> Sample:
    folder = place.scratch / "ssh-logs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with ExitStack() as stack:
        files = [stack.enter_context(open(folder / name, "wb")) for name in names]
        return together(on_all(names, _COMMAND, *options), stdouts=files)


def _compare(path: Path, size: int) -> None:
    line = b"x" * (_WIDTH - 1) + b"\n"
    block = line * 10_000
    if path.stat().st_size != size:
        raise BenchFailed(f"{path} has {path.stat().st_size} bytes, not {size}")
    with path.open("rb") as file:
        while chunk := file.read(len(block)):
            if chunk != block:
                raise BenchFailed(f"{path} is not what was printed")


def _watch_memory(place: Place, over: threading.Event, peaks: list[float]) -> None:
    """The coordinator's high-water mark, as long as it lives."""
    import json

    peak = 0.0
    while not over.wait(0.1):
        try:
            record = json.loads((place.newest() / "coordinator.json").read_bytes())
            text = Path(f"/proc/{record['pid']}/status").read_text()
        except (OSError, ValueError):
            continue
        marks = [line.split()[1] for line in text.splitlines() if line.startswith("VmHWM")]
        peak = max([peak, *(int(mark) / 1024 for mark in marks)])
    peaks.append(peak)

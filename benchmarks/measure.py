"""Run programs and measure them: wall time until they end, CPU time of everything they started on this machine."""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

_PR_SET_CHILD_SUBREAPER = 36
_QUIET_IDLE = 0.85
"""part of the machine's CPU time that is idle when nothing else is going on"""

_QUIET_SAMPLE = 0.4


class BenchFailed(Exception):
    """A measured program did not do what it was asked to do."""


@dataclass(frozen=True)
class Sample:
    """One measured run."""

    wall: float
    """seconds from the start to the exit of the program that was typed"""
    cpu: float
    """seconds of user and system time on this machine, of the program and all it left behind (a coordinator, its ssh)"""
    stdout: bytes = b""


def adopt_orphans() -> None:
    """Become the parent of whatever our programs leave behind, so that its CPU time can be counted; Linux only."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise BenchFailed("prctl(PR_SET_CHILD_SUBREAPER) failed: benchmarks run on Linux only")


def run(
    words: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None, stdout: IO[bytes] | None = None
) -> Sample:
    """Measure one program; raises BenchFailed with its last lines when it fails."""
    return together([words], cwd, env, None if stdout is None else [stdout])


def together(
    commands: Sequence[Sequence[str]], cwd: Path | None = None, env: Mapping[str, str] | None = None,
    stdouts: Sequence[IO[bytes]] | None = None,
) -> Sample:
    """Measure several programs started at once, until the last one has ended."""
    with ExitStack() as stack:
        said = [stack.enter_context(TemporaryFile()) for _ in commands]
        outputs = stdouts or [stack.enter_context(TemporaryFile()) for _ in commands]
        before = _children_cpu()
        began = time.perf_counter()
        started = [
            subprocess.Popen(words, cwd=cwd, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            for words, out, err in zip(commands, outputs, said, strict=True)
        ]
        statuses = [process.wait() for process in started]
        wall = time.perf_counter() - began
        reap()
        cpu = _children_cpu() - before
        for words, status, err in zip(commands, statuses, said, strict=True):
            if status != 0:
                raise BenchFailed(f"exit status {status}: {' '.join(words)[:300]}\n{_tail(err)}")
        return Sample(wall, cpu, b"" if stdouts else _whole(outputs[0]))


def reap() -> None:
    """Wait for everything that was left to us."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def rounds(runs: int, contenders: Mapping[str, Callable[[], Sample]], warm: bool = True) -> dict[str, list[Sample]]:
    """Each contender ``runs`` times, in turn, so that a busy moment of the machine meets them all; first once unmeasured."""
    if warm:
        for contender in contenders.values():
            contender()
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, contender in contenders.items():
            wait_until_quiet()
            samples[name].append(contender())
    return samples


def median_wall(samples: Sequence[Sample]) -> float:
    """The median of the wall times."""
    return statistics.median(sample.wall for sample in samples)


def median_cpu(samples: Sequence[Sample]) -> float:
    """The median of the CPU times."""
    return statistics.median(sample.cpu for sample in samples)


def wait_until_quiet() -> bool:
    """Let what else runs on this machine come to an end; False when it does not within $BENCH_QUIET seconds (20)."""
    deadline = time.monotonic() + float(os.environ.get("BENCH_QUIET", "20"))
    while time.monotonic() < deadline:
        if _idle_part(_QUIET_SAMPLE) >= _QUIET_IDLE:
            return True
    print("benchmarks: the machine is busy with something else; measured anyway", file=sys.stderr)
    return False


def _idle_part(seconds: float) -> float:
    idle, total = _cpu_times()
    time.sleep(seconds)
    idle_after, total_after = _cpu_times()
    return (idle_after - idle) / max(total_after - total, 1)


def _cpu_times() -> tuple[int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    # user nice system idle iowait irq softirq steal
    return fields[3] + fields[4], sum(fields)


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _whole(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _tail(file: IO[bytes]) -> str:
    return "\n".join(_whole(file)[-4096:].decode(errors="replace").splitlines()[-8:])

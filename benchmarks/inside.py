"""What is measured on the machine of a Slurm cluster where people log in: run there, it prints its samples as JSON.

    python -m benchmarks.inside allocation RUNS NODES...     within an allocation
    python -m benchmarks.inside first_line|wait RUNS NODES

The working directory is one that all machines share; job folders come to lie there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks import measure, waiting
from benchmarks.measure import BenchFailed, Sample
from benchmarks.place import LAUNCHER, Place

_LINE = "epoch-0"
_COMMAND = f"echo {_LINE}"
_SCRIPT = f"""\
#!/bin/bash
#SBATCH --nodes={{nodes}} --ntasks-per-node=1 --output=by-hand-%j.out
srun sh -c '{_COMMAND}'
"""
_BETWEEN_SECONDS = 4.0
"""more than batch_sched_delay, 3 s as Slurm comes: who submits sooner waits for that time to pass, by whatever means"""
_LOOK_SECONDS, _PATIENCE = 0.005, 60.0
Contenders = dict[str, Callable[[], Sample]]


def allocation(place: Place, sizes: list[int]) -> Contenders:
    """A job that does nothing, a step that does nothing, and one that starts a Python, on some of the allocation's nodes."""
    ours = {f"ours {n}": partial(place.launcher, "submit", "--nodes", str(n), "--command", "true") for n in sizes}
    empty = [sys.executable, "-ISc", "pass"]
    rivals = {f"srun {n}": partial(measure.run, ["srun", f"-N{n}", "true"]) for n in sizes}
    return {**ours, **rivals, **{f"python {n}": partial(measure.run, ["srun", f"-N{n}", *empty]) for n in sizes}}


def first_line(place: Place, sizes: list[int]) -> Contenders:
    """From the command typed until whoever typed it sees the first line of the training."""
    return {"ours": lambda: _ours(place, sizes[0]), "sbatch": lambda: _by_hand(place, sizes[0])}


def wait(place: Place, sizes: list[int]) -> Contenders:
    """How long after a job's end `launcher wait` returns."""
    words = ("--backend", "slurm", "--nodes", str(sizes[0]))
    return {
        "told": lambda: _when_idle(lambda: waiting.late(place, *words)),
        "looking": lambda: _when_idle(lambda: waiting.late(place, *words, program=waiting.WITHOUT_INOTIFY)),
    }


def _when_idle(measured: Callable[[], Sample]) -> Sample:
    """Nothing waits for nodes of the job before, nor for slurmctld, which has just looked through its queue."""
    deadline = time.monotonic() + _PATIENCE
    while subprocess.run(["squeue", "--noheader"], stdout=subprocess.PIPE, check=True).stdout:
        if time.monotonic() > deadline:
            raise BenchFailed("other jobs are in Slurm's queue")
        time.sleep(0.1)
    time.sleep(_BETWEEN_SECONDS)
    return measured()


def _ours(place: Place, nodes: int) -> Sample:
    def measured() -> Sample:
        words = [*LAUNCHER, "submit", "--backend", "slurm", "--nodes", str(nodes), "--command", _COMMAND]
        began = time.perf_counter()
        with place.popen(words) as process:
            assert process.stdout is not None
            seen = [time.perf_counter() for line in process.stdout if line.rstrip().endswith(_LINE.encode())]
        if not seen or process.returncode != 0:
            raise BenchFailed(f"launcher submit ended with {process.returncode}, and showed no line of the training")
        return Sample(seen[0] - began, 0.0)

    return _when_idle(measured)


def _by_hand(place: Place, nodes: int) -> Sample:
    def measured() -> Sample:
        script = place.scratch / "by-hand.sh"
        script.write_text(_SCRIPT.format(nodes=nodes))
        began = time.perf_counter()
        number = measure.run(["sbatch", "--parsable", str(script)], cwd=place.scratch).stdout.decode().strip()
        output = place.scratch / f"by-hand-{number}.out"
        while not (output.exists() and f"{_LINE}\n" in output.read_text()):
            if time.perf_counter() > began + _PATIENCE:
                raise BenchFailed(f"{output} has no line of the training")
            time.sleep(_LOOK_SECONDS)
        return Sample(time.perf_counter() - began, 0.0)

    return _when_idle(measured)


def main() -> None:
    """Measure one of the above."""
    measure.adopt_orphans()
    what, runs, *sizes = sys.argv[1:]
    chosen = {"allocation": allocation, "first_line": first_line, "wait": wait}[what]
    try:
        samples = measure.rounds(int(runs), chosen(Place(Path.cwd()), [int(nodes) for nodes in sizes]))
    except BenchFailed as failure:
        sys.exit(str(failure))
    print(json.dumps({name: [{**asdict(sample), "stdout": ""} for sample in of] for name, of in samples.items()}))


if __name__ == "__main__":
    main()

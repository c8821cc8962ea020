"""Entry point: run the benchmarks and print one table.

    [BENCH_QUIET=SECONDS] python -m benchmarks [--only NAME ...] [--runs N] [-o text|json]

Before each measurement a quiet machine is waited for, at most BENCH_QUIET seconds; then it is made anyway.

The containers must be up (`tests/cluster/cluster fleet 32`, `slurm` and `slurm-many 64`; `make bench` does that).  Exits 1
when a bound does not hold or a benchmark could not be made.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import demo, hold, logs, measure, noop, report, slurm, startup, transfer
from benchmarks.measure import BenchFailed
from benchmarks.place import Place
from benchmarks.report import Line

BENCHES = {
    "noop1": noop.noop1,
    "noop8": noop.noop8,
    "noop32": noop.noop32,
    "demo2": demo.demo2,
    "startup": startup.startup,
    "coordinator32": hold.coordinator32,
    "sync8": transfer.sync8,
    "logs8": logs.logs8,
    "slurm3": slurm.slurm3,
    "slurm64": slurm.slurm64,
    "slurmlogin": slurm.slurmlogin,
}
_RUNS = 5


def main() -> int:
    """Run what was asked for; 0 when every bound holds."""
    options = _options()
    measure.adopt_orphans()
    lines: list[Line] = []
    failed = False
    for name in options.only or BENCHES:
        try:
            lines += _one(name, options.runs)
        except BenchFailed as failure:
            failed = True
            print(f"benchmarks: {name}: {failure}", file=sys.stderr)
    machine = report.machine()
    if options.output == "json":
        print(json.dumps(report.document(lines, machine), indent=2, ensure_ascii=False))
    else:
        print("\n".join([report.markdown(lines), "", f"Medians of {options.runs} runs.", *(f"- {line}" for line in machine)]))
    return 1 if failed or any(line.holds is False for line in lines) else 0


def _one(name: str, runs: int) -> list[Line]:
    began = time.monotonic()
    print(f"benchmarks: {name} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="launcher-bench-") as scratch:
        lines = BENCHES[name](Place(Path(scratch)), runs)
    print(f"benchmarks: {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="The launcher beside its rivals, in one run.")
    which = f"one of {', '.join(BENCHES)}; may be repeated"
    parser.add_argument("--only", action="append", choices=list(BENCHES), metavar="NAME", help=which)
    parser.add_argument("--runs", type=int, default=_RUNS, metavar="N", help=f"measured runs of each; default {_RUNS}")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser.parse_args()


sys.exit(main())

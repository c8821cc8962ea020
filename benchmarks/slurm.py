"""Jobs in Slurm: beside `srun` in an allocation, beside a hand-written script in the queue."""

from __future__ import annotations

import compileall
import json
import os
import subprocess

from benchmarks import waiting
from benchmarks.measure import BenchFailed, Sample, median_cpu, median_wall, rounds
from benchmarks.place import ROOT, Place
from benchmarks.report import Line, ratio, seconds
from tests.cluster.engine import ClusterError
from tests.cluster.slurm import services
from tests.cluster.slurm.handle import SlurmCluster
from tests.cluster.slurm.layout import PLAIN, many

MORE_SECONDS, MORE_OF_THREE, FIRST_LINE_SECONDS = 1.2, 2.0, 1.5
WAIT_LOCAL_SECONDS, WAIT_SHARED_SECONDS = 0.3, 1.0
_FEW, _MANY = 3, 64


def slurm3(place: Place, runs: int) -> list[Line]:
    """A job that does nothing on the three nodes of an allocation."""
    samples = _inside(_cluster(PLAIN.name), "allocation", runs, _FEW)
    ours, srun = samples[f"ours {_FEW}"], samples[f"srun {_FEW}"]
    cpu = median_cpu(ours) - median_cpu(srun)
    return [
        _more("slurm3", "more than srun -N3 true", ours, srun, MORE_SECONDS),
        Line("slurm3", "CPU where it was typed", seconds(median_cpu(ours)), seconds(median_cpu(srun)), cpu, "s", None),
    ]


def slurm64(place: Place, runs: int) -> list[Line]:
    """The same on 3 and on 64 of 64 nodes."""
    samples = _inside(_cluster(many(_MANY).name), "allocation", runs, _FEW, _MANY)
    few, more = (
        _more("slurm64", f"more than srun -N{nodes} true", samples[f"ours {nodes}"], samples[f"srun {nodes}"], None)
        for nodes in (_FEW, _MANY)
    )
    # What one machine has to do for 64 that are pretended: nodes of their own would do it side by side.
    empty = f"srun -N{_MANY} python -c pass, likewise"
    python = _more("slurm64", empty, samples[f"python {_MANY}"], samples[f"srun {_MANY}"], None)
    return [few, more, python, ratio("slurm64", "this, 64 nodes against 3", more.figure, few.figure, MORE_OF_THREE)]


def slurmlogin(place: Place, runs: int) -> list[Line]:
    """From the login machine, through Slurm's queue; and how soon `wait` returns."""
    cluster = _cluster(PLAIN.name)
    shown = _inside(cluster, "first_line", runs, _FEW)
    local = rounds(runs, {"wait": lambda: waiting.late(place, "--backend", "local")})
    shared = _inside(cluster, "wait", runs, _FEW)
    where = f"the end event, {_kind(str(place.scratch))} here"
    return [
        _more("slurmlogin", "first line, more than sbatch by hand", shown["ours"], shown["sbatch"], FIRST_LINE_SECONDS),
        _late(f"wait returns after {where}", local["wait"], WAIT_LOCAL_SECONDS),
        _late("the same, a job in Slurm, its folder on a file system of the same kernel", shared["told"], WAIT_LOCAL_SECONDS),
        _late("the same, the kernel tells of no change, as on a shared one", shared["looking"], WAIT_SHARED_SECONDS),
    ]


def _more(bench: str, what: str, ours: list[Sample], rival: list[Sample], bound: float | None) -> Line:
    mine, theirs = median_wall(ours), median_wall(rival)
    return Line(bench, what, seconds(mine), seconds(theirs), mine - theirs, "s", bound)


def _late(what: str, samples: list[Sample], bound: float) -> Line:
    figure = median_wall(samples)
    return Line("slurmlogin", what, seconds(figure), "", figure, "s", bound)


def _kind(path: str) -> str:
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip()


def _cluster(name: str) -> SlurmCluster:
    try:
        return SlurmCluster(services.recorded(name))
    except ClusterError as error:
        raise BenchFailed(str(error)) from error


def _inside(cluster: SlurmCluster, what: str, runs: int, *sizes: int) -> dict[str, list[Sample]]:
    """Let a part of benchmarks.inside run where people log in, in an allocation where it wants one."""
    words = [cluster.python, "-m", "benchmarks.inside", what, str(runs), *(str(nodes) for nodes in sizes)]
    if what == "allocation":
        words = ["salloc", "--quiet", f"--nodes={max(sizes)}", *words]
    # The machines see this checkout read-only, and cannot keep byte code of it by themselves.
    compileall.compile_dir(ROOT / "launcher", quiet=2)
    scratch = cluster.shared / "bench"
    environment = {"PYTHONPATH": str(ROOT), "BENCH_QUIET": os.environ.get("BENCH_QUIET", "20")}
    try:
        cluster.run(cluster.login, ["mkdir", "-p", str(scratch)])
        said = cluster.run(cluster.login, words, cwd=scratch, env=environment, timeout=3600).stdout
    except ClusterError as error:
        raise BenchFailed(str(error)) from error
    finally:
        cluster.run(cluster.login, ["rm", "-rf", str(scratch)], user="root", cwd="/", check=False)
    return {name: [Sample(one["wall"], one["cpu"]) for one in of] for name, of in json.loads(said).items()}

"""A source folder of 5,000 files and 100 MB to eight nodes, against eight `rsync -a -e ssh` at once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks import measure
from benchmarks.measure import Sample, median_wall, rounds
from benchmarks.place import CURVE, Place, events, first, hosts, on_each, ssh
from benchmarks.report import Line, ratio

ONE_CHANGED, NOTHING_CHANGED, FIRST_TIME, WORKING_COPY = 1.0, 0.3, 1.3, 1.3
_NODES, _FILES, _SIZE = 8, 5000, 20_000
_MIRRORS = ".launcher/node/mirrors"
_TARGET = "bench-rsync"


def sync8(place: Place, runs: int) -> list[Line]:
    """From the sync's start until every mirror is right; the working copy apart."""
    names = hosts(_NODES)
    source = place.scratch / "bench_src"
    _make(source)
    changes = random.Random(2)
    wall: dict[str, tuple[float, float]] = {}
    curve: dict[str, float] = {}
    for case, prepare in _cases(names, source, changes).items():
        contenders = {
            "ours": _after(prepare, lambda: _ours(place, source)),
            "rsync": _after(prepare, lambda: _rsync(names, source)),
            "rsync, curve25519": _after(prepare, lambda: _rsync(names, source, CURVE)),
        }
        samples = rounds(runs, contenders, warm=case != "first time")
        wall[case] = median_wall(samples["ours"]), median_wall(samples["rsync"])
        curve[case] = median_wall(samples["rsync, curve25519"])
    bounds = {"one file changed": ONE_CHANGED, "nothing changed": NOTHING_CHANGED, "first time": FIRST_TIME}
    lines = [ratio("sync8", f"{case}, against rsync -a -e ssh", *wall[case], bound) for case, bound in bounds.items()]
    lines += [ratio("sync8", f"{case}, against rsync with curve25519", wall[case][0], curve[case], None) for case in bounds]
    lines.append(_working_copy(place, runs, names[0], source))
    on_each(names, f"rm -rf {_MIRRORS} {_TARGET}")
    shutil.rmtree(source)
    return lines


def _cases(names: list[str], source: Path, changes: random.Random) -> dict[str, Callable[[], None]]:
    def forget() -> None:
        on_each(names, f"rm -rf {_MIRRORS} {_TARGET}")

    def change() -> None:
        (source / "d7" / "f7.py").write_bytes(changes.randbytes(_SIZE))

    return {"first time": forget, "one file changed": change, "nothing changed": lambda: None}


def _after(prepare: Callable[[], None], measured: Callable[[], Sample]) -> Callable[[], Sample]:
    def both() -> Sample:
        prepare()
        return measured()

    return both


def _make(source: Path) -> None:
    """Files as a source folder has them in number and size; random bytes, so that nobody gains by compression."""
    chance = random.Random(1)
    for number in range(_FILES):
        path = source / f"d{number % 100}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(_SIZE))


def _ours(place: Place, source: Path, nodes: int = _NODES) -> Sample:
    """The job is measured whole; of it, the time of the mirrors is taken from what the job told."""
    place.forget()
    place.submit(nodes, "--name", "bench", "--source-dir", str(source), "--command", "true")
    return Sample(mirror_seconds(place.newest()), 0.0)


def mirror_seconds(folder: Path) -> float:
    """From the sync's start until the last mirror was right.

    The step lasts from `reached` to `synced`; a node's part of it is its mirror, then its working copy, all nodes at once.
    """
    told = events(folder)
    synced = first(told, "synced")
    nodes = synced["nodes"]
    step = synced["time"] - first(told, "reached")["time"]
    apart = step - max(node["mirror_seconds"] + node["copy_seconds"] for node in nodes)
    return float(apart + max(node["mirror_seconds"] for node in nodes))


def _rsync(names: list[str], source: Path, *options: str) -> Sample:
    shell = " ".join(ssh("fleet_ssh_config", *options))
    return measure.together([["rsync", "-a", "-e", shell, f"{source}/", f"{name}:{_TARGET}/"] for name in names])


def _working_copy(place: Place, runs: int, name: str, source: Path) -> Line:
    """On one node: ours as told, without the way there, and `cp` measured on the node itself."""
    def copied() -> Sample:
        _ours(place, source, nodes=1)
        return Sample(first(events(place.newest()), "synced")["nodes"][0]["copy_seconds"], 0.0)

    script = f"cd {_MIRRORS}/bench* && TIMEFORMAT=%R && time cp -a --reflink=auto tree copy.bench 2>&1 && rm -rf copy.bench"

    def by_cp() -> Sample:
        done = measure.run([*ssh(), name, f"exec 2>&1; {script}"])
        return Sample(float(done.stdout.split()[-1]), 0.0)

    samples = rounds(runs, {"ours": copied, "cp": by_cp})
    what = "working copy, against cp -a --reflink=auto"
    return ratio("sync8", what, median_wall(samples["ours"]), median_wall(samples["cp"]), WORKING_COPY)

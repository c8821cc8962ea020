"""The training example on two ssh nodes, against the same torchrun commands started by hand over ssh."""

from __future__ import annotations

import itertools

from benchmarks import measure
from benchmarks.measure import BenchFailed, Sample, median_wall, rounds
from benchmarks.place import ROOT, STATE, Place, ssh
from benchmarks.report import Line, seconds

MORE_SECONDS = 1.0
HOSTS = ("node1", "node2")
SCRIPT = ("train_multinode.py", "--total_epochs", "10", "--save_every", "5")
_FOLDER = "bench-demo"
_PORTS = itertools.count(23456)


def demo2(place: Place, runs: int) -> list[Line]:
    """Two nodes of two processes; the time by hand begins when the code lies there already."""
    import yaml

    entries = yaml.safe_load((STATE / "cluster.yaml").read_text())["hosts"]
    python = next((entry.get("python") for entry in entries if isinstance(entry, dict) and entry["name"] == HOSTS[0]), None)
    if not python:
        raise BenchFailed("node1 has no torch; see tests/cluster/cluster status")
    shell = ssh("ssh_config")
    for host in HOSTS:
        measure.run(["rsync", "-a", "-e", " ".join(shell), f"{ROOT / 'train_src'}/", f"{host}:{_FOLDER}/"])
    address = measure.run([*shell, HOSTS[0], "hostname -I"]).stdout.decode().split()[0]
    torchrun = python.rpartition("/")[0] + "/torchrun"
    try:
        samples = rounds(runs, {"ours": lambda: _ours(place), "by hand": lambda: _by_hand(shell, torchrun, address)})
    finally:
        measure.together([[*shell, host, f"rm -rf {_FOLDER}"] for host in HOSTS])
    ours, by_hand = median_wall(samples["ours"]), median_wall(samples["by hand"])
    return [Line("demo2", "more than ssh + torchrun by hand", seconds(ours), seconds(by_hand), ours - by_hand, "s", MORE_SECONDS)]


def _ours(place: Place) -> Sample:
    return place.launcher(
        *("submit", "--cluster", str(STATE / "cluster.yaml"), "--hosts", ",".join(HOSTS), "--nproc-per-node", "2"),
        *("--source-dir", str(ROOT / "train_src"), "--", *SCRIPT),
    )


def _by_hand(shell: list[str], torchrun: str, address: str) -> Sample:
    rendezvous = f"--master_addr={address} --master_port={next(_PORTS)} --nnodes=2"
    typed = f"cd {_FOLDER} && rm -rf output && {torchrun} {rendezvous} --nproc_per_node=2"
    return measure.together([[*shell, host, f"{typed} --node_rank={rank} {' '.join(SCRIPT)}"] for rank, host in enumerate(HOSTS)])

"""A job that does nothing, from the command typed to its exit; ours leaves a durable job behind, the rivals do not."""

from __future__ import annotations

from benchmarks.measure import Sample, median_cpu, median_wall, rounds, together
from benchmarks.place import CURVE, Place, clush, have, hosts, on_all, pdsh
from benchmarks.report import Line, ratio, seconds

WALL_PDSH, WALL_CURVE, CPU_MS_PER_NODE = 0.8, 2.2, 40.0
ONE_HOST_SECONDS, EIGHT_HOSTS_SECONDS = 1.2, 1.6


def noop32(place: Place, runs: int) -> list[Line]:
    """32 hosts against pdsh, clush and parallel ssh."""
    names = hosts(32)
    contenders = {
        "ours": lambda: _ours(place, 32),
        "pdsh": pdsh(names, "true"),
        "pdsh, curve25519": pdsh(names, "true", CURVE),
        "ssh": lambda: together(on_all(names, "true")),
        "ssh, curve25519": lambda: together(on_all(names, "true", CURVE)),
    }
    if have("clush"):
        contenders["clush"] = clush(names, "true")
    samples = rounds(runs, contenders)
    wall = {name: median_wall(of) for name, of in samples.items()}
    cpu = {name: median_cpu(of) for name, of in samples.items()}
    bounds = {"pdsh": WALL_PDSH, "pdsh, curve25519": WALL_CURVE}
    others = [name for name in contenders if name != "ours"]
    lines = [ratio("noop32", f"wall, against {name}", wall["ours"], wall[name], bounds.get(name)) for name in others]
    per_node = cpu["ours"] / 32 * 1000
    rivals = ", ".join(f"{name} {cpu[name] / 32 * 1000:.0f}" for name in contenders if name.startswith("pdsh"))
    return [*lines, Line("noop32", "client CPU per node", f"{per_node:.1f} ms", f"{rivals} ms", per_node, "ms", CPU_MS_PER_NODE)]


def noop1(place: Place, runs: int) -> list[Line]:
    """One host."""
    return _few(place, runs, 1, ONE_HOST_SECONDS)


def noop8(place: Place, runs: int) -> list[Line]:
    """Eight hosts."""
    return _few(place, runs, 8, EIGHT_HOSTS_SECONDS)


def _few(place: Place, runs: int, count: int, bound: float) -> list[Line]:
    names = hosts(count)
    samples = rounds(runs, {"ours": lambda: _ours(place, count), "ssh": lambda: together(on_all(names, "true"))})
    wall = median_wall(samples["ours"])
    return [Line(f"noop{count}", "wall", seconds(wall), f"ssh {seconds(median_wall(samples['ssh']))}", wall, "s", bound)]


def _ours(place: Place, count: int) -> Sample:
    return place.submit(count, "--command", "true")

"""The fake Slurm clusters by hand: the commands of ``tests/cluster/cluster`` that begin with slurm."""

from __future__ import annotations

import os
import sys

from tests.cluster.engine import have_engine
from tests.cluster.slurm import services
from tests.cluster.slurm.handle import SlurmCluster
from tests.cluster.slurm.layout import ACCOUNTING, CONTROLLER, PLAIN, TWIN, Layout, many

LAYOUTS = {f"--{layout.name}": layout for layout in (PLAIN, TWIN, ACCOUNTING, many(64))}
"""option that chooses a cluster -> what it consists of, in the form that it has unless said otherwise"""


def up(argv: list[str]) -> int:
    """``slurm [--accounting | --twin]``"""
    return _started(_chosen(argv))


def up_many(argv: list[str]) -> int:
    """``slurm-many [N]``"""
    return _started(many(int(argv[0])) if argv else LAYOUTS["--many"])


def status(argv: list[str]) -> int:
    """``slurm-status [--twin | --accounting | --many]``: exit status 0 when that cluster runs, whatever else does."""
    if not have_engine():
        print("fake Slurm: no container engine answers")
        return 1
    for layout in LAYOUTS.values():
        states = services.states(layout.name)
        if states:
            print(f"{layout.name:10} {list(states.values()).count('running')} of {len(states)} machines running")
    return 0 if services.is_up(_chosen(argv).name) else 1


def execute(argv: list[str]) -> int:
    """``slurm-exec [--twin | --accounting | --many] [--root] MACHINE CMD…``"""
    cluster = SlurmCluster(services.recorded(_chosen(argv).name))
    user = "root" if "--root" in argv[:2] else "train"
    while argv and argv[0].startswith("--"):
        argv = argv[1:]
    command = cluster.argv(argv[0] if argv else CONTROLLER, argv[1:] or ["bash"], user=user)
    if sys.stdin.isatty() and sys.stdout.isatty():
        command.insert(2, "--tty")
    return os.spawnv(os.P_WAIT, command[0], command)


def down(argv: list[str]) -> int:
    """``slurm-down [--plain | --twin | --accounting | --many]``: all of them without an option."""
    option = _option(argv)
    stopped = services.down([LAYOUTS[name].name for name in ([option] if option else LAYOUTS)])
    print(f"fake Slurm: down{', dockerd stopped' if stopped else ''}")
    return 0


def _option(argv: list[str]) -> str | None:
    """The word that chooses a cluster, where it stands before a machine's name."""
    return next((word for word in argv[:2] if word in LAYOUTS), None)


def _chosen(argv: list[str]) -> Layout:
    return LAYOUTS[_option(argv) or "--plain"]


def _started(layout: Layout) -> int:
    running = services.up(layout)
    print(f"fake Slurm: {len(layout.nodes)} nodes up, {os.path.relpath(running.shared)} is shared by all machines. Try")
    print(f"  tests/cluster/cluster slurm-exec --{layout.name} {CONTROLLER} srun -N{len(layout.nodes)} hostname")
    return 0

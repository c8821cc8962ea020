"""`launcher exec`: in an srun task of anybody's script, work out the environment of one node and become the command."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import click

from launcher import environ
from launcher.agent import probe
from launcher.errors import NodeUnusable, UsageError
from launcher.slurm import rendezvous
from launcher.slurm.step import Task, task


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, metavar="-- COMMAND ARGS...", type=click.UNPROCESSED)
@click.option("--output-path", metavar="DIR", help="Where the PAI_OUTPUT_ folders lie; default output/<Slurm job id>.")
def exec_command(words: tuple[str, ...], output_path: str | None) -> None:
    """In an srun task of your own script: set MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and the other variables that a
    node's command finds in a submitted job, and become that command.

    \b
    srun --ntasks-per-node=1 launcher exec -- torchrun --master_addr ...
    """
    if not words:
        raise UsageError("there is no command", next_step="write it behind `--`: launcher exec -- torchrun ...")
    here = task(os.environ)
    if "/" not in words[0] and shutil.which(words[0]) is None:
        raise NodeUnusable(f"there is no {words[0]} on PATH", where=here.name, next_step="activate the environment that has it")
    outputs = Path(output_path or f"output/{here.job_id}").absolute()
    folders = environ.Folders(f"{Path.cwd()}/", f"{outputs}/config/", f"{outputs}/")
    master, interface = _meet(here)
    settings = environ.contract(
        f"slurm-{here.job_id}", master, len(here.nodes), here.rank, here.gpus or 1, folders, restarts=here.restart_count
    )
    _make(settings)
    _become(words, environ.of_task(os.environ, settings, interface), here.name)


def _meet(here: Task) -> tuple[tuple[str, int], str | None]:
    """(MASTER_ADDR, MASTER_PORT) and the interface that leads there, once all nodes of the step are there."""
    number, word = rendezvous.port(os.environ), rendezvous.nonce(os.environ)
    if here.rank == 0:
        address = own = rendezvous.lead(here.nodes, number, word)
    else:
        address, own = rendezvous.follow(here.nodes, here.rank, number, word)
    return (address, number), probe.interface_of(own)


def _make(settings: dict[str, str]) -> None:
    """Make the folders that the variables name."""
    for name, path in settings.items():
        if name.startswith(("PAI_OUTPUT_", "PAI_CONFIG_")):
            try:
                os.makedirs(path, exist_ok=True)
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror}", next_step="name another place by --output-path") from None


def _become(words: tuple[str, ...], environment: dict[str, str], where: str) -> None:
    # Python ignores SIGPIPE and SIGXFSZ, and whoever started us may have had others ignored.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.execvpe(words[0], list(words), environment)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NodeUnusable(f"{words[0]} cannot be started: {reason}", where=where) from None

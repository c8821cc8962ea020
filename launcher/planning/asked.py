"""What shall run, and how: the command and every setting of the job, checked as far as this side can."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import environ, torchrun
from launcher import uri as uris
from launcher.cluster import Cluster
from launcher.errors import UsageError
from launcher.git_source import masked
from launcher.metrics import definitions
from launcher.model import Command, JobSpec
from launcher.planning.request import Request, Settings
from launcher.planning.source import git_of, source_of


def command_of(request: Request, settings: Settings) -> Command:
    """The one command that was given; UsageError when there is none, or two."""
    if request.words is not None and request.command is not None:
        raise UsageError("there are two commands: --command, and the words after `--`", next_step="keep one of them")
    if request.words is not None:
        settings.origins["command"] = "the words after --"
        return _possible(_of_words(request.words))
    command = settings.get("command")
    if command is None or (command.shell is not None and not command.shell.strip()):
        step = "add `-- SCRIPT.py ARGS`, --command TEXT, or a job file that has one"
        raise UsageError("there is no command to run", next_step=step)
    assert isinstance(command, Command)
    if command.shell is not None:
        with contextlib.suppress(ValueError):  # quotes that do not close are the node's shell's to tell of
            _expect_values(shlex.split(command.shell), settings.origins.get("command", "--command"))
    return _possible(command)


def _possible(command: Command) -> Command:
    """The command, if the system can be given its words; UsageError."""
    words = command.script or command.argv or (command.shell or "",)
    if not words[0].strip() or (words[0] in ("-m", "--module") and not "".join(words[1:2]).strip()):
        step = "a variable of the shell here may be empty; in single quotes the nodes fill it in (--command '...')"
        raise UsageError(f"the command names no program: {shlex.join(words)}", next_step=step)
    problems = [f"{word[:60]!r} {why}" for word in words if (why := uris.odd(word))]
    if problems:
        raise UsageError("no program can be given these words", problems=problems)
    return command


def _of_words(words: tuple[str, ...]) -> Command:
    """A Python script (or -m module) is started by torchrun; any other program as it is, once per node."""
    if not words:
        raise UsageError("there is nothing after `--`", next_step="add a script and its arguments")
    if words[0].endswith(".py") or words[0] in ("-m", "--module"):
        return Command(script=words)
    _expect_values(words, "after --")
    return Command(argv=words)


def _expect_values(words: Sequence[str], where: str) -> None:
    """UsageError where a shell here has filled in, with nothing, what the nodes were to fill in."""
    if hint := torchrun.empty_master_hint(words):
        raise UsageError("the command names no master", where=where, next_step=hint)


def spec_of(settings: Settings, command: Command, user: Mapping[str, str], nodes: int, warnings: list[str]) -> JobSpec:
    """Every setting of the job; UsageError for one that cannot be, and sentences about odd ones in ``warnings``."""
    nproc = _processes(settings, command)
    text = command.shell or shlex.join(command.argv or ())
    if nproc is not None and nproc > 1 and not environ.starts_processes(command):
        warnings.append(
            f"nproc_per_node is {nproc}, but `{text}` starts neither torchrun nor another process launcher: it runs once per node"
        )
    if nodes > 1 and command.script is None and torchrun.unplaced(text):
        flags = "--nnodes=$WORLD_SIZE --node_rank=$RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT"
        warnings.append(
            f"nothing in `{text}` tells torchrun which of the {nodes} nodes it is on, so each may train alone, or wait for the "
            f"others for ever: add {flags} in --command '...', or give the script alone behind `--`"
        )
    metrics, git = settings.get("metrics", ()), git_of(settings)
    spec = JobSpec(
        command=command,
        name=settings.get("name") or _base_name(command),
        source_dir=source_of(settings, git),
        git=git and masked(git),
        nodes=nodes,
        nproc_per_node=nproc,
        env=environ.masked(user),
        forward_env=tuple(settings.get("forward_env", ())),
        instance_type=settings.get("instance_type"),
        max_run_time=settings.get("max_run_time"),
        grace=settings.get("grace", JobSpec.grace),
        collect=_channels(settings.get("collect")),
        keep=bool(settings.get("keep", False)),
        requeue=bool(settings.get("requeue", False)),
        max_requeues=int(settings.get("max_requeues", JobSpec.max_requeues)),
        metrics=definitions(metrics, settings.origins["metrics"]),
        max_code_bytes=settings.get("max_code_size", JobSpec.max_code_bytes),
    )
    if git is None:
        check_script(command, spec.source_dir)
    return spec


def requeued(settings: Settings, cluster: Cluster, spec: JobSpec) -> JobSpec:
    """With what the cluster file says of going back into Slurm's queue; UsageError where there is no queue to go to."""
    if cluster.backend != "slurm" or settings.allocation is not None:
        if spec.requeue:
            what = "only a job in Slurm's queue can be requeued"
            step = "leave it out; a batch script of yours asks for it by `#SBATCH --requeue`"
            raise UsageError(what, where=settings.origins["requeue"], next_step=step)
        return spec
    said: dict[str, Any] = {"requeue": cluster.slurm.requeue, "max_requeues": cluster.slurm.max_requeues}
    weak = {name for name in said if settings.personal.is_weak(settings.origins[name])}
    found = {name: value for name, value in said.items() if value is not None and name in weak}
    settings.origins.update(dict.fromkeys(found, str(cluster.path)))
    return dataclasses.replace(spec, **found)


def _processes(settings: Settings, command: Command) -> int | None:
    said = settings.get("nproc_per_node")
    inside = torchrun.nproc_in(command.shell or shlex.join(command.argv or ())) if command.script is None else None
    if said is None and inside is not None:
        settings.origins["nproc_per_node"] = "the command's own --nproc_per_node"
        return inside
    if said in (None, "auto"):
        return None
    if isinstance(said, str) or said < 1:
        raise UsageError(f"--nproc-per-node {said}: a number of at least 1, or auto")
    return int(said)


def _base_name(command: Command) -> str:
    words = command.script or command.argv or tuple((command.shell or "job").split()[:1])
    return Path(words[1] if words[0] in ("-m", "--module") and len(words) > 1 else words[0]).stem or "job"


def _channels(said: tuple[str, ...] | None) -> tuple[str, ...]:
    """What is collected: model and tensorboard always, and what was asked for besides."""
    return tuple(dict.fromkeys([*JobSpec.collect, *(said or ())]))


def check_script(command: Command, source_dir: str | None) -> None:
    """A script that is not in the source folder would be missed only on the nodes."""
    if command.script is None or command.script[0] in ("-m", "--module") or os.path.isabs(command.script[0]):
        return
    if source_dir is None:
        raise UsageError(
            f"{command.script[0]} goes to the nodes with a source folder, and none is named", next_step="add --source-dir DIR"
        )
    if not os.path.isfile(os.path.join(source_dir, command.script[0])):
        found = sorted(path.name for path in Path(source_dir).glob("*.py"))
        raise UsageError(
            f"there is no {command.script[0]} in the source folder",
            where=source_dir,
            problems=found[:5],
            next_step=f"name the script relative to --source-dir{_meant(command.script[0], source_dir, found)}",
        )


def check_taken(command: Command, code: Path) -> None:
    """A script that is in the source folder, but not in the snapshot ``code`` of it, is refused."""
    if command.script is None or command.script[0] in ("-m", "--module") or os.path.isabs(command.script[0]):
        return
    script = os.path.normpath(command.script[0])
    if not (code / script).is_file():
        what = f"{script} is in the source folder, but an ignore file (.gitignore, .launcherignore) leaves it out"
        raise UsageError(what, next_step=f"take it back in by a line `!{script}` in .launcherignore")


def _meant(script: str, source_dir: str, found: list[str]) -> str:
    """Which script is probably meant: the one of which the path has some parents too many, or a mistyped one; "" for none."""
    import difflib

    parts = Path(script).parts
    below = [os.path.join(*parts[start:]) for start in range(1, len(parts))]
    there = [path for path in below if os.path.isfile(os.path.join(source_dir, path))]
    close = there[:1] or difflib.get_close_matches(script, found, n=1)
    return f": did you mean {close[0]}?" if close else ""

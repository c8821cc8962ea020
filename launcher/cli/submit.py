"""`launcher submit`: from a command and a folder to a trained model."""

from __future__ import annotations

import functools
import os
import shlex
from typing import Any

import click

from launcher import api, planning, torchrun
from launcher.cli import options
from launcher.cli.follow import Interrupts, exit_as_the_job, follow
from launcher.cli.streams import OutputLost
from launcher.cluster import parse_duration, parse_name, parse_size
from launcher.hyperparameters import parse
from launcher.metrics import parse_option
from launcher.model import Command, GitSource, to_json
from launcher.screen import Screen

_NAMED = ("env", "hyperparameters", "labels")
"""settings of which each name has an origin of its own"""
_option = functools.partial(click.option, cls=options.Gathered)


def _nproc(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise ValueError("a number of at least 1, or auto")
    return int(text)


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    bad = ["".join(pair) for pair in pairs if not (pair[0] and pair[1])]
    if bad:
        # `docker run --env NAME` hands a variable on; here that is an option of its own.
        handed_on = [word for word in bad if param.name == "env" and word.isidentifier()]
        hint = "".join(f"; this shell's: --forward-env {name}" for name in handed_on[:1])
        options.keep(ctx, click.BadParameter(f"not NAME=VALUE: {', '.join(bad)}{hint}", ctx, param))
    return {name: value for name, sign, value in pairs if name and sign}


@click.command("submit", cls=options.BeforeDashes)
@click.argument("words", nargs=-1, metavar="[JOB.yaml] [-- SCRIPT ARGS...]", type=click.UNPROCESSED)
@functools.partial(options.inventory, cls=options.Gathered)
@_option("--name", type=options.Parsed("name", parse_name), help="Base of the job's id.")
@_option("--nodes", type=int, metavar="N", help="How many nodes; unset: all hosts of the inventory, locally 1.")
@_option("--instance-type", metavar="LABEL", help="Only hosts with this label.")
@_option("--nproc-per-node", type=options.Parsed("n|auto", _nproc), help="Processes per node; auto: one per GPU, else 1.")
@_option("--command", metavar="TEXT", help="Run this text with /bin/sh -c on every node, verbatim.")
@_option("--source-dir", metavar="DIR", help="The folder that goes to the nodes; the command runs in a copy of it.")
@_option("--env", multiple=True, metavar="K=V", callback=_pairs, help="Set a variable for the command; may be repeated.")
@_option("--env-file", multiple=True, metavar="FILE", help="Set the variables of a file of KEY=VALUE lines.")
@_option("--forward-env", multiple=True, metavar="GLOB", help="Take these variables of this shell along, too.")
@_option("--hp", "hyperparameters", multiple=True, metavar="K=V", callback=_pairs, help="Set a hyperparameter.")
@_option("--requirement", "requirements", multiple=True, metavar="LINE", help="Have pip install this; '': nothing.")
@_option("--label", "labels", multiple=True, metavar="K=V", callback=_pairs, help="A word of your own, shown by status.")
@_option("--max-run-time", type=options.Parsed("time", parse_duration), help="Stop the job after that long: 90s, 15m, 2h.")
@_option(
    "--grace", type=options.Parsed("time", parse_duration), help="Between TERM and KILL when the job is stopped; default 30s."
)
@_option("--collect", multiple=True, metavar="CHANNEL", help="Bring this output here as well, e.g. checkpoints.")
@_option("--input", "inputs", multiple=True, metavar="CH=PATH", callback=_pairs, help="Data for the command: a path or URI.")
@_option("--shard", multiple=True, metavar="CH", help="Each node gets its share of this input's files, not all of them.")
@_option("--output-channel", "outputs", multiple=True, metavar="CH[=URI]", help="An output of your own; published to URI.")
@_option("--output-path", metavar="URI", help="Publish the outputs in a folder of the job's id below this URI or folder.")
@_option("--checkpoints-path", metavar="URI", help="Checkpoints come from there at the start, and are copied there.")
@_option(
    "--checkpoint-interval", type=options.Parsed("time", parse_duration), help="Between two copies of checkpoints; default 5m."
)
@_option("--requeue", is_flag=True, default=None, help="Slurm: go back into the queue when nodes or time are taken away.")
@_option("--max-requeues", type=click.IntRange(0), metavar="N", help="How often at most; default 10.")
@_option("--image", metavar="NAME|URI", help="The environment to run in: a name of the cluster file's images, or a URI.")
@_option("--keep", is_flag=True, default=None, help="Keep working copy and spool on the nodes after a success.")
@_option("--max-code-size", type=options.Parsed("size", parse_size), help="Refuse a larger source folder; default 1GiB.")
@_option("--git", metavar="REPO", help="Clone this repository; --source-dir is a folder in it.")
@_option("--branch", metavar="NAME", help="With --git: a branch or tag; unset: the repository's own default.")
@_option("--commit", metavar="HASH", help="With --git: a commit of that branch; unset: its newest.")
@_option(
    "--metric", "metrics", multiple=True, metavar="NAME=REGEX", type=options.Parsed("metric", parse_option),
    help="Collect this number from the logs; the regular expression has one group, around it.",
)
@_option("-d", "--detach", is_flag=True, help="Return as soon as the job runs; `launcher attach` shows the rest.")
@_option("--dry-run", is_flag=True, help="Print the plan and where each value came from; start nothing.")
@options.output
@click.pass_context
def submit_command(ctx: click.Context, /, words: tuple[str, ...], detach: bool, dry_run: bool, output: str, **said: Any) -> None:
    """Run a command on several nodes, and bring its model here.

    A script after `--` is started by torchrun on every node; another program after `--` runs once per node as it is.
    JOB.yaml may hold all of the options, with underscores.
    """
    request = request_of(ctx, words, said, detach)
    prepared = None if dry_run or request.unreadable else api.prepare(request)
    drafted = api.plan(request)
    screen = Screen(output)
    for warning in drafted.warnings:
        screen.warn(warning)
    if dry_run:
        _print_plan(drafted, output)
        return
    with Interrupts() as interrupts:
        if drafted.plan.allocation:
            interrupts.note_warnings(api.warning_of(drafted.plan))
        folder = api.submit(drafted, screen.note, interrupts.note_from_now_on, prepared)
        try:
            screen.begin(folder, drafted.plan)
            code = follow(folder, screen, interrupts, until_running=detach, quiet=detach)
        except OutputLost:
            screen.note(f"the job goes on\n  next: launcher attach {folder.job_id}")
            raise
    if detach and code == 0 and output == "text":
        screen.note(f"  launcher attach {folder.job_id} shows the rest, launcher cancel {folder.job_id} stops it")
        click.echo(folder.job_id)
    exit_as_the_job(ctx, folder, output, code)


def request_of(
    ctx: click.Context, words: tuple[str, ...], said: dict[str, Any], detach: bool, default: Command | None = None
) -> planning.Request:
    """What was typed, as planning takes it; ``default`` is the command where none was."""
    job_file, command_words = _split(ctx, words)
    command, git = said.pop("command"), _git(ctx, said)
    said["hyperparameters"] = {name: parse(text) for name, text in said["hyperparameters"].items()}
    lists = {key: tuple(said.pop(key)) or None for key in ("env_file", "forward_env", "collect", "metrics", "requirements")}
    outputs = {name: uri if sign else None for name, sign, uri in (text.partition("=") for text in said.pop("outputs"))}
    inputs = _shared(ctx, said.pop("inputs"), said.pop("shard"))
    return planning.Request(
        unreadable=options.unreadable(ctx),
        job_file=job_file,
        inputs=inputs,
        outputs=outputs,
        words=command_words,
        command=Command(shell=command) if command is not None else default,
        detached=detach,
        env_file=lists["env_file"] or (),
        forward_env=lists["forward_env"] or (),
        collect=lists["collect"],
        requirements=lists["requirements"],
        metrics=tuple(one for one in lists["metrics"] or () if one is not None),
        git=git,
        **said,
    )


def _git(ctx: click.Context, said: dict[str, Any]) -> GitSource | None:
    repo, branch, commit = (said.pop(name) for name in ("git", "branch", "commit"))
    if repo is None and (branch is not None or commit is not None):
        options.keep(ctx, click.UsageError("--branch and --commit belong to --git REPO", ctx))
    return None if repo is None else GitSource(repo, branch, commit)


def _shared(ctx: click.Context, inputs: dict[str, str], shard: tuple[str, ...]) -> dict[str, Any]:
    """The inputs, those of --shard marked."""
    for name in shard:
        if name not in inputs:
            what = f"--shard {name}: there is no --input {name}=…; in a job file it is `shard: true`"
            options.keep(ctx, click.UsageError(what, ctx))
    return {name: {"source": source, "shard": True} if name in shard else source for name, source in inputs.items()}


def _split(ctx: click.Context, words: tuple[str, ...]) -> tuple[str | None, tuple[str, ...] | None]:
    """What stood before and after `--`; click drops the `--` itself, so it is looked for in what was typed."""
    typed: list[str] = ctx.obj or []
    behind = len(typed) - typed.index("--") - 1 if "--" in typed else 0
    before, after = words[: len(words) - behind], words[len(words) - behind :]
    if len(before) > 1 or (before and not _may_be_job_file(before[0])):
        raise click.UsageError(options.misplaced(before), ctx)
    return (before[0] if before else None), (after if "--" in typed else None)


def _may_be_job_file(word: str) -> bool:
    """A forgotten `--` is likelier than a job file that has no such name and is not there."""
    return word.endswith((".yaml", ".yml")) or (not word.endswith(".py") and os.path.exists(word))


def _print_plan(drafted: planning.Draft, output: str) -> None:
    plan, script = drafted.plan, api.script(drafted)
    if output == "json":
        options.print_json({"schema_version": 1, **to_json(plan), **({} if script is None else {"script": script})})
        return
    click.echo(f"job      {plan.job_id}")
    named = f"   [{plan.origins['cluster']}]" if plan.inventory and "cluster" in plan.origins else ""
    click.echo(f"backend  {plan.backend}, cluster {plan.cluster}" + (f" ({plan.inventory})" if plan.inventory else "") + named)
    for node in plan.nodes:
        host = node.host
        endpoint = f"{host.user + '@' if host.user else ''}{host.address}{f':{host.port}' if host.port else ''}"
        click.echo(f"node {node.rank}   {host.name}" + (f" ({endpoint})" if endpoint != host.name else ""))
    settled = to_json(plan.spec)
    each = {f"{key}.{name}": value for key in _NAMED for name, value in settled.pop(key).items()}
    for key, value in {**settled, **each}.items():
        if value not in (None, {}, []):
            shown = _words(plan.spec.command) if key == "command" else value
            click.echo(f"{key:<16} {shown}   [{plan.origins.get(key, 'built-in')}]")
    if plan.spec.command.script is not None:
        click.echo(f"each node runs\n  {torchrun.as_typed(plan.spec.command.script)}")
    if script is not None:
        click.echo(f"sbatch script:\n{script}", nl=False)


def _words(command: Command) -> str:
    """The command as one would type it."""
    return command.shell if command.shell is not None else shlex.join(command.script or command.argv or ())

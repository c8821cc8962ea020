"""`launcher check`: whether a job could start, without starting one."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click

from launcher import api
from launcher.cli import options
from launcher.cli.submit import request_of, submit_command
from launcher.errors import UsageError
from launcher.model import Command
from launcher.screen import print_table, say

_ANY_SCRIPT = Command(script=("-m", "any"))
"""stands for the command that was not named: a script, which torchrun starts"""
_MIXED = click.Option(["--mixed-torch"], is_flag=True, help="Nodes that differ in their torch are a warning, no error.")


_OPTIONS = [*(one for one in submit_command.params if one.name != "dry_run"), _MIXED]


@click.command("check", cls=options.BeforeDashes, params=_OPTIONS)
@click.pass_context
def check_command(
    ctx: click.Context, /, words: tuple[str, ...], detach: bool, mixed_torch: bool, output: str, **said: Any
) -> None:
    """Look at the machines as a job's start would, and tell of all that is wrong; starts nothing and leaves nothing.

    Takes what `submit` takes: put `check` in its place. Without a command it looks at what any script needs.
    Exits 0 where a job could start, else 69.
    """
    unnamed = not words and said["command"] is None and "--" not in (ctx.obj or [])
    request = request_of(ctx, words, {**said, "name": said["name"] or "check"}, detach, _ANY_SCRIPT if unnamed else None)
    drafted = api.plan(request)
    if drafted.plan.batch:
        count = drafted.plan.spec.nodes or 1
        what = "Slurm chooses the nodes when it starts the job: outside of an allocation there is none to look at"
        step = f"salloc -N{count} launcher check …; and `launcher submit --dry-run …` shows what sbatch would be given"
        raise UsageError(what, next_step=step)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Below nohup it goes on.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    from launcher.preflight import look

    if sys.stderr.isatty():
        # A machine that does not answer is waited for.
        say(f"looking at {_counted(len(drafted.plan.nodes))}", err=True)
    lenient = [*(["NoTorch"] if unnamed else []), *(["TorchDiffers"] if mixed_torch else [])]
    report = look(drafted, lenient, progress=lambda text: say(text, err=True))
    if output == "json":
        options.print_json(report.document())
    else:
        _show(report)
    ctx.exit(0 if report.ok else 69)


def _show(report: Any) -> None:
    from launcher.preflight.report import HEADINGS, cells

    print_table([HEADINGS, *map(cells, report.nodes)])
    for finding in report.errors:
        say(f"error: {finding.text}")
    for finding in report.warnings:
        say(f"warning: {finding.text}")
    nodes = _counted(len(report.nodes))
    if report.ok:
        say(f"a job could start on {nodes}: master {report.master['address']} port {report.master['port']}")
    else:
        number = len(report.errors)
        say(f"no job could start on {nodes}: {number} error{'s' * (number != 1)}")


def _counted(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"

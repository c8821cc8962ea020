"""The command line: one file per family of commands, loaded only when a command of it is called."""

from __future__ import annotations

import contextlib
import errno
import importlib
import sys
from typing import NoReturn

import click

from launcher.cli.streams import OutputLost, guard_streams
from launcher.errors import LauncherError

_COMMANDS = {
    "submit": ("launcher.cli.submit", "Run a command on several nodes, and bring its model here."),
    "check": ("launcher.cli.check", "Look whether a job could start; starts nothing, and tells all that is wrong."),
    "attach": ("launcher.cli.watch", "Watch a job: what is left of its output, then its end."),
    "logs": ("launcher.cli.watch", "Show what a job's processes printed."),
    "events": ("launcher.cli.watch", "Show what happened to a job, event by event."),
    "wait": ("launcher.cli.watch", "Wait for a job's end; exits as the job did."),
    "metrics": ("launcher.cli.metrics", "Show the numbers that a job's processes print, as they are collected."),
    "tensorboard": ("launcher.cli.tensorboard", "Show a job's TensorBoard logs in a browser."),
    "list": ("launcher.cli.jobs", "List all jobs."),
    "status": ("launcher.cli.jobs", "Show where a job is, node by node."),
    "cancel": ("launcher.cli.jobs", "Stop a job everywhere."),
    "resume": ("launcher.cli.watch", "Collect or publish the outputs of a job where that failed."),
    "model-data": ("launcher.cli.model_data", "Say where a job's model lies, checked against its manifest."),
    "gc": ("launcher.cli.gc", "Remove what finished jobs left, here and on the nodes."),
    "nodes": ("launcher.cli.inventory", "Show the inventory as it is understood."),
    "exec": ("launcher.cli.exec", "In an srun task of your own script: set what a node's command needs, and become it."),
    "config": ("launcher.cli.config", "Make clusters known by name, choose the default one, show what holds."),
    "trust": ("launcher.cli.inventory", "Record the host keys of new machines, after a look at them."),
}
"""name: (module that has it, what `--help` says of it); the modules import what they need, so `--help` imports none"""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        command = getattr(module, cmd_name.replace("-", "_") + "_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            raise click.UsageError(error.message + (f" Did you mean {close[0]}?" if close else ""), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="launcher", message="%(version)s")
def cli() -> None:
    """Train on your own machines: hand over a source folder and a command, get all of them working as one job,
    watch it, stop it, and get the model back.

    \b
    launcher submit --nodes 2 --nproc-per-node 2 --source-dir train_src -- train_multinode.py --total_epochs 10
    """


def main() -> NoReturn:
    """Run the command line and exit: 0, the job's own exit code, 2, 69, 70, 74, 130 or 141 (see `launcher.errors`, `streams`)."""
    guard_streams()
    try:
        code = _run(sys.argv[1:])
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except OutputLost as lost:
        code = lost.exit_code
        if not lost.unread:
            with contextlib.suppress(OutputLost):
                click.echo(f"error: {lost}", err=True)
    sys.exit(code)


def _run(typed: list[str]) -> int:
    """Run what was typed; the exit code."""
    try:
        # click hands arguments on without the `--` between them; `submit` needs to know where it stood.
        code = cli.main(args=typed, standalone_mode=False, prog_name="launcher", obj=typed)
    except click.Abort:
        click.echo("cancelled", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except LauncherError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except OutputLost:
        raise
    except Exception as error:  # noqa: BLE001 - the process ends here, and a fault of ours must not look like a job that exited with 1
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            from launcher.keep import home

            click.echo(f"error: {error.strerror}: {home()}\n  next: make room, or name another place by LAUNCHER_HOME", err=True)
            return 74
        import traceback

        traceback.print_exc()
        return 70
    return code if isinstance(code, int) else 0

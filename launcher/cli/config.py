"""`launcher config`: the user's own config, by a wizard or word by word."""

from __future__ import annotations

import os
from typing import Any

import click

from launcher.cli import options
from launcher.errors import UsageError

_VARIABLES = ("LAUNCHER_HOME", "LAUNCHER_CLUSTER", "LAUNCHER_CONFIG", "LAUNCHER_JOB_ID", "LAUNCHER_RESTART_COUNT")
"""beside those of settings: what a person says, and what a job finds"""


@click.group("config", invoke_without_command=True)
@click.option("--from", "file", metavar="FILE", help="This cluster file.")
@click.option("--hosts", metavar="HOSTS", help="These machines, which answer ssh; a cluster file is written.")
@click.option("--partition", metavar="NAME", help="This partition of Slurm's; a cluster file is written.")
@click.option("--gpus", type=click.IntRange(0), metavar="N", help="GPUs of each host, or to ask of Slurm; unset: counted.")
@click.option("--name", metavar="NAME", help="How the cluster is called.")
@click.option("--default/--no-default", default=None, help="Whether it is meant when a job names no cluster.")
@click.option("--ssh-config", metavar="FILE", help="As in `ssh -F`; unset: ~/.ssh/config.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take what is found, and replace what is there.")
@click.pass_context
def config_command(ctx: click.Context, /, gpus: int | None, **said: Any) -> None:
    """Make a cluster known by name, by a few questions: what can be found out is offered, not asked.

    Nothing is written before a summary was shown and agreed to.
    """
    if ctx.invoked_subcommand is not None:
        if gpus is not None or any(value not in (None, False) for value in said.values()):
            raise click.UsageError(f"options of the wizard mean nothing before `{ctx.invoked_subcommand}`", ctx)
        return
    named = [f"--{'from' if name == 'file' else name}" for name in ("file", "hosts", "partition") if said[name]]
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(named)} both say which machines; keep one of them", ctx)
    from launcher.cli import wizard

    wizard.run(wizard.Said(gpus=None if gpus is None else str(gpus), **said), os.environ)


@config_command.command("show")
@options.output
def show_command(output: str) -> None:
    """Show the config as it holds here, and where each value comes from; secrets are masked."""
    from launcher.planning.personal import personal_settings
    from launcher.screen import print_table

    told = personal_settings(os.environ)
    if output == "json":
        options.print_json({"schema_version": 1, **told})
        return
    click.echo(f"config  {told['path'] or '-'}{'' if told['exists'] else '   (not there)'}", err=True)
    rows: list[tuple[str, ...]] = [("SETTING", "VALUE", "ORIGIN")]
    for one in told["settings"]:
        value = ", ".join(map(str, one["value"])) if isinstance(one["value"], list) else one["value"]
        rows.append((one["name"], "-" if value is None else str(value), one["origin"]))
    print_table(rows)
    if told["readable_by_others"]:
        click.echo(f"warning: others can read it\n  next: chmod 600 {told['path']}", err=True)
    for warning in _unheard():
        click.echo(f"warning: {warning}", err=True)


def _unheard() -> list[str]:
    """A sentence for each variable of this shell that looks like one of ours and is none."""
    from launcher.cluster.inventory import did_you_mean
    from launcher.cluster.userfile import SETTINGS

    ours = [*_VARIABLES, *(f"LAUNCHER_{name.upper()}" for name in SETTINGS)]
    odd = sorted(name for name in os.environ if name.startswith("LAUNCHER_") and name not in ours)
    return [f"{name} says nothing: there is no such variable{did_you_mean(name, ours)}" for name in odd]


@config_command.command("use")
@click.argument("name")
def use_command(name: str) -> None:
    """Let NAME be the cluster that is meant when a job names none."""
    from launcher import configuration
    from launcher.cluster.userfile import LOCAL, is_path, load_user_config
    from launcher.planning.personal import unknown_cluster

    config = load_user_config(os.environ)
    if name not in (*config.clusters, LOCAL) and not is_path(name):
        raise unknown_cluster(name, config, "config use")
    if name != LOCAL:
        _check_file(config.clusters.get(name, name))
    value = configuration.as_yaml(("default",), os.path.abspath(os.path.expanduser(name)) if is_path(name) else name)
    click.echo(f"saved: {configuration.save([(('default',), value)], os.environ)}")


@config_command.command("set")
@click.argument("key")
@click.argument("value")
def set_command(key: str, value: str) -> None:
    """Set KEY (default, clusters.NAME, grace, collect, ...) to VALUE; lists with commas."""
    from launcher import configuration
    from launcher.cluster.userfile import SETTINGS, is_path

    words = tuple(key.split(".", 1))
    if words[0] in SETTINGS:
        words = ("job", *words)
    if len(words) != (1 if words[0] == "default" else 2) or words[0] not in ("default", "clusters", "job"):
        known = ["default", "clusters.NAME", *(f"job.{name}" for name in SETTINGS)]
        raise UsageError(f"there is no setting {key}", problems=known, next_step="variables stand under job.env of the file")
    if words[0] == "clusters" or (words[0] == "default" and is_path(value)):
        _check_file(value)
        value = os.path.abspath(os.path.expanduser(value))
    saved = configuration.save([(words, configuration.as_yaml(words, value))], os.environ)
    click.echo(f"saved: {saved}")


def _check_file(file: str) -> None:
    """Raise UsageError unless it is a cluster file that can be used."""
    from launcher.cluster import load_cluster

    load_cluster(os.path.abspath(os.path.expanduser(file)))

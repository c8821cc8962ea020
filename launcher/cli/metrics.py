"""`launcher metrics`: the numbers that a job's processes print, as they are collected."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from launcher import api
from launcher.cli import options
from launcher.cli.follow import leave_quietly
from launcher.errors import UsageError
from launcher.feed import Feed
from launcher.following import Attention
from launcher.metrics import Records, as_json
from launcher.screen import when


@click.command("metrics")
@click.argument("job")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job ends; Ctrl-C only leaves.")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only this metric; may be repeated.")
@options.output
def metrics_command(job: str, following: bool, names: tuple[str, ...], output: str) -> None:
    """Show the numbers that were found in a job's logs, in the order in which they came."""
    folder = api.find(job)
    defined = api.metric_names(folder)
    if not defined:
        step = "launcher submit --metric NAME=REGEX, or `metrics:` of a job file"
        raise UsageError("the job has no metrics to collect", where=folder.job_id, next_step=step)
    unknown = [name for name in names if name not in defined]
    if unknown:
        raise UsageError(f"the job has no metric {', '.join(unknown)}", where=folder.job_id, problems=defined)
    found = Records(folder.metrics)
    if not following:
        _print(found.new(), names, output)
        return
    leave_quietly()
    feed, attention = Feed(folder), Attention(folder)
    attention.pay()
    while True:
        # The end is written after the last record.
        feed.read_events()
        _print(found.new(), names, output)
        if feed.ended:
            break
        attention.pay()
        feed.wait()


def _print(records: Iterable[dict[str, Any]], names: Sequence[str], output: str) -> None:
    for record in records:
        if names and record["name"] not in names:
            continue
        if output == "json":
            options.print_json({**record, "value": as_json(record["value"])})
        else:
            process = record["node"] if record["rank"] is None else f"{record['node']}:{record['rank']}"
            step, value = record["step"], record["value"]
            click.echo(f"{when(record['time'])}  [{process}]  {record['name']}  {step}  {value:g}")
    sys.stdout.flush()

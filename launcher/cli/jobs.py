"""Commands about jobs as such: list, status, cancel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from launcher import api
from launcher.cli import options
from launcher.screen import ending, is_empty, print_table, say, when


@click.command("list")
@options.output
def list_command(output: str) -> None:
    """List all jobs, oldest first."""
    found = list(api.jobs())
    if output == "json":
        options.print_json({"schema_version": 1, "jobs": found})
        return
    if not found:
        say("no jobs yet", err=True)
        return
    rows: list[tuple[str, ...]] = [("JOB", "STATUS", "NODES", "CLUSTER", "CREATED", "EXIT")]
    for job in found:
        code = "-" if job["exit_code"] is None else str(job["exit_code"])
        rows.append((job["job_id"], job["status"], str(job["nodes"]), job["cluster"] or "-", when(job["created_at"]), code))
    print_table(rows)


@click.command("status")
@click.argument("job")
@options.output
def status_command(job: str, output: str) -> None:
    """Show where a job is, node by node."""
    folder = api.find(job)
    told = api.describe(folder)
    if output == "json":
        options.print_json(told)
        return
    say(f"job          {told['job_id']}")
    say(f"status       {told['status']}" + (f" ({told['reason_code']})" if told["reason_code"] else ""))
    say(f"coordinator  {told['coordinator']}")
    if told["labels"]:
        say(f"labels       {', '.join(f'{name}={text}' for name, text in told['labels'].items())}")
    if told["slurm_job_id"]:
        say(f"slurm job    {told['slurm_job_id']}")
    for name in ("created_at", "started_at", "ended_at"):
        say(f"{name.removesuffix('_at'):<12} {when(told[name])}")
    if told["master_addr"]:
        say(f"master       {told['master_addr']} port {told['master_port']}")
    say(f"folder       {told['folder']}")
    say(f"model        {_model(told)}")
    _print_nodes(told["nodes"])
    seen = api.view(folder)
    if seen.end is not None and seen.end["status"] != "Succeed":
        say(ending(folder, seen))
    elif seen.end is None and told["reason_message"]:
        say(told["reason_message"])
    elif told["coordinator"] in ("lost", "key unavailable"):
        say(f"  next: launcher attach {told['job_id']} (starts a new coordinator, with the keys of this terminal)")


def _model(told: dict[str, Any]) -> str:
    """The model's path, or that there is none."""
    if told["model_data"] is None:
        return "none: no outputs were collected" if told["ended_at"] else "not yet: outputs are collected at the end"
    return f"{told['model_data']}{' (empty)' if is_empty(Path(told['folder']) / 'output' / 'model') else ''}"


def _print_nodes(nodes: list[dict[str, Any]]) -> None:
    rows: list[tuple[str, ...]] = [("NODE", "HOST", "ADDRESS", "STATUS", "NPROC", "PID", "EXIT")]
    for node in nodes:
        cells = [node[key] for key in ("rank", "host", "address", "status", "nproc_per_node", "pid", "exit_code")]
        rows.append(tuple("-" if cell is None else str(cell) for cell in cells))
    print_table(rows)


@click.command("cancel")
@click.argument("job")
@click.option("--now", is_flag=True, help="Kill at once, without grace.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the wish is written.")
@options.output
def cancel_command(job: str, now: bool, no_wait: bool, output: str) -> None:
    """Stop a job everywhere and wait until it has ended.  A job that has ended already is left as it is."""
    from launcher.cli.follow import leave_quietly
    from launcher.following import until_end

    folder = api.find(job)
    api.cancel(folder, 2 if now else 1)
    if not no_wait:
        leave_quietly()
    feed = None if no_wait else until_end(folder)
    if output == "json":
        options.print_json(api.describe(folder))
    else:
        seen = feed.view if feed else api.view(folder)
        say(f"{folder.job_id}: {'asked to stop' if seen.end is None else seen.status.value}")

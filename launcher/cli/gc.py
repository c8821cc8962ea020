"""`launcher gc`: remove what finished jobs left."""

from __future__ import annotations

import sys

import click

from launcher import api
from launcher.cleaning import Findings, look, remove
from launcher.errors import UsageError, told
from launcher.screen import say
from launcher.store import Store

_WHAT = {
    "layers": "requirements that no job has asked for in",
    "inputs": "data that no job has read in",
    "agents": "an agent of another version, here for",
}


@click.command("gc")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def gc_command(ctx: click.Context, jobs: tuple[str, ...], yes: bool) -> None:
    """Remove what finished jobs left on the nodes and end processes of theirs that still live; logs and outputs here stay.

    What is kept there for later jobs (requirements, data, agents of other versions) goes when no job has wanted it in 30 days.

    Without JOB all finished jobs are meant.  Asks first.
    """
    folders = [api.find(job) for job in jobs] if jobs else list(Store().folders())
    found = look(folders, named=bool(jobs))
    for sentence in found.kept:
        say(f"kept: {sentence}", err=True)
    for error in told(found.errors):
        say(f"error: {error}", err=True)
    if found.empty:
        say("nothing to remove", err=True)
        ctx.exit(69 if found.errors else 0)
    _show(found)
    if not yes and not sys.stdin.isatty():
        raise UsageError("nothing was removed: there is no terminal to ask at", next_step="add --yes")
    if not yes and not click.confirm("Remove all this", default=False, err=True):
        ctx.exit(1)
    errors = remove(found)
    for error in told(errors):
        say(f"error: {error}", err=True)
    ctx.exit(69 if errors or found.errors else 0)


def _show(found: Findings) -> None:
    for path in found.here:
        say(f"here: {path}")
    for name, entries in found.there.items():
        for machine, job, alive in entries:
            say(f"{name}: {machine.host.workdir}/node/jobs/{job}" + (", and its living processes" if alive else ""))
    for name, kept in found.stores.items():
        for machine, store, key, days in kept:
            say(f"{name}: {machine.host.workdir}/node/{store}/{key}: {_WHAT[store]} {days} days")

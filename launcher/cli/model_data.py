"""`launcher model-data`: where the model lies, whether it is whole, and a copy of it somewhere else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from launcher import api, keep
from launcher import uri as uris
from launcher.cli import options
from launcher.errors import LauncherError, UsageError
from launcher.manifest import MANIFEST, MODEL, load, verify
from launcher.screen import say, strayed

if TYPE_CHECKING:
    from launcher.policy import View
    from launcher.store import Folder


@click.command("model-data")
@click.argument("job")
@click.option("--verify", "thoroughly", is_flag=True, help="Read what was published to a URI, too, and compare its hashes.")
@click.option("--to", metavar="DIR|URI", help="Copy the model there, its manifest last; nothing else is overwritten.")
@options.output
@click.pass_context
def model_data_command(ctx: click.Context, job: str, thoroughly: bool, to: str | None, output: str) -> None:
    """Say where a job's model lies, after checking it against its manifest; exits 69 when there is none or it is not whole."""
    folder = api.find(job)
    told = api.describe(folder)
    collected = told["model_data"] is not None
    problems = verify(folder.output) if collected else [f"no outputs were collected{'' if told['ended_at'] else ' yet'}"]
    if collected and thoroughly:
        problems += _published_problems(folder)
    here = folder.output / MODEL
    files = [str(file.relative_to(here)) for file in sorted(here.rglob("*")) if file.is_file()] if collected else []
    copied = None
    if output == "text":
        _print(told, files, problems, api.view(folder))
    if to is not None and not problems:
        copied = _copy(folder, to)
    if output == "json":
        document = {
            "job_id": folder.job_id,
            "status": told["status"],
            "model_data": told["model_data"],
            "complete": not problems,
            "problems": problems,
            "files": files,
            "manifest": str(folder.output / MANIFEST) if collected else None,
            "copied_to": copied,
        }
        options.print_json({"schema_version": 1, **document})
    elif to is not None and problems:
        say("error: nothing was copied", err=True)
    elif collected:
        say(copied or told["model_data"])
    ctx.exit(69 if problems else 0)


def _print(told: dict[str, Any], files: list[str], problems: list[str], view: View) -> None:
    if told["status"] != "Succeed":
        say(f"warning: the job has not succeeded: {told['status']}", err=True)
    elif not files:
        say("warning: the model is empty: the command wrote nothing to $PAI_OUTPUT_MODEL", err=True)
        for line in strayed(view):
            say(line, err=True)
    for problem in problems:
        say(f"error: {problem}", err=True)


def _published_problems(folder: Folder) -> list[str]:
    """What is wrong with the copies that the job has published, by their own manifests."""
    from launcher import publish

    problems: list[str] = []
    for target in api.published(folder):
        try:
            problems += publish.verify(target.uri, target.manifest_name)
        except LauncherError as error:
            problems.append(str(error))
    return problems


def _copy(folder: Folder, to: str) -> str:
    """Copy the model; where it is now.  Raises UsageError, StorageFailed."""
    from launcher.publish import of_channel, publish

    path = uris.local_path(to)
    where = to.rstrip("/") if path is None else os.path.abspath(os.path.expanduser(path))
    wrong = uris.problems(where if path is None else to, writing=True) if uris.is_uri(to) else []
    nobodys = keep.nobodys(path or "")
    if nobodys or not to.strip():
        wrong = [nobodys or "a folder or a URI is wanted, not an empty text"]
    elif path is not None and not wrong:
        found = keep.unfit(where) if os.path.isdir(where) or not os.path.exists(where) else f"{where} is a file, no folder"
        wrong = [found] if found else []
    if wrong:
        raise UsageError("the model cannot be copied there", problems=wrong, next_step="name another place")
    target = of_channel(where, load(folder.output), MODEL)
    publish(folder.output, target, lambda text: say(text, err=True), lambda done, total: None)
    return where

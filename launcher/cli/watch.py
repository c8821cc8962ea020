"""Commands that look at a job's course: attach, logs, events, wait."""

from __future__ import annotations

import re
import sys
from typing import Any

import click

from launcher import api
from launcher.cli import options
from launcher.cli.follow import exit_as_the_job, follow, leave_quietly
from launcher.errors import UsageError
from launcher.feed import Feed, Lines
from launcher.following import Attention, until_end
from launcher.screen import Screen, say, sentence_of, when
from launcher.store import Folder


@click.command("attach")
@click.argument("job")
@options.output
@click.pass_context
def attach_command(ctx: click.Context, job: str, output: str) -> None:
    """Watch a job from its first line to its end; Ctrl-C only leaves.  Exits as the job did."""
    folder = api.find(job)
    leave_quietly()
    api.ensure_coordinator(folder)
    exit_as_the_job(ctx, folder, output, follow(folder, Screen(output), None))


@click.command("resume")
@click.argument("job")
@click.option("--take-over", is_flag=True, help="Coordinate a job from here whose coordinator was on a machine that is gone.")
@options.output
@click.pass_context
def resume_command(ctx: click.Context, /, job: str, take_over: bool, output: str) -> None:
    """Collect the outputs of a job that ended as CollectFailed, or publish those of one that ended as PublishFailed.

    Nothing is trained again, and only what is missing is sent.  Exits as the job then does.
    """
    folder = api.find(job)
    seen = None if take_over else Feed(folder, tail=0)
    if seen is None:
        api.take_over(folder)
    else:
        seen.read_events()
        api.resume(folder)
    leave_quietly()
    exit_as_the_job(ctx, folder, output, follow(folder, Screen(output), None, feed=seen))


def _time(text: str) -> float:
    from launcher.cluster import parse_duration  # for this alone

    return parse_duration(text)


@click.command("wait")
@click.argument("job")
@click.option(
    "--timeout", type=options.Parsed("time", _time), help="Give up waiting after that long (90s, 15m), with exit code 75."
)
@options.output
@click.pass_context
def wait_command(ctx: click.Context, job: str, timeout: float | None, output: str) -> None:
    """Wait for a job's end; exits as the job did."""
    folder = api.find(job)
    leave_quietly()
    feed = until_end(folder, timeout)
    if feed is None:
        say(f"{folder.job_id} is still {api.view(folder).status.value}", err=True)
        exit_as_the_job(ctx, folder, output, 75)
    if output == "text":
        Screen(output).finish(folder, feed.view)
    assert feed.view.end is not None
    exit_as_the_job(ctx, folder, output, int(feed.view.end["exit_code"]))


@click.command("logs")
@click.argument("job")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job ends; Ctrl-C only leaves.")
@click.option("--node", type=click.IntRange(min=0), metavar="N", help="Only this node.")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Only the process of this global rank.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines of each log.")
@click.option("--grep", metavar="REGEX", help="Only lines that match.")
@click.option("--stderr", is_flag=True, help="Only what was printed to stderr.")
@options.output
def logs_command(
    job: str, following: bool, node: int | None, rank: int | None, tail: int | None, grep: str | None, stderr: bool, output: str
) -> None:
    """Show what a job's processes printed, each line with its `[node:rank]`."""
    folder = api.find(job)
    wanted = _Filter(node, rank, grep, stderr)
    feed, screen = Feed(folder, tail), Screen()
    attention = Attention(folder)
    if following:
        leave_quietly()
        attention.pay()
    while True:
        for item in feed.read(to_the_end=not following):
            if isinstance(item, Lines):
                _print(wanted.apply(item), screen, output)
        if feed.ended or not following:
            break
        attention.pay()
        feed.wait()
    wanted.complain(folder, feed)


def _print(lines: Lines, screen: Screen, output: str) -> None:
    if output == "text":
        if lines.lines:
            screen.lines(lines)
        return
    for line in lines.lines:
        place = {"node": lines.node, "rank": lines.rank, "local_rank": lines.local_rank, "stream": lines.stream}
        options.print_json({**place, "line": line.decode(errors="replace")})
    sys.stdout.flush()


class _Filter:
    def __init__(self, node: int | None, rank: int | None, grep: str | None, stderr: bool) -> None:
        self._node, self._rank, self._stderr = node, rank, stderr
        try:
            self._pattern = None if grep is None else re.compile(grep.encode())
        except re.error as error:
            raise UsageError(f"--grep {grep!r} is no regular expression: {error}") from error

    def apply(self, lines: Lines) -> Lines:
        """The lines that are wanted."""
        import dataclasses

        fits = (
            self._node in (None, lines.node)
            and self._rank in (None, lines.rank)
            and (not self._stderr or lines.stream == "stderr")
        )
        kept = [line for line in lines.lines if self._pattern is None or self._pattern.search(line)] if fits else []
        return dataclasses.replace(lines, lines=kept)

    def complain(self, folder: Folder, feed: Feed) -> None:
        """Say it where nothing was printed that could be shown; UsageError for a node or rank that the job can never have."""
        logged = feed.logged()
        if self._rank is not None:
            self._complain_of_rank(self._rank, folder, feed, logged)
        elif self._node is not None and self._node not in {node for node, _ in logged}:
            count = api.node_count(folder)
            if self._node >= count:
                raise UsageError(f"{folder.job_id} has no node {self._node}", problems=[f"its nodes are 0 to {count - 1}"])
            _say_nothing_of(f"node {self._node}", feed)

    def _complain_of_rank(self, rank: int, folder: Folder, feed: Feed, logged: set[tuple[int, int | None]]) -> None:
        nodes = [node for node, other in logged if other == rank]
        if nodes and self._node not in (None, *nodes):
            raise UsageError(f"rank {rank} of {folder.job_id} runs on node {nodes[0]}, not on node {self._node}")
        if nodes:
            return
        world = api.world_size(folder, feed.view)
        if (world is None and not feed.ended) or (world is not None and rank < world):
            _say_nothing_of(f"rank {rank}", feed)
            return
        ranks = sorted({other for _, other in logged if other is not None})
        known = "no process has a rank: only those that torchrun starts have one"
        if world or ranks:
            known = f"ranks: 0 to {world - 1}" if world else f"ranks with output: {', '.join(map(str, ranks))}"
        what, step = f"{folder.job_id} has no output of rank {rank}", "--node N shows all of a node"
        raise UsageError(what, problems=[known], next_step=step)


def _say_nothing_of(whom: str, feed: Feed) -> None:
    say(f"{whom} printed nothing" if feed.ended else f"{whom} has printed nothing yet", err=True)


@click.command("events")
@click.argument("job")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job ends; Ctrl-C only leaves.")
@options.output
def events_command(job: str, following: bool, output: str) -> None:
    """Show what happened to a job; with -o json one JSON object a line."""
    folder = api.find(job)
    feed = Feed(folder)
    attention = Attention(folder)
    if following:
        leave_quietly()
        attention.pay()
    while True:
        for event in feed.read_events():
            _print_event(event, feed, output)
        if feed.ended or not following:
            return
        sys.stdout.flush()
        attention.pay()
        feed.wait()


def _print_event(event: dict[str, Any], feed: Feed, output: str) -> None:
    if output == "json":
        options.print_json(event)
        return
    sentence = sentence_of(event, feed.view) or _plain(event)
    say(f"{when(event['time'])}  {sentence}")


def _plain(event: dict[str, Any]) -> str:
    if event["type"] == "agent":
        told = event["event"]
        details = {key: value for key, value in told.items() if key not in ("type", "attempt", "time") and value is not None}
        return f"node {event['node']}: {told['type']} " + " ".join(f"{key}={value}" for key, value in details.items())
    details = {
        key: value for key, value in event.items() if key not in ("n", "time", "type", "nodes") and value not in (None, "")
    }
    return f"{event['type']} " + " ".join(f"{key}={value}" for key, value in details.items())

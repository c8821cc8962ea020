"""What is shown: log lines on stdout with their `node:rank`, everything else on stderr.

What nodes and commands wrote must not steer a terminal: in sentences of ours nothing of it does (`launcher.errors.plain`); of
log lines colors pass.  Into a pipe or a file log lines go byte by byte.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from launcher.errors import plain

if TYPE_CHECKING:
    from launcher.feed import Feed, Lines
    from launcher.model import Plan
    from launcher.policy import View
    from launcher.store import Folder

_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "red")
_STEERING = re.compile(
    rb"(\x1b\[[\d;:]*m)"
    rb"|(?:\x1b\[|\xc2\x9b)[0-?]*[ -/]*[@-~]"
    rb"|(?:\x1b[]PX^_]|\xc2[\x90\x98\x9d-\x9f])[^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    rb"|\x1b[ -/]*[0-~]?|\xc2[\x80-\x9f]|[\0-\x08\x0b-\x1f\x7f]"
)
"""what a terminal obeys (ECMA-48): colors, all other control sequences, strings such as a window's title, single controls"""


class Screen:
    """A person's terminal, or a pipe.  With output json the log lines go to stderr, too."""

    def __init__(self, output: str = "text") -> None:
        stream = sys.stderr if output == "json" else sys.stdout
        self._write = _writer(stream)
        self._terminal = _is_terminal(stream)
        # no-color.org
        self._colored = self._terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._spinner = _Spinner() if _is_terminal(sys.stderr) else None
        self._quiet_end = output == "json"

    def note(self, text: str) -> None:
        """A sentence for the person."""
        self.rest()
        for line in text.splitlines():
            say(line, err=True)

    def warn(self, text: str) -> None:
        """A sentence the person should not miss."""
        self.note(f"warning: {text}")

    def begin(self, folder: Folder, plan: Plan) -> None:
        """The job exists: say its name."""
        count = len(plan.nodes) or plan.spec.nodes or 0
        source = f" by {plan.inventory}" if plan.inventory else ""
        self.note(f"job {folder.job_id}: {count} node{'s' * (count > 1)}, {plan.backend}{source}; folder {folder.root}")
        if plan.allocation:
            self.note(f"it runs in the Slurm allocation {plan.allocation}, and ends with it")

    def show(self, item: Mapping[str, Any] | Lines, feed: Feed, quiet: bool = False) -> None:
        """One event or some log lines."""
        if not isinstance(item, Mapping):
            if not quiet:
                self.lines(item)
            return
        if item["type"] == "progress":
            self._progress(item)
            return
        sentence = sentence_of(item, feed.view)
        if sentence:
            self.note(sentence)
        self._turn_spinner(item["type"])

    def lines(self, lines: Lines) -> None:
        """Log lines, each with its prefix; bytes go out as they came, to a terminal without what it would obey."""
        self.rest()
        prefix = self._prefix(lines)
        shown = [unsteered(line) for line in lines.lines] if self._terminal else lines.lines
        self._write(prefix + (b"\n" + prefix).join(shown) + b"\n")

    def _prefix(self, lines: Lines) -> bytes:
        text = prefix_of(lines)
        return (click.style(text, fg=_COLORS[lines.node % len(_COLORS)]) if self._colored else text).encode() + b" "

    def stopping(self, count: int) -> None:
        """What a Ctrl-C does, and what the next one would."""
        if count == 1:
            self.note("stopping the job; once more to kill it now")
        else:
            self.note("killing the job; once more to leave it alone")

    def leave(self, folder: Folder, view: View) -> int:
        """The third Ctrl-C: say what may still run."""
        alive = [node.host for node in view.nodes.values() if not node.over]
        where = f" on {', '.join(alive)}" if alive else ""
        self.note(
            f"left; the job may still run{where}\n"
            f"  next: launcher cancel --now {folder.job_id}; launcher gc {folder.job_id} ends what is left"
        )
        return 130

    def finish(self, folder: Folder, view: View) -> None:
        """The end: a failure in full, or the model's path as the last line."""
        self.rest()
        if view.end is None:
            return
        if view.end["status"] != "Succeed":
            self.note(ending(folder, view))
        if view.model and not self._quiet_end:
            self._model(folder.as_it_lies(view.model) or "", is_empty(folder.output / "model"), view.end["status"] == "Succeed")

    def _model(self, where: str, empty: bool, success: bool) -> None:
        """Where the model is, as the last line; of a job that failed only where there is something in it."""
        if empty and success:
            self.warn("the model is empty: the command wrote nothing to $PAI_OUTPUT_MODEL")
        if success or not empty:
            sys.stdout.flush()
            say(where)

    def _progress(self, event: Mapping[str, Any]) -> None:
        if self._spinner:
            self._spinner.say(progress_text(event))

    def _turn_spinner(self, kind: str) -> None:
        steps = {
            "coordinator": "reaching the nodes",
            "reached": "sending the code",
            "synced": "looking for node 0's address",
            "prepared": "looking for node 0's address",
            "master": "starting",
            "collecting": "collecting the outputs",
        }
        if self._spinner and kind in steps:
            self._spinner.say(steps[kind])
        elif self._spinner and kind in ("following", "end", "broken"):
            self._spinner.stop()

    def rest(self) -> None:
        """Nothing moves on the screen until something is shown again."""
        if self._spinner:
            self._spinner.stop()


def _is_terminal(stream: TextIO | None) -> bool:
    """A program may have closed it (None), or put an object of its own into its place that can write and no more."""
    return bool(getattr(stream, "isatty", bool)())


def _writer(stream: TextIO | None) -> Callable[[bytes], None]:
    """Writes log lines as they came; only where a stream takes nothing but text (a notebook's), bytes that are none are lost."""
    if stream is None:
        return lambda chunk: None

    def as_bytes(chunk: bytes) -> None:
        stream.flush()
        stream.buffer.write(chunk)
        stream.buffer.flush()

    def as_text(chunk: bytes) -> None:
        stream.write(chunk.decode(errors="replace"))
        getattr(stream, "flush", bool)()

    return as_bytes if hasattr(stream, "buffer") else as_text


class _Spinner:
    """One moving line at the bottom of a terminal, gone before anything else is printed."""

    def __init__(self) -> None:
        self._status: Any = None

    def say(self, text: str) -> None:
        from rich.text import Text

        # As it is: what is in brackets is no markup.
        shown = Text(plain(text))
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(shown)
            self._status.start()
        self._status.update(shown)

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def say(text: str, err: bool = False) -> None:
    """A sentence of ours on stdout or stderr; nothing in it steers a terminal."""
    click.echo(plain(text), err=err)


def unsteered(line: bytes) -> bytes:
    """A log line as a terminal may have it: with its colors, without whatever else a terminal would obey."""
    return _STEERING.sub(lambda found: found[1] or b"", line)


def prefix_of(lines: Lines) -> str:
    """`[node:rank]`, or `[node]` for what the command itself printed."""
    return f"[{lines.node}]" if lines.rank is None else f"[{lines.node}:{lines.rank}]"


def progress_text(event: Mapping[str, Any]) -> str:
    """`reach 3/8`, `sync 1.2 of 3.4 MiB`, `prepare 0/2: node1: Collecting numpy`."""
    what = f": {event['what']}" if event.get("what") else ""
    if event.get("unit") == "bytes":
        return f"{event['step']} {event['done'] / 2**20:.1f} of {event['total'] / 2**20:.1f} MiB{what}"
    return f"{event['step']} {event['done']}/{event['total']}{what}"


def sentence_of(event: Mapping[str, Any], view: View) -> str | None:
    """An event in a sentence for people; None for those that say nothing new to them."""
    writer = _SENTENCES.get(event["type"])
    return writer(event, view) if writer else None


def _name(rank: int, view: View) -> str:
    # What is read at once is folded at once: an event behind this one, such as a requeue, may have taken the nodes away.
    node = view.nodes.get(rank)
    return f"node {rank}" if node is None else f"node {rank} ({node.host})"


def _reached(event: Mapping[str, Any], view: View) -> str | None:
    if not event["nodes"]:
        return None
    count, total = len(event["nodes"]), event.get("processes")
    to_come = f", {total} process{'es' * (total > 1)} to come" if total else ""
    return f"reached {count} node{'s' * (count > 1)}{to_come}"


def _synced(event: Mapping[str, Any], view: View) -> str | None:
    if all(entry["way"] is None for entry in event["nodes"]):
        return None
    files = sum(entry["files"] for entry in event["nodes"])
    if not files:
        return "code is in place: nothing had to be sent"
    from launcher.code import size_text

    size = size_text(sum(entry["bytes"] for entry in event["nodes"]))
    return f"code is in place: {files} file{'s' * (files > 1)}, {size} sent"


def _prepared(event: Mapping[str, Any], view: View) -> str | None:
    layers = [entry["layer"] for entry in event["nodes"] if "layer" in entry]
    if not layers:
        return None
    built = [layer["seconds"] for layer in layers if layer["built"]]
    return f"requirements are in place: {f'installed in {max(built):.0f} s' if built else 'kept from an earlier job'}"


def _master(event: Mapping[str, Any], view: View) -> str:
    interfaces = sorted({name for name in event["interfaces"].values() if name})
    via = f" via {', '.join(interfaces)}" if interfaces else ""
    return f"master {event['address']} port {event['port']}{via} ({event['origin']})"


def _agent(event: Mapping[str, Any], view: View) -> str | None:
    told = event["event"]
    if told["type"] == "exited" and told.get("exit_code") and not view.stopping:
        from launcher.diagnosis import ended

        return f"{_name(event['node'], view)}: the command {ended(told['exit_code'], told.get('signal'))}"
    if told["type"] == "killing":
        why = "" if view.stop_level > 1 else "grace is over, "
        count = len(told["pids"])
        return f"{_name(event['node'], view)}: {why}killing {count} process{'es' * (count > 1)}"
    if told["type"] == "warned":
        return f"{_name(event['node'], view)}: {_warned(told)}"
    if told["type"] == "outcome" and told.get("survivors"):
        return f"{_name(event['node'], view)}: processes that cannot be ended: {told['survivors']}"
    return None


def _warned(told: Mapping[str, Any]) -> str:
    """Whom a warning reached on a node, and whom not."""
    signal, heard, deaf = told["signal"], told["told"], told["untold"]
    if not heard and not deaf:
        return f"{signal} was not delivered: no training process runs there yet"
    if not deaf:
        return f"{signal} was delivered to {_called(heard)}"
    spared = f"{_called(deaf)} does not catch it"
    return f"{signal} was delivered to {_called(heard)}, but {spared}" if heard else f"{signal} was not delivered: {spared}"


def _called(processes: list[Mapping[str, Any]]) -> str:
    """Processes by rank, where they have one, else by name."""
    ranks = [str(one["rank"] if one.get("rank") is not None else one["local_rank"]) for one in processes if "local_rank" in one]
    return f"rank {', '.join(ranks)}" if ranks else ", ".join(str(one.get("name")) for one in processes)


def _requeued(event: Mapping[str, Any], view: View) -> str:
    return f"{event['message']}: back in Slurm's queue (requeue {event['requeue']}, by {event['by']})"


def _stopping(event: Mapping[str, Any], view: View) -> str:
    why = {"failure": "a node failed", "cancel": "cancelled", "max_run_time": "max_run_time is over"}.get(
        event["reason"], event["reason"]
    )
    if event["reason"] == "allocation":
        why = str((view.revoked or {}).get("message"))
    return f"{why}: {'killing' if event['level'] > 1 else 'stopping'} all nodes" + (
        f" ({event['grace']:g} s grace)" if event["grace"] else ""
    )


def _collected(event: Mapping[str, Any], view: View) -> str | None:
    lines = [f"conflict: {conflict}" for conflict in event.get("conflicts", [])]
    for rank, channels in sorted(event.get("unasked", {}).items()):
        lines.append(
            f"{_name(int(rank), view)}: {', '.join(channels)} stay there (output/model.json tells where; --collect brings them)"
        )
    return "\n".join([*lines, *strayed(view)]) or None


def strayed(view: View) -> list[str]:
    """What a command without a model wrote into its working copies, which stay there: a sentence for each."""
    lines = []
    for rank, told in sorted(view.strayed.items()):
        more = told["count"] - len(told["files"])
        names = ", ".join(told["files"]) + (f" and {more} more" if more else "")
        lines.append(f"{_name(rank, view)}: the command wrote {names} into its working copy, which stays there: {told['code']}")
    return lines


def _published(event: Mapping[str, Any]) -> str:
    return f"published {event['files']} file{'s' * (event['files'] != 1)} to {', '.join(event['targets'])}"


_SENTENCES: dict[str, Callable[[Mapping[str, Any], View], str | None]] = {
    "reached": _reached,
    "synced": _synced,
    "prepared": _prepared,
    "master": _master,
    "following": lambda event, view: "running" if not event.get("adopted") else "following again",
    "agent": _agent,
    "note": lambda event, view: str(event["message"]),
    "lost": lambda event, view: f"{_name(event['node'], view)}: {event['message']}; trying again",
    "found": lambda event, view: f"{_name(event['node'], view)}: reached again, nothing was lost",
    "gone": lambda event, view: f"{_name(event['node'], view)} is lost: {event['message']}",
    "key unavailable": lambda event, view: f"cannot log in again: {event['message']}",
    "attempt": lambda event, view: f"starting again: {event['why']}",
    "warning": lambda event, view: f"Slurm sent {event['signal']}: {event['message']}",
    "requeued": _requeued,
    "requeue failed": lambda event, view: f"the job could not be requeued: {event['message']}",
    "stopping": _stopping,
    "collecting": lambda event, view: "collecting the outputs",
    "collected": _collected,
    "published": lambda event, view: _published(event),
    "publish failed": lambda event, view: f"the outputs could not be published: {event['message']}",
    "collect failed": lambda event, view: f"the outputs could not be collected: {event['message']}",
}


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def is_empty(model: Path) -> bool:
    """True where the command left nothing to collect as its model."""
    return not (model.is_dir() and any(model.iterdir()))


def ending(folder: Folder, view: View) -> str:
    """Why a job did not succeed: what, where, the last lines, and the next step."""
    assert view.end is not None
    lines = [f"{view.end['status']}: {view.end['reason_message']}"]
    failure = view.failure or {}
    words = failure.get("traceback") or failure.get("last_lines") or ""
    lines += [f"    {line}" for line in words.rstrip().splitlines()[-30:]]
    if failure.get("hint"):
        lines.append(f"  hint: {failure['hint']}")
    if failure.get("log"):
        lines.append(f"  log: {folder.as_it_lies(failure['log'])}")
    if view.collect_error is None and view.publish_error is not None:
        again = f"launcher model-data {folder.job_id} --to URI copies the model"
        resume = f"launcher resume {folder.job_id} publishes them, without training again; only what is missing is sent"
        lines.append(f"  next: {again if folder.slurm.exists() else resume}")
    elif view.collect_error is not None and not folder.slurm.exists():
        lines.append(f"  next: launcher resume {folder.job_id} collects the outputs, without training again")
    elif "  next: " not in lines[0]:
        # Where nothing ran, there is nothing to read.
        logs = any(log.stat().st_size for log in folder.logs.rglob("*.log"))
        lines.append(f"  {f'next: launcher logs {folder.job_id}; ' if logs else ''}everything is in {folder.root}")
    return "\n".join(lines)


def when(seconds: float | None) -> str:
    """A time for people: local, to the second."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))

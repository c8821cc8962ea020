"""Every error a person can meet, in one tree.

    LauncherError                 70   something of ours went wrong
    ├── UsageError                 2   wrong arguments or files; lists every problem at once
    │   ├── WrongArguments         2   what code handed over, every problem of it; a ValueError, too
    │   ├── JobNotFound            2   no job, or more than one, has that name
    │   └── SubmitRefused          2   sbatch refused the job
    ├── NodeError                 69   a node cannot be reached or used
    │   ├── HostKeyUnknown        69   nobody has vouched for this host's key
    │   ├── HostKeyChanged        69   the key differs from the recorded one
    │   ├── HostKeyRevoked        69   the key is marked @revoked
    │   ├── LoginRefused          69   the host answered, the log-in did not work
    │   ├── HostUnreachable       69   nothing answered at that address
    │   ├── NodeUnusable          69   we are in, but something needed is missing there
    │   ├── LinkLost              69   the connection broke; the node may be fine
    │   └── NodeGone              69   its task of a Slurm step has ended; no connection can come back
    ├── SlurmSilent               69   a command of Slurm's is missing, failed, or did not answer in time
    ├── NodesFailed               69   several NodeErrors, gathered and raised once
    ├── UnexpectedStatusException 70   a job that was waited for did not succeed; each has its job's own exit status
    ├── ValueRefused              69   what a function returned on a node cannot be had here
    ├── RemoteError               70   a function raised an exception on a node
    ├── CollectFailed             69   the outputs could not be brought here whole
    ├── HomeFull                  74   there is no room for a job's folder
    └── StorageFailed             69   what a URI names could not be read or written

The number is the exit status of a command that ends with the error.  Every error says what happened, where, the last
lines of whoever spoke there, and the next step; ``str(error)`` is all four, ready to print: see `plain`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_COLOR = re.compile(r"\x1b\[[\d;:]*m")
_UNFIT = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_MANY = 4
"""nodes with the same trouble from which on it is told once"""


def plain(text: str) -> str:
    """A text of ours as it may be shown, whatever is quoted in it: a node's words, a traceback, a file's name.

    What would steer a terminal, or turn the order of letters, is shown as an escape (`\\x1b`); colors are left out.
    """
    return _UNFIT.sub(_escaped, _COLOR.sub("", text))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class LauncherError(Exception):
    """An error with everything a person needs: what, where, the last lines, and the next step."""

    exit_code = 70

    def __init__(self, what: str, *, where: str = "", lines: Sequence[str] = (), next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.lines = tuple(lines)
        self.next_step = next_step

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        body = [f"    {line}" for line in self.lines]
        tail = [f"  next: {self.next_step}"] if self.next_step else []
        return plain("\n".join([head, *body, *tail]))


class UsageError(LauncherError):
    """Wrong arguments or files.  ``problems`` lists all of them, each a sentence that begins with its place."""

    exit_code = 2

    def __init__(self, what: str, *, problems: Sequence[str] = (), where: str = "", next_step: str = "") -> None:
        super().__init__(what, where=where, lines=problems, next_step=next_step)
        self.problems = tuple(problems)


class WrongArguments(UsageError, ValueError):
    """Arguments of Estimator, fit or run that cannot be; ``problems`` has all of them."""


class JobNotFound(UsageError):
    """No job, or more than one, answers to the name that was given."""


class SubmitRefused(UsageError):
    """sbatch did not take the job; ``lines`` are its own words."""


class NodeError(LauncherError):
    """A node cannot be reached or used.  ``where`` is the host's name in the inventory."""

    exit_code = 69


class HostKeyUnknown(NodeError):
    """No known_hosts file has a key for this host."""


class HostKeyChanged(NodeError):
    """The host shows another key than the recorded one."""


class HostKeyRevoked(NodeError):
    """The host shows a key that a known_hosts file marks @revoked."""


class LoginRefused(NodeError):
    """The host answered, but none of the keys at hand opened it."""


class HostUnreachable(NodeError):
    """Nothing answered at the host's address."""


class NodeUnusable(NodeError):
    """We are in, but something the job needs is missing there."""


class LinkLost(NodeError):
    """The connection broke or fell silent; what runs on the node is not touched by that."""


class NodeGone(NodeError):
    """The node's task of a Slurm step has ended, or could not be started; nothing of ours runs there any more."""


class SlurmSilent(LauncherError):
    """A command of Slurm's is missing, failed, or did not answer in time; ``lines`` are its own words."""

    exit_code = 69


class NodesFailed(LauncherError):
    """Several nodes failed in one phase; ``errors`` has one entry for each."""

    exit_code = 69

    def __init__(self, what: str, errors: Sequence[NodeError]) -> None:
        super().__init__(what, lines=[line for text in told(errors) for line in text.splitlines()])
        self.errors = tuple(errors)


def told(errors: Sequence[NodeError]) -> list[str]:
    """The errors as texts; what so many nodes have alike that nobody would read it of each is one, which names them all."""
    alike: dict[tuple[type[NodeError], str, str], list[NodeError]] = {}
    for error in errors:
        alike.setdefault((type(error), error.what, _of_any(error, error.next_step)), []).append(error)
    return [text for some in alike.values() for text in ([_once(some)] if len(some) >= _MANY else map(str, some))]


def _once(errors: Sequence[NodeError]) -> str:
    first = errors[0]
    same = len({tuple(_of_any(error, line) for line in error.lines) for error in errors}) == 1
    lines = first.lines if same else [f"{error.where}: {line}" for error in errors for line in error.lines[-1:]]
    likewise = "" if len({error.next_step for error in errors}) == 1 else " (the others likewise)"
    where = ", ".join(error.where for error in errors)
    return str(LauncherError(first.what, where=where, lines=lines, next_step=first.next_step and first.next_step + likewise))


def _of_any(error: NodeError, text: str) -> str:
    """What is said of a node, without its name."""
    return re.sub(rf"(?<![\w.-]){re.escape(error.where)}(?![\w.-])", "\0", text) if error.where else text


def gathered(complaint: str, errors: Sequence[NodeError]) -> NodeError | NodesFailed:
    """What to raise for the errors of one phase, at least one: that very one, where they are one, else all of them."""
    return errors[0] if len({id(error) for error in errors}) == 1 else NodesFailed(complaint, errors)


class CollectFailed(LauncherError):
    """The outputs could not be brought here whole; they still lie on the nodes."""

    exit_code = 69


class HomeFull(LauncherError):
    """The disk of LAUNCHER_HOME is full: nobody can coordinate the job there; what runs on its nodes goes on."""

    exit_code = 74


class StorageFailed(LauncherError):
    """What a URI names could not be read or written; ``where`` is the URI, without secrets."""

    exit_code = 69


class UnexpectedStatusException(LauncherError):
    """A job that was waited for ended in another way than by success; ``str(error)`` is all that is known of why."""

    exit_code = 70

    def __init__(
        self,
        what: str,
        status: str = "Failed",
        *,
        job_id: str = "",
        reason_code: str | None = None,
        reason_message: str | None = None,
        exit_code: int | None = None,
        failure: Any = None,
    ) -> None:
        super().__init__(what)
        self.status = status
        self.job_id = job_id
        self.reason_code = reason_code
        self.reason_message = reason_message
        self.exit_code = self.exit_code if exit_code is None else exit_code
        self.failure = failure
        """what went wrong first, a `launcher.model.Failure`: node, host, rank, traceback, log; None where no process failed"""


class ValueRefused(LauncherError):
    """What a function returned on a node cannot be had here: of a type that does not travel, too large, or not whole."""

    exit_code = 69


class RemoteError(LauncherError):
    """A function raised an exception on a node; one of a built-in type is of that type, too, so that `except` finds it."""

    exit_code = 70

    def __init__(self, what: str, *, type_name: str, rank: int, node: int, host: str, traceback: str, job_id: str = "") -> None:
        """``what`` is the exception's own text, ``type_name`` its class, as the node wrote them."""
        place = f"rank {rank} (node {node}, {host})"
        super().__init__(what, where=place, lines=traceback.splitlines(), next_step=f"launcher logs {job_id}")
        self.type_name = type_name
        self.rank = rank
        self.node = node
        self.host = host
        self.remote_traceback = traceback
        self.job_id = job_id

    def __str__(self) -> str:
        head = f"{self.where}: {self.type_name}: {self.what}"
        return plain("\n".join([head, *(f"    {line}" for line in self.lines), f"  next: {self.next_step}"]))

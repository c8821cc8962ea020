"""What torchrun reports when its processes fail, and what a dying rank writes.

What is said of a version was read in that version's source or seen in a report recorded from it (tests/torchrun/reports:
torch 1.9.1, 1.12.1 and 2.13.0).  Read when a job has failed, so nothing else loads this.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Sequence

from launcher.record import dataclass

_LAST = 10
"""lines that are quoted of a process that ended without a traceback"""
TAIL = 256 * 1024
"""characters at the end of a text that are looked at; a report and a traceback stand at the end"""


@dataclass(frozen=True)
class RankFailure:
    """The end of one rank, as torchrun saw it."""

    local_rank: int
    exit_code: int
    """as a shell would give it: 128+n for signal n"""
    rank: int | None = None
    """global rank; None where only the log line was there"""
    signal: str | None = None
    pid: int | None = None
    time: str | None = None
    """YYYY-MM-DD_HH:MM:SS, by the node's clock"""
    error_file: str | None = None
    """on the node; only a script with torch's @record writes one"""
    message: str | None = None
    """the traceback, where there is an error file, or a sentence; None where torchrun knew nothing"""


@dataclass(frozen=True)
class Report:
    """torchrun's account of a failed run on one node."""

    root: RankFailure
    """the first failure that torchrun observed there; of two in one look it is the lower local rank"""
    others: tuple[RankFailure, ...] = ()

    @property
    def by_themselves(self) -> tuple[RankFailure, ...]:
        """The ranks that were not merely ended by torchrun's SIGTERM, the root first."""
        return (self.root, *(other for other in self.others if other.signal not in ("SIGTERM", "SIGKILL")))


_ROOT = re.compile(r"(.*?)Root Cause(?: \(first observed failure\))?:\s*\Z")
"""the heading; with `:` alone in 1.9, where the root stands above the other failures, below them since 1.10"""
_ENTRY = re.compile(r"\s*\[\d+\]:\s*\Z")
_FIELD = re.compile(r"\s*(time|host|rank|exitcode|error_file|traceback|msg)\s*:\s?(.*)", re.DOTALL)
_LOG_LINE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\) of (?:binary|fn)")
_EMPTY = re.compile(r"To enable traceback see: |\"?Process failed with exitcode -?\d+\"?\Z|<N/A>|<NONE>")


def parse_report(stderr_text: str) -> Report | None:
    """The last report in what torchrun wrote to its stderr; None where it reported no failure of a rank."""
    lines = stderr_text[-TAIL:].splitlines()
    for place in range(len(lines) - 1, 0, -1):
        heading = _ROOT.match(lines[place])
        report = _table(lines, place, heading[1]) if heading else None
        if report:
            return report
    noted = _LOG_LINE.findall("\n".join(lines))
    return Report(_ended(int(noted[-1][1]), int(noted[-1][0]), pid=int(noted[-1][2]))) if noted else None


def _table(lines: Sequence[str], heading: int, prefix: str) -> Report | None:
    """The table whose `Root Cause` line is ``heading``; ``prefix`` is what somebody put before each of its lines."""
    over = lines[heading - 1].removeprefix(prefix).rstrip()
    rule = len(over)  # all rules of one table are equally long
    if not _is_rule(over, rule):
        return None
    bare = [line.removeprefix(prefix).rstrip() for line in lines]
    roots = _entries(_until_rule(bare[heading + 1 :], rule))
    above = list(_until_rule(reversed(bare[: heading - 1]), rule))[::-1]
    below = bare[heading + 1 :]
    following = below[next((n + 1 for n, line in enumerate(below) if _is_rule(line, rule)), len(below)) :]
    section = above if above[:1] == ["Failures:"] else list(_until_rule(following, rule))
    others = _entries(section[1:]) if section[:1] in (["Failures:"], ["Other Failures:"]) else []
    return Report(roots[0], tuple(others)) if roots else None


def _is_rule(line: str, width: int) -> bool:
    return len(line) == width and width > 0 and line[0] in "=-*" and line == line[0] * width


def _until_rule(lines: Sequence[str] | Iterator[str], width: int) -> Iterator[str]:
    for line in lines:
        if _is_rule(line, width):
            return
        yield line


def _entries(lines: Sequence[str] | Iterator[str]) -> list[RankFailure]:
    entries: list[list[str]] = []
    for line in lines:
        if _ENTRY.match(line):
            entries.append([])
        elif entries:
            entries[-1].append(line)
    return [failure for failure in map(_entry, entries) if failure]


def _entry(lines: Sequence[str]) -> RankFailure | None:
    """One rank's fields; the last of them goes on over all lines that follow it."""
    fields: dict[str, str] = {}
    for place, line in enumerate(lines):
        field = _FIELD.match(line)
        if field and field[1] in ("traceback", "msg"):
            fields["message"] = "\n".join([field[2], *(more.removeprefix("  ") for more in lines[place + 1 :])])
            break
        if field:
            fields[field[1]] = field[2].strip()
    rank = re.match(r"(\d+) \(local_rank: (\d+)\)", fields.get("rank", ""))
    code = re.match(r"(-?\d+) \(pid: (\d+)\)", fields.get("exitcode", ""))
    if not rank or not code:
        return None
    return _ended(
        int(rank[2]),
        int(code[1]),
        rank=int(rank[1]),
        pid=int(code[2]),
        time=fields.get("time"),
        error_file=None if fields.get("error_file") in (None, "<N/A>") else fields["error_file"],
        message=_plain(fields.get("message", "").strip()),
    )


def _plain(message: str) -> str | None:
    """What there is to say, out of its quotes or JSON (1.9 prints the error file as it is); None where torchrun knew nothing."""
    if not message or _EMPTY.match(message):
        return None
    quoted = re.match(r'"?\{\s*"message": ("(?:[^"\\]|\\.)*")', message)
    return str(json.loads(quoted[1])) if quoted else message.strip('"')


def _ended(
    local_rank: int,
    code: int,
    *,
    pid: int,
    rank: int | None = None,
    time: str | None = None,
    error_file: str | None = None,
    message: str | None = None,
) -> RankFailure:
    """A failure from Python's kind of exit code, where -n means signal n."""
    exit_code, name = (128 - code, _signal_name(-code)) if code < 0 else (code, None)
    return RankFailure(local_rank, exit_code, rank, name, pid, time, error_file, message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_BIND_FAILED = re.compile(
    r"server socket has failed to (?:listen|bind).*(?:EADDRINUSE|[Aa]ddress already in use)"  # 1.11 and later
    r"|^RuntimeError: Address already in use",  # 1.9 and 1.10
    re.MULTILINE,
)


def bind_failed(stderr_text: str) -> bool:
    """Whether torchrun ended because MASTER_PORT was taken, before any worker began."""
    return _BIND_FAILED.search(stderr_text[-TAIL:]) is not None and parse_report(stderr_text) is None


# --- What a dying rank writes -----------------------------------------------------------------------------------------------

_HEADER = re.compile(
    r"(?P<prefix>(?:\[[\w ]+\]: ?|\d+: )?)(?P<mark>[ |+]*)(?:Exception Group )?Traceback \(most recent call last\):\s*\Z"
)
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_NOT_THE_END = ("Exception ignored in", "Exception in thread")
"""tracebacks under such a line did not end the process"""
_OTHERS_LINE = re.compile(
    r"\[?[WEIFD]\d{4} |\[[WEIFD]\d* |(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\[?\d{4}-\d\d-\d\d[ T]"
    r"|\S+Warning: |\S+:\d+: \S*Warning: |terminate called|Exception ignored in|Fatal Python error"
)
"""how lines begin that logging, warnings or the C++ library put among a traceback's"""
_SYNTAX = re.compile(r'^  File "[^\n]*", line \d+\n(?: {4,}[^\n]*\n)*(?:Syntax|Indentation|Tab)Error: [^\n]*', re.MULTILINE)
_GROUP_RULE = re.compile(r"[ |+]*\+-{3,}")
_FRAME = re.compile(rf"""[ |+]+File "|{_GROUP_RULE.pattern}""")
_MESSAGE_LINES = 40
"""of a message that goes on over several lines so many are shown"""


def last_traceback(text: str) -> str | None:
    """The traceback that ended a Python process, from its stderr: the last one, with the exceptions it is chained to.

    torch puts `[rank3]: ` before each line; that is taken off.  None where there is none, as after a signal.
    """
    lines = text[-TAIL:].splitlines()
    headers = [(place, header) for place, line in enumerate(lines) if (header := _HEADER.match(line))]
    fatal = [pair for pair in headers if not _is_passed_over(lines, pair[0])] or headers
    if not fatal:
        syntax = _SYNTAX.findall(text[-TAIL:])
        return syntax[-1] if syntax else None
    prefix = fatal[-1][1]["prefix"]
    if prefix:
        same = [line[len(prefix) :] for line in lines if line.startswith(prefix.rstrip())]
        return last_traceback("\n".join(same))
    starts = [place for place, header in headers if not header["prefix"] and header["mark"] in ("", "  + ")]
    start = max((place for place in starts if place <= fatal[-1][0]), default=fatal[-1][0])
    end = _end(lines, start)
    while (before := _chained_before(lines, starts, start)) is not None:
        start = before
    return "\n".join(lines[start:end]).rstrip()


def last_lines(text: str) -> str | None:
    """What a process printed last, as people saw it: no empty lines, of a progress bar its newest state; None for nothing."""
    shown = [line.rstrip().rpartition("\r")[2] for line in text[-TAIL:].split("\n")]
    return "\n".join([line for line in shown if line.strip()][-_LAST:]) or None


def _is_passed_over(lines: Sequence[str], header: int) -> bool:
    return header > 0 and lines[header - 1].startswith(_NOT_THE_END)


def _chained_before(lines: Sequence[str], starts: Sequence[int], start: int) -> int | None:
    """Where the exception begins that the one at ``start`` grew out of."""
    before = max((place for place in starts if place < start), default=None)
    if before is None or not any(line.strip(" |") in _CHAINED for line in lines[before:start]):
        return None
    return before


def _end(lines: Sequence[str], start: int) -> int:
    """The line after the traceback that begins at ``start``: behind its frames stand the exception and all of its message."""
    bound = next((place for place in range(start, len(lines)) if lines[place].startswith(_NOT_THE_END)), len(lines))
    place = max((place for place in range(start, bound) if _FRAME.match(lines[place])), default=start) + 1
    if _GROUP_RULE.match(lines[place - 1]):
        return place
    while place < bound and (lines[place].startswith("    ") or _OTHERS_LINE.match(lines[place])):
        place += 1
    limit = min(bound, place + _MESSAGE_LINES)
    return next((after for after in range(place + 1, limit) if _OTHERS_LINE.match(lines[after])), limit)


_UNREACHED = r"client socket has (?:timed out|failed to connect)"
_CONSEQUENCE = re.compile(
    r"Connection closed by (?:remote )?peer|remote process exited or there was a network error|ncclRemoteError"
    r"|(?<!\[Errno 104\] )Connection reset by peer|(?<!\[Errno 32\] )Broken pipe"
    r"|failed to recv, got 0 bytes|Did the remote server shutdown or crash"
    r"|typically caused by a remote worker crashing|Timed out waiting \d+ms for (?:recv|send) operation to complete"
    rf"|{_UNREACHED}"
)
"""gloo, NCCL and the store when the other side is gone; behind `[Errno 104] ` it is Python's own socket: another matter"""


def is_consequence(text: str) -> bool:
    """Whether a rank's stderr only says that a peer went away, so that the cause is another rank's failure."""
    traceback = last_traceback(text)
    if traceback is None:
        return _CONSEQUENCE.search(text[-4096:]) is not None
    return _CONSEQUENCE.search(_exception(traceback)) is not None


def _exception(traceback: str) -> str:
    """What stands behind the last frame."""
    lines = traceback.splitlines()
    last = max((place for place, line in enumerate(lines) if re.match(r"[ |+]+File \"", line)), default=-1)
    return "\n".join(lines[last + 1 :])


_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
        "the GPU's memory is full: a smaller batch, or a GPU without other jobs",
    ),
    (r"No space left on device", "a file system on that node is full (or /dev/shm, where data loaders pass their batches)"),
    (r"Disk quota exceeded", "the user's quota on that node's file system is used up"),
    (r"Bus error.*shared memory|insufficient shared memory", "/dev/shm on that node is too small for the data loaders' workers"),
    (
        r"No module named '([\w.]+)'",
        "the node's Python has no module {0}: install it there, or name the right `python` or `venv`",
    ),
    (
        r"unrecognized arguments: [^\n]*--local[-_]rank",
        "torch.distributed.launch passes --local-rank: let the script accept it, or use torchrun, which does not pass it",
    ),
    (r"can't open file '([^'\n]+)'", "there is no {0} on the node: the script is looked for in the source folder"),
    (
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^'\n]+)'",
        "that node has no {0}: the source folder goes there without what ignore files leave out, data by --input",
    ),
    (r"CUDA error: invalid device ordinal", "more processes than GPUs on that node: lower --nproc-per-node"),
    (
        r"No CUDA GPUs are available|Found no NVIDIA driver",
        "that node's Python sees no GPU: look at its driver, at CUDA_VISIBLE_DEVICES, and whether its torch is a CPU build",
    ),
    (r"Duplicate GPU detected", "two processes use the same GPU: each must choose the one of its LOCAL_RANK"),
    (
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for|wait timeout after \d+ms",
        "a collective waited in vain: one rank was slow, stuck or gone, or ranks called different collectives",
    ),
    (_UNREACHED, "nobody answered at MASTER_ADDR and MASTER_PORT: look at node 0's log"),
    (_CONSEQUENCE.pattern, "a peer's connection ended first: look at the other ranks' logs for the cause"),
)


def log_hint(text: str, signal_name: str | None = None) -> str | None:
    """One sentence for a well-known cause that a rank's stderr, or the signal it died of, shows; None for all others."""
    tail = _exception(last_traceback(text) or "") or text[-8192:]
    for pattern, sentence in _HINTS:
        found = re.search(pattern, tail)
        if found:
            return sentence.format(*found.groups()) if "{0}" in sentence else sentence
    if signal_name == "SIGKILL":
        return "somebody killed it: often the kernel, because the node's memory was full (see `dmesg` there)"
    if signal_name in ("SIGSEGV", "SIGBUS", "SIGILL"):
        return "it crashed in compiled code: run it with PYTHONFAULTHANDLER=1 to see where"
    return None

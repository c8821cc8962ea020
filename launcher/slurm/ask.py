"""Questions put to Slurm's commands, with explicit fields and time limits, and answers as typed values.

Three things are kept apart: an answer, the answer that there is no such job, and no answer at all.  A slurmctld that
is away says nothing about a job.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from launcher.errors import SlurmSilent
from launcher.record import dataclass
from launcher.slurm import hostlist
from launcher.slurm.states import JobState, state

PATIENCE = 10.0
"""seconds for one command; Slurm's own tools try again for longer while slurmctld is away"""
HASTE = 1.0
"""seconds after which somebody in haste asks whether slurmctld is there at all"""
_PING = 5.0
"""seconds for that question: its answer comes at once, but not from a machine that is too busy to start a program"""
CLOCKS = 60.0
"""seconds by which slurmctld's clock may differ from ours before a job of this number counts as another one"""
_LAST_LINES = 5


@dataclass(frozen=True)
class Report:
    """What Slurm says of a job."""

    state: JobState
    word: str
    """the state in Slurm's own words, `CANCELLED by 1000` included"""
    reason: str
    """why it waits or ended, in Slurm's own word: `Resources`, `TimeLimit`; empty when it gives none"""
    submitted_at: float | None
    started_at: float | None
    ended_at: float | None
    """seconds since the epoch"""
    nodes: tuple[str, ...]
    exit_code: int | None
    signal: int | None
    restarts: int | None
    source: str
    """the command that told: squeue, sacct or scontrol"""


@dataclass(frozen=True)
class NoSuchJob:
    """Slurm answered, and knows no such job (any more), or its number belongs to another one now."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class NoAnswer:
    """Nobody could be asked: nothing is known of the job, least of all that it is gone."""

    words: tuple[str, ...]


def job_state(
    job_id: str, submitted_at: float | None, *, name: str | None = None, haste: bool = False
) -> Report | NoSuchJob | NoAnswer:
    """What is known of the job ``job_id`` that was submitted at ``submitted_at`` (seconds since the epoch).

    squeue is asked first, then scontrol for the exit code of a job that has ended; sacct when squeue knows no such job or
    does not answer; scontrol for the restarts of a job that seems to be another one.  Of the accounting only an end counts:
    what still runs there while slurmctld does not say so is old.
    Slurm counts its numbers anew when its state is lost, so a job that was submitted at another time, or is not called
    ``name`` where that is given, is another one.  In ``haste`` a slurmctld that does not run is not waited for; one that
    is slow is.
    """
    words: list[str] = []
    answered = answered_otherwise = False
    squeue = functools.partial(_from_squeue, haste=haste)
    for source in (squeue, _from_sacct, _from_scontrol):
        if source is _from_scontrol and not answered_otherwise:
            break  # it asks the slurmctld that squeue has asked
        try:
            found = source(job_id)
        except SlurmSilent as error:
            words += error.lines or (error.what,)
            answered = answered or is_invalid(error)
            continue
        mine = [one.report for one in found if _is_mine(one, submitted_at, name)]
        if mine and source is squeue:
            return _with_exit_code(job_id, mine[-1])
        if mine and (mine[-1].state.ended or source is _from_scontrol):
            return mine[-1]
        answered_otherwise = answered_otherwise or source is squeue
        answered = answered or (bool(found) and source is not _from_sacct)
        words += [_other(job_id, one) if one.report not in mine else f"{one.report.source}: {one.report.word}" for one in found]
    return (NoSuchJob if answered else NoAnswer)(tuple(words))


def _other(job_id: str, found: _Found) -> str:
    return f"job {job_id} is another one: {found.name}, submitted at {found.report.submitted_at}"


def _with_exit_code(job_id: str, report: Report) -> Report:
    """The report of an ended job as scontrol has it, if it can be asked."""
    if report.state.ended:
        try:
            told = _from_scontrol(job_id)[-1].report
        except SlurmSilent:
            return report
        if told.state == report.state and told.submitted_at == report.submitted_at:
            return told
    return report


_INVALID = re.compile("Invalid job id", re.IGNORECASE)
"""slurmctld's answer for a number that it does not know, in all of its commands"""


def is_invalid(error: SlurmSilent) -> bool:
    """Whether slurmctld did answer, that it knows no such job."""
    return any(_INVALID.search(line) for line in error.lines)


@dataclass(frozen=True)
class _Found:
    report: Report
    name: str


def _is_mine(found: _Found, submitted_at: float | None, name: str | None) -> bool:
    if name is not None:
        return found.name == name
    told = found.report.submitted_at
    # A requeue sets the submit time anew.
    return submitted_at is None or told is None or bool(found.report.restarts) or abs(told - submitted_at) <= CLOCKS


def _from_squeue(job_id: str, haste: bool) -> list[_Found]:
    # The name comes last: it may have a `|` in it.
    words = ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%i|%T|%V|%S|%e|%N|%r|%j"]
    text = _run(words, haste=haste)
    rows = [line.split("|", 7) for line in text.splitlines() if line.count("|") >= 7]
    return [
        _Found(_report("squeue", state_=row[1], submit=row[2], start=row[3], end=row[4], nodes=row[5], reason=row[6]), row[7])
        for row in rows
        if row[0] == job_id
    ]


def _from_sacct(job_id: str) -> list[_Found]:
    fields = "JobIDRaw,State,Submit,Start,End,ExitCode,NodeList,Reason,JobName"
    text = _run(["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", f"--jobs={job_id}", f"--format={fields}"])
    rows = [line.split("|", 8) for line in text.splitlines() if line.count("|") >= 8]
    return [
        _Found(
            _report("sacct", state_=row[1], submit=row[2], start=row[3], end=row[4], exit_=row[5], nodes=row[6], reason=row[7]),
            row[8],
        )
        for row in rows
        if row[0] == job_id
    ]


def _from_scontrol(job_id: str) -> list[_Found]:
    told = _pairs(_run(["scontrol", "--oneliner", "show", "job", job_id]))
    report = _report(
        "scontrol",
        state_=told.get("JobState", ""),
        submit=told.get("SubmitTime", ""),
        start=told.get("StartTime", ""),
        end=told.get("EndTime", ""),
        exit_=told.get("ExitCode", ""),
        nodes=told.get("NodeList", ""),
        reason=told.get("Reason", ""),
        restarts=told.get("Restarts", ""),
    )
    return [_Found(report, told.get("JobName", ""))]


def _report(
    source: str,
    *,
    state_: str,
    submit: str,
    start: str,
    end: str,
    nodes: str,
    reason: str,
    exit_: str = "",
    restarts: str = "",
) -> Report:
    code, _, signal = exit_.partition(":")
    try:
        names = tuple(hostlist.expand(nodes))
    except ValueError:  # `(null)` and `None assigned` while it waits
        names = ()
    return Report(
        state(state_),
        state_,
        "" if reason in ("None", "(null)", "NonZeroExitCode") else reason,
        _number(submit),
        _number(start),
        _number(end),
        names,
        _whole(code),
        _whole(signal) or None,
        _whole(restarts),
        source,
    )


def _number(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() else None


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def job_gres(job_id: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """{node: the generic resources that a running job holds there, as `gpu:a100:2(IDX:0-1)`}, empty once it has ended.

    SlurmSilent without an answer.
    """
    text = _run(["scontrol", "--details", "show", "job", job_id], environ)
    if state(_pairs(text).get("JobState", "")).ended:
        return {}
    told: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"\s+Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", line)
        if match:
            told.update(dict.fromkeys(hostlist.expand(match[1]), match[2]))
    return told


@dataclass(frozen=True)
class RunningStep:
    """A step that runs in a job."""

    id: str
    """such as 12.0"""
    name: str
    nodes: str
    """as Slurm shortens them"""


def steps(job_id: str) -> list[RunningStep]:
    """The steps of a job that run now, its batch script and Slurm's own ones left out.  SlurmSilent without an answer."""
    # The name comes last: it may have a `|` in it.
    text = _run(["squeue", "--steps", "--noheader", f"--jobs={job_id}", "--format=%i|%N|%j"])
    rows = [line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    return [RunningStep(row[0], row[2], row[1]) for row in rows if row[0].rpartition(".")[2].isdigit()]


def job_fields(job_id: str, patience: float | None = None) -> dict[str, str]:
    """What `scontrol show job` says of a job, by its own names, times in seconds since the epoch.  SlurmSilent."""
    with _spared():
        return _pairs(_run(["scontrol", "--oneliner", "show", "job", job_id], patience=patience))


def requeue(job_id: str) -> None:
    """Let Slurm put a running job back into its queue, which ends it.  SlurmSilent, with scontrol's words, when it does not."""
    with _spared():
        _run(["scontrol", "requeue", job_id])


@contextlib.contextmanager
def _spared() -> Iterator[None]:
    """Slurm ends a job by a TERM to every process of its batch step; what asks about it there must outlive that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def configuration() -> str:
    """All of `scontrol show config`, asked for once by a process.  SlurmSilent without an answer."""
    return _run(["scontrol", "show", "config"])


def config(key: str) -> str | None:
    """One value of the configuration, such as KillWait; None when Slurm has none.  SlurmSilent without an answer."""
    found = re.search(rf"^{re.escape(key)}\s*= (.*)$", configuration(), re.MULTILINE)
    value = found[1].strip() if found else "(null)"
    return None if value in ("(null)", "") else value


def kill_wait() -> int:
    """Seconds between TERM and KILL at a job's time limit (KillWait); 30, Slurm's own default, where it has none."""
    match = re.match(r"\d+", config("KillWait") or "30")
    return int(match[0]) if match else 30


def srun_port_range() -> tuple[int, int] | None:
    """The ports that srun may listen at (SrunPortRange), both ends included; None where the site sets none."""
    match = re.match(r"(\d+)-(\d+)\Z", config("SrunPortRange") or "")
    # `0-0` is how an unset range is printed.
    return (int(match[1]), int(match[2])) if match and int(match[2]) else None


def node_address(name: str) -> str:
    """The NodeAddr of a node, a host name or an address; what slurmctld itself connects to.  SlurmSilent without an answer."""
    told = _pairs(_run(["scontrol", "--oneliner", "show", "node", name]))
    return told.get("NodeAddr") or name


def _pairs(text: str) -> dict[str, str]:
    """`Key=value` of one of scontrol's lines; a value that has blanks is cut at the first."""
    return dict(re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", text))


def _run(
    words: Sequence[str], environ: Mapping[str, str] | None = None, patience: float | None = None, haste: bool = False
) -> str:
    """What a command of Slurm's prints.  SlurmSilent, with its own words, when it fails."""
    patience = PATIENCE if patience is None else patience
    # %s: times as seconds since the epoch, in no time zone.  Options from SQUEUE_ and SACCT_ variables are not ours.
    base = {key: value for key, value in (environ or os.environ).items() if not key.startswith(("SQUEUE_", "SACCT_"))}
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        process = subprocess.Popen(words, env={**base, "SLURM_TIME_FORMAT": "%s"}, stdin=null, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        raise SlurmSilent(f"there is no {words[0]} on PATH", next_step="add the directory of Slurm's commands to PATH") from None
    except OSError as error:
        # No process or descriptor is left here, or not for us.
        raise SlurmSilent(f"{words[0]} cannot be started", lines=[str(error)]) from None
    with process:
        try:
            out, err = _told(process, patience, haste)
        except subprocess.TimeoutExpired:
            raise SlurmSilent(f"{words[0]} did not answer within {patience:g} s") from None
        finally:
            process.kill()
    if process.returncode != 0:
        # `Node x not found` goes to stdout.
        said = (err.strip() or out.strip()).decode(errors="replace")
        raise SlurmSilent(f"{words[0]} failed", lines=said.splitlines()[-_LAST_LINES:])
    return out.decode(errors="replace")


def _told(process: subprocess.Popen[bytes], patience: float, haste: bool) -> tuple[bytes, bytes]:
    """(stdout, stderr) of a command that has ended; TimeoutExpired, and SlurmSilent in haste where nobody will answer it."""
    if haste:
        try:
            return process.communicate(timeout=min(HASTE, patience))
        except subprocess.TimeoutExpired:
            patience -= HASTE
            down = _down()
            if down:
                raise SlurmSilent("slurmctld does not run", lines=down) from None
    return process.communicate(timeout=max(patience, 0))


def _down() -> list[str]:
    """scontrol's words that no slurmctld runs, which it says at once; empty when one does, or when it does not know."""
    try:
        done = subprocess.run(["scontrol", "ping"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PING, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.decode(errors="replace").splitlines()
    return [line for line in lines if line.endswith(" is DOWN")] if not any(line.endswith(" is UP") for line in lines) else []

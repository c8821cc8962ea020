"""What is to be said of nodes that were looked at: pure functions from what was seen to sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from launcher import environ
from launcher.bootstrap import last_lines
from launcher.coordinator import reach
from launcher.errors import LauncherError
from launcher.model import Plan
from launcher.policy import fold
from launcher.preflight.report import Finding, Report, Seen, of_error
from launcher.store import Store

V = TypeVar("V", bound=Hashable)
CLOCKS_APART = 5.0
"""seconds from which on times of different nodes are hard to compare"""
LITTLE_SPACE, FEW_FILES = 1_000_000_000, 1000
"""bytes, and files, that are hardly enough for code, logs and outputs"""

_ONE_FOR_ALL = "name the same environment for all of them: `python:` or `venv:` in cluster.yaml, or --image"


def judge(
    plan: Plan, seen: Sequence[Seen], errors: Sequence[LauncherError], said: Sequence[str], chosen: Mapping[str, Any] | None,
    *, lenient: Collection[str], installs: bool,
) -> Report:  # fmt: skip
    """The report.  ``errors``: what a start would refuse; ``said``: warnings of the plan, and of the steps; ``lenient``: kinds
    of errors that are to be warnings; ``installs``: the job has requirements.
    """
    found = _merged([finding for error in errors for finding in of_error(reach.naming_inventory(error, plan), plan)])
    reached = [one for one in seen if one.facts is not None]
    machines = [_this_machine(one) for one in reached[:1]] if plan.backend == "local" else reached
    # What the requirements may bring is not known yet.
    torch = [] if installs else _torch(plan, machines)
    found += [finding for finding in torch if finding.kind not in lenient]
    warnings = [
        *(Finding("Plan", text) for text in said),
        *_log_out(plan, machines),
        *_pulled(plan, machines),
        *(finding for finding in torch if finding.kind in lenient),
        *_silent_python(machines),
        *_python(machines),
        *_clocks(machines),
        *_space(machines),
        # Of simulated nodes the inventory's number says nothing.
        *(_gpus(machines) if plan.backend != "local" else ()),
        *_jobs(machines),
        *_noise(machines),
    ]
    return Report(plan, seen, found, warnings, chosen if 0 in {one.rank for one in reached} else None)


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """What is the same on several nodes is said once."""
    alike: dict[tuple[Hashable, ...], list[Finding]] = {}
    for one in found:
        alike.setdefault((one.kind, one.message, tuple(one.lines), one.next_step), []).append(one)
    return [
        dataclasses.replace(
            some[0],
            nodes=tuple(rank for one in some for rank in one.nodes),
            where=", ".join(dict.fromkeys(one.where for one in some if one.where)),
        )
        for some in alike.values()
    ]


def _this_machine(one: Seen) -> Seen:
    """Which simulated nodes are all of."""
    return dataclasses.replace(one, host=dataclasses.replace(one.host, name="this machine"))


def _names(nodes: Iterable[Seen]) -> str:
    return ", ".join(one.host.name for one in nodes)


def _ranks(nodes: Iterable[Seen]) -> tuple[int, ...]:
    return tuple(one.rank for one in nodes)


def _alike(nodes: Iterable[Seen], key: Callable[[Seen], V]) -> dict[V, list[Seen]]:
    """The nodes by what they have in common, the most numerous first."""
    found: dict[V, list[Seen]] = {}
    for one in nodes:
        found.setdefault(key(one), []).append(one)
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


def _torch(plan: Plan, reached: Sequence[Seen]) -> list[Finding]:
    """torchrun is torch's, and processes of different versions fail or hang in their first exchange."""
    asked = [one for one in reached if one.versions is not None]
    if not environ.starts_processes(plan.spec.command) or not asked:
        return []
    versions = _alike(asked, lambda one: one.versions[1] if one.versions else None)
    if len(versions) > 1:
        lines = [f"{version or 'none'}: {_names(nodes)}" for version, nodes in versions.items()]
        what = "the nodes differ in their torch; processes of different versions fail, or wait for each other for ever"
        return [Finding("TorchDiffers", what, _ranks(asked), lines=lines, next_step=_ONE_FOR_ALL)]
    if None in versions and plan.spec.command.script is not None:
        by_python = _alike(asked, lambda one: one.python)
        step = "name the environment that has it by `python:` or `venv:` in cluster.yaml, or by --image"
        return [
            Finding("NoTorch", f"there is no torch in {python}, which starts scripts", _ranks(nodes), _names(nodes), (), step)
            for python, nodes in by_python.items()
        ]
    return []


def _log_out(plan: Plan, reached: Sequence[Seen]) -> list[Finding]:
    """With -d it is an error, as at a start."""
    told = [] if plan.detached else [reach.ended_by_log_out(one.host.name, one.facts or {}) for one in reached]
    return [finding for error in told if error is not None for finding in _renamed("LogOut", of_error(error, plan))]


def _renamed(kind: str, findings: Iterable[Finding]) -> list[Finding]:
    return [Finding(kind, one.message, one.nodes, one.where, one.lines, one.next_step) for one in findings]


def _pulled(plan: Plan, reached: Sequence[Seen]) -> list[Finding]:
    nodes = [one for one in reached if one.pulls]
    if not nodes:
        return []
    what = f"{plan.spec.image} is not there yet; a job's start pulls it first, however long that takes"
    return [Finding("ImageNotThere", what, _ranks(nodes), _names(nodes), next_step="pull it there now, or let the start do it")]


def _silent_python(reached: Sequence[Seen]) -> list[Finding]:
    nodes = [one for one in reached if one.python is not None and one.versions is None]
    step = "try it there: does it start, and within a few seconds?"
    return [
        Finding("PythonSilent", f"{python} does not say which Python and which torch it is", _ranks(some), _names(some), (), step)
        for python, some in _alike(nodes, lambda one: one.python).items()
    ]


def _python(reached: Sequence[Seen]) -> list[Finding]:
    """Of the command; by its first two numbers, for the third changes no behaviour."""
    asked = [one for one in reached if one.versions is not None]
    found = _alike(asked, lambda one: ".".join(one.versions[0].split(".")[:2]) if one.versions else "")
    if len(found) < 2:
        return []
    lines = [f"{version}: {_names(nodes)}" for version, nodes in found.items()]
    return [Finding("PythonDiffers", "the nodes differ in their Python", _ranks(asked), lines=lines, next_step=_ONE_FOR_ALL)]


def _clocks(reached: Sequence[Seen]) -> list[Finding]:
    ahead = [(one, one.clock) for one in reached if one.clock is not None]
    known = [0.0, *(seconds for _, seconds in ahead)]
    apart = max(known) - min(known)
    if apart <= CLOCKS_APART:
        return []
    odd = [(one, seconds) for one, seconds in ahead if abs(seconds) > CLOCKS_APART / 2]
    lines = [
        f"{one.host.name}: {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} this machine" for one, seconds in odd
    ]
    what = f"clocks are up to {apart:.0f} s apart: times in logs and events cannot be compared"
    step = "let chrony or systemd-timesyncd keep the time"
    return [Finding("ClocksDiffer", what, tuple(one.rank for one, _ in odd), lines=lines, next_step=step)]


def _space(reached: Sequence[Seen]) -> list[Finding]:
    from launcher.code import size_text

    found = []
    for one in reached:
        facts = one.facts or {}
        bytes_, files = int(facts["free_bytes"]), int(facts["free_inodes"])
        little = f"{size_text(bytes_)} are free" if bytes_ < LITTLE_SPACE else ""
        # File systems without a fixed number of files say 0.
        few = f"{files} more files can be made" if 0 < files < FEW_FILES else ""
        if little or few:
            what = f"{' and '.join(filter(None, (little, few)))} in {one.host.workdir}"
            step = "free some space there, or name another `workdir:` in cluster.yaml"
            found.append(Finding("LittleSpace", what, (one.rank,), one.host.name, (), step))
    return found


def _gpus(reached: Sequence[Seen]) -> list[Finding]:
    found = []
    for one in reached:
        seen = int((one.facts or {})["gpus"])
        if one.host.gpus is not None and seen < one.host.gpus:
            what = f"the inventory says {one.host.gpus} GPU{'s' * (one.host.gpus != 1)}, and {seen or 'none'} can be seen there"
            step = "look at `nvidia-smi` (or `rocm-smi`) there, or correct `gpus:` in the inventory"
            found.append(Finding("FewerGpus", what, (one.rank,), one.host.name, (), step))
    return found


def _jobs(reached: Sequence[Seen]) -> list[Finding]:
    """What lives on the nodes of other jobs."""
    places: dict[str, list[Seen]] = {}
    for one in reached:
        for name in (name for name, alive in one.jobs.items() if alive):
            places.setdefault(name, []).append(one)
    found = []
    for name, nodes in sorted(places.items()):
        where = _names(nodes)
        over = _is_over(name)
        if over:
            what, step = f"processes of job {name}, which is over, still run there", f"launcher gc {name}"
        elif over is None:
            what, step = f"processes of job {name} run there, which was not submitted from here", "ask who did, or look there"
        else:
            what, step = f"job {name} runs there, too", f"launcher status {name}"
        found.append(Finding("JobLeft" if over else "JobRuns", what, _ranks(nodes), where, (), step))
    return found


def _is_over(name: str) -> bool | None:
    """Whether the job of that id has ended; None for one that has no folder here."""
    folder = next((folder for folder in Store().folders() if folder.job_id == name), None)
    return None if folder is None else fold(folder.read_events()).end is not None


def _noise(reached: Sequence[Seen]) -> list[Finding]:
    """What start-up files print troubles nobody here, but rsync, scp and sftp."""
    found = []
    for printed, nodes in _alike([one for one in reached if one.greeting.strip()], lambda one: one.greeting).items():
        what = "start-up files of the log-in shell print something at every log-in: harmless here, but not for rsync and scp"
        step = "let them print on a terminal only: `[ -t 0 ] || return` before it"
        found.append(Finding("NoisyShell", what, _ranks(nodes), _names(nodes), last_lines(printed), step))
    return found

"""What finished jobs left behind, here and on the nodes: found first, removed after a yes.

On a node: directories of jobs that have ended, living processes that carry such a job's id, and what is kept for later jobs
and none has wanted in a long time (requirements, data, agents of other versions).  Here: the copy of the code that a job
took along; its logs, events and outputs stay.  Jobs this machine did not submit are left alone, and so
are outputs that could not be collected, unless the job is named.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from launcher.bootstrap import agent_name
from launcher.errors import NodeError
from launcher.link import Address, Link
from launcher.model import Host, Plan, SshOptions, from_json
from launcher.policy import View, fold
from launcher.record import dataclass
from launcher.store import Folder, read_json
from launcher.transports.gateways import SshWay

KEPT_DAYS = 30
"""what is kept for later jobs stays for so long after the last one that wanted it"""

Ways = Mapping[SshOptions, SshWay]


@dataclass(frozen=True)
class Machine:
    """One directory of ours on one host: where jobs of several plans may have left something."""

    backend: str
    host: Host
    options: SshOptions

    def link(self, ways: Ways, job: str = "launcher-gc") -> Link:
        """A new connection there, through jump hosts that are connected to once."""
        way = ways[self.options] if self.backend == "ssh" else self.options
        return Link(Address(self.backend, self.host, 0, job, way))


Task = tuple[Machine, str, dict[str, Any]]
"""(where, in the name of which job, a request to the agent there)"""


@dataclass
class Findings:
    """What there is to remove."""

    here: list[Path] = field(default_factory=list)
    there: dict[str, list[tuple[Machine, str, bool]]] = field(default_factory=dict)
    """{host name: (machine, job id, whether processes of it live)}"""
    stores: dict[str, list[tuple[Machine, str, str, int]]] = field(default_factory=dict)
    """{host name: (machine, store, key in it, days since a job wanted it)}; stores are `layers`, `inputs` and `agents`"""
    kept: list[str] = field(default_factory=list)
    """sentences about what is left alone, and why"""
    errors: list[NodeError] = field(default_factory=list)
    """machines that could not be looked at"""

    @property
    def empty(self) -> bool:
        return not self.here and not any(self.there.values()) and not any(self.stores.values())


def look(folders: Iterable[Folder], named: bool) -> Findings:
    """What the ended ones of these jobs left; with ``named`` outputs that were never collected count, too."""
    found = Findings()
    ended: dict[str, View] = {}
    machines: dict[tuple[Any, ...], Machine] = {}
    for folder in folders:
        stored = read_json(folder.plan)
        view = fold(folder.read_events())
        if stored is None or view.end is None:
            continue
        try:
            plan = from_json(Plan, stored)
        except (TypeError, ValueError, AttributeError):  # of another version, or damaged; the other jobs' still goes
            found.kept.append(f"{folder.job_id}: its plan.json cannot be understood, so where it has been is not known")
            continue
        precious = _uncollected(view)
        if precious and not named:
            found.kept.append(f"{folder.job_id}: {precious} still lie on the nodes; name the job to remove them")
            continue
        ended[folder.job_id] = view
        if folder.code.is_dir():
            found.here.append(folder.code)
        for machine in _machines(plan, view, found.kept):
            host = machine.host
            machines[machine.backend, host.address, host.user, host.port, host.workdir, machine.options.config] = machine
    _look_there(list(machines.values()), ended, found, stores=not named)
    return found


def _uncollected(view: View) -> str:
    """What would be lost with the nodes' directories of a job, in a few words."""
    if view.collect_error is not None:
        return "its outputs were never collected and"
    if view.strayed:
        return "its command wrote no model, and the files it wrote into its working copies"
    channels = sorted({channel for left in view.left.values() for channel in left})
    return f"its {', '.join(channels)}, of which not everything was collected," if channels else ""


def _machines(plan: Plan, view: View, kept: list[str]) -> list[Machine]:
    """Where the job has ever been, as far as it can be reached; what cannot becomes a sentence of ``kept``."""
    hosts = [node.host for node in plan.nodes if view.nodes[node.rank].address is not None]
    if plan.backend != "slurm":
        return [Machine(plan.backend, host, plan.ssh) for host in hosts]
    # Nobody gets to Slurm's nodes without a job there; what lies on a shared file system is here, too.
    here = {host.workdir: Path(os.path.expanduser(host.workdir)) for host in hosts}
    shared = {host.workdir: host for host in hosts if (here[host.workdir] / "node" / "jobs" / plan.job_id).is_dir()}
    away = [host for host in hosts if not here[host.workdir].is_dir()]
    if away and view.end is not None and (view.end["status"] != "Succeed" or plan.spec.keep):
        where = f"{away[0].workdir} on {', '.join(host.name for host in away)}"
        kept.append(f"{plan.job_id}: what it left in {where} is in reach of a Slurm job alone")
    return [Machine("local", replace(host, name=workdir, address="localhost"), plan.ssh) for workdir, host in shared.items()]


def _look_there(machines: list[Machine], ended: Mapping[str, View], found: Findings, *, stores: bool) -> None:
    lock = threading.Lock()
    ways = _ways(machines)

    def one(machine: Machine) -> None:
        link = machine.link(ways)
        try:
            link.connect(python=machine.host.python, venv=machine.host.venv)
            jobs = link.ask("node_jobs")["jobs"]
            old = link.ask("store_old", days=KEPT_DAYS, agent=agent_name())["stores"] if stores else {}
        except NodeError as error:
            with lock:
                found.errors.append(error)
            return
        finally:
            link.close()
        mine = [(machine, job, bool(told["alive"])) for job, told in sorted(jobs.items()) if job in ended]
        with lock:
            found.there.setdefault(machine.host.name, []).extend(mine)
            found.stores.setdefault(machine.host.name, []).extend(
                (machine, store, key, int(days)) for store, ages in sorted(old.items()) for key, days in sorted(ages.items())
            )

    _in_threads(one, machines)
    found.there = {name: entries for name, entries in sorted(found.there.items()) if entries}
    found.stores = {name: entries for name, entries in sorted(found.stores.items()) if entries}


def remove(found: Findings) -> list[NodeError]:
    """Remove what `look` found; the errors of machines where that did not work."""
    errors = list[NodeError]()
    for path in found.here:
        shutil.rmtree(path, ignore_errors=True)

    tasks: list[list[Task]] = [[_sweep(machine, job) for machine, job, _ in entries] for entries in found.there.values()]
    tasks += [[_drop(machine, store, key) for machine, store, key, _ in entries] for entries in found.stores.values()]
    ways = _ways(machine for entries in tasks for machine, _, _ in entries)

    def one(entries: list[Task]) -> None:
        for machine, job, request in entries:
            link = machine.link(ways, job)
            try:
                link.connect(python=machine.host.python, venv=machine.host.venv)
                link.ask(**request)
            except NodeError as error:
                errors.append(error)
                return
            finally:
                link.close()

    _in_threads(one, tasks)
    return errors


def _sweep(machine: Machine, job: str) -> Task:
    return machine, job, {"op": "node_sweep", "marks": {"LAUNCHER_JOB_ID": job}, "remove": True}


def _drop(machine: Machine, store: str, key: str) -> Task:
    return machine, "launcher-gc", {"op": "store_drop", "store": store, "key": key, "days": KEPT_DAYS}


def _ways(machines: Iterable[Machine]) -> Ways:
    return {machine.options: SshWay(machine.options) for machine in machines}


def _in_threads(work: Any, items: list[Any]) -> None:
    threads = [threading.Thread(target=work, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

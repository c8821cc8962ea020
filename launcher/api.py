"""The one front desk: submit, find, describe, cancel.  Plans and reads; never opens a connection to a node.

Acting is the coordinator's: a process of its own that meets us in the job folder alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from launcher import owner
from launcher.errors import LauncherError, UsageError
from launcher.keep import home
from launcher.policy import View, fold
from launcher.store import Folder, Store, read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import Popen

    from launcher.backends.detached import Prepared
    from launcher.backends.standing import Standing
    from launcher.model import Plan
    from launcher.planning import Draft, Request
    from launcher.publish import Target


def plan(request: Request) -> Draft:
    """What `submit` would do with the request, settled; asks no node anything.  Raises UsageError."""
    from launcher.planning import draft

    drafted = draft(request, os.environ)
    return _with_warning(drafted) if drafted.plan.batch else drafted


def _with_warning(drafted: Draft) -> Draft:
    import dataclasses

    from launcher.backends import batch

    why = batch.only_here(home())
    if why is None:
        return drafted
    text = f"the nodes will hardly see the job folder: {why}; set LAUNCHER_HOME to a directory on a shared file system"
    return dataclasses.replace(drafted, warnings=(*drafted.warnings, text))


def script(drafted: Draft) -> str | None:
    """The sbatch script that `submit` would submit, byte for byte; None for a job that is not put into a queue."""
    if not drafted.plan.batch:
        return None
    from launcher.backends import batch

    return batch.script(drafted.plan, folder_of(drafted.plan))


def prepare(request: Request) -> Prepared | None:
    """What `submit` takes to start sooner: a coordinator that loads its code while the request is being planned."""
    if request.backend == "slurm":
        return None
    from launcher.backends import detached
    from launcher.planning import has_inventory

    prepared = detached.prepare()
    if request.backend != "local" and has_inventory(request):
        prepared.foresee_ssh()
    return prepared


def submit(
    drafted: Draft,
    progress: Callable[[str], None] = lambda text: None,
    before_start: Callable[[], None] = lambda: None,
    prepared: Prepared | None = None,
) -> Folder:
    """Write the job folder, take the snapshot of the code, and start the coordinator; returns as soon as it is started.

    ``progress`` gets sentences about the snapshot; ``before_start`` is called when from now on something may run.
    Raises UsageError (a source folder that cannot be taken, no Slurm), in which case nothing is left behind.  A job that
    sbatch does not take ends as CreateFailed, with sbatch's words.
    """
    from launcher.backends import making

    made = drafted.plan
    _check_queue(made)
    folder = Store().create(made.job_id)
    try:
        with making.alone(folder):
            _fill(drafted, folder, progress)
            # Before anybody leaves: a Ctrl-C between here and the start would leave a job that nobody coordinates.
            before_start()
    except BaseException:
        import shutil

        shutil.rmtree(folder.root, ignore_errors=True)
        raise
    try:
        _start(made, folder, prepared, progress)
    except LauncherError as error:
        end = {
            "type": "end",
            "status": "CreateFailed",
            "reason_code": "SubmitFailed" if made.batch else "NoCoordinator",
            "reason_message": str(error),
            "exit_code": error.exit_code,
        }
        folder.append({"n": view(folder).count, "time": time.time(), **end}, durable=True)
        folder.environment.unlink(missing_ok=True)
        raise
    return folder


def _fill(drafted: Draft, folder: Folder, progress: Callable[[str], None]) -> None:
    """All that the coordinator will need: code, the list of what the inputs hold, environment, plan.  Raises UsageError."""
    import shutil
    from pathlib import Path

    from launcher import code
    from launcher.model import to_json
    from launcher.planning.asked import check_taken

    made = drafted.plan
    source = made.spec.source_dir if drafted.git is None else _cloned(drafted, folder, progress)
    if source is not None or drafted.beside:
        taken = code.snapshot(Path(source) if source else None, folder.code, made.spec.max_code_bytes, drafted.beside)
        progress(str(taken))
        check_taken(made.spec.command, folder.code)
    if drafted.git is not None:
        shutil.rmtree(folder.clone, ignore_errors=True)
    _check_requirements(drafted, folder, progress)
    _list_inputs(made, folder, progress)
    told = {"schema_version": 1, "job_id": made.job_id, "created_at": made.created_at}
    write_json(folder.job, {**told, "spec": to_json(made.spec)})
    write_json(folder.environment, drafted.environment, mode=0o600)
    # The last one: a folder that has a plan is whole.
    write_json(folder.plan, {"schema_version": 1, **to_json(made)})


def _list_inputs(made: Plan, folder: Folder, progress: Callable[[str], None]) -> None:
    """What lies in the inputs of this machine now, so that what is changed until they are sent is noticed."""
    from launcher import uri
    from launcher.channels import NODE
    from launcher.code import size_text

    here = [one for one in made.spec.inputs if not uri.is_uri(one.source) and not one.source.startswith(NODE)]
    if not here:
        return
    from launcher.listing import look

    found = {one.channel: look(one.source) for one in here}
    for one in here:
        count, size = len(found[one.channel].files), found[one.channel].size
        progress(f"input {one.channel}: {count} file{'s' * (count != 1)}, {size_text(size)}")
    write_json(folder.inputs, {channel: listing.to_json() for channel, listing in found.items()})


def _check_queue(made: Plan) -> None:
    """What can be known beforehand of a job that is put into a queue."""
    if made.batch:
        from launcher.backends import batch

        batch.check(folder_of(made))


def _start(made: Plan, folder: Folder, prepared: Prepared | None, progress: Callable[[str], None]) -> None:
    if made.batch:
        from launcher.backends import batch

        if prepared is not None:
            prepared.dismiss()
        progress(f"in Slurm's queue as job {batch.submit(made, folder)}")
    else:
        from launcher.backends import detached

        (prepared or detached).start(folder)


def _check_requirements(drafted: Draft, folder: Folder, progress: Callable[[str], None]) -> None:
    """What the nodes would refuse is refused here; UsageError.  What nobody asked for in so many words is told."""
    spec = drafted.plan.spec
    if not spec.may_install(folder.code):
        return
    from launcher import requirements
    from launcher.model import REQUIREMENTS

    asked = requirements.read(folder.code, drafted.environment.get("requirements"))
    if asked and spec.requirements is None:
        progress(f"{REQUIREMENTS}: pip installs it on the nodes before the command starts")


def _cloned(drafted: Draft, folder: Folder, progress: Callable[[str], None]) -> str:
    """The source folder in a clone of its repository; UsageError."""
    from launcher import git_source
    from launcher.planning.asked import check_script

    assert drafted.git is not None
    spec = drafted.plan.spec
    source = str(git_source.clone(drafted.git, spec.source_dir, folder.clone, progress, os.environ))
    check_script(spec.command, source)
    return source


def folder_of(made: Plan) -> Folder:
    """Where the folder of a job will be, or is."""
    return Folder(Store().jobs / made.job_id)


def find(name: str) -> Folder:
    """The job of that id, unique prefix, or `latest`; raises JobNotFound."""
    return Store().find(name)


def view(folder: Folder) -> View:
    """The job's state, folded from its events."""
    return fold(folder.read_events())


def describe(folder: Folder) -> dict[str, Any]:
    """The document of `status -o json`; stable keys, times in seconds since the epoch, paths absolute."""
    plan_ = folder.read_plan()
    seen, told = _standing(folder)
    address, port = seen.master or (None, None)
    return {
        "schema_version": 1,
        "job_id": folder.job_id,
        "name": plan_.get("spec", {}).get("name"),
        "labels": plan_.get("spec", {}).get("labels", {}),
        "status": told.status.value,
        "reason_code": told.reason_code or None,
        "reason_message": told.reason_message or None,
        "exit_code": told.exit_code,
        "backend": plan_.get("backend"),
        "cluster": plan_.get("cluster"),
        "attempt": seen.attempt,
        "created_at": plan_.get("created_at"),
        "started_at": seen.started_at,
        "ended_at": seen.ended_at,
        "master_addr": address,
        "master_port": port,
        "nodes": [_node(node, seen) for node in plan_.get("nodes", [])],
        "failure": seen.failure and {**seen.failure, "log": folder.as_it_lies(seen.failure.get("log"))},
        "model_data": folder.as_it_lies(seen.model),
        "outputs": {one: (seen.published or {}).get(one) or str(folder.output / one) for one in _brought(folder, plan_, seen)},
        "coordinator": told.coordinator,
        "slurm_job_id": (read_json(folder.slurm) or {}).get("slurm_job_id"),
        "folder": str(folder.root),
    }


def _brought(folder: Folder, plan_: Mapping[str, Any], seen: View) -> list[str]:
    """The output channels that were brought here."""
    spec = plan_.get("spec", {}) if seen.collected and seen.model else {}
    unsure = spec.get("collect_if_room", [])
    return [name for name in spec.get("collect", []) if name not in unsure or (folder.output / name).is_dir()]


def output_place(folder: Folder, channel: str) -> str:
    """Where an output channel's files come to lie, by the plan: a path here, or a URI that ends in /.

    UsageError, which lists the channels there are, where the job has no such one.
    """
    from launcher import channels, uri

    spec = folder.read_plan().get("spec", {})
    known = dict.fromkeys([*channels.CHANNELS, *spec.get("outputs", {}), *spec.get("collect", [])])
    if channel not in known:
        raise UsageError(f"the job has no output channel {channel!r}; there are", where=folder.job_id, problems=list(known))
    own = spec.get("outputs", {}).get(channel)
    if own is None and channel == "checkpoints":
        own = spec.get("checkpoints_path")
    if own is None and spec.get("output_path") is not None:
        own = uri.join(spec["output_path"], f"{folder.job_id}/{channel}")
    return str(folder.output / channel) if own is None else own.rstrip("/") + "/"


def tensorboard_place(folder: Folder) -> Path:
    """The folder that TensorBoard is to read: what was collected, or, while a job on simulated nodes runs, what it writes."""
    from pathlib import Path

    collected = folder.output / "tensorboard"
    if not collected.exists() and folder.read_plan().get("backend") == "local":
        reached = [node for event in folder.read_events() if event["type"] == "reached" for node in event["nodes"]]
        written = Path(reached[-1]["job_dir"]) / "output" / "tensorboard" if reached else collected
        return written if written.exists() else collected
    return collected


def published(folder: Folder) -> list[Target]:
    """The copies that the job has made of its outputs at URIs; none where that has not been done."""
    from launcher.manifest import load
    from launcher.model import Plan, from_json
    from launcher.publish import targets

    if view(folder).published is None:
        return []
    return [target for target, _ in targets(from_json(Plan, read_json(folder.plan)), load(folder.output))]


def _standing(folder: Folder) -> tuple[View, Standing]:
    """What the folder tells, and where the job stands; of a job in Slurm's queue Slurm is asked."""
    if folder.slurm.exists():
        from launcher.backends import queue

        return queue.look(folder)
    from launcher.backends.standing import Standing

    seen = view(folder)
    end = seen.end or {}
    coordinator = coordinator_state(folder, seen)
    return seen, Standing(seen.status, coordinator, end.get("reason_code"), end.get("reason_message"), end.get("exit_code"))


def node_count(folder: Folder) -> int:
    """How many nodes the job has."""
    return _count(folder.read_plan())


def _count(plan_: Mapping[str, Any]) -> int:
    # Slurm's nodes are known when it starts the job.
    return len(plan_.get("nodes", [])) or plan_.get("spec", {}).get("nodes") or 0


def world_size(folder: Folder, seen: View) -> int | None:
    """How many processes torchrun starts in all, which have the ranks from 0 on; None where that is not known (yet)."""
    from launcher.environ import starts_processes
    from launcher.model import Command, from_json

    spec = folder.read_plan().get("spec", {})
    if not starts_processes(from_json(Command, spec.get("command", {}))):
        return None
    told = [node.nproc for node in seen.nodes.values()]
    if told and None not in told:
        return sum(nproc or 0 for nproc in told)
    return spec["nproc_per_node"] * node_count(folder) if spec.get("nproc_per_node") else None


def _node(planned: Mapping[str, Any], seen: View) -> dict[str, Any]:
    rank = planned["rank"]
    node = seen.nodes.get(rank)
    told = (
        {
            "address": node.address,
            "status": node.status,
            "exit_code": node.exit_code,
            "nproc_per_node": node.nproc,
            "pid": node.pid,
        }
        if node
        else {}
    )
    blank = {"address": None, "status": "waiting", "exit_code": None, "nproc_per_node": None, "pid": None}
    return {"rank": rank, "host": planned["host"]["name"], **blank, **told}


def coordinator_state(folder: Folder, seen: View | None = None) -> str:
    """`ended`, `alive`, `key unavailable`, `starting` or `lost`."""
    seen = seen or view(folder)
    if seen.end is not None:
        return "ended"
    record = read_json(folder.owner)
    if record is None:
        if not folder.root.exists():
            raise LauncherError("the job's folder was removed, and the job was stopped with it", where=str(folder.root))
        return "starting" if time.time() - folder.root.stat().st_mtime < 10 else "lost"
    if not owner.is_alive(record):
        return "lost"
    return str(record.get("trouble") or "alive")


def ensure_coordinator(folder: Folder, started: list[Popen[bytes]] | None = None) -> str | None:
    """Start a coordinator where none lives, or where the one that lives cannot log in; a sentence when there is news.

    ``started`` gets it, for whoever wants to know how it ends.  Raises UsageError where the last one was on another machine.
    For a job in Slurm's queue none is ever started here: Slurm does that, and is asked whether it still will.
    """
    if folder.slurm.exists():
        from launcher.backends import queue

        return queue.attend(folder)
    from launcher.backends import detached, making

    state = coordinator_state(folder)
    if state in ("ended", "alive", "starting"):
        return None
    if not folder.plan.exists():
        making.give_up(folder)
        return None
    if state == "key unavailable" and not detached.retire(folder):
        return None
    process = detached.start_again(folder)
    if started is not None:
        started.append(process)
    return "the job's coordinator was gone; a new one goes on"


def cancel(folder: Folder, level: int = 1) -> None:
    """Wish the job stopped: 1 with grace, 2 now.  A job whose coordinator is gone gets a new one, which does it."""
    if coordinator_state(folder) == "ended":
        return
    known = folder.cancel_level()
    if level > known:
        write_json(folder.cancel, {"level": level, "pid": os.getpid(), "time": time.time()})
    if folder.slurm.exists():
        from launcher.backends import queue

        queue.cancel(folder, level)
        return
    ensure_coordinator(folder)


def warning_of(made: Plan) -> int:
    """The number of the signal by which Slurm warns this job."""
    from launcher.slurm import warning

    return warning.of(made.slurm)[0]


def hand_on(folder: Folder) -> bool:
    """Let the job's coordinator, on this machine, know of Slurm's warning; False while there is none."""
    from launcher.model import Plan, from_json

    return owner.send(read_json(folder.owner), warning_of(from_json(Plan, read_json(folder.plan))))


def take_over(folder: Folder) -> None:
    """Coordinate from here a job whose coordinator was on a machine that is gone.  Raises UsageError where none is missed."""
    from launcher.backends import detached

    detached.take_over(folder, coordinator_state(folder))


def resume(folder: Folder) -> None:
    """Collect, or publish, the outputs of a job where that failed, without training again.  Raises UsageError for any other."""
    from launcher.backends.detached import replace
    seen = view(folder)
    end = seen.end
    if end is None:
        raise UsageError("the job has not ended", where=folder.job_id, next_step=f"launcher attach {folder.job_id}")
    if folder.slurm.exists():
        what = "a job of Slurm's queue cannot be resumed in this version; what was not collected lies in its workdir on the nodes"
        raise UsageError(what, where=folder.job_id, next_step="launcher submit starts it anew")
    if seen.collect_error is None and seen.publish_error is None:
        what = f"it ended as {end['status']}; only a failed collection or publication can be resumed, training again cannot"
        raise UsageError(what, where=folder.job_id, next_step="launcher submit starts it anew")
    folder.cancel.unlink(missing_ok=True)
    folder.append({"type": "resumed", "time": time.time()}, durable=True)  # nobody else writes between two coordinators
    replace(folder)


def metrics(folder: Folder) -> list[dict[str, Any]]:
    """The numbers that were found in the job's logs so far, as `launcher.metrics` tells; their values are floats."""
    from launcher.metrics import read

    return list(read(folder.metrics))


def metric_names(folder: Folder) -> list[str]:
    """What the job looks for in its logs."""
    return [one["name"] for one in folder.read_plan().get("spec", {}).get("metrics", [])]


def jobs() -> Iterator[dict[str, Any]]:
    """A summary of each job, oldest first: the document of `list -o json`."""
    for folder in Store().folders():
        yield _summary(folder)


def _summary(folder: Folder) -> dict[str, Any]:
    plan_ = folder.read_plan()
    state = read_json(folder.state)
    size = folder.events.stat().st_size if folder.events.exists() else 0
    if not isinstance(state, dict) or state.get("events_bytes") != size:
        seen = view(folder)
        state = {
            "status": seen.status.value,
            "started_at": seen.started_at,
            "ended_at": seen.ended_at,
            "model_data": seen.model,
            "exit_code": seen.end["exit_code"] if seen.end else None,
        }
    kept = {key: state.get(key) for key in ("status", "started_at", "ended_at", "exit_code")}
    return {
        "job_id": folder.job_id,
        "name": plan_.get("spec", {}).get("name"),
        "labels": plan_.get("spec", {}).get("labels", {}),
        "backend": plan_.get("backend"),
        "cluster": plan_.get("cluster"),
        "nodes": _count(plan_),
        "created_at": plan_.get("created_at"),
        **kept,
        "model_data": folder.as_it_lies(state.get("model_data")),
        "folder": str(folder.root),
    }

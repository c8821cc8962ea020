"""A job in Slurm's queue: submitted from here, coordinated by its own batch step.

submitit writes the script, submits and cancels.  How the job goes is told by the job folder and by Slurm's commands,
never by what submitit keeps of it.  Nothing of ours runs on this machine once sbatch has answered.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.backends import detached
from launcher.errors import LauncherError, SlurmSilent, SubmitRefused
from launcher.model import Node, Plan, SlurmOptions, from_json, to_json
from launcher.policy import View, fold
from launcher.slurm import ask, states, warning
from launcher.slurm.allocation import Allocation, allocation
from launcher.slurm.nodes import hosts
from launcher.store import Folder, read_json, write_json

if TYPE_CHECKING:
    from submitit import SlurmExecutor

_HANDED_ON = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_WCKEY": "wckey",
}
"""variables of sbatch's that say where a user's jobs belong, and the option that wins over each; in sbatch itself the
variable would win over the script"""
_OF_ANOTHER_JOB = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SUBMITIT_", "PMI_", "PMIX_")
_OF_THE_SITE = ("SLURM_CONF", "SLURM_JWT")
_AWAY = re.compile("unable to contact slurm controller|socket timed out|zero bytes were transmitted|connection refused", re.I)
"""sbatch's words when slurmctld did not answer"""
_AWAY_SECONDS, _AGAIN_SECONDS = 600.0, 2.0
"""how long a batch step waits for slurmctld, and between two questions"""
_LOCAL_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_LOCAL_KINDS = ("tmpfs", "ramfs")


def is_batch(folder: Folder) -> bool:
    """True for a job whose coordinator is Slurm's business, whether or not sbatch has taken it."""
    return folder.slurm.exists()


def script(plan: Plan, folder: Folder) -> str:
    """The sbatch script of a plan, byte for byte as it is submitted.  SubmitRefused as in `check`."""
    check(folder)
    executor = _executor(plan, folder)
    return str(executor._make_submission_file_text(executor._submitit_command_str, ""))


def check(folder: Folder) -> None:
    """SubmitRefused where there is no Slurm, or where sbatch would misread the path of the job folder."""
    missing = [name for name in ("sbatch", "srun", "scancel") if shutil.which(name) is None]
    if missing:
        step = "log in to a machine of the cluster, or put Slurm's commands into PATH"
        raise SubmitRefused(f"there is no Slurm here: no {', '.join(missing)} in PATH", next_step=step)
    if "%" in str(folder.root):
        # sbatch and submitit both put numbers in the place of %j and its like.
        raise SubmitRefused("a job folder with a % in its path", where=str(folder.root), next_step="choose another LAUNCHER_HOME")


def submit(plan: Plan, folder: Folder) -> str:
    """Put the job, which `check` has nothing against, into Slurm's queue; its number.

    Raises SubmitRefused with sbatch's own words, SlurmSilent when slurmctld does not answer; then submitit's files are gone.
    """
    record = {"slurm_job_id": None, "submitted_at": time.time()}
    write_json(folder.slurm, record)
    folder.append({"n": 0, "type": "submitted", "time": time.time()}, durable=True)
    try:
        number = _submit(_executor(plan, folder), folder, plan.slurm)
    except LauncherError:
        shutil.rmtree(folder.batch, ignore_errors=True)
        raise
    write_json(folder.slurm, {**record, "slurm_job_id": number})
    with contextlib.suppress(SlurmSilent):
        # Asked once the job is in the queue, where it costs no time.
        write_json(folder.slurm, {**record, "slurm_job_id": number, "cluster": ask.config("ClusterName")})
    return number


def _submit(executor: SlurmExecutor, folder: Folder, options: SlurmOptions) -> str:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    said = io.StringIO()
    try:
        # submitit hands sbatch's words on as they come; those of a refusal are our error's.
        with _environment_of_sbatch(options), contextlib.redirect_stderr(said):
            number = str(executor.submit(run_job, str(folder.root)).job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        lines = str(error).strip().splitlines()
        if any(_AWAY.search(line) for line in lines):
            step = "try again when `scontrol ping` says that it is up"
            raise SlurmSilent("slurmctld did not answer sbatch", lines=lines, next_step=step) from error
        step = "mend `slurm:` of the cluster file; --dry-run shows the script"
        raise SubmitRefused("sbatch refused the job", problems=lines, next_step=step) from error
    # A site's own hints about a job that it took.
    sys.stderr.write(said.getvalue())
    return number


def _executor(plan: Plan, folder: Folder) -> SlurmExecutor:
    """submitit's executor with everything set; nothing is written yet."""
    from submitit import SlurmExecutor

    # With exec Slurm's signals reach the interpreter, not a shell that dies of them.
    executor = SlurmExecutor(folder.batch, python=f"exec {shlex.quote(sys.executable)}")
    executor.update_parameters(**_parameters(plan))
    return executor


def _parameters(plan: Plan) -> dict[str, Any]:
    """submitit's names for what is asked of sbatch; what it would add by itself is set aside by None."""
    options = plan.slurm
    extra = {"signal": warning.DEFAULT, "chdir": detached.directory(), **options.sbatch}
    # A job that Slurm starts anew by itself would train anew unasked.
    extra["requeue" if plan.spec.requeue else "no-requeue"] = True
    kept = ("partition", "account", "qos", "time", "gpus_per_node", "cpus_per_task", "mem", "constraint", "exclusive")
    return {
        "job_name": plan.job_id,
        "nodes": plan.spec.nodes,
        "ntasks_per_node": 1,
        "use_srun": False,
        "stderr_to_stdout": True,
        "wckey": None,
        "setup": [f"trap '' {' '.join(warning.may_come(options))}"],
        "additional_parameters": extra,
        **{name: getattr(options, name) for name in (*kept, "nodelist", "exclude", "dependency")},
    }


@contextlib.contextmanager
def _environment_of_sbatch(options: SlurmOptions) -> Iterator[None]:
    """What sbatch is to see; submitit gives it our own, and the job inherits that."""
    before = dict(os.environ)
    kept = environment_of_sbatch(before, options)
    try:
        os.environ.clear()
        os.environ.update(kept)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def environment_of_sbatch(environ: Mapping[str, str], options: SlurmOptions) -> dict[str, str]:
    """The environment without what speaks of another job, and without variables that would win over the cluster file."""
    said = {name for name in _HANDED_ON.values() if getattr(options, name, None) is not None} | set(options.sbatch)
    kept = {name for name, option in _HANDED_ON.items() if option not in said} | set(_OF_THE_SITE)
    return {
        name: value
        for name, value in environ.items()
        if name in kept or not (name.startswith(_OF_ANOTHER_JOB) or name == "CUDA_VISIBLE_DEVICES")
    }


def number_of(folder: Folder) -> str | None:
    """Slurm's number of the job; None while sbatch has not told it."""
    record = read_json(folder.slurm) or {}
    if record.get("slurm_job_id"):
        return str(record["slurm_job_id"])
    # Whoever submitted may have been killed in the moment between.
    scripts = list(folder.batch.glob("*_submission.sh"))
    return scripts[0].name.partition("_")[0] if scripts else None


def dequeue(folder: Folder, number: str) -> None:
    """Take the job out of Slurm's queue, or end what runs of it.  SlurmSilent, with scancel's words, when that does not work."""
    from submitit import SlurmJob

    with _scancel_told():
        SlurmJob(folder.batch, number).cancel()


def tell(folder: Folder, number: str, level: int) -> None:
    """Let the batch step know at once that the job is to stop.  SlurmSilent, with scancel's words, when that does not work."""
    name = warning.cancel_signals(from_json(Plan, read_json(folder.plan)).slurm)[level]
    words = ["scancel", "--batch", f"--signal={name.removeprefix('SIG')}", number]
    with _scancel_told():
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)


@contextlib.contextmanager
def _scancel_told() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SlurmSilent("there is no scancel on PATH") from None
    except subprocess.CalledProcessError as error:
        raise SlurmSilent("scancel failed", lines=(error.stderr or "").strip().splitlines()) from error


def only_here(path: Path, mounts: str | None = None) -> str | None:
    """Why other machines will hardly see what lies at ``path``; None where that is not obvious.  ``mounts``: /proc/mounts."""
    real = os.path.realpath(path)
    for place in _LOCAL_PLACES:
        if real == place or real.startswith(f"{place}/"):
            return f"it lies in {place}"
    if mounts is None:
        with contextlib.suppress(OSError):
            mounts = Path("/proc/mounts").read_text()
    rows = [line.split() for line in (mounts or "").splitlines()]
    above = [row for row in rows if len(row) > 2 and f"{real}/".startswith(row[1].rstrip("/") + "/")]
    kind = max(above, key=lambda row: len(row[1]))[2] if above else ""
    return f"it is on a {kind}" if kind in _LOCAL_KINDS else None


def run_job(root: str) -> None:
    """What submitit calls in the batch step: coordinate the job to its end, and exit as it did."""
    _take_signals_back()
    folder = Folder(Path(root))
    with open(os.devnull, "rb") as null, folder.coordinator_log.open("ab") as log:
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source.fileno(), target)
    _know_number(folder)
    _hold_back(warning.of(from_json(Plan, read_json(folder.plan)).slurm)[0])
    try:
        plan = complete(folder, _given())
    except LauncherError as error:
        _end(folder, "InitializeFailed", "NoAllocation", str(error), error.exit_code)
    _go_on(folder, plan)
    code = _coordinate(folder)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # As in launcher.coordinator: the nodes are not held for a thread whose step was given up and that still waits for something.
    os._exit(code)


def _go_on(folder: Folder, plan: Plan) -> None:
    """What Slurm has put back into its queue goes on, unless it has ended, or came back too often."""
    seen = fold(folder.read_events())
    if seen.end is not None:
        print(f"{plan.job_id} has ended as {seen.end['status']}; launcher submit starts it anew", file=sys.stderr)
        sys.exit(int(seen.end["exit_code"]))
    if plan.restarts <= seen.requeues:
        return
    event = requeued(seen, plan.restarts)
    why = str(event["reason_code"])
    folder.append({"n": seen.count, "time": time.time(), **event}, durable=True)
    if plan.restarts > plan.spec.max_requeues:
        text = f"Slurm has put it back into its queue {plan.restarts} times, and max_requeues is {plan.spec.max_requeues}"
        _end(folder, "Failed", why, text, states.EXIT_CODES.get(why, 69))


def requeued(seen: View, count: int) -> dict[str, Any]:
    """The event that says that Slurm has put a job back, ``count`` times now; written by whoever notices first."""
    why = str((seen.revoked or seen.warning or {}).get("reason_code") or "Requeued")
    sentence = states.sentence(why) or "it was put back"
    return {"type": "requeued", "requeue": count, "by": "slurm", "reason_code": why, "message": sentence}


def _end(folder: Folder, status: str, code: str, message: str, exit_code: int) -> NoReturn:
    """Write the end of a job that gets no coordinator (any more), and leave."""
    seen = fold(folder.read_events())
    end = {"type": "end", "status": status, "reason_code": code, "reason_message": message, "exit_code": exit_code}
    folder.environment.unlink(missing_ok=True)
    folder.append({"n": seen.count, "time": time.time(), **end, "model": seen.model}, durable=True)
    sys.exit(exit_code)


def _given() -> Allocation:
    """What Slurm gave the job; slurmctld may be away for a while just now.  Raises LauncherError."""
    deadline = time.monotonic() + _AWAY_SECONDS
    while True:
        try:
            given = allocation(os.environ)
        except SlurmSilent:
            if time.monotonic() > deadline:
                raise
            # Nobody tells when it is back.
            time.sleep(_AGAIN_SECONDS)
            continue
        if given is None:
            raise LauncherError("SLURM_JOB_ID is not set: this is no batch step of Slurm's")
        return given


def complete(folder: Folder, given: Allocation) -> Plan:
    """Write the nodes that Slurm gave the job into its plan, each with the variables that `defaults:` has for it."""
    plan = from_json(Plan, read_json(folder.plan))
    assert plan.template is not None
    nodes = tuple(Node(rank, host) for rank, host in enumerate(hosts(given, plan.template)[: plan.spec.nodes]))
    environment = read_json(folder.environment)
    if environment is not None:
        each = {str(node.rank): environment["each"] for node in nodes}
        write_json(folder.environment, {**environment, "nodes": each}, mode=0o600)
    plan = replace(plan, nodes=nodes, allocation=given.job_id, restarts=given.restart_count)
    write_json(folder.plan, {"schema_version": 1, **to_json(plan)})
    return plan


def _coordinate(folder: Folder) -> int:
    """Be the very program that is a process of its own elsewhere; returns the exit code of the job."""
    program = importlib.import_module("launcher.coordinator.__main__")  # by name: it stands above all backends
    sys.argv = ["launcher.coordinator", str(folder.root)]
    code = program.main()
    ends = [event for event in folder.read_events() if event["type"] == "end"]
    # Slurm's own state, and whatever depends on this job there, follow the outcome.
    return int(ends[-1]["exit_code"] if ends else code)


def _take_signals_back() -> None:
    """submitit's handlers would checkpoint by pickling, requeue by their own rules, and swallow TERM."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    # What this one means stands in the folder, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _hold_back(signal.SIGUSR1, signal.SIGUSR2)


def _hold_back(*numbers: int) -> None:
    """Let signals wait until the coordinator listens."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def _know_number(folder: Folder) -> None:
    record = read_json(folder.slurm) or {}
    if not record.get("slurm_job_id"):
        write_json(folder.slurm, {**record, "slurm_job_id": os.environ.get("SLURM_JOB_ID")})

"""PAI's Estimator over machines of your own: everything goes through the same front desk as the command line.

    from launcher import Estimator

    est = Estimator(source_dir="train_src", command="torchrun … train.py", instance_count=2)
    est.fit()
    est.model_data()
"""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher import api, arguments, training_job
from launcher.arguments import Check, warn
from launcher.channels import CHANNELS
from launcher.cluster import parse_duration, parse_size
from launcher.errors import UsageError, WrongArguments
from launcher.metrics import of_mappings
from launcher.model import MASK, Command, GitSource, JobSpec, from_json
from launcher.planning import Request
from launcher.session import Session, get_default_session, odd_session
from launcher.store import read_json
from launcher.training_job import TrainingJob

if TYPE_CHECKING:
    from launcher.tensorboard import TensorBoard

CLOUD_ONLY = ("user_vpc_config", "resource_id", "spot_spec", "experiment_config", "instance_spec", "resource_type")
"""arguments of PAI's that have no meaning on machines of one's own"""
_LOCAL = ("local", "local_gpu")
"""words for instance_type by which PAI means this machine"""
_CHECKS: dict[str, Check] = {
    "image_uri": arguments.image,
    "command": arguments.command,
    "source_dir": arguments.path,
    "git_config": arguments.git,
    "job_type": arguments.job_type,
    "hyperparameters": arguments.parameters,
    "environments": arguments.variables,
    "requirements": arguments.lines,
    "base_job_name": arguments.name,
    "max_run_time": arguments.seconds,
    "checkpoints_path": arguments.path,
    "output_path": arguments.path,
    "metric_definitions": arguments.metrics,
    "instance_type": arguments.text,
    "instance_count": arguments.count,
    "session": odd_session,
    "settings": arguments.named,
    "labels": arguments.words,
    "cluster": arguments.path,
    "nproc_per_node": arguments.count_or_auto,
    "max_restarts": arguments.later,
    "spares": arguments.later,
    "backend": arguments.backend,
}
"""what each argument may be; None, where nobody says anything, is no value"""
ARGUMENTS = (*_CHECKS, *CLOUD_ONLY)
"""all that the constructor takes"""
_OF_A_FIT: dict[str, Check] = {
    "inputs": arguments.named,
    "job_name": arguments.name,
    "outputs": lambda value: _channels(value),
    "wait": arguments.flag,
    "show_logs": arguments.flag,
}
"""what each argument of `fit` may be"""
_SETTINGS: dict[str, Check] = {
    "hosts": arguments.text,
    "exclude": arguments.text,
    "hostfile": arguments.path,
    "env_file": lambda value: arguments.texts(value, "files"),
    "forward_env": lambda value: arguments.texts(value, "patterns"),
    "grace": arguments.seconds,
    "collect": lambda value: arguments.texts(value, "names of channels"),
    "checkpoint_interval": arguments.seconds,
    "keep": arguments.flag,
    "requeue": arguments.flag,
    "max_requeues": arguments.count,
    "max_code_size": arguments.size,
}
"""options of `launcher submit` that have no argument of their own, by their names in a job file"""


class Estimator:
    """A training job that can be run as often as one likes; all settings are attributes, and may be changed between two fits."""

    image_uri: str | None
    """the environment that the command runs in, as `launcher.images.retrieve` gives it; None: the nodes' own Python"""
    command: str | Sequence[str] | Command | None
    """a text for `sh -c`, or a program and its arguments"""
    source_dir: str | os.PathLike[str] | None
    """the folder that goes to the nodes; the command runs in a copy of it"""
    git_config: Mapping[str, str] | None
    """`repo`, `branch`, `commit`: source_dir is a folder in there"""
    job_type: str
    """PyTorchJob: there is no other kind"""
    hyperparameters: dict[str, Any] | None
    """in the command's PAI_HPS, PAI_HPS_<NAME>, PAI_USER_ARGS and hyperparameters.json"""
    environments: Mapping[str, Any] | None
    """variables of the command"""
    requirements: Sequence[str] | None
    """None: requirements.txt of source_dir, where there is one; []: nothing"""
    base_job_name: str | None
    """None: the class's name in lower case"""
    max_run_time: float | str | None
    """seconds, or a text such as 2h"""
    checkpoints_path: str | None
    """a folder or URI that checkpoints come from and are copied to; given again, a training resumes.  `checkpoints_data()` of
    an earlier job does, too: where that is its job folder it is only read"""
    output_path: str | None
    """a folder or URI below which the outputs are published; None: they stay in the job folder"""
    metric_definitions: Sequence[Mapping[str, str]] | None
    """numbers to look for in the logs: `Name`, and a `Regex` with one group"""
    instance_type: str | None
    """a label of hosts in the inventory; `local`: this machine"""
    instance_count: int | None
    """nodes; None: all hosts that there are"""
    session: Session | None
    """None: the default session of the moment of a fit"""
    settings: Mapping[str, Any] | None
    """options of `launcher submit` that have no argument here, by their names in a job file: hosts, collect, grace, …"""
    labels: Mapping[str, Any] | None
    """words of one's own, which `status` and `list` show"""
    cluster: str | os.PathLike[str] | None
    """a cluster file, or the name of one; None: the session's"""
    nproc_per_node: int | str | None
    """processes per node; `auto`, and None: a host's slots, else its GPUs, else 1"""
    max_restarts: int | None
    """not in this version"""
    spares: int | None
    """not in this version"""
    backend: str | None
    """local, ssh or slurm; None: the cluster's"""

    def __init__(
        self,
        image_uri: str | None = None,
        command: str | Sequence[str] | Command | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        git_config: Mapping[str, str] | None = None,
        job_type: str = "PyTorchJob",
        hyperparameters: Mapping[str, Any] | None = None,
        environments: Mapping[str, Any] | None = None,
        requirements: Sequence[str] | None = None,
        base_job_name: str | None = None,
        max_run_time: float | str | None = None,
        checkpoints_path: str | None = None,
        output_path: str | None = None,
        metric_definitions: Sequence[Mapping[str, str]] | None = None,
        instance_type: str | None = None,
        instance_count: int | None = 1,
        session: Session | None = None,
        settings: Mapping[str, Any] | None = None,
        labels: Mapping[str, Any] | None = None,
        *,
        cluster: str | os.PathLike[str] | None = None,
        nproc_per_node: int | str | None = None,
        max_restarts: int | None = None,
        spares: int | None = None,
        backend: str | None = None,
        **others: Any,
    ) -> None:
        """Take the settings; ``others`` are PAI's for its cloud.  Raises WrongArguments, a ValueError, with every problem."""
        said = dict(locals())
        vars(self).update({key: said[key] for key in _CHECKS})
        self._jobs: list[TrainingJob] = []
        _check(self, others)
        self.hyperparameters = dict(hyperparameters or {})

    def __copy__(self) -> Estimator:
        """One with the same settings, and from then on with jobs and hyperparameters of its own: as for trying other values."""
        made = type(self).__new__(type(self))
        vars(made).update(vars(self), _jobs=list(self._jobs), hyperparameters=copy.copy(self.hyperparameters))
        return made

    def set_hyperparameters(self, **values: Any) -> None:
        """Add hyperparameters, or change them, for the fits to come."""
        self.hyperparameters = {**(self.hyperparameters or {}), **values}

    def fit(
        self,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, str | None] | Sequence[str] | None = None,
        wait: bool = True,
        show_logs: bool = True,
        job_name: str | None = None,
    ) -> TrainingJob:
        """Run a new job, and show what it prints until its end, unless ``wait`` is False.

        ``inputs``: channels of data, by name: paths or URIs.  ``outputs``: channels of one's own besides PAI's, by name: where
        each is published, or None.  Raises UsageError (WrongArguments among them) before anything has started, and when
        waiting UnexpectedStatusException for a job that did not succeed.  Ctrl-C ends the waiting, not the job.
        """
        request = request_of(self, inputs, outputs, job_name, wait, show_logs=show_logs)
        job = training_job.submit(request, self._jobs.append)
        if wait:
            job.wait(show_logs=show_logs)
        return job

    def wait(self, interval: float = 5, show_logs: bool = True, all_jobs: bool = False) -> None:
        """Wait for the latest job, or with ``all_jobs`` for all of this estimator's, and print a table of them.

        Raises RuntimeError where there is no job, UnexpectedStatusException where one did not succeed.
        """
        training_job.check_waiting(interval=interval, show_logs=show_logs, all_jobs=all_jobs)
        latest = self._latest("nothing to wait for")
        if all_jobs:
            training_job.wait_for_all(self._jobs, interval)
        else:
            latest.wait(interval, show_logs)

    @property
    def latest_job(self) -> TrainingJob | None:
        """The job of the last fit, or the one that was attached to."""
        return self._jobs[-1] if self._jobs else None

    training_job = latest_job
    """the same by the class's name"""

    def model_data(self) -> str:
        """Where the latest job's model is: a path, or a URI below ``output_path``.

        A job that has not succeeded, and an empty model, are a warning.  Raises RuntimeError where there is no job, and
        CollectFailed where the model of a job that succeeded is not whole any more.
        """
        return self._latest("there is no model").data("model")

    def checkpoints_data(self) -> str:
        """Where the latest job's checkpoints are; as `model_data`."""
        return self._latest("there are no checkpoints").data("checkpoints")

    def tensorboard_data(self) -> str:
        """Where the latest job's TensorBoard logs are; as `model_data`."""
        return self._latest("there are no TensorBoard logs").data("tensorboard")

    def tensorboard(self, wait: bool = True) -> TensorBoard:
        """Start TensorBoard on what the latest job has written, also while it runs; ends with this program, or by `stop()`.

        It answers when this returns, whatever ``wait`` says, which PAI has.  Raises RuntimeError where there is no job, and
        UsageError where TensorBoard is not installed.
        """
        from launcher import tensorboard

        job = self._latest("there are no TensorBoard logs")
        return tensorboard.start(api.tensorboard_place(api.find(job.training_job_id)))

    def job_name(self, job_name: str | None = None) -> str:
        """The name of a job that is run now; letters that make it unique are added to it."""
        base = job_name or self.base_job_name or type(self).__name__.lower()
        return f"{base}-{time.strftime('%Y%m%d-%H%M%S')}"

    def stop(self, now: bool = False) -> None:
        """Stop the latest job on all nodes, with grace unless ``now``, and wait until it has ended."""
        self._latest("nothing to stop").stop(now)

    def describe(self) -> dict[str, Any]:
        """All that is known of the latest job, the document of `launcher status -o json`."""
        return self._latest("nothing to describe").describe()

    @classmethod
    def attach(cls, training_job_id: str) -> Estimator:
        """An estimator with the settings of a job that was submitted earlier, by whichever program, as its latest job.

        The id may be the beginning of one, or `latest`; raises JobNotFound, and UsageError where the job's folder is spoiled.
        """
        job = TrainingJob.get(training_job_id)
        try:
            said = _said_by(job)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = "its job.json does not say what it was asked for any more"
            step = "TrainingJob.get(id) has what became of it"
            raise UsageError(what, where=job.training_job_id, next_step=step) from error
        made = cls(**said)
        made._jobs.append(job)
        return made

    def _latest(self, without: str) -> TrainingJob:
        if self.latest_job is None:
            raise RuntimeError(f"{without}: this estimator has no job yet; fit() runs one, attach(id) finds one")
        return self.latest_job


def _check(said: Estimator, others: Mapping[str, Any]) -> None:
    """Raise WrongArguments for what cannot be; warn, in one sentence, of what only a cloud knows."""
    unknown = [name for name in others if name not in CLOUD_ONLY]
    problems = [f"{name}: unknown argument{arguments.meant(name, _CHECKS)}" for name in unknown]
    settings = said.settings if isinstance(said.settings, Mapping) else {}
    # PAI's own settings begin with capitals; ours do not.
    clouds = [name for name in settings if isinstance(name, str) and name[:1].isupper()]
    for name, value in settings.items():
        wrong = _SETTINGS[name](value) if name in _SETTINGS else f"unknown{arguments.meant(str(name), _SETTINGS)}"
        if wrong and name not in clouds:
            problems.append(f"settings: {name}: {wrong}")
    arguments.complain("these arguments cannot be", _CHECKS, vars(said), problems, manual="launcher.Estimator")
    ignored = [name for name in others if others[name] is not None] + [f"settings[{name!r}]" for name in clouds]
    if ignored:
        warn(f"{', '.join(ignored)}: only PAI's cloud knows what to do with that; ignored")


def request_of(
    said: Estimator,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, str | None] | Sequence[str] | None = None,
    job_name: str | None = None,
    attached: bool = True,
    more: Mapping[str, Any] | None = None,
    show_logs: bool = True,
) -> Request:
    """What a fit asks the front desk for; ``more`` are fields of the request that no argument has.  Raises WrongArguments."""
    asked = {"inputs": inputs, "outputs": outputs, "job_name": job_name, "wait": attached, "show_logs": show_logs}
    problems = [] if said.command else ["command: there is none; a text, or a list of words"]
    checks, values = {**_CHECKS, **_OF_A_FIT}, {**vars(said), **asked}
    arguments.complain("these arguments cannot be", checks, values, problems, manual="launcher.Estimator")
    _check_known(said)
    local = said.instance_type in _LOCAL
    session = said.session or get_default_session()
    cluster = session.cluster if said.cluster is None else os.fspath(said.cluster)
    fields = {
        "command": _command(said.command),
        "name": job_name or said.base_job_name or type(said).__name__.lower(),
        "cluster": None if local else cluster,
        "backend": said.backend or ("local" if local else session.backend),
        "nodes": said.instance_count,
        "instance_type": None if local else said.instance_type,
        "nproc_per_node": said.nproc_per_node,
        "source_dir": None if said.source_dir is None else os.fspath(said.source_dir),
        "env": _texts(said.environments or {}),
        "max_run_time": _seconds(said.max_run_time),
        "detached": not attached,
    }
    return Request(**{**fields, **_of_training(said, inputs, outputs), **_settings(said.settings or {}), **(more or {})})


def _of_training(
    said: Estimator, inputs: Mapping[str, Any] | None, outputs: Mapping[str, str | None] | Sequence[str] | None
) -> dict[str, Any]:
    """The fields that say what is trained with, and what becomes of the outputs."""
    own = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs or ())
    git = said.git_config
    return {
        "image": said.image_uri,
        "hyperparameters": dict(said.hyperparameters or {}),
        "requirements": None if said.requirements is None else tuple(said.requirements),
        "labels": _texts(said.labels or {}),
        "inputs": dict(inputs or {}),
        "outputs": dict(own),
        "output_path": None if said.output_path is None else os.fspath(said.output_path),
        "checkpoints_path": None if said.checkpoints_path is None else os.fspath(said.checkpoints_path),
        "brings_checkpoints": (said.settings or {}).get("collect") is None,
        "git": None if git is None else GitSource(**{key: value for key, value in git.items() if value is not None}),
        "metrics": of_mappings(said.metric_definitions or ()),
    }


def _command(said: str | Sequence[str] | Command | None) -> Command:
    if isinstance(said, Command):
        return said
    return Command(shell=said) if isinstance(said, str) else Command(argv=tuple(said or ()))


def _check_known(said: Estimator) -> None:
    """Raise WrongArguments for an estimator that was attached to a job and does not know all of its secrets."""
    hidden = [f"environments[{key!r}]" for key, value in sorted((said.environments or {}).items()) if value == MASK]
    hidden += [f"hyperparameters[{key!r}]" for key, value in sorted((said.hyperparameters or {}).items()) if value == MASK]
    hidden += [f"requirements[{number}]" for number, line in enumerate(said.requirements or ()) if f"{MASK}@" in line]
    hidden += ["git_config['repo']"] if MASK in (said.git_config or {}).get("repo", "") else []
    if hidden:
        what = "a job's folder does not have the values of its secrets"
        raise WrongArguments(what, problems=hidden, next_step="set them before a new fit")


def _texts(said: Mapping[str, Any]) -> dict[str, str]:
    """Numbers as they are written; of a member of an Enum that is a text, or a number, its value."""
    return {key: str.__str__(value) if isinstance(value, str) else int.__repr__(value) for key, value in said.items()}


def _seconds(said: float | str | None) -> float | None:
    return parse_duration(said) if isinstance(said, str) else said


def _settings(said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the request that ``settings`` name; PAI's own were warned of."""
    found = {name: value for name, value in said.items() if name in _SETTINGS and value is not None}
    for name in ("env_file", "forward_env", "collect"):
        if name in found:
            found[name] = tuple(found[name])
    for name in ("grace", "checkpoint_interval"):
        if name in found:
            found[name] = _seconds(found[name])
    if isinstance(found.get("max_code_size"), str):
        found["max_code_size"] = parse_size(found["max_code_size"])
    return found


def _channels(value: Any) -> str | None:
    """Own output channels: names, with a URI each or none."""
    if not isinstance(value, Mapping):
        return arguments.texts(value, "names of channels")
    odd = [key for key, uri in value.items() if not isinstance(key, str) or not (uri is None or isinstance(uri, str))]
    return f"{odd[0]!r}: a URI as text is wanted, or None" if odd else None


def _said_by(job: TrainingJob) -> dict[str, Any]:
    """The arguments that would run a job again; secrets are masked in its folder, and stay so."""
    told = job.describe()
    folder = api.find(job.training_job_id)
    spec = from_json(JobSpec, (read_json(folder.job) or {})["spec"])
    if spec.command == Command():
        raise ValueError("no command")
    plan = folder.read_plan()
    git = spec.git and {key: value for key, value in dataclasses.asdict(spec.git).items() if value is not None}
    return {
        "image_uri": spec.image,
        "command": spec.command.shell or (list(spec.command.argv) if spec.command.argv else spec.command),
        "source_dir": spec.source_dir,
        "git_config": git,
        "hyperparameters": spec.hyperparameters,
        "environments": dict(spec.env),
        "requirements": None if spec.requirements is None else list(spec.requirements),
        "base_job_name": spec.name,
        "max_run_time": spec.max_run_time,
        "checkpoints_path": spec.goes_on_from,
        "output_path": spec.output_path,
        "metric_definitions": [{"Name": one.name, "Regex": one.regex} for one in spec.metrics] or None,
        "instance_type": spec.instance_type,
        "instance_count": spec.nodes,
        "labels": dict(spec.labels),
        "nproc_per_node": spec.nproc_per_node,
        "backend": told["backend"],
        **_places(plan),
        "settings": {**_places(plan)["settings"], **_others(spec)},
    }


def _places(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say on which machines a job was, where a person had picked some."""
    origins, file = plan.get("origins", {}), plan.get("inventory")
    picked = [name for name in ("hosts", "exclude") if origins.get(name, "built-in") != "built-in"]
    if origins.get("hostfile", "built-in") != "built-in":
        found: dict[str, Any] = {"cluster": None, "settings": {"hostfile": file}}
    else:
        found = {"cluster": file, "settings": {}}
    if picked:
        found["settings"]["hosts"] = ",".join(_spelled(node["host"], file) for node in plan.get("nodes", []))
    return found


def _spelled(host: Mapping[str, Any], file: str | None) -> str:
    """As `--hosts` takes it: a name of the file; without one, with the user who stood before it."""
    return f"{host['user']}@{host['name']}" if file is None and host.get("user") else str(host["name"])


def _others(spec: JobSpec) -> dict[str, Any]:
    """The settings without an argument of their own, as the job had them."""
    said: dict[str, Any] = {"grace": spec.grace, "keep": spec.keep, "max_code_size": spec.max_code_bytes}
    # Own channels are an argument of fit.
    said |= {} if spec.collect_if_room else {"collect": [name for name in spec.collect if name in CHANNELS]}
    said |= {"forward_env": list(spec.forward_env)} if spec.forward_env else {}
    said |= {"requeue": True, "max_requeues": spec.max_requeues} if spec.requeue else {}
    return said | ({"checkpoint_interval": spec.checkpoint_interval} if spec.checkpoints_path else {})

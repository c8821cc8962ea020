"""From what a person said to a Plan: every value settled, with where it came from.  Asks no node anything.

Precedence: flag > job file > cluster.yaml > built-in.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import environ, torchrun
from launcher.cluster import Cluster, load_cluster, load_hostfile, load_job, local_cluster, select_hosts
from launcher.errors import UsageError
from launcher.keep import home
from launcher.model import Command, Host, JobSpec, Node, Plan
from launcher.store import new_job_id

if TYPE_CHECKING:
    from launcher.cluster.jobfile import JobFile

_MAX_LOCAL_NODES = 64


@dataclass(frozen=True)
class Request:
    """What was said on the command line or in code; None: nothing was."""

    job_file: str | None = None
    words: tuple[str, ...] | None = None
    """what stood after `--`"""
    command: Command | None = None
    name: str | None = None
    cluster: str | None = None
    hostfile: str | None = None
    backend: str | None = None
    nodes: int | None = None
    hosts: str | None = None
    exclude: str | None = None
    instance_type: str | None = None
    nproc_per_node: int | str | None = None
    source_dir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    env_file: tuple[str, ...] = ()
    forward_env: tuple[str, ...] = ()
    max_run_time: float | None = None
    grace: float | None = None
    collect: tuple[str, ...] | None = None
    requeue: bool | None = None
    max_requeues: int | None = None
    keep: bool | None = None
    max_code_size: int | None = None
    detached: bool = False


@dataclass(frozen=True)
class Draft:
    """A plan, the real values that it shows masked, and what the person should hear."""

    plan: Plan
    environment: dict[str, Any]
    """{"all": variables for every node, "nodes": {rank: variables of that host}}, and "each": those of `defaults:` for nodes
    that Slurm has yet to give; stored readable by the user alone"""
    warnings: tuple[str, ...]


_STORED_AS = {"max_code_size": "max_code_bytes"}
"""options whose value has another name in the plan"""


class _Settings:
    """Looks values up in the order of precedence, and remembers where each was found."""

    def __init__(self, request: Request, job: JobFile | None) -> None:
        self._request, self._job = request, job
        self.origins: dict[str, str] = {}
        self.allocation: str | None = None
        """Slurm's number of the job that we are in, where its nodes are the inventory"""
        self.restarts = 0
        """how often Slurm had requeued that job"""

    @property
    def detached(self) -> bool:
        return self._request.detached

    def get(self, name: str, built_in: Any = None) -> Any:
        """The value, and in ``origins`` its source, under the name that the plan has for it."""
        stored = _STORED_AS.get(name, name)
        said = getattr(self._request, name, None)
        if said is not None and said != ():
            self.origins[stored] = "--" + name.replace("_", "-")
            return said
        said = getattr(self._job, name, None)
        if said is not None and said != ():
            assert self._job is not None
            lines = self._job.lines
            self.origins[stored] = f"{self._job.path}:{lines.get(name) or lines.get('script', 1)}"
            return said
        self.origins[stored] = "built-in"
        return built_in


def draft(request: Request, environment: Mapping[str, str]) -> Draft:
    """Settle everything; raises UsageError.  ``environment`` is the submitting side's."""
    job = load_job(request.job_file) if request.job_file else None
    settings = _Settings(request, job)
    warnings: list[str] = []
    cluster = _cluster(settings, environment)
    command = _command(request, settings)
    queued = cluster.backend == "slurm" and settings.allocation is None
    nodes = () if queued else _nodes(settings, cluster, warnings)
    template = _template(settings, cluster) if queued else None
    user = _user_environment(request, job, settings, environment)
    spec = _requeued(settings, cluster, _spec(settings, command, user, _count(settings) if queued else len(nodes), warnings))
    source = spec.source_dir
    now = time.time()
    from launcher.code import project_name

    plan = Plan(
        job_id=new_job_id(spec.name, now),
        spec=spec,
        backend=cluster.backend,
        cluster=cluster.name,
        inventory=str(cluster.path) if cluster.path else None,
        nodes=_masked_nodes(nodes),
        project=project_name(Path(source)) if source else "none",
        ssh=cluster.ssh,
        master=cluster.master,
        slurm=cluster.slurm,
        template=template and dataclasses.replace(template, env=environ.masked(template.env)),
        allocation=settings.allocation,
        restarts=settings.restarts,
        detached=request.detached,
        origins=settings.origins,
        created_at=now,
    )
    for host in [template] if template else [node.host for node in nodes]:
        _check_variables(host.env, f"the env of {host.name}")
    own = {str(node.rank): dict(node.host.env) for node in nodes}
    each = dict(template.env) if template else {}
    return Draft(plan, {"all": user, "each": each, "nodes": own}, tuple(warnings))


def has_inventory(request: Request) -> bool:
    """Whether an inventory will be looked at; known without reading it, the job file's own `cluster:` left aside."""
    named = request.cluster or request.hostfile or os.environ.get("LAUNCHER_CLUSTER")
    return bool(named) or Path("cluster.yaml").is_file()


def find_cluster(settings: _Settings) -> Cluster:
    """The inventory that was named, else ./cluster.yaml, else the built-in local one."""
    path, hostfile = settings.get("cluster"), settings.get("hostfile")
    if path and hostfile:
        raise UsageError("--cluster and --hostfile both name an inventory", next_step="keep one of them")
    if hostfile:
        return load_hostfile(hostfile)
    if path:
        return load_cluster(path)
    named = os.environ.get("LAUNCHER_CLUSTER")
    if named:
        settings.origins["cluster"] = "LAUNCHER_CLUSTER"
        return load_cluster(named)
    if settings.get("backend") != "local" and Path("cluster.yaml").is_file():
        settings.origins["cluster"] = "./cluster.yaml"
        return load_cluster("cluster.yaml")
    return local_cluster()


def inventory(request: Request) -> Cluster:
    """The hosts that a request means, as `launcher nodes` shows them."""
    return _cluster(_Settings(request, None), os.environ)


def _cluster(settings: _Settings, environment: Mapping[str, str]) -> Cluster:
    cluster = find_cluster(settings)
    backend = settings.get("backend")
    if environment.get("SLURM_JOB_ID") and (backend or (cluster.backend if cluster.path else "slurm")) == "slurm":
        return select_hosts(_allocated(settings, cluster, environment), settings.get("hosts"), settings.get("exclude"))
    if backend and backend != cluster.backend:
        if backend == "ssh" and not cluster.hosts and settings.get("hosts") is None:
            step = "name the machines: --cluster FILE, --hostfile FILE or --hosts a,b"
            raise UsageError("--backend ssh needs hosts, and no inventory names any", next_step=step)
        cluster = dataclasses.replace(cluster, backend=backend)
    if cluster.backend == "slurm":
        _refuse_hosts(settings)
    elif cluster.backend != "local" or settings.get("hosts") is not None or settings.get("exclude") is not None:
        cluster = select_hosts(cluster, settings.get("hosts"), settings.get("exclude"))
    if backend == "local":
        cluster = dataclasses.replace(cluster, backend="local")
    return cluster


def _allocated(settings: _Settings, cluster: Cluster, environment: Mapping[str, str]) -> Cluster:
    """The cluster that the nodes of the Slurm allocation are in which we are; UsageError where nothing can be started in it."""
    from launcher.slurm.allocation import allocation
    from launcher.slurm.nodes import hosts

    given = allocation(environment)
    assert given is not None
    told = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if given.in_step and told != "1":
        what = f"srun has started this {told} times (step {given.step_id} of Slurm job {given.job_id})"
        step = "start `launcher submit` once, without srun; or let srun start `launcher exec -- COMMAND`"
        raise UsageError(what, next_step=step)
    if settings.detached and given.batch:
        step = "leave it out: the job's output goes to the batch script's, and its exit code is ours"
        raise UsageError("-d in a batch script: the script would go on to its end, and Slurm would end the job", next_step=step)
    settings.allocation, settings.restarts = given.job_id, given.restart_count
    settings.origins["backend"] = settings.origins["allocation"] = f"the Slurm allocation {given.job_id}"
    name = cluster.name if cluster.path else given.cluster or "slurm"
    return dataclasses.replace(cluster, name=name, backend="slurm", hosts=hosts(given, _template(settings, cluster)))


def _command(request: Request, settings: _Settings) -> Command:
    if request.words is not None and request.command is not None:
        raise UsageError("there are two commands: --command, and the words after `--`", next_step="keep one of them")
    if request.words is not None:
        settings.origins["command"] = "the words after --"
        return _of_words(request.words)
    command = settings.get("command")
    if command is None or (command.shell is not None and not command.shell.strip()):
        step = "add `-- SCRIPT.py ARGS`, --command TEXT, or a job file that has one"
        raise UsageError("there is no command to run", next_step=step)
    assert isinstance(command, Command)
    return command


def _of_words(words: tuple[str, ...]) -> Command:
    """A Python script (or -m module) is started by torchrun; any other program as it is, once per node."""
    if not words:
        raise UsageError("there is nothing after `--`", next_step="add a script and its arguments")
    if words[0].endswith(".py") or words[0] in ("-m", "--module"):
        return Command(script=words)
    hint = torchrun.empty_master_hint(words)
    if hint:
        raise UsageError("the command names no master", where="after --", next_step=hint)
    return Command(argv=words)


def _nodes(settings: _Settings, cluster: Cluster, warnings: list[str]) -> tuple[Node, ...]:
    asked = settings.get("nodes")
    label = settings.get("instance_type")
    if asked is not None and asked < 1:
        raise UsageError(f"--nodes {asked}: at least one node is needed")
    if cluster.backend == "local" and not cluster.hosts:
        if label:
            warnings.append(f"simulated nodes have no instance_type; {label!r} is ignored")
        return _local_nodes(cluster, asked or 1)
    hosts = _labelled(cluster, label, warnings) if label else cluster.hosts
    if asked is None:
        picked = [settings.origins[key] for key in ("hosts", "exclude", "instance_type") if settings.get(key) is not None]
        whole = settings.origins.get("allocation", "all hosts of the inventory")
        settings.origins["nodes"] = f"all hosts that {' and '.join(picked)} leave" if picked else whole
    if asked is not None and asked > len(hosts):
        kind = f" with instance_type {label}" if label and len(hosts) != len(cluster.hosts) else ""
        problems = [f"{host.name} ({host.address})" for host in hosts]
        have = f"{settings.origins['allocation']} has" if settings.allocation else "there are"
        step = "ask for fewer, or Slurm for more" if settings.allocation else "ask for fewer, or add hosts"
        raise UsageError(f"--nodes {asked}, but {have} {len(hosts)} hosts{kind}", problems=problems, next_step=step)
    chosen = hosts[: asked or len(hosts)]
    return tuple(Node(rank, _here(host) if cluster.backend == "local" else host) for rank, host in enumerate(chosen))


def _refuse_hosts(settings: _Settings) -> None:
    """Slurm chooses the nodes; what it should keep to is said to sbatch."""
    keys = {"hosts": "nodelist", "exclude": "exclude", "instance_type": "constraint", "hostfile": "nodelist"}
    said = [
        f"{settings.origins[name]}: `{key}` under `slurm:` says that to sbatch"
        for name, key in keys.items()
        if settings.get(name) is not None
    ]
    if said:
        raise UsageError("Slurm chooses the nodes of a job", problems=said, next_step="write it into the cluster file")


def _count(settings: _Settings) -> int:
    """How many nodes are asked of Slurm."""
    asked = int(settings.get("nodes", 1))
    if asked < 1:
        raise UsageError(f"--nodes {asked}: at least one node is needed")
    return asked


def _template(settings: _Settings, cluster: Cluster) -> Host:
    """What every node of Slurm's is like, apart from its name."""
    own = cluster.template.workdir if cluster.template.workdir != Host("", "").workdir else str(home())
    return dataclasses.replace(cluster.template, name="slurm", address="", workdir=cluster.slurm.workdir or own)


def _here(host: Host) -> Host:
    """A simulated node: our own interpreter and directory where the inventory names none."""
    python = host.python or (None if host.venv else sys.executable)
    workdir = str(home()) if host.workdir == Host("", "").workdir else host.workdir
    return dataclasses.replace(host, address="localhost", python=python, workdir=workdir)


def _local_nodes(cluster: Cluster, count: int) -> tuple[Node, ...]:
    if count > _MAX_LOCAL_NODES:
        raise UsageError(f"--nodes {count}: this machine simulates at most {_MAX_LOCAL_NODES} nodes")
    base = _here(cluster.template)
    return tuple(Node(rank, dataclasses.replace(base, name=f"local-{rank}")) for rank in range(count))


def _labelled(cluster: Cluster, label: str, warnings: list[str]) -> tuple[Host, ...]:
    known = sorted({host.instance_type for host in cluster.hosts if host.instance_type})
    if not known:
        warnings.append(f"no host has an instance_type; {label!r} is ignored")
        return cluster.hosts
    hosts = tuple(host for host in cluster.hosts if host.instance_type == label)
    if not hosts:
        raise UsageError(f"no host has instance_type {label!r}", problems=known, next_step="use one of these")
    return hosts


def _user_environment(
    request: Request, job: JobFile | None, settings: _Settings, environment: Mapping[str, str]
) -> dict[str, str]:
    """Flags over files over the job file over what is forwarded."""
    patterns = settings.get("forward_env", ())
    files = settings.get("env_file", ())
    merged = environ.forwarded(environment, patterns)
    settings.origins.update({f"env.{name}": "this shell" for name in merged})
    layers: list[tuple[str, Mapping[str, str]]] = [("job file", (job.env or {}) if job else {})]
    layers += [(str(path), read_env_file(Path(path))) for path in files]
    layers.append(("--env", request.env))
    for origin, layer in layers:
        merged.update(layer)
        settings.origins.update({f"env.{name}": origin for name in layer})
    _check_variables(merged, "the environment")
    return merged


def _check_variables(environment: Mapping[str, str], where: str) -> None:
    """Nothing that a person sets is ignored: what only the launcher may set is refused, and a port that is none."""
    fixed = sorted(name for name in environment if environ.is_ours(name))
    if fixed:
        step = "leave them out; --nodes and --nproc-per-node set the numbers, and outputs go where $PAI_OUTPUT_* say"
        raise UsageError("these variables are the launcher's own", where=where, problems=fixed, next_step=step)
    port = environment.get("MASTER_PORT", "1")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        step = "leave it out, and a free one is picked on node 0"
        raise UsageError(f"MASTER_PORT={port} is no port number (1 to 65535)", where=where, next_step=step)


def read_env_file(path: Path) -> dict[str, str]:
    """KEY=VALUE lines (`export`, quotes as in a shell, comments); UsageError lists every line that is none of these."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8: {error}"
        raise UsageError(f"the env file cannot be read: {reason}", where=str(path), next_step="check --env-file") from error
    values: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}: {line.strip()}")
            continue
        words = words[1:] if words[:1] == ["export"] else words
        name, equals, value = words[0].partition("=") if words else ("", "", "")
        if words and (len(words) > 1 or not equals or not name.isidentifier()):
            problems.append(f"{path}:{number}: not KEY=VALUE (quote a value with spaces): {line.strip()}")
        elif words:
            values[name] = value
    if problems:
        raise UsageError("the env file has lines that cannot be understood", problems=problems)
    return values


def _spec(settings: _Settings, command: Command, user: Mapping[str, str], nodes: int, warnings: list[str]) -> JobSpec:
    nproc = _processes(settings, command)
    text = command.shell or shlex.join(command.argv or ())
    if nproc is not None and nproc > 1 and not environ.starts_processes(command):
        warnings.append(
            f"nproc_per_node is {nproc}, but `{text}` starts neither torchrun nor another process launcher: it runs once per node"
        )
    spec = JobSpec(
        command=command,
        name=settings.get("name") or _base_name(command),
        source_dir=_source_dir(settings),
        nodes=nodes,
        nproc_per_node=nproc,
        env=environ.masked(user),
        forward_env=tuple(settings.get("forward_env", ())),
        instance_type=settings.get("instance_type"),
        max_run_time=settings.get("max_run_time"),
        grace=settings.get("grace", JobSpec.grace),
        collect=_channels(settings.get("collect")),
        keep=bool(settings.get("keep", False)),
        requeue=bool(settings.get("requeue", False)),
        max_requeues=int(settings.get("max_requeues", JobSpec.max_requeues)),
        max_code_bytes=settings.get("max_code_size", JobSpec.max_code_bytes),
    )
    if spec.source_dir is not None and not Path(spec.source_dir).is_dir():
        raise UsageError("there is no such source folder", where=spec.source_dir, next_step="check --source-dir")
    _check_script(command, spec.source_dir)
    return spec


def _requeued(settings: _Settings, cluster: Cluster, spec: JobSpec) -> JobSpec:
    """With what the cluster file says of going back into Slurm's queue; UsageError where there is no queue to go to."""
    if cluster.backend != "slurm" or settings.allocation is not None:
        if spec.requeue:
            what = "only a job in Slurm's queue can be requeued"
            step = "leave it out; a batch script of yours asks for it by `#SBATCH --requeue`"
            raise UsageError(what, where=settings.origins["requeue"], next_step=step)
        return spec
    said: dict[str, Any] = {"requeue": cluster.slurm.requeue, "max_requeues": cluster.slurm.max_requeues}
    found = {name: value for name, value in said.items() if value is not None and settings.origins[name] == "built-in"}
    settings.origins.update(dict.fromkeys(found, str(cluster.path)))
    return dataclasses.replace(spec, **found)


def _processes(settings: _Settings, command: Command) -> int | None:
    said = settings.get("nproc_per_node")
    inside = torchrun.nproc_in(command.shell or shlex.join(command.argv or ())) if command.script is None else None
    if said is None and inside is not None:
        settings.origins["nproc_per_node"] = "the command's own --nproc_per_node"
        return inside
    if said in (None, "auto"):
        return None
    if isinstance(said, str) or said < 1:
        raise UsageError(f"--nproc-per-node {said}: a number of at least 1, or auto")
    return int(said)


def _base_name(command: Command) -> str:
    words = command.script or command.argv or tuple((command.shell or "job").split()[:1])
    return Path(words[1] if words[0] in ("-m", "--module") and len(words) > 1 else words[0]).stem or "job"


def _source_dir(settings: _Settings) -> str | None:
    said = settings.get("source_dir")
    return None if said is None else str(Path(said).expanduser().absolute())


def _channels(said: tuple[str, ...] | None) -> tuple[str, ...]:
    """What is collected: model and tensorboard always, and what was asked for besides."""
    return tuple(dict.fromkeys([*JobSpec.collect, *(said or ())]))


def _check_script(command: Command, source_dir: str | None) -> None:
    """A script that is not in the source folder would be missed only on the nodes."""
    if command.script is None or command.script[0] in ("-m", "--module") or os.path.isabs(command.script[0]):
        return
    if source_dir is None:
        raise UsageError(
            f"{command.script[0]} goes to the nodes with a source folder, and none is named", next_step="add --source-dir DIR"
        )
    if not (Path(source_dir) / command.script[0]).is_file():
        found = sorted(path.name for path in Path(source_dir).glob("*.py"))[:5]
        raise UsageError(
            f"there is no {command.script[0]} in the source folder",
            where=source_dir,
            problems=found,
            next_step="name the script relative to --source-dir",
        )


def _masked_nodes(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(Node(n.rank, dataclasses.replace(n.host, env=environ.masked(n.host.env))) for n in nodes)

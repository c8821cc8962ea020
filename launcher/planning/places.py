"""Where a job will run: the inventory, and the hosts of it that become nodes."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping

from launcher.cluster import Cluster, load_cluster, load_hostfile, local_cluster, select_hosts
from launcher.cluster.userfile import LOCAL, load_user_config
from launcher.errors import UsageError
from launcher.keep import home
from launcher.model import Host, Node
from launcher.planning.personal import Personal
from launcher.planning.request import Request, Settings

_MAX_LOCAL_NODES = 64


def has_inventory(request: Request) -> bool:
    """Whether an inventory will be looked at; known without reading it, the job file's own `cluster:` left aside."""
    named = request.cluster or request.hostfile or os.environ.get("LAUNCHER_CLUSTER")
    return bool(named) or os.path.lexists("cluster.yaml") or load_user_config(os.environ).default not in (None, LOCAL)


def find_cluster(settings: Settings) -> Cluster:
    """The inventory that was named, else ./cluster.yaml, else the user config's default, else the built-in local one."""
    path, hostfile = settings.get("cluster"), settings.get("hostfile")
    if path and hostfile:
        raise UsageError("--cluster and --hostfile both name an inventory", next_step="keep one of them")
    if hostfile:
        return load_hostfile(hostfile)
    origin = settings.origins["cluster"]
    if path:
        return _called(settings, path, origin, beside=origin == "--cluster")
    named = os.environ.get("LAUNCHER_CLUSTER")
    if named:
        return _called(settings, named, "LAUNCHER_CLUSTER")
    if settings.get("backend") == "local":
        return local_cluster()
    if os.path.lexists("cluster.yaml"):  # one that cannot be read is told, never passed over
        settings.origins["cluster"] = "./cluster.yaml"
        return load_cluster("cluster.yaml")
    default = settings.personal.config.default
    if default is None:
        return local_cluster()
    return _called(settings, default, f"the default of {settings.personal.config.where('default')}", beside=False)


def _called(settings: Settings, text: str, origin: str, *, beside: bool = True) -> Cluster:
    cluster, settings.origins["cluster"] = settings.personal.cluster(text, origin, beside=beside)
    return cluster


def inventory(request: Request) -> Cluster:
    """The hosts that a request means, as `launcher nodes` shows them."""
    return cluster_of(Settings(request, None, Personal(os.environ)), os.environ)


def cluster_of(settings: Settings, environment: Mapping[str, str]) -> Cluster:
    """The cluster that is meant, with the hosts that --hosts and --exclude leave; in a Slurm allocation, its nodes."""
    cluster = find_cluster(settings)
    backend = settings.get("backend")
    if backend is None and cluster.path is not None:
        settings.origins["backend"] = str(cluster.path)
    if environment.get("SLURM_JOB_ID") and (backend or (cluster.backend if cluster.path else "slurm")) == "slurm":
        given = _allocated(settings, cluster, environment)
        return select_hosts(given, settings.get("hosts"), settings.get("exclude"), settings.origins["allocation"])
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


def _allocated(settings: Settings, cluster: Cluster, environment: Mapping[str, str]) -> Cluster:
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
    return dataclasses.replace(cluster, name=name, backend="slurm", hosts=hosts(given, template_of(settings, cluster)))


def nodes_of(settings: Settings, cluster: Cluster, warnings: list[str]) -> tuple[Node, ...]:
    """The hosts that become nodes, in the order of their ranks; UsageError when there are too few."""
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
        problems = [host.name if settings.allocation else f"{host.name} ({host.address})" for host in hosts]
        have, noun = (f"{settings.origins['allocation']} has", "node") if settings.allocation else ("there are", "host")
        step = "ask for fewer, or Slurm for more" if settings.allocation else "ask for fewer, or add hosts"
        what = f"--nodes {asked}, but {have} {len(hosts)} {noun}{'s' * (len(hosts) != 1)}{kind}"
        raise UsageError(what, problems=problems, next_step=step)
    chosen = hosts[: asked or len(hosts)]
    return tuple(Node(rank, _here(host) if cluster.backend == "local" else host) for rank, host in enumerate(chosen))


def _refuse_hosts(settings: Settings) -> None:
    """Slurm chooses the nodes; what it should keep to is said to sbatch."""
    keys = {"hosts": "nodelist", "exclude": "exclude", "hostfile": "nodelist"}
    said = [
        f"{settings.origins[name]}: `{key}` under `slurm:` says that to sbatch"
        for name, key in keys.items()
        if settings.get(name) is not None
    ]
    if said:
        raise UsageError("Slurm chooses the nodes of a job", problems=said, next_step="write it into the cluster file")


def count_of(settings: Settings, warnings: list[str]) -> int:
    """How many nodes are asked of Slurm."""
    label = settings.get("instance_type")
    if label:
        # As where no host of an inventory has a label: code that names a cloud's machines runs here unchanged.
        warnings.append(f"Slurm knows no instance_type; {label!r} is ignored (`constraint` under `slurm:` picks kinds of nodes)")
    asked = int(settings.get("nodes", 1))
    if asked < 1:
        raise UsageError(f"--nodes {asked}: at least one node is needed")
    return asked


def template_of(settings: Settings, cluster: Cluster) -> Host:
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

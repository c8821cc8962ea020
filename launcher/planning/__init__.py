"""From what a person said to a Plan: every value settled, with where it came from.  Asks no node anything.

Precedence: flag > job file > LAUNCHER_* > cluster.yaml > user config > built-in.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher import environ
from launcher.cluster import JobFile, load_job
from launcher.errors import UsageError
from launcher.model import GitSource, Host, Node, Plan
from launcher.planning.asked import command_of, requeued, spec_of
from launcher.planning.data import data_of
from launcher.planning.images import image_of, inside
from launcher.planning.personal import Personal
from launcher.planning.places import cluster_of, count_of, has_inventory, inventory, nodes_of, template_of
from launcher.planning.request import Request, Settings, unreadable
from launcher.planning.source import git_of, project_of
from launcher.planning.training import training_of
from launcher.planning.variables import check_variables, read_env_file, user_environment
from launcher.record import dataclass
from launcher.store import new_job_id

__all__ = ["Draft", "Request", "draft", "has_inventory", "inventory", "read_env_file"]


@dataclass(frozen=True)
class Draft:
    """A plan, the real values that it shows masked, and what the person should hear."""

    plan: Plan
    environment: dict[str, Any]
    """{"all": variables for every node, "nodes": {rank: variables of that host}}, and "each": those of `defaults:` for nodes
    that Slurm has yet to give; stored readable by the user alone"""
    warnings: tuple[str, ...]
    beside: Mapping[str, bytes | Path] = field(default_factory=dict)
    """what goes along with the code though it is not in the source folder"""
    git: GitSource | None = None
    """the plan's, with what is secret in its address"""


def draft(request: Request, environment: Mapping[str, str]) -> Draft:
    """Settle everything; UsageError tells of all that cannot be.  ``environment`` is the submitting side's."""
    job = load_job(request.job_file) if request.job_file else None
    settings = Settings(request, job, Personal(environment))
    try:
        return _settled(request, job, settings, environment)
    except UsageError as error:
        from launcher.planning import faults

        told = faults.all_of(error, request, job, settings, environment)
        raise told from (None if told is error else error)


def _settled(request: Request, job: JobFile | None, settings: Settings, environment: Mapping[str, str]) -> Draft:
    if request.unreadable:
        raise unreadable(request.unreadable)
    warnings: list[str] = []
    cluster = cluster_of(settings, environment)
    image = image_of(settings, cluster)
    cluster = inside(image, cluster)
    command = command_of(request, settings)
    queued = cluster.backend == "slurm" and settings.allocation is None
    own_env = settings.personal.config.job.get("env", {})
    nodes = () if queued else _with_env(nodes_of(settings, cluster, warnings), own_env)
    template = _host_with_env(template_of(settings, cluster), own_env) if queued else None
    user = user_environment(request, job, settings, environment)
    count = count_of(settings, warnings) if queued else len(nodes)
    spec = requeued(settings, cluster, spec_of(settings, command, user, count, warnings))
    told = training_of(request, job, settings)
    data = data_of(settings, cluster.backend, spec.nodes or 1, spec.collect)
    spec = dataclasses.replace(spec, image=image, **told.shown, **data)
    now = time.time()
    plan = Plan(
        job_id=new_job_id(spec.name, now),
        spec=spec,
        backend=cluster.backend,
        cluster=cluster.name,
        inventory=str(cluster.path) if cluster.path else None,
        nodes=_masked_nodes(nodes),
        project=project_of(spec.source_dir, spec.git),
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
        check_variables(host.env, f"the env of {host.name}")
    own = {str(node.rank): dict(node.host.env) for node in nodes}
    each = dict(template.env) if template else {}
    stored = {"all": user, "each": each, "nodes": own, **told.stored}
    return Draft(plan, stored, tuple(warnings), request.beside, git_of(settings))


def _masked_nodes(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(Node(n.rank, dataclasses.replace(n.host, env=environ.masked(n.host.env))) for n in nodes)


def _with_env(nodes: tuple[Node, ...], own: Mapping[str, str]) -> tuple[Node, ...]:
    return tuple(Node(node.rank, _host_with_env(node.host, own)) for node in nodes)


def _host_with_env(host: Host, own: Mapping[str, str]) -> Host:
    """The user config's variables give way to the cluster file's, as those do to the job's."""
    return dataclasses.replace(host, env={**own, **host.env}) if own else host

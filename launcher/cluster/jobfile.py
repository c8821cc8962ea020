"""job.yaml: the options of `launcher submit` in a file, None for everything it does not say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher.channels import NODE
from launcher.cluster.textfile import beside
from launcher.cluster.userfile import is_path
from launcher.git_source import is_path as is_folder
from launcher.model import Command, GitSource, MetricDefinition
from launcher.record import dataclass
from launcher.uri import is_uri


@dataclass(frozen=True)
class JobFile:
    """What a job file says.  None: it does not say, so the cluster file, or what is built in, decides."""

    path: Path
    lines: Mapping[str, int] = field(default_factory=dict)
    """for each key it has, the line: where the value came from"""
    name: str | None = None
    cluster: str | None = None
    """absolute path, or a name of the user's config"""
    hostfile: str | None = None
    """absolute path"""
    backend: str | None = None
    nodes: int | None = None
    nproc_per_node: int | str | None = None
    """a number, or "auto" """
    hosts: str | None = None
    """a comma list, as after --hosts"""
    exclude: str | None = None
    instance_type: str | None = None
    source_dir: str | None = None
    """absolute path; with git one in the repository"""
    command: Command | None = None
    """from `command`, or from `script` and `args`"""
    env: Mapping[str, str] | None = None
    env_file: tuple[str, ...] | None = None
    """absolute paths"""
    forward_env: tuple[str, ...] | None = None
    max_run_time: float | None = None
    """seconds"""
    grace: float | None = None
    """seconds"""
    collect: tuple[str, ...] | None = None
    inputs: Mapping[str, Any] | None = None
    """{channel: absolute path, `node:` and a path, URI, or a mapping of `source` and `shard`}"""
    outputs: Mapping[str, str | None] | None = None
    """{channel: absolute path or URI, or None}"""
    output_path: str | None = None
    checkpoints_path: str | None = None
    checkpoint_interval: float | None = None
    """seconds"""
    requeue: bool | None = None
    max_requeues: int | None = None
    image: str | None = None
    """a name of the cluster file's images, or a URI"""
    keep: bool | None = None
    max_code_size: int | None = None
    """bytes"""
    metrics: tuple[MetricDefinition, ...] | None = None
    git: GitSource | None = None
    hyperparameters: Mapping[str, Any] | None = None
    labels: Mapping[str, str] | None = None
    requirements: tuple[str, ...] | None = None


def read_job_file(path: str | Path) -> JobFile:
    """What the file says; UsageError lists everything wrong in it at once."""
    from launcher.cluster.inventory import complain, in_order
    from launcher.cluster.models import JobYaml
    from launcher.cluster.problems import validated
    from launcher.cluster.yamlfile import read_document

    document = read_document(path, "job file")
    model, found, _ = validated(JobYaml, document, "job file")
    complain("the job file cannot be used", in_order(document.path, [*document.problems, *found]))
    assert model is not None
    folder = document.path.parent
    return JobFile(
        path=document.path,
        lines={key: (place.key or (place.line, 0))[0] for key, place in document.root.children.items() if isinstance(key, str)},
        cluster=_cluster(folder, model.cluster) if model.cluster else None,
        hostfile=beside(folder, model.hostfile) if model.hostfile else None,
        source_dir=_place(folder, model.source_dir) if model.source_dir and not model.git else model.source_dir,
        git=None if model.git is None else _git(folder, model.git.repo, model.git.branch, model.git.commit),
        command=_command(model.command, model.script, model.args),
        env_file=None if model.env_file is None else tuple(beside(folder, file) for file in model.env_file),
        forward_env=None if model.forward_env is None else tuple(model.forward_env),
        collect=None if model.collect is None else tuple(model.collect),
        requirements=None if model.requirements is None else tuple(model.requirements),
        inputs=None if model.inputs is None else {name: _input(folder, value) for name, value in model.inputs.items()},
        outputs=None if model.outputs is None else {name: _place(folder, where) for name, where in model.outputs.items()},
        output_path=_place(folder, model.output_path),
        checkpoints_path=_place(folder, model.checkpoints_path),
        metrics=None if model.metrics is None else tuple(MetricDefinition(*one) for one in model.metrics.items()),
        **{key: getattr(model, key) for key in _AS_IT_IS},
    )


def _git(folder: Path, repo: str, branch: str | None, commit: str | None) -> GitSource:
    return GitSource(beside(folder, repo) if is_folder(repo) else repo, branch, commit)


def _cluster(folder: Path, text: str) -> str:
    """A path, unless it looks like a name and there is no such file beside this one."""
    path = beside(folder, text)
    return path if is_path(text) or os.path.isfile(path) else text


_AS_IT_IS = (
    "checkpoint_interval",
    "name", "backend", "nodes", "nproc_per_node", "hosts", "exclude", "instance_type", "env",
    "max_run_time", "grace", "requeue", "max_requeues", "image", "keep", "max_code_size", "hyperparameters", "labels",
)  # fmt: skip
"""keys whose value is the field's"""


def _input(folder: Path, value: Any) -> Any:
    if isinstance(value, dict):
        return {**value, "source": _place(folder, value["source"])}
    return _place(folder, value)


def _place(folder: Path, said: str | None) -> str | None:
    """A path is relative to the job file; a URI, and a path on the nodes, are what they are."""
    if said is None or is_uri(said) or said.startswith(NODE):
        return said
    return beside(folder, said)


def _command(command: str | list[str] | None, script: list[str] | None, args: list[str] | None) -> Command | None:
    if script is not None:
        return Command(script=(*script, *(args or ())))
    if isinstance(command, list):
        return Command(argv=tuple(command))
    return Command(shell=command) if command is not None else None

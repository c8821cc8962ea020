"""What a person said, and the order in which it is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cluster.userfile import SETTINGS
from launcher.errors import UsageError
from launcher.model import Command, GitSource, MetricDefinition
from launcher.record import dataclass

if TYPE_CHECKING:
    from launcher.cluster.jobfile import JobFile
    from launcher.planning.personal import Personal


@dataclass(frozen=True)
class Request:
    """What was said on the command line or in code; None: nothing was."""

    unreadable: tuple[str, ...] = ()
    """what was typed and is no value, a sentence each; it counts as not said"""
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
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """{channel: a path, a URI, or {source: …, shard: true}}"""
    outputs: Mapping[str, str | None] = field(default_factory=dict)
    """{channel: where it is published, or None}"""
    output_path: str | None = None
    checkpoints_path: str | None = None
    checkpoint_interval: float | None = None
    brings_checkpoints: bool = False
    """checkpoints that have no place of their own are brought here, although nobody asked: as with PAI, none is lost"""
    requeue: bool | None = None
    max_requeues: int | None = None
    image: str | None = None
    keep: bool | None = None
    max_code_size: int | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] | None = None
    """lines as in a requirements.txt; None: the source folder's own file"""
    metrics: tuple[MetricDefinition, ...] = ()
    git: GitSource | None = None
    detached: bool = False
    beside: Mapping[str, bytes | Path] = field(default_factory=dict)
    """{path in the working copy: content, or the file that has it}: what goes along with the code"""


def unreadable(problems: tuple[str, ...]) -> UsageError:
    """The error that tells of it."""
    return UsageError(problems[0]) if len(problems) == 1 else UsageError("several options cannot be read", problems=problems)


_STORED_AS = {"max_code_size": "max_code_bytes"}
"""options whose value has another name in the plan"""
_OPTIONS = {"metrics": "metric"}
"""settings whose option has another name"""


class Settings:
    """Looks values up in the order of precedence, and remembers where each was found."""

    def __init__(self, request: Request, job: JobFile | None, personal: Personal) -> None:
        self._request, self._job = request, job
        self.personal = personal
        self.origins: dict[str, str] = {}
        self.allocation: str | None = None
        """Slurm's number of the job that we are in, where its nodes are the inventory"""
        self.restarts = 0
        """how often Slurm had requeued that job"""

    @property
    def detached(self) -> bool:
        return self._request.detached

    @property
    def brings_checkpoints(self) -> bool:
        return self._request.brings_checkpoints

    def merged(self, name: str, flag: str) -> dict[str, Any]:
        """A mapping, flags over the job file entry by entry; each entry's source is in ``origins`` under `name.entry`."""
        said: Mapping[str, Any] = getattr(self._request, name)
        found = {**(getattr(self._job, name, None) or {}), **said}
        self.origins.update({f"{name}.{entry}": flag if entry in said else "job file" for entry in found})
        return found

    def get(self, name: str, built_in: Any = None) -> Any:
        """The value, and in ``origins`` its source, under the name that the plan has for it; UsageError for an empty text."""
        stored = _STORED_AS.get(name, name)
        said = getattr(self._request, name, None)
        if said is not None and said != ():
            self.origins[stored] = option = "--" + _OPTIONS.get(name, name).replace("_", "-")
            if said == "":  # a variable of a shell that is not set, most likely: not the same as not saying it
                raise UsageError(f"{option} is empty", next_step="give a value, or leave it out")
            return said
        said = getattr(self._job, name, None)
        if said is not None and said != ():
            assert self._job is not None
            lines = self._job.lines
            self.origins[stored] = f"{self._job.path}:{lines.get(name) or lines.get('script', 1)}"
            return said
        found = self.personal.find(name) if name in SETTINGS else None
        if found is not None:
            self.origins[stored] = found[1]
            return found[0]
        self.origins[stored] = "built-in"
        return built_in

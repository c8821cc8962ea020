"""The nouns: what a person asked for (JobSpec), what we make of it (Plan, Node, Host), what goes wrong (Failure).

All of them are frozen values that survive a trip through JSON: ``from_json(to_json(x)) == x``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from launcher.record import dataclass

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
MASK = "****"
"""stands in the place of what is secret, wherever it is shown or stored readable"""
REQUIREMENTS = "requirements.txt"
"""of a source folder: what is installed for a job that does not say"""


@dataclass(frozen=True)
class Host:
    """A machine of the inventory.  None means: the inventory does not say, so ssh and the node decide."""

    name: str
    """the text by which people call it: unique in the inventory"""
    address: str
    """what `ssh` is asked for: an alias of ~/.ssh/config, a DNS name or an address (IPv6 without brackets)"""
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    internal_address: str | None = None
    """where the other nodes reach this one, if that differs from ``address``"""
    gpus: int | None = None
    """None: count them there"""
    cpus: int | None = None
    """that a Slurm job holds there; None: nobody said"""
    slots: int | None = None
    """processes to start there, from a hostfile's slots="""
    instance_type: str | None = None
    python: str | None = None
    """the interpreter of the training command (the agent uses it too); None: python3 of the node's PATH"""
    venv: str | None = None
    """directory of a virtual environment; its bin/python is the interpreter"""
    workdir: str = "~/.launcher"
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageInfo:
    """An environment that commands can run in, as the inventory tells of it.  None: it does not say."""

    image_name: str
    """unique in the inventory"""
    image_uri: str
    """what it stands for: see `launcher.environments`"""
    framework_name: str | None = None
    framework_version: str | None = None
    accelerator_type: str | None = None
    """CPU or GPU"""
    python_version: str | None = None
    image_scope: str | None = None
    """training, inference or develop"""


@dataclass(frozen=True)
class Node:
    """A host's part in one job."""

    rank: int
    host: Host


@dataclass(frozen=True)
class SshOptions:
    """The inventory's `ssh:` section."""

    config: str | None = None
    """as in `ssh -F`; None: ssh reads its usual files"""
    connect_timeout: float = 10.0
    """seconds until a host that does not answer is given up"""


@dataclass(frozen=True)
class MasterOptions:
    """The inventory's `master:` section: where node 0 is to be found by the others.  None means `auto`."""

    address: str | None = None
    port: int | None = None
    interface: str | None = None
    network: str | None = None
    """CIDR; only addresses inside it are candidates"""


@dataclass(frozen=True)
class SlurmOptions:
    """The inventory's `slurm:` section: what sbatch is asked for, as it takes it.  None: left to Slurm."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    """minutes, or a text such as 1-12:00:00"""
    gpus_per_node: str | None = None
    cpus_per_task: int | None = None
    """there is one task a node"""
    mem: str | None = None
    constraint: str | None = None
    exclusive: str | bool | None = None
    nodelist: str | None = None
    exclude: str | None = None
    dependency: str | None = None
    requeue: bool | None = None
    """as the job's own, which wins; None: no"""
    max_requeues: int | None = None
    workdir: str | None = None
    """where the launcher keeps its things on a node; None: $LAUNCHER_HOME, which all nodes see"""
    sbatch: Mapping[str, Any] = field(default_factory=dict)
    """further options by their long names with dashes; True for one that takes no argument"""


@dataclass(frozen=True)
class Command:
    """What every node runs: exactly one of the three is set."""

    script: tuple[str, ...] | None = None
    """a Python script and its arguments, to be started by torchrun"""
    argv: tuple[str, ...] | None = None
    """a program and its arguments, started as it is, once per node"""
    shell: str | None = None
    """text for `/bin/sh -c`, verbatim"""


@dataclass(frozen=True)
class Input:
    """A channel of data that the command reads."""

    channel: str
    source: str
    """an absolute path here, `node:` and an absolute path on the nodes, or a URI as fsspec takes it"""
    shard: bool = False
    """each node gets its share of the files, not all of them"""


@dataclass(frozen=True)
class GitSource:
    """Where the source folder is cloned from."""

    repo: str
    branch: str | None = None
    """None: the repository's own default"""
    commit: str | None = None
    """None: the branch's newest"""


@dataclass(frozen=True)
class MetricDefinition:
    """A number that the command prints."""

    name: str
    regex: str
    """with one group, which is the number"""


@dataclass(frozen=True)
class JobSpec:
    """What a person asked for, every value settled (precedence: flag > job file > cluster.yaml > user config > built-in)."""

    command: Command
    name: str = "job"
    source_dir: str | None = None
    nodes: int | None = None
    """None: all hosts of the inventory (local: 1)"""
    nproc_per_node: int | None = None
    """processes per node; None: `auto`, per host"""
    env: Mapping[str, str] = field(default_factory=dict)
    forward_env: tuple[str, ...] = ()
    """patterns of variable names to take along from the submitting side"""
    instance_type: str | None = None
    max_run_time: float | None = None
    """seconds from the start of the command"""
    grace: float = 30.0
    """seconds between TERM and KILL"""
    collect: tuple[str, ...] = ("model", "tensorboard")
    """output channels brought here at the end"""
    collect_if_room: tuple[str, ...] = ()
    """those of them that nobody asked for: they stay on the nodes where there is not enough space here"""
    requeue: bool = False
    """in Slurm's queue: go on under the same id where the nodes were taken away, or the training made way for a time limit"""
    max_requeues: int = 10
    """how often at most"""
    keep: bool = False
    """keep the working copy and the spool on the nodes after a success"""
    max_code_bytes: int = 1 << 30
    """a larger snapshot is refused"""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    requirements: tuple[str, ...] | None = None
    """lines as in a requirements.txt; None: the source folder's own file decides"""
    labels: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    outputs: Mapping[str, str | None] = field(default_factory=dict)
    """output channels of the user's own: where each is published, or None"""
    output_path: str | None = None
    """a folder or URI below which the output channels are published, in a folder of the job's id"""
    checkpoints_path: str | None = None
    """a folder or URI that the checkpoints come from and go to"""
    checkpoints_from: str | None = None
    """a folder of an earlier job's outputs that they come from; nothing is written there, this job's own are brought here"""
    checkpoint_interval: float = 300.0
    """seconds between two copies of the checkpoints to ``checkpoints_path`` while the command runs"""
    image: str | None = None
    """the environment that the command runs in; None: the node's own"""
    git: GitSource | None = None
    metrics: tuple[MetricDefinition, ...] = ()

    def may_install(self, code: Path) -> bool:
        """Whether there may be something to install: what was said, else what the source folder ``code`` asks for."""
        return bool(self.requirements) if self.requirements is not None else (code / REQUIREMENTS).is_file()

    @property
    def goes_on_from(self) -> str | None:
        """The folder or URI that checkpoints are looked for before the start; None where the training begins anew."""
        return self.checkpoints_path or self.checkpoints_from

    @property
    def publishes(self) -> bool:
        """Whether anything of the outputs is copied to a folder or URI once it is here."""
        return self.output_path is not None or any(self.outputs.values())


@dataclass(frozen=True)
class Plan:
    """Everything the coordinator needs, settled at submit; nobody was asked on the way."""

    job_id: str
    spec: JobSpec
    backend: str
    """local, ssh or slurm"""
    cluster: str
    """the inventory's name"""
    nodes: tuple[Node, ...]
    project: str
    """names the mirror on the nodes: the same source folder of the same user gives the same project"""
    ssh: SshOptions = SshOptions()
    master: MasterOptions = MasterOptions()
    slurm: SlurmOptions = SlurmOptions()
    template: Host | None = None
    """of a job that waits in Slurm's queue: what its nodes, which are known when it starts, will be copies of"""
    inventory: str | None = None
    """the file that the hosts were read from; None: built in, or named by --hosts"""
    allocation: str | None = None
    """Slurm's number of the job whose nodes these are; None outside of Slurm, and while it has not started"""
    restarts: int = 0
    """how often Slurm had requeued the job when it gave these nodes (SLURM_RESTART_COUNT)"""
    detached: bool = False
    """nobody watches: the job must survive every log-out"""
    origins: Mapping[str, str] = field(default_factory=dict)
    """for each setting, where its value came from"""
    created_at: float = 0.0
    """seconds since the epoch"""

    @property
    def batch(self) -> bool:
        """True for a job that is put into Slurm's queue: its coordinator is the batch step."""
        return self.template is not None

    @property
    def requeue(self) -> int:
        """Which of the starts by Slurm this is; 0 also for a job in somebody's own allocation, which has no earlier ones."""
        return self.restarts if self.batch else 0


@dataclass(frozen=True)
class Failure:
    """The first thing that went wrong, as precisely as it is known."""

    message: str
    node: int | None = None
    host: str | None = None
    local_rank: int | None = None
    rank: int | None = None
    exit_code: int | None = None
    """as a shell would give it: 128+n for signal n"""
    signal: str | None = None
    traceback: str | None = None
    last_lines: str | None = None
    """where there is no traceback: what the process printed last, to stderr if it ever did"""
    log: str | None = None
    """path, on the submitting side, of the log that tells more"""
    hint: str | None = None


def to_json(value: Any) -> Any:
    """Plain dicts, lists, strings and numbers for any value of this module."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value.value if isinstance(value, enum.Enum) else value


def from_json(kind: type[T], data: Any) -> T:
    """The value of dataclass ``kind`` that `to_json` wrote as ``data``; keys it does not know are passed over."""
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    known = {f.name: _decode(hints[f.name], data[f.name]) for f in dataclasses.fields(kind) if f.name in data}  # type: ignore[arg-type]
    return kind(**known)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """A class's field types; finding them out takes longer than all the rest, and a plan has hundreds of hosts."""
    return get_type_hints(kind)


def _decode(hint: Any, data: Any) -> Any:
    if data is None:
        return None
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_json(hint, data)
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        return tuple(_decode(arguments[0], item) for item in data)
    members = [member for member in arguments if dataclasses.is_dataclass(member)]
    if members:
        return _decode(members[0], data)
    if arguments and any(get_origin(member) is tuple for member in arguments):
        return tuple(data)
    return data

"""The shapes of cluster.yaml and job.yaml: what is checked, and what the shipped JSON schemas are generated from.

Nothing outside this package sees these models; a file that passes becomes frozen dataclasses.  A field's description is
what an editor shows for the key.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from launcher.cluster import sbatch
from launcher.cluster.values import (
    Accelerator,
    Address,
    AddressOrAuto,
    Backend,
    Channels,
    ClusterName,
    CommandText,
    Count,
    CountOrAuto,
    Duration,
    Env,
    Exclusive,
    Files,
    FromNone,
    Gpus,
    GpusOfNode,
    HostList,
    HostName,
    HostText,
    Hyperparameters,
    ImageName,
    ImageScope,
    ImageUri,
    Inputs,
    InterfaceOrAuto,
    JobName,
    Labels,
    Memory,
    Metrics,
    NetworkOrAuto,
    Outputs,
    PathThere,
    Patterns,
    Port,
    PortOrAuto,
    Python,
    RequirementLine,
    SbatchArgument,
    SbatchOption,
    Script,
    Size,
    SomeTime,
    Text,
    TimeLimit,
    Transport,
    User,
    Word,
    none_is,
)

SECTIONS = {"defaults", "ssh", "master", "env", "slurm", "sbatch", "clusters", "job", "metrics", "hyperparameters", "labels"}
"""keys that may stand without a value: all of the section is commented out"""


class _Strict(BaseModel):
    # A job that has no job file need not pay for building that model.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _said(cls, value: Any, info: ValidationInfo) -> Any:
        """A key without a value is a slip, except before a section whose keys are all commented out."""
        if value is None and info.field_name not in SECTIONS:
            raise ValueError("no value; give one or remove the key")
        return value


class _OneInterpreter(_Strict):
    """The part of `defaults:` and of a host that says which Python runs there."""

    python: Python | None = Field(
        default=None, description="The interpreter of the command: a path on the node, or a name on its PATH."
    )
    venv: PathThere | None = Field(
        default=None, description="A virtual environment on the node; its bin/python is the interpreter."
    )

    @model_validator(mode="after")
    def _one(self) -> _OneInterpreter:
        if self.python is not None and self.venv is not None:
            raise ValueError("python and venv both name the interpreter; keep one of them")
        return self


class Defaults(_OneInterpreter):
    """What holds for every host that does not say otherwise."""

    user: User | None = Field(default=None, description="Log-in name. Unset: what ssh would take.")
    port: Port | None = Field(default=None, description="Port of sshd. Unset: what ssh would take.")
    identity_file: Text | None = Field(
        default=None, description="Private key; relative to this file. Unset: what ssh would take."
    )
    gpus: Gpus | None = Field(default=None, description="GPUs of a host; auto: counted there.")
    workdir: PathThere | None = Field(
        default=None, description="Where the launcher keeps its things on the node. Unset: ~/.launcher."
    )
    env: Env = Field(default_factory=dict, description="Variables of the command. Whole numbers are taken as written.")


class MappingHost(_OneInterpreter):
    """A host with more to say than its name."""

    name: HostName = Field(description="By what you call it; ranges stand for several hosts.")
    address: Address | None = Field(
        default=None, description="What ssh is asked for: an alias of ~/.ssh/config, a DNS name or an address. Unset: the name."
    )
    internal_address: Address | None = Field(default=None, description="Where the other nodes reach it, if not at its address.")
    user: User | None = Field(default=None, description="Log-in name on this host.")
    port: Port | None = Field(default=None, description="Port of this host's sshd.")
    identity_file: Text | None = Field(default=None, description="Private key for this host; relative to this file.")
    gpus: Gpus | None = Field(default=None, description="GPUs of this host; auto: counted there.")
    slots: Count | None = Field(default=None, description="Processes to start on this host, whatever its GPUs.")
    instance_type: Text | None = Field(default=None, description="A label; jobs that ask for it run on hosts that have it.")
    workdir: PathThere | None = Field(default=None, description="Where the launcher keeps its things on this host.")
    env: Env = Field(default_factory=dict, description="Variables of the command on this host, added to those of defaults.")


def _kind_of_host(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<mapping>" if isinstance(value, dict) else None


HostEntry = Annotated[
    Annotated[HostText, Tag("<text>")] | Annotated[MappingHost, Tag("<mapping>")],
    Discriminator(
        _kind_of_host,
        custom_error_type="host_type",
        custom_error_message="a host is a text (in quotes, if YAML would read it otherwise), or a mapping with a name",
    ),
]


class Ssh(_Strict):
    """How hosts are reached."""

    config: Text | None = Field(
        default=None, description="As in `ssh -F`; relative to this file. Unset: ssh reads its usual files."
    )
    transport: Transport = Field(default="auto", description="Which ssh is used.")
    connect_timeout: SomeTime = Field(default=10.0, description="How long a host may take to answer: seconds, or 10s, 1m.")


class Master(_Strict):
    """Where the other nodes find node 0."""

    address: AddressOrAuto = Field(
        default="auto", description="MASTER_ADDR. auto: an address of node 0 that every node has reached."
    )
    port: PortOrAuto = Field(default="auto", description="MASTER_PORT. auto: a free one, picked on node 0.")
    interface: InterfaceOrAuto = Field(default="auto", description="Network interface of node 0 whose addresses are candidates.")
    network: NetworkOrAuto = Field(default="auto", description="Network (CIDR) whose addresses are candidates.")


class Slurm(_Strict):
    """What sbatch is asked for. What is not said is left to Slurm."""

    partition: Text | None = Field(default=None, description="Partition, or several with commas.")
    account: Text | None = Field(default=None, description="Account that the time is charged to.")
    qos: Text | None = Field(default=None, description="Quality of service.")
    time: TimeLimit | None = Field(default=None, description='Time limit, such as "24:00:00" or 2-00. Unset: the partition\'s.')
    gpus_per_node: GpusOfNode | None = Field(default=None, description="GPUs of each node: a number, or type:number.")
    cpus_per_task: Count | None = Field(default=None, description="CPUs of each node (there is one task a node).")
    mem: Memory | None = Field(default=None, description="Memory of each node, such as 64G; 0: all of it.")
    constraint: Text | None = Field(default=None, description="Features that the nodes must have.")
    exclusive: Exclusive | None = Field(default=None, description="true: whole nodes, shared with nobody.")
    nodelist: Text | None = Field(default=None, description="Nodes that must be among those of the job.")
    exclude: Text | None = Field(default=None, description="Nodes that must not.")
    dependency: Text | None = Field(default=None, description="What the job waits for, such as afterok:1234.")
    requeue: bool | None = Field(default=None, description="true: jobs go back into the queue when nodes or time are taken away.")
    max_requeues: FromNone | None = Field(default=None, description="How often at most. Unset: 10.")
    workdir: PathThere | None = Field(
        default=None, description="Where the launcher keeps its things on a node. Unset: LAUNCHER_HOME, which all nodes must see."
    )
    sbatch: Annotated[dict[SbatchOption, SbatchArgument], none_is(dict)] = Field(
        default_factory=dict, description="Any other option of sbatch by its long name; true for one that takes no argument."
    )

    @model_validator(mode="after")
    def _signal_to_us(self) -> Slurm:
        if "signal" in self.sbatch:
            sbatch.signal(self.sbatch["signal"])
        return self


class Image(_Strict):
    """An environment that commands can run in. What is not said fits whatever is asked for."""

    name: ImageName = Field(description="How jobs call it.")
    uri: ImageUri = Field(description="What it stands for, such as docker://pytorch/pytorch:2.4.0, venv:/opt/t, conda:NAME.")
    framework_name: Text | None = Field(default=None, description="Such as pytorch; what retrieve() is asked for.")
    framework_version: Word | None = Field(default=None, description="Version of the framework, taken as written.")
    accelerator_type: Accelerator | None = Field(default=None, description="CPU or GPU.")
    python_version: Word | None = Field(default=None, description="Version of its Python, taken as written.")
    image_scope: ImageScope | None = Field(default=None, description="What it is made for.")


class ClusterFile(_Strict):
    """The machines a job can run on."""

    name: Text | None = Field(default=None, description="The cluster's name in lists and messages. Unset: the file's name.")
    backend: Backend = Field(
        default="ssh", description="ssh: the hosts below. slurm: nodes that Slurm gives. local: nodes simulated here."
    )
    defaults: Annotated[Defaults, none_is(dict)] = Field(default_factory=Defaults, description="What holds for all hosts.")
    hosts: list[HostEntry] = Field(default_factory=list, description="The machines, in the order of node ranks.")
    ssh: Annotated[Ssh, none_is(dict)] = Field(default_factory=Ssh, description="How hosts are reached.")
    master: Annotated[Master, none_is(dict)] = Field(default_factory=Master, description="Where the other nodes find node 0.")
    slurm: Annotated[Slurm, none_is(dict)] = Field(default_factory=Slurm, description="What sbatch is asked for.")
    images: list[Image] = Field(default_factory=list, description="Environments that commands can run in, by name.")


class Git(_Strict):
    """A repository that the source folder is cloned from at submit."""

    repo: Text = Field(description="Its address, or a folder relative to this file; source_dir is a folder in it.")
    branch: Text | None = Field(default=None, description="A branch or tag; unset: the repository's own default.")
    commit: Word | None = Field(default=None, description="A commit of that branch; unset: its newest.")


class JobYaml(_Strict):
    """A job: the options of `launcher submit`, with underscores. Relative paths are relative to this file."""

    name: JobName | None = Field(default=None, description="Base of the job's id.")
    cluster: Text | None = Field(default=None, description="The cluster: a file, or a name of the user's config.")
    hostfile: Text | None = Field(default=None, description="A hostfile instead of a cluster file.")
    backend: Backend | None = Field(default=None, description="local, ssh or slurm.")
    nodes: Count | None = Field(default=None, description="How many nodes.")
    nproc_per_node: CountOrAuto | None = Field(
        default=None, description="Processes on each node; auto: as many as it has GPUs, else 1."
    )
    hosts: HostList | None = Field(default=None, description="Hosts to run on, by name; the first is node 0.")
    exclude: HostList | None = Field(default=None, description="Hosts not to run on, by name.")
    instance_type: Text | None = Field(default=None, description="Run on hosts with this label.")
    image: Text | None = Field(
        default=None, description="The environment to run in: a name of the cluster file's images, or a URI."
    )
    source_dir: Text | None = Field(default=None, description="The folder that is sent to the nodes.")
    command: CommandText | None = Field(
        default=None, description="A text for `sh -c`, verbatim, or a list of words; run once per node."
    )
    script: Script | None = Field(default=None, description="A Python script, started by torchrun: its path, or a list of words.")
    args: list[Word] | None = Field(default=None, description="Arguments of the script. Numbers are taken as written.")
    env: Env | None = Field(default=None, description="Variables of the command. Whole numbers are taken as written.")
    env_file: Files | None = Field(default=None, description="A file, or several, of NAME=value lines.")
    forward_env: Patterns | None = Field(default=None, description="Patterns of variables to take along from here, such as MY_*.")
    max_run_time: SomeTime | None = Field(
        default=None, description="The job is stopped after this time: seconds, or 90s, 15m, 2h, 1d."
    )
    grace: Duration | None = Field(default=None, description="Time between TERM and KILL when the job is stopped.")
    collect: Channels | None = Field(default=None, description="Output channels brought here at the end.")
    inputs: Inputs | None = Field(
        default=None, description="Channels of data, each a path, a URI, or {source: PATH, shard: true}; see PAI_INPUT_<CHANNEL>."
    )
    outputs: Outputs | None = Field(
        default=None,
        description="Output channels of your own, each with the URI it is published to, or nothing; a list names them.",
    )
    output_path: Text | None = Field(
        default=None, description="A folder or URI; the outputs are published in a folder of the job's id below it."
    )
    checkpoints_path: Text | None = Field(
        default=None, description="A folder or URI that the checkpoints come from at the start and go to while the job runs."
    )
    checkpoint_interval: SomeTime | None = Field(
        default=None, description="Time between two copies of the checkpoints to checkpoints_path; unset: 5m."
    )
    requeue: bool | None = Field(default=None, description="Go back into Slurm's queue when nodes or time are taken away.")
    max_requeues: FromNone | None = Field(default=None, description="How often at most; unset: 10.")
    keep: bool | None = Field(default=None, description="Keep the working copy on the nodes after a success.")
    max_code_size: Size | None = Field(default=None, description="A larger source folder is refused: bytes, or 500MB, 2GiB.")
    hyperparameters: Hyperparameters | None = Field(
        default=None, description="What the command finds in PAI_HPS, PAI_HPS_<NAME>, PAI_USER_ARGS and hyperparameters.json."
    )
    requirements: list[RequirementLine] | None = Field(
        default=None, description="Lines as in a requirements.txt, instead of the source folder's own; [] installs nothing."
    )
    labels: Labels | None = Field(default=None, description="Words of your own that status and list show: name and text.")

    git: Git | None = Field(default=None, description="The source folder comes from a git repository.")
    metrics: Metrics | None = Field(default=None, description="Numbers to be found in the logs: name: regex with one group.")

    @model_validator(mode="after")
    def _one_command(self) -> JobYaml:
        if self.command is not None and (self.script is not None or self.args is not None):
            raise ValueError("`command` stands alone; `script` and `args` are the torchrun form")
        if self.args is not None and self.script is None:
            raise ValueError("`args` are the arguments of a `script`, and there is none")
        if self.cluster is not None and self.hostfile is not None:
            raise ValueError("`cluster` and `hostfile` both name the inventory; keep one of them")
        return self


class UserJob(_Strict):
    """What holds for jobs that say nothing else; every key is an option of `launcher submit`."""

    nproc_per_node: CountOrAuto | None = Field(default=None, description="Processes on each node.")
    env: Env = Field(default_factory=dict, description="Variables of the command; those of a cluster file win.")
    forward_env: Patterns | None = Field(default=None, description="Patterns of variables to take along, such as MY_*.")
    max_run_time: SomeTime | None = Field(default=None, description="Jobs are stopped after this time.")
    grace: Duration | None = Field(default=None, description="Time between TERM and KILL when a job is stopped.")
    collect: Channels | None = Field(default=None, description="Output channels brought here at the end.")
    requeue: bool | None = Field(default=None, description="Go back into Slurm's queue when nodes or time are taken away.")
    max_requeues: FromNone | None = Field(default=None, description="How often at most.")
    keep: bool | None = Field(default=None, description="Keep the working copy on the nodes after a success.")
    max_code_size: Size | None = Field(default=None, description="A larger source folder is refused.")


class UserYaml(_Strict):
    """The user's config.yaml: clusters by name, the default one, and what holds for jobs that say nothing else."""

    default: Text | None = Field(default=None, description="The cluster that is meant when none is named: a name, or a file.")
    clusters: Annotated[dict[ClusterName, Text], none_is(dict)] = Field(
        default_factory=dict, description="Name: cluster file, relative to this file."
    )
    job: Annotated[UserJob, none_is(dict)] = Field(
        default_factory=UserJob, description="What holds for jobs that say nothing else."
    )

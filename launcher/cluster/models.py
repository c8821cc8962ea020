"""The shapes of cluster.yaml and job.yaml: what is checked, and what the shipped JSON schemas are generated from.

Nothing outside this package sees these models; a file that passes becomes frozen dataclasses.  A field's description is
what an editor shows for the key.  A validator that refuses raises ValueError with a sentence saying what is allowed;
`launcher.cluster.problems` puts file, line, column, key path and value before it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from launcher.cluster import hosts as host_texts
from launcher.cluster import sbatch
from launcher.cluster.inventory import did_you_mean
from launcher.cluster.ranges import expand, split_list
from launcher.cluster.scalars import (
    DURATION_ALLOWED,
    DURATION_PATTERN,
    NAME_PATTERN,
    SIZE_ALLOWED,
    SIZE_PATTERN,
    parse_duration,
    parse_name,
    parse_size,
)
from launcher.cluster.yamlfile import Fraction, Whole

LATER = "not in this version"
BACKENDS = ("local", "ssh", "slurm")
SECTIONS = {"defaults", "ssh", "master", "env", "slurm", "sbatch"}
"""keys that may stand without a value: all of the section is commented out"""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CHANNEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")


def _refuse(allowed: str) -> NoReturn:
    raise ValueError(allowed)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("empty; give a text or remove the key")
    return value if value.isprintable() else _refuse("a text on one line, without control characters")


def _backend(value: str) -> str:
    return value if value in BACKENDS else _refuse(f"allowed: {', '.join(BACKENDS)}{did_you_mean(value, BACKENDS)}")


def _transport(value: str) -> str:
    return value if value == "auto" else _refuse(LATER)


def _auto_or(check: Callable[[Any], Any]) -> PlainValidator:
    """`auto`, or what ``check`` accepts."""
    return PlainValidator(lambda value: value if value == "auto" else check(value))


def _auto_schema(schema: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"const": "auto"}, schema]})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(low: int, allowed: str) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        return int(value) if _whole(value) and low <= value <= 100_000 else _refuse(allowed)

    return check


def _port(value: Any, allowed: str = "a number from 1 to 65535") -> int:
    return int(value) if _whole(value) and 1 <= value <= 65535 else _refuse(allowed)


def _duration(value: Any) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    number = _whole(value) or isinstance(value, float)
    return float(value) if number and 0 <= value <= 100 * 365 * 86400 else _refuse(DURATION_ALLOWED)


def _some_time(value: float) -> float:
    return value if value > 0 else _refuse("more than no time at all")


def _size(value: Any) -> int:
    if isinstance(value, str):
        return parse_size(value)
    return int(value) if _whole(value) and value > 0 else _refuse(SIZE_ALLOWED)


def _host_text(value: str) -> str:
    host_texts.endpoints(value)
    return value


def _host_name(value: str) -> str:
    for name in expand(_text(value)):
        if "@" in name:
            raise ValueError("write the log-in name under `user:`")
        if name.startswith("[") or name.count(":") == 1:
            raise ValueError("write the address under `address:` and the port under `port:`")
        host_texts.checked_address(name)
    return value


def _address(value: str) -> str:
    """A name or an address, ranges allowed, without user and port."""
    for name in expand(_text(value)):
        if "@" in name:
            raise ValueError("write the log-in name under `user:`")
        if name.count(":") == 1 or "]:" in name:
            raise ValueError("write the port under `port:`")
        host_texts.checked_address(name)
    return value


def _one_address(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("auto, a DNS name or an address")
    return host_texts.checked_address(_address(value))


def _interface(value: Any) -> str:
    # Linux: at most 15 bytes, no blanks, no slash (dev_valid_name in net/core/dev.c).
    known = isinstance(value, str) and re.fullmatch(r"[^\s/:]{1,15}", value)
    return str(value) if known else _refuse("auto, or the name of a network interface, such as eth0")


def _network(value: Any) -> str:
    try:
        return ipaddress.ip_network(value).with_prefixlen if isinstance(value, str) else _refuse("")
    except ValueError:
        pass
    try:
        meant = f" (did you mean {ipaddress.ip_network(value, strict=False).with_prefixlen}?)" if isinstance(value, str) else ""
    except ValueError:
        meant = ""
    raise ValueError(f"auto, or a network as address/length, such as 10.0.0.0/16{meant}")


def _path_there(value: str) -> str:
    """A path on the nodes: nobody there knows what a relative one would be relative to, and no shell expands it."""
    absolute = value.startswith("/") or value == "~" or value.startswith("~/")
    return value if absolute else _refuse("a path on the node: absolute, or beginning with ~/")


def _python(value: str) -> str:
    return value if "/" not in value else _path_there(value)


def _variable(value: str) -> str:
    return value if _VARIABLE.match(value) else _refuse("a variable's name: letters, digits and _, not a digit first")


def _value_of_variable(value: Any) -> str:
    """Text; a whole number stands for its text as written.  Anything else YAML would change on the way, so it needs quotes."""
    if isinstance(value, Whole):
        return value.text
    if not isinstance(value, str):
        raise ValueError('a text is wanted; put quotes around it (an empty one is "")')
    return value if "\0" not in value else _refuse("a text without the character NUL")


def _word(value: Any) -> str:
    """A word of a command line; numbers stand for their text as written."""
    if isinstance(value, (Whole, Fraction)):
        return value.text
    if not isinstance(value, str):
        raise ValueError("a word is wanted; put quotes around it")
    return value if "\0" not in value else _refuse("a text without the character NUL")


def _none_is(empty: Callable[[], Any]) -> BeforeValidator:
    """A section whose keys are all commented out is an empty section."""
    return BeforeValidator(lambda value: empty() if value is None else value)


def _listed(value: Any) -> Any:
    """One text where a list of texts is wanted."""
    return [value] if isinstance(value, str) else value


def _pattern(value: str) -> str:
    known = re.fullmatch(r"[A-Za-z0-9_*?\[\]!-]+", value)
    return value if known else _refuse("a variable's name, * and ? allowed, such as NCCL_*")


def _channel(value: str) -> str:
    return value if _CHANNEL.match(value) else _refuse("the name of an output channel, such as model or checkpoints")


def _host_list(value: Any) -> str:
    parts = split_list(value) if isinstance(value, str) else value
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("names of hosts, as a list or a text with commas, such as node[01-04],node7")
    for part in parts:
        expand(part.strip())
    return ",".join(part.strip() for part in parts)


def _command(value: Any) -> str | list[str]:
    """Text for a shell, verbatim, or words."""
    if isinstance(value, list) and value:
        return [_word(word) for word in value]
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("a text for `sh -c`, or a list of words, those in quotes that are neither text nor number")
    return value


def _script(value: Any) -> list[str]:
    """The words of the torchrun form."""
    if isinstance(value, list) and value:
        return [_word(word) for word in value]
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("the path of a Python script, or a list of the path and its arguments")
    if len(value.split()) > 1:
        raise ValueError("one path; write arguments under `args:`, or the whole as a list of words")
    return [value]


_TEXT = {"type": "string", "minLength": 1}
_FROM_ONE = {"type": "integer", "minimum": 1}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_WORDS = {"type": "array", "minItems": 1, "items": {"type": ["string", "number"]}}
_HOST_LIST = {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": {"type": "string"}}]}
_TEXT_LIST = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_TIME = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DURATION_PATTERN}]}
_SIZE = {"anyOf": [_FROM_ONE, {"type": "string", "pattern": SIZE_PATTERN}]}


def _number_or(pattern: str) -> dict[str, Any]:
    return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": pattern}]}


Text = Annotated[str, AfterValidator(_text)]
Backend = Annotated[str, AfterValidator(_backend), WithJsonSchema({"type": "string", "enum": list(BACKENDS)})]
Transport = Annotated[str, AfterValidator(_transport), WithJsonSchema({"const": "auto"})]
JobName = Annotated[str, AfterValidator(parse_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
Port = Annotated[int, PlainValidator(_port), WithJsonSchema(_PORT)]
PortOrAuto = Annotated[Any, _auto_or(lambda value: _port(value, "auto, or a number from 1 to 65535")), _auto_schema(_PORT)]
Gpus = Annotated[Any, _auto_or(_count(0, "auto, or a whole number from 0 on")), _auto_schema({"type": "integer", "minimum": 0})]
Count = Annotated[int, PlainValidator(_count(1, "a whole number from 1 on")), WithJsonSchema(_FROM_ONE)]
FromNone = Annotated[
    int, PlainValidator(_count(0, "a whole number from 0 on")), WithJsonSchema({"type": "integer", "minimum": 0})
]
CountOrAuto = Annotated[Any, _auto_or(_count(1, "auto, or a whole number from 1 on")), _auto_schema(_FROM_ONE)]
User = Annotated[str, AfterValidator(host_texts.checked_user)]
Address = Annotated[str, AfterValidator(_address)]
AddressOrAuto = Annotated[Any, _auto_or(_one_address), _auto_schema(_TEXT)]
InterfaceOrAuto = Annotated[Any, _auto_or(_interface), _auto_schema(_TEXT)]
NetworkOrAuto = Annotated[Any, _auto_or(_network), _auto_schema(_TEXT)]
HostName = Annotated[str, AfterValidator(_host_name)]
HostList = Annotated[str, PlainValidator(_host_list), WithJsonSchema(_HOST_LIST)]
PathThere = Annotated[Text, AfterValidator(_path_there)]
Python = Annotated[Text, AfterValidator(_python)]
Duration = Annotated[float, PlainValidator(_duration), WithJsonSchema(_TIME)]
SomeTime = Annotated[Duration, AfterValidator(_some_time)]
Size = Annotated[int, PlainValidator(_size), WithJsonSchema(_SIZE)]
EnvValue = Annotated[str, PlainValidator(_value_of_variable), WithJsonSchema({"type": ["string", "integer"]})]
Env = Annotated[dict[Annotated[str, AfterValidator(_variable)], EnvValue], _none_is(dict)]
Word = Annotated[str, PlainValidator(_word), WithJsonSchema({"type": ["string", "number"]})]
TimeLimit = Annotated[str, PlainValidator(sbatch.time_limit), WithJsonSchema(_number_or(sbatch.TIME_PATTERN))]
GpusOfNode = Annotated[str, PlainValidator(sbatch.gpus), WithJsonSchema(_number_or(sbatch.GPUS_PATTERN))]
Memory = Annotated[str, PlainValidator(sbatch.memory), WithJsonSchema(_number_or(sbatch.MEMORY_PATTERN))]
Exclusive = Annotated[Any, PlainValidator(sbatch.exclusive), WithJsonSchema({"enum": [True, "user", "mcs"]})]
SbatchOption = Annotated[str, AfterValidator(sbatch.option), WithJsonSchema({"type": "string", "pattern": sbatch.OPTION_PATTERN})]
SbatchArgument = Annotated[Any, PlainValidator(sbatch.argument), WithJsonSchema({"type": ["string", "number", "boolean"]})]
CommandText = Annotated[Any, PlainValidator(_command), WithJsonSchema({"anyOf": [_TEXT, _WORDS]})]
Script = Annotated[list[str], PlainValidator(_script), WithJsonSchema({"anyOf": [_TEXT, _WORDS]})]
Files = Annotated[list[Text], BeforeValidator(_listed), WithJsonSchema(_TEXT_LIST)]
Patterns = Annotated[list[Annotated[str, AfterValidator(_pattern)]], BeforeValidator(_listed), WithJsonSchema(_TEXT_LIST)]
Channels = Annotated[list[Annotated[str, AfterValidator(_channel)]], BeforeValidator(_listed), WithJsonSchema(_TEXT_LIST)]


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
    Annotated[str, AfterValidator(_host_text), Tag("<text>")] | Annotated[MappingHost, Tag("<mapping>")],
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
    sbatch: Annotated[dict[SbatchOption, SbatchArgument], _none_is(dict)] = Field(
        default_factory=dict, description="Any other option of sbatch by its long name; true for one that takes no argument."
    )

    @model_validator(mode="after")
    def _signal_to_us(self) -> Slurm:
        if "signal" in self.sbatch:
            sbatch.signal(self.sbatch["signal"])
        return self


class ClusterFile(_Strict):
    """The machines a job can run on."""

    name: Text | None = Field(default=None, description="The cluster's name in lists and messages. Unset: the file's name.")
    backend: Backend = Field(
        default="ssh", description="ssh: the hosts below. slurm: nodes that Slurm gives. local: nodes simulated here."
    )
    defaults: Annotated[Defaults, _none_is(dict)] = Field(default_factory=Defaults, description="What holds for all hosts.")
    hosts: list[HostEntry] = Field(default_factory=list, description="The machines, in the order of node ranks.")
    ssh: Annotated[Ssh, _none_is(dict)] = Field(default_factory=Ssh, description="How hosts are reached.")
    master: Annotated[Master, _none_is(dict)] = Field(default_factory=Master, description="Where the other nodes find node 0.")
    slurm: Annotated[Slurm, _none_is(dict)] = Field(default_factory=Slurm, description="What sbatch is asked for.")


class JobYaml(_Strict):
    """A job: the options of `launcher submit`, with underscores. Relative paths are relative to this file."""

    name: JobName | None = Field(default=None, description="Base of the job's id.")
    cluster: Text | None = Field(default=None, description="The cluster file.")
    hostfile: Text | None = Field(default=None, description="A hostfile instead of a cluster file.")
    backend: Backend | None = Field(default=None, description="local, ssh or slurm.")
    nodes: Count | None = Field(default=None, description="How many nodes.")
    nproc_per_node: CountOrAuto | None = Field(
        default=None, description="Processes on each node; auto: as many as it has GPUs, else 1."
    )
    hosts: HostList | None = Field(default=None, description="Hosts to run on, by name; the first is node 0.")
    exclude: HostList | None = Field(default=None, description="Hosts not to run on, by name.")
    instance_type: Text | None = Field(default=None, description="Run on hosts with this label.")
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
    requeue: bool | None = Field(default=None, description="Go back into Slurm's queue when nodes or time are taken away.")
    max_requeues: FromNone | None = Field(default=None, description="How often at most; unset: 10.")
    keep: bool | None = Field(default=None, description="Keep the working copy on the nodes after a success.")
    max_code_size: Size | None = Field(default=None, description="A larger source folder is refused: bytes, or 500MB, 2GiB.")

    @model_validator(mode="after")
    def _one_command(self) -> JobYaml:
        if self.command is not None and (self.script is not None or self.args is not None):
            raise ValueError("`command` stands alone; `script` and `args` are the torchrun form")
        if self.args is not None and self.script is None:
            raise ValueError("`args` are the arguments of a `script`, and there is none")
        if self.cluster is not None and self.hostfile is not None:
            raise ValueError("`cluster` and `hostfile` both name the inventory; keep one of them")
        return self

"""What a single value of cluster.yaml or job.yaml may be, and what a JSON schema says of it.

A validator that refuses raises ValueError with a sentence saying what is allowed; `launcher.cluster.problems` puts file,
line, column, key path and value before it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BeforeValidator, PlainValidator, WithJsonSchema

from launcher import channels, environments
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
    parse_label,
    parse_name,
    parse_size,
)
from launcher.cluster.yamlfile import Fraction, Odd, Whole
from launcher.hyperparameters import no_json, odd
from launcher.metrics import problem_of
from launcher.model import MetricDefinition

LATER = "not in this version"
BACKENDS = ("local", "ssh", "slurm")
ACCELERATORS = ("CPU", "GPU")
SCOPES = ("training", "inference", "develop")

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


def _cluster_name(value: str) -> str:
    return parse_name(value) if value != "local" else _refuse("another name: `local` always means this machine")


def _metric_name(value: str) -> str:
    return _of_metric(MetricDefinition(value, "()"), value)


def _regex(value: str) -> str:
    return _of_metric(MetricDefinition("name", value), value)


def _of_metric(made: MetricDefinition, value: str) -> str:
    why = problem_of(made)
    return value if why is None else _refuse(why)


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


def none_is(empty: Callable[[], Any]) -> BeforeValidator:
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


def _data_channel(value: str) -> str:
    return value if re.match(channels.PATTERN, value) and not value.endswith("\n") else _refuse(channels.ALLOWED)


def _input(value: Any) -> Any:
    """A path or URI, or a mapping of one and `shard`."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, dict) and not set(value) - {"source", "shard"} and isinstance(value.get("shard", False), bool):
        source = value.get("source")
        if isinstance(source, str) and source.strip():
            return value
    raise ValueError("a path, a URI, or {source: PATH, shard: true}")


def _output(value: Any) -> str | None:
    return value if value is None or (isinstance(value, str) and value.strip()) else _refuse("a folder or URI, or nothing")


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


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


def _hyperparameter(value: Any) -> Any:
    """Plain JSON: texts, numbers, true and false, null, lists and mappings of such."""
    if isinstance(value, Odd):
        raise ValueError("a text, a number, true or false, null, a list or a mapping")
    if isinstance(value, list):
        return [_hyperparameter(item) for item in value]
    if isinstance(value, dict):
        return {_hyperparameter_name(name): _hyperparameter(item) for name, item in value.items()}
    plain = int(value) if _whole(value) else float(value) if isinstance(value, float) else value
    why = no_json(plain)
    return plain if why is None else _refuse(why)


def _hyperparameter_name(value: Any) -> str:
    why = odd(value)
    return str(value) if why is None else _refuse(why)


def _requirement(value: str) -> str:
    return value if value.isprintable() else _refuse("one line, as in a requirements.txt")


def _label_text(value: Any) -> str:
    return parse_label("x", _word(value))[1]


def _image_name(value: str) -> str:
    return value if not environments.is_uri(value) else _refuse("a name of your own; the URI stands under `uri:`")


def _image_uri(value: str) -> str:
    environments.parse(value)
    return value


def _one_of(known: tuple[str, ...]) -> AfterValidator:
    """One of some words."""
    return AfterValidator(
        lambda value: value if value in known else _refuse(f"allowed: {', '.join(known)}{did_you_mean(value, known)}")
    )


_TEXT = {"type": "string", "minLength": 1}
_FROM_ONE = {"type": "integer", "minimum": 1}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_WORDS = {"type": "array", "minItems": 1, "items": {"type": ["string", "number"]}}
_HOST_LIST = {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": {"type": "string"}}]}
_TEXT_LIST = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_TIME = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DURATION_PATTERN}]}
_SIZE = {"anyOf": [_FROM_ONE, {"type": "string", "pattern": SIZE_PATTERN}]}


_INPUT = {
    "anyOf": [
        _TEXT,
        {
            "type": "object",
            "properties": {"source": _TEXT, "shard": {"type": "boolean"}},
            "required": ["source"],
            "additionalProperties": False,
        },
    ]
}


def _number_or(pattern: str) -> dict[str, Any]:
    return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": pattern}]}


Text = Annotated[str, AfterValidator(_text)]
Backend = Annotated[str, AfterValidator(_backend), WithJsonSchema({"type": "string", "enum": list(BACKENDS)})]
Transport = Annotated[str, AfterValidator(_transport), WithJsonSchema({"const": "auto"})]
JobName = Annotated[str, AfterValidator(parse_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
ClusterName = Annotated[str, AfterValidator(_cluster_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
Metrics = Annotated[dict[Annotated[str, AfterValidator(_metric_name)], Annotated[str, AfterValidator(_regex)]], none_is(dict)]
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
HostText = Annotated[str, AfterValidator(_host_text)]
HostName = Annotated[str, AfterValidator(_host_name)]
HostList = Annotated[str, PlainValidator(_host_list), WithJsonSchema(_HOST_LIST)]
PathThere = Annotated[Text, AfterValidator(_path_there)]
Python = Annotated[Text, AfterValidator(_python)]
Duration = Annotated[float, PlainValidator(_duration), WithJsonSchema(_TIME)]
SomeTime = Annotated[Duration, AfterValidator(_some_time)]
Size = Annotated[int, PlainValidator(_size), WithJsonSchema(_SIZE)]
EnvValue = Annotated[str, PlainValidator(_value_of_variable), WithJsonSchema({"type": ["string", "integer"]})]
Env = Annotated[dict[Annotated[str, AfterValidator(_variable)], EnvValue], none_is(dict)]
RequirementLine = Annotated[str, AfterValidator(_requirement)]
Hyperparameter = Annotated[Any, PlainValidator(_hyperparameter), WithJsonSchema({})]
Hyperparameters = Annotated[dict[Annotated[str, AfterValidator(_hyperparameter_name)], Hyperparameter], none_is(dict)]
LabelText = Annotated[str, PlainValidator(_label_text), WithJsonSchema({"type": ["string", "number"]})]
Labels = Annotated[dict[Annotated[str, AfterValidator(lambda name: parse_label(name)[0])], LabelText], none_is(dict)]
ImageName = Annotated[Text, AfterValidator(_image_name)]
ImageUri = Annotated[Text, AfterValidator(_image_uri)]
Accelerator = Annotated[str, _one_of(ACCELERATORS), WithJsonSchema({"type": "string", "enum": list(ACCELERATORS)})]
ImageScope = Annotated[str, _one_of(SCOPES), WithJsonSchema({"type": "string", "enum": list(SCOPES)})]
Word = Annotated[str, PlainValidator(_word), WithJsonSchema({"type": ["string", "number"]})]
TimeLimit = Annotated[str, PlainValidator(sbatch.time_limit), WithJsonSchema(_number_or(sbatch.TIME_PATTERN))]
GpusOfNode = Annotated[str, PlainValidator(sbatch.gpus), WithJsonSchema(_number_or(sbatch.GPUS_PATTERN))]
Memory = Annotated[str, PlainValidator(sbatch.memory), WithJsonSchema(_number_or(sbatch.MEMORY_PATTERN))]
Exclusive = Annotated[Any, PlainValidator(sbatch.exclusive), WithJsonSchema({"enum": [True, "user", "mcs"]})]
SbatchOption = Annotated[str, AfterValidator(sbatch.option), WithJsonSchema({"type": "string", "pattern": sbatch.OPTION_PATTERN})]
SbatchArgument = Annotated[Any, PlainValidator(sbatch.argument), WithJsonSchema({"type": ["string", "number", "boolean"]})]
CommandText = Annotated[Any, PlainValidator(_command), WithJsonSchema({"anyOf": [_TEXT, _WORDS]})]
Script = Annotated[list[str], PlainValidator(_script), WithJsonSchema({"anyOf": [_TEXT, _WORDS]})]
InputSource = Annotated[Any, PlainValidator(_input), WithJsonSchema(_INPUT)]
Inputs = Annotated[dict[Annotated[str, AfterValidator(_data_channel)], InputSource], none_is(dict)]
OutputPlace = Annotated[Any, PlainValidator(_output), WithJsonSchema({"anyOf": [_TEXT, {"type": "null"}]})]
Outputs = Annotated[
    dict[Annotated[str, AfterValidator(_data_channel)], OutputPlace],
    BeforeValidator(lambda value: dict.fromkeys(value) if _names(value) else value),
    none_is(dict),
    WithJsonSchema({"anyOf": [{"type": "object"}, _TEXT_LIST["anyOf"][1]]}),
]
Files = Annotated[list[Text], BeforeValidator(_listed), WithJsonSchema(_TEXT_LIST)]
Patterns = Annotated[list[Annotated[str, AfterValidator(_pattern)]], BeforeValidator(_listed), WithJsonSchema(_TEXT_LIST)]
Channels = Annotated[list[Annotated[str, AfterValidator(_channel)]], BeforeValidator(_listed), WithJsonSchema(_TEXT_LIST)]

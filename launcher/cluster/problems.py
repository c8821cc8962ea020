"""pydantic's complaints as sentences with file, line, column, key path, value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from launcher.cluster.inventory import did_you_mean
from launcher.cluster.models import Defaults, Git, Image, MappingHost, Master, Slurm, Ssh, UserJob
from launcher.cluster.values import LATER
from launcher.cluster.yamlfile import Document, Odd

M = TypeVar("M", bound=BaseModel)
Location = tuple[str | int, ...]

LATER_KEYS = {
    "cluster file": set(),
    "job file": {
        "input", "setup", "max_restarts", "spares",
        "partition",
    },
}  # fmt: skip
"""keys that a later version knows, and this one refuses as such"""

FLAGS_ONLY = {"detach", "dry_run", "output", "follow"}
"""options of `launcher submit` that say how to watch, not what to run"""

# pydantic's names of errors, and what is allowed then; {…} are filled from the error's context.
_ALLOWED = {
    "string_type": "a text is wanted here",
    "string_unicode": "a text is wanted here",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list is wanted here, each entry after a dash",
    "dict_type": "a mapping is wanted here, as in `key: value`",
    "model_type": "a mapping is wanted here, as in `key: value`",
    "model_attributes_type": "a mapping is wanted here, as in `key: value`",
    "missing": "missing: this key is needed",
}


def validated(model: type[M], document: Document, kind: str) -> tuple[M | None, list[str], list[Location]]:
    """(the file as a model or None, what is wrong with it, where): ``kind`` is "cluster file" or "job file"."""
    try:
        return model.model_validate(document.data), [], []
    except ValidationError as error:
        found = error.errors(include_url=False)
    locations = [_location(document, entry["loc"]) for entry in found]
    sentences = [
        _sentence(model, document, kind, dict(entry), location) for entry, location in zip(found, locations, strict=True)
    ]
    return None, list(dict.fromkeys(sentences)), locations


def dotted(location: Sequence[str | int]) -> str:
    """`hosts[2].gpus`."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _location(document: Document, loc: tuple[Any, ...]) -> Location:
    """The path in the file: without the marks that pydantic adds for union members and keys."""
    place, path = document.root, []
    for step in loc:
        if step in place.children:
            place = place.children[step]
        elif isinstance(step, int) or step.startswith(("<", "[")) or "(" in step:
            continue
        path.append(step)
    return tuple(path)


def _sentence(model: type[BaseModel], document: Document, kind: str, entry: dict[str, Any], location: Location) -> str:
    about_key = entry["type"] == "extra_forbidden" or entry["loc"][-1:] == ("[key]",)
    start = f"{document.where(location, key=about_key)}: {dotted(location) or 'the file'}"
    if entry["type"] == "extra_forbidden":
        return f"{start}: {_unknown_key(model, kind, location)}"
    if entry["type"] == "missing":
        return f"{start}: {_ALLOWED['missing']}"
    allowed = allowed_of(entry)
    if about_key or not location:
        return f"{start}: {allowed}"
    value = entry["input"]
    return f"{start}: {_shown(document, value, location)}: {allowed}{_quoting(document, value, location, allowed)}"


def allowed_of(entry: Mapping[str, Any]) -> str:
    """What would have been right, of one of pydantic's errors."""
    return str(entry["ctx"]["error"]) if entry["type"] == "value_error" else str(_ALLOWED.get(entry["type"], entry["msg"]))


def _shown(document: Document, value: Any, location: Location) -> str:
    """The value as written; of a variable only its kind, for it may be a secret."""
    if {"env", "hyperparameters"} & set(location) and isinstance(value, (str, int, float, Odd)) and not isinstance(value, bool):
        return "a text" if isinstance(value, str) else "a number"
    return document.find(location).text or "nothing"


def _quoting(document: Document, value: Any, location: Location, allowed: str) -> str:
    """What YAML made of the text, when that is the reason."""
    text = document.find(location).text
    if allowed == LATER:
        return ""
    if isinstance(value, bool) and allowed != _ALLOWED["bool_type"]:
        return f'; YAML reads {text} as {str(value).lower()}, so write "{text}"'
    if isinstance(value, Odd) and value.kind.startswith("!"):
        return f"; the tag {value.kind} has no meaning here"
    if isinstance(value, Odd):
        remedy = "as a plain decimal number" if "number" in allowed else "in quotes"
        return f"; YAML does not read this as it looks ({value.kind}), so write it {remedy}"
    if isinstance(value, (int, float)) and "text" in allowed and "env" not in location:
        return f'; YAML reads {text} as a number, so write "{text}"'
    if isinstance(value, str) and text.startswith(('"', "'")) and value.isdigit() and "number" in allowed:
        return f"; write {value} without quotes"
    return ""


def _unknown_key(model: type[BaseModel], kind: str, location: Location) -> str:
    key = str(location[-1])
    if len(location) == 1 and key in LATER_KEYS.get(kind, ()):
        return LATER
    if len(location) == 1 and kind == "job file" and key in FLAGS_ONLY:
        return "unknown key: this is said on the command line only"
    known = list(_model_at(model, location[:-1]).model_fields)
    twisted = key.replace("-", "_")
    meant = f" (did you mean {twisted}?)" if twisted in known else did_you_mean(key, known)
    return f"unknown key; allowed: {', '.join(known)}{meant}"


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel]:
    """The model that a path leads to."""
    sections: dict[str | int, type[BaseModel]] = {
        "defaults": Defaults,
        "hosts": MappingHost,
        "ssh": Ssh,
        "master": Master,
        "slurm": Slurm,
        "images": Image,
        "job": UserJob,
        "git": Git,
    }
    return sections.get(location[0], model) if location else model

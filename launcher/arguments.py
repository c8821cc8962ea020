"""What code may hand over to an Estimator: each argument's check, and every complaint at once.

A check takes a value and returns what is wrong with it, as the end of the sentence that begins with the argument's name; None
where nothing is.  Values of variables are never repeated: they may be secrets.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from launcher.cluster import parse_duration, parse_name
from launcher.errors import WrongArguments
from launcher.model import Command

Check = Callable[[Any], str | None]

_JOB_TYPE = "PyTorchJob"
_GIT_KEYS = ("repo", "branch", "commit")
_METRIC_KEYS = ("Name", "Regex")


def text(value: Any) -> str | None:
    """A text that is not empty."""
    if isinstance(value, str):
        return None if value.strip() else "is empty"
    return f"a text is wanted, not {_kind(value)}"


def image(value: Any) -> str | None:
    """The URI of an image; what `retrieve` gives has one."""
    if hasattr(value, "image_uri"):
        return "the text `.image_uri` of it is wanted"
    return text(value)


def path(value: Any) -> str | None:
    """A path, as text or as a Path."""
    return None if isinstance(value, os.PathLike) else text(value)


def command(value: Any) -> str | None:
    """A text for `sh -c`, or a list of words."""
    if isinstance(value, (str, Command)):
        return text(value) if isinstance(value, str) else None
    words = _texts(value, "the words of the command")
    return words if words or value else "is empty"


def job_type(value: Any) -> str | None:
    """There is one kind of job."""
    return None if value == _JOB_TYPE else f"{value!r}: only {_JOB_TYPE} is run here"


def name(value: Any) -> str | None:
    """The base of a job's id."""
    if not isinstance(value, str):
        return text(value)
    try:
        parse_name(value)
    except ValueError as error:
        return f"{value!r}: {error}"
    return None


def count(value: Any) -> str | None:
    """A whole number from 1 on."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return None if whole and value >= 1 else f"{value!r}: a whole number of at least 1 is wanted"


def count_or_auto(value: Any) -> str | None:
    """Processes per node."""
    return None if value == "auto" or not count(value) else f'{value!r}: a whole number of at least 1, or "auto"'


def seconds(value: Any) -> str | None:
    """A time: seconds, or a text such as 2h."""
    if isinstance(value, str):
        try:
            parse_duration(value)
        except ValueError as error:
            return f"{value!r}: {error}"
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return None if number and value > 0 else f"{value!r}: seconds, more than 0"


def named(value: Any) -> str | None:
    """Values by name; what they are is looked at where they are used."""
    if not isinstance(value, Mapping):
        return f"a dict is wanted, not {_kind(value)}"
    odd = [key for key in value if not isinstance(key, str) or not key]
    return f"{odd[0]!r} is no name" if odd else None


def variables(value: Any) -> str | None:
    """Texts by name; whole numbers are taken as they are written."""
    if wrong := named(value):
        return wrong
    odd = {key: item for key, item in value.items() if isinstance(item, bool) or not isinstance(item, (str, int))}
    return "; ".join(f"{key} is {_kind(item)}, and a text is wanted" for key, item in odd.items()) or None


def lines(value: Any) -> str | None:
    """Lines as in a requirements.txt."""
    return _texts(value, "lines as in a requirements.txt")


def metrics(value: Any) -> str | None:
    """PAI's metric definitions."""
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        return f'a list such as [{{"Name": "loss", "Regex": r"loss=(\\S+)"}}] is wanted, not {_kind(value)}'
    return "; ".join(filter(None, (_metric(number, one) for number, one in enumerate(value)))) or None


def _metric(number: int, one: Any) -> str | None:
    if not isinstance(one, Mapping) or set(one) != set(_METRIC_KEYS) or not all(isinstance(item, str) for item in one.values()):
        return f"entry {number}: a dict with the texts Name and Regex is wanted"
    try:
        groups = re.compile(one["Regex"]).groups
    except re.error as error:
        return f"entry {number}: {one['Regex']!r} is no regular expression: {error}"
    return None if groups == 1 else f"entry {number}: {one['Regex']!r} has {groups} groups, and one is wanted: the number"


def git(value: Any) -> str | None:
    """PAI's git_config."""
    if wrong := named(value):
        return wrong
    problems = [f"unknown key {key!r}{meant(key, _GIT_KEYS)}" for key in value if key not in _GIT_KEYS]
    problems += [f"{key}: {wrong}" for key in _GIT_KEYS if value.get(key) is not None and (wrong := text(value[key]))]
    return "; ".join(problems) or (None if value.get("repo") else "repo is missing")


def backend(value: Any) -> str | None:
    """The word for how nodes are reached."""
    known = ("local", "ssh", "slurm")
    return None if value in known else f"{value!r}: one of {', '.join(known)}"


def later(value: Any) -> str | None:
    """A number that cannot be had yet."""
    return None if value == 0 else "not in this version"


def complain(what: str, checks: Mapping[str, Check], said: Mapping[str, Any], others: Iterable[str] = ()) -> None:
    """Raise WrongArguments with all that is wrong with what was ``said`` (None: nothing was), and with ``others`` before it."""
    problems = list(others)
    problems += [f"{key}: {wrong}" for key, check in checks.items() if said.get(key) is not None and (wrong := check(said[key]))]
    if problems:
        raise WrongArguments(what, problems=problems)


def meant(word: str, known: Iterable[str]) -> str:
    """` (did you mean x?)`, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _texts(value: Any, what: str) -> str | None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return f"a list of {what} is wanted, not {_kind(value)}"
    odd = [item for item in value if not isinstance(item, str)]
    return f"{what} are texts, and {odd[0]!r} is {_kind(odd[0])}" if odd else None


def _kind(value: Any) -> str:
    return "a text" if isinstance(value, str) else f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"

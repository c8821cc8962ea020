"""What code may hand over to an Estimator: each argument's check, and every complaint at once.

A check takes a value and returns what is wrong with it, as the end of the sentence that begins with the argument's name; None
where nothing is.  Values of variables are never repeated: they may be secrets.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from launcher import environ, hyperparameters
from launcher import uri as uris
from launcher.cluster import parse_duration, parse_name, parse_size
from launcher.cluster.scalars import LARGEST_SIZE, LONGEST_TIME
from launcher.errors import WrongArguments
from launcher.metrics import problems_of
from launcher.model import Command, MetricDefinition

Check = Callable[[Any], str | None]

_PACKAGE = __name__.partition(".")[0]
_JOB_TYPE = "PyTorchJob"
_BACKENDS = ("local", "ssh", "slurm")
_GIT_KEYS = ("repo", "branch", "commit")
_GIT_SECRETS = ("username", "password", "token")
_GIT_SECRET = "{}: your own git is asked: by ssh, by its credential helper, or with what the repository's address says"
_METRIC_KEYS = ("Name", "Regex")
_METRIC = "a dict with the texts Name and Regex"


def text(value: Any) -> str | None:
    """A text that is not empty."""
    if isinstance(value, str):
        return uris.odd(value) if value.strip() else "is empty"
    return f"a text is wanted, not {kind(value)}"


def image(value: Any) -> str | None:
    """The URI of an image; what `retrieve` gives has one."""
    if hasattr(value, "image_uri"):
        return "the text `.image_uri` of it is wanted"
    return text(value)


def path(value: Any) -> str | None:
    """A path, as text or as a Path."""
    if isinstance(value, os.PathLike):
        found = uris.said(value)
        return "a path of text is wanted" if found is None else text(found)
    return text(value)


def command(value: Any) -> str | None:
    """A text for `sh -c`, or a list of words."""
    if isinstance(value, (str, Command)):
        return text(value) if isinstance(value, str) else None
    words = texts(value, "the words of the command")
    return words if words or value else "is empty"


def job_type(value: Any) -> str | None:
    """There is one kind of job."""
    return None if isinstance(value, str) and value == _JOB_TYPE else f"{value!r}: only {_JOB_TYPE} is run here"


def name(value: Any) -> str | None:
    """The base of a job's id."""
    return _unread(value, parse_name) if isinstance(value, str) else text(value)


def count(value: Any) -> str | None:
    """A whole number from 1 on."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return None if whole and value >= 1 else f"{value!r}: a whole number of at least 1 is wanted"


def flag(value: Any) -> str | None:
    """Yes or no: a text, which Python would take for a yes, is neither."""
    return None if isinstance(value, bool) else f"{value!r}: True or False is wanted"


def count_or_auto(value: Any) -> str | None:
    """Processes per node."""
    fits = value == "auto" if isinstance(value, str) else not count(value)
    return None if fits else f'{value!r}: a whole number of at least 1, or "auto"'


def seconds(value: Any) -> str | None:
    """A time: seconds, or a text such as 2h."""
    if isinstance(value, str):
        return _unread(value, parse_duration)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return None if number and 0 < value <= LONGEST_TIME else f"{value!r}: seconds, more than 0 and at most 100 years"


def named(value: Any) -> str | None:
    """Values by name; what they are is looked at where they are used."""
    if not isinstance(value, Mapping):
        return f"a dict is wanted, not {kind(value)}"
    wrong = [key for key in value if not isinstance(key, str) or not key or uris.odd(key)]
    return f"{wrong[0]!r} is no name" if wrong else None


def parameters(value: Any) -> str | None:
    """Hyperparameters: what JSON knows, by name."""
    return named(value) or "; ".join(hyperparameters.problems(value)) or None


def words(value: Any) -> str | None:
    """Texts by name; whole numbers are taken as they are written."""
    if wrong := named(value):
        return wrong
    strange = {key: item for key, item in value.items() if isinstance(item, bool) or not isinstance(item, (str, int))}
    found = [f"{key} is {kind(item)}, and a text is wanted" for key, item in strange.items()]
    found += [f"{key} {why}" for key, item in value.items() if isinstance(item, str) and (why := uris.odd(item))]
    return "; ".join(found) or None


def variables(value: Any) -> str | None:
    """Those that the command finds: texts by name, none that only we may set."""
    if wrong := words(value):
        return wrong
    unfit = [f"{name!r} is no name of a variable" for name in value if "=" in name]
    return "; ".join(unfit + [f"{name} is the launcher's own" for name in value if environ.is_ours(name)]) or None


def size(value: Any) -> str | None:
    """Bytes, or a text such as 2GiB."""
    if isinstance(value, str):
        return _unread(value, parse_size)
    return count(value) or (None if value <= LARGEST_SIZE else f"{value!r}: at most 1 EiB")


def _unread(value: str, parse: Callable[[str], Any]) -> str | None:
    try:
        parse(value)
    except ValueError as error:
        return f"{value!r}: {error}"
    return None


def lines(value: Any) -> str | None:
    """Lines as in a requirements.txt."""
    return texts(value, "lines as in a requirements.txt")


def metrics(value: Any) -> str | None:
    """PAI's metric definitions."""
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        return f'a list such as [{{"Name": "loss", "Regex": r"loss=(\\S+)"}}] is wanted, not {kind(value)}'
    strange = [f"entry {number}: {_METRIC} is wanted" for number, one in enumerate(value) if not _is_metric(one)]
    right = [MetricDefinition(one["Name"], one["Regex"]) for one in value if _is_metric(one)]
    return "; ".join([*strange, *problems_of(right)]) or None


def _is_metric(one: Any) -> bool:
    return isinstance(one, Mapping) and set(one) == set(_METRIC_KEYS) and all(isinstance(item, str) for item in one.values())


def git(value: Any) -> str | None:
    """PAI's git_config."""
    if wrong := named(value):
        return wrong
    problems = [_GIT_SECRET.format(key) for key in value if key in _GIT_SECRETS]
    problems += [f"unknown key {key!r}{meant(key, _GIT_KEYS)}" for key in value if key not in (*_GIT_KEYS, *_GIT_SECRETS)]
    problems += [f"{key}: {wrong}" for key in _GIT_KEYS if value.get(key) is not None and (wrong := text(value[key]))]
    return "; ".join(problems) or (None if value.get("repo") else "repo is missing")


def backend(value: Any) -> str | None:
    """The word for how nodes are reached."""
    return None if isinstance(value, str) and value in _BACKENDS else f"{value!r}: one of {', '.join(_BACKENDS)}"


def one_of(value: Any, known: Sequence[str]) -> str | None:
    """One of these words, in upper or lower case."""
    if isinstance(value, str) and value.lower() in [word.lower() for word in known]:
        return None
    return f"{value!r}: one of {', '.join(known)}"


def interval(value: Any) -> str | None:
    """Seconds between two looks."""
    return seconds(value) if not isinstance(value, str) else f"{value!r}: seconds, as a number"


def later(value: Any) -> str | None:
    """A number that cannot be had yet."""
    return None if isinstance(value, int) and value == 0 else "not in this version"


def complain(what: str, checks: Mapping[str, Check], said: Mapping[str, Any], others: Iterable[str] = (), *, manual: str) -> None:
    """Raise WrongArguments with all that is wrong with what was ``said`` (None: nothing was), and with ``others`` before it.

    ``manual`` is what the person may ask for help() on.
    """
    found = [*others, *problems(checks, said)]
    if found:
        raise WrongArguments(what, problems=found, next_step=next_step(manual))


def next_step(manual: str) -> str:
    """Where the arguments are explained."""
    return f"mend all of these; help({manual}) explains them"


def problems(checks: Mapping[str, Check], said: Mapping[str, Any]) -> list[str]:
    """All that is wrong with what was ``said``, a sentence each, in the order of the checks; None: nothing was said."""
    return [f"{key}: {wrong}" for key, check in checks.items() if said.get(key) is not None and (wrong := check(said[key]))]


def meant(word: str, known: Iterable[str]) -> str:
    """` (did you mean x?)`, or where nothing is like it, all there are."""
    import difflib  # for bad arguments alone

    all_of_them = list(known)
    close = difflib.get_close_matches(word, all_of_them, n=1)
    return f" (did you mean {close[0]}?)" if close else f" (there are {', '.join(all_of_them)})"


def texts(value: Any, what: str) -> str | None:
    """A list of texts; ``what`` they are."""
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Sequence):
        return f"a list of {what} is wanted, not {kind(value)}"
    strange = [item for item in value if not isinstance(item, str)]
    if strange:
        return f"{what} are texts, and {strange[0]!r} is {kind(strange[0])}"
    return next((f"{item!r} {why}" for item in value if (why := uris.odd(item))), None)


def kind(value: Any) -> str:
    """`a text`, or its type with an article."""
    return "a text" if isinstance(value, str) else f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"


@functools.cache
def warn_once(text: str) -> None:
    """As `warn`, but for what was said before, from whichever line."""
    warn(text)


def warn(text: str) -> None:
    """A Python warning that points at the caller's own line; Python shows it once for each such line."""
    frame, depth = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE:
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, stacklevel=depth)

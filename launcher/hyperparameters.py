"""Hyperparameters as the command finds them: variables, arguments, and a file.  Pure.

PAI's contract: `PAI_HPS` holds all as JSON, `PAI_HPS_<NAME>` one each, `PAI_USER_ARGS` all as arguments, and
hyperparameters.json in the config folder all as texts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from launcher import channels
from launcher.uri import odd as unfit

_PREFIX = "PAI_HPS_"
_NO_NAME = re.compile(r"[\s=\x00-\x1f\x7f]")
LONGEST = 128 * 1024 - 1
"""bytes of `NAME=value` that Linux passes to a program (MAX_ARG_STRLEN of linux/binfmts.h, less the NUL)"""


def plain(value: Any) -> Any:
    """The value with Python's own numbers, truths and texts in the place of numpy's scalars, also in lists and mappings.

    They tell by `item()` which value they stand for exactly; whatever has no such one stays as it is.
    """
    try:
        return _plain(value)
    except RecursionError:
        return value


def _plain(value: Any) -> Any:
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    if type(value) is list:
        return [_plain(item) for item in value]
    shape = getattr(value, "shape", None)
    if isinstance(value, type) or not (isinstance(shape, tuple) and shape == () and hasattr(value, "item")):
        return value
    try:
        told = value.item()
    except (TypeError, ValueError, RuntimeError):
        return value
    return told if type(told) in (bool, int, float, str) else value


def text(value: Any) -> str:
    """A value as a text: itself where it is one, else its JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse(text: str) -> Any:
    """What a person typed as a value: read as JSON where it is JSON, else the text itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if no_json(value) else value


def texts(hyperparameters: Mapping[str, Any]) -> dict[str, str]:
    """All values as texts, in their order: hyperparameters.json."""
    return {name: text(value) for name, value in hyperparameters.items()}


def variable(name: str) -> str:
    """The variable that holds one of them: `learning-rate` is in PAI_HPS_LEARNING_RATE."""
    return channels.variable(_PREFIX, name)


def variables(hyperparameters: Mapping[str, Any]) -> dict[str, str]:
    """What the command's environment says of them, `{}` and no arguments where there are none."""
    one_each = {variable(name): value for name, value in texts(hyperparameters).items()}
    arguments = shlex.join(word for name, value in texts(hyperparameters).items() for word in (f"--{name}", value))
    return {"PAI_HPS": json.dumps(hyperparameters, ensure_ascii=False), "PAI_USER_ARGS": arguments, **one_each}


def problems(hyperparameters: Mapping[str, Any]) -> list[str]:
    """What is wrong with them, a sentence each: names that cannot be, values that are no JSON, two for one variable."""
    hyperparameters = plain(dict(hyperparameters))
    found = [f"{name!r}: {why}" for name, why in ((name, odd(name)) for name in hyperparameters) if why]
    taken: dict[str, str] = {}
    for name in hyperparameters if not found else ():
        found += channels.clash(taken, _PREFIX, name)
    found += [f"{name!r}: {why}" for name, why in ((name, no_json(value)) for name, value in hyperparameters.items()) if why]
    return found or [problem for problem in map(_too_long, variables(hyperparameters).items()) if problem]


def _too_long(item: tuple[str, str]) -> str | None:
    size = len("=".join(item).encode(errors="surrogateescape"))
    return f"{item[0]} would have {size} bytes, and a variable has at most {LONGEST}" if size > LONGEST else None


def odd(name: Any) -> str | None:
    """Why this cannot be a name; None when it can."""
    if not isinstance(name, str):
        return "a name is a text"
    if not name or name.startswith("-") or unfit(name) or _NO_NAME.search(name) or not name.isprintable():
        return "a name has no blanks, no = and no - at its beginning"
    return None


def no_json(value: Any) -> str | None:
    """Why this cannot be a value; None when it can."""
    try:
        if json.loads(json.dumps(value, allow_nan=False)) == value and not unfit(text(value)):
            return None
    except (TypeError, ValueError, RecursionError):
        pass
    return "a value is a text, a number, true or false, null, or a list or mapping of such"

"""Channels of data: their names, and the variables in which the command finds them.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from launcher.agent.layout import CHANNELS as CHANNELS  # noqa: PLC0414 - handed on

INPUT, OUTPUT = "PAI_INPUT_", "PAI_OUTPUT_"
NODE = "node:"
"""begins the source of an input that lies on the nodes and is used there as it is"""
PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MANIFEST = "model.json"
"""the name of the manifest beside the folders of output channels"""
ALLOWED = "a channel's name: letters, digits and . _ -, a letter or digit first, at most 64"
_NOT_IN_VARIABLES = re.compile(r"[^a-zA-Z0-9_]")


def variable(prefix: str, name: str) -> str:
    """PAI's rule for channels and hyperparameters: upper case, and _ for everything else that a variable's name cannot have."""
    return prefix + _NOT_IN_VARIABLES.sub("_", name).upper()


def problems(prefix: str, names: Iterable[str]) -> list[str]:
    """What is wrong with these channels' names, a sentence each; two that become one variable among it."""
    found, taken = [], {variable(prefix, name): name for name in CHANNELS} if prefix == OUTPUT else {}
    for name in names:
        if not isinstance(name, str) or not re.match(PATTERN, name) or name.endswith("\n"):
            found.append(f"{name!r}: {ALLOWED}")
            continue
        if prefix == OUTPUT and name.lower() == MANIFEST:
            found.append(f"{name!r}: the manifest has this name; rename the channel")
        found += clash(taken, prefix, name)
    return found


def clash(taken: dict[str, str], prefix: str, name: str) -> list[str]:
    """Enter a name into {variable: name}; a sentence where another name has become that variable."""
    other = taken.setdefault(variable(prefix, name), name)
    return [] if other == name else [f"{other!r} and {name!r} would both be {variable(prefix, name)}; rename one of them"]

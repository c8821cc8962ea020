"""What may stand under `slurm:` of a cluster file: each check returns the value as sbatch takes it, or raises ValueError
with a sentence that says what is allowed."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from launcher.cluster.yamlfile import Fraction, Odd, Whole
from launcher.slurm import warning

TIME_PATTERN = r"^(\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d|UNLIMITED|INFINITE)$"
TIME_ALLOWED = "as sbatch takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours or days-hours:minutes:seconds"
GPUS_PATTERN = r"^([A-Za-z][A-Za-z0-9_.-]*:)?[1-9]\d*$"
MEMORY_PATTERN = r"^\d+[KMGTkmgt]?$"
OPTION_PATTERN = r"^[a-z][a-z0-9]*([-_][a-z0-9]+)*$"

TAKEN = {
    "array": "a job of ours is one job; submit it several times",
    "nodes": "--nodes says how many",
    "ntasks": "there is one agent a node, which starts the processes",
    "ntasks-per-node": "there is one agent a node, which starts the processes",
    "job-name": "it is our job's id, by which `status` knows the job again",
    "output": "it goes to slurm/ of the job folder",
    "error": "it goes to slurm/ of the job folder",
    "open-mode": "what is written there is always appended",
    "chdir": "it is where the launcher's own package is found",
    "no-requeue": "it is what holds unless `requeue` is true",
    "wrap": "the batch script is the launcher's",
    "parsable": "the launcher reads what sbatch prints",
    "wait": "`launcher submit` waits unless `--detach` is given",
    "test-only": "`launcher submit --dry-run` starts nothing",
    "help": "it starts nothing",
}
"""options of sbatch that no `sbatch:` section may name, and why"""
NAMED = (
    "partition", "account", "qos", "time", "gpus-per-node", "cpus-per-task", "mem", "constraint", "exclusive", "nodelist",
    "exclude", "dependency", "requeue",
)  # fmt: skip
"""options of sbatch that have a key of their own"""


def time_limit(value: Any) -> str:
    """A time limit; YAML's own reading of `24:00:00` (a number to the base of 60) is passed by."""
    text = _written(value)
    return text if text is not None and re.match(TIME_PATTERN, text, re.ASCII) else _refuse(TIME_ALLOWED)


def gpus(value: Any) -> str:
    """`8`, or with a type `a100:8`."""
    text = _written(value)
    known = text is not None and re.match(GPUS_PATTERN, text, re.ASCII)
    return str(text) if known else _refuse("a whole number from 1 on, or type:number, such as a100:8")


def memory(value: Any) -> str:
    """Of a node: `0` is all that it has."""
    text = _written(value)
    known = text is not None and re.match(MEMORY_PATTERN, text, re.ASCII)
    return str(text) if known else _refuse("MiB of a node, or with a unit, such as 64G; 0: all of it")


def exclusive(value: Any) -> str | bool:
    """Whole nodes: true, or whom they may be shared with."""
    if value is True:
        return True
    return str(value) if value in ("user", "mcs") else _refuse("true, user or mcs")


def option(name: str) -> str:
    """The long name of one of sbatch's options, with dashes."""
    if not re.match(OPTION_PATTERN, name, re.ASCII):
        raise ValueError("the long name of an option of sbatch, such as mail-type")
    name = name.replace("_", "-")
    if name in TAKEN:
        raise ValueError(f"this one is not yours to set: {TAKEN[name]}")
    if name in NAMED:
        raise ValueError(f"this one has a key of its own, one level up: {name.replace('-', '_')}")
    return name


def argument(value: Any) -> str | bool:
    """What an option is set to; `true` for one that stands alone.  Numbers stand for their text as written."""
    if value is True:
        return True
    text = _written(value)
    known = text is not None and text.strip() and text.isprintable()
    return str(text) if known else _refuse("a text on one line, a number, or true for an option that takes none")


def signal(text: str | bool) -> None:
    """The warning signal must come to us: without `B:` it comes to the step, and ends our agents."""
    if not isinstance(text, str) or not re.match(r"^[RB]*B[RB]*:[A-Z0-9]+(@\d+)?$", text, re.ASCII):
        raise ValueError(
            "sbatch.signal: B:NAME@SECONDS, such as B:USR2@90: the launcher hears of it and passes it on to the training"
        )
    try:
        warning.parse(text)
    except ValueError as error:
        raise ValueError(f"sbatch.signal: {error}") from None


def _written(value: Any) -> str | None:
    """The text as it stands in the file; None for what is neither text nor number."""
    if isinstance(value, (Whole, Fraction)) or (isinstance(value, Odd) and not value.kind.startswith("!")):
        return str(value.text)
    return str(value) if isinstance(value, str) else None


def _refuse(allowed: str) -> NoReturn:
    raise ValueError(allowed)

"""Numbers that a job prints: what is looked for, and what was found.

    definitions(...)      from a person's words, checked -> MetricDefinitions
    read(path)            the records of a metrics.jsonl; `Records` reads one that grows

A record has `time` (seconds; when the line was read here), `name`, `value`, `step` (counted from 0 for each name and
process), `node`, `rank` and `local_rank` (None: the command itself), `log` and `offset` (where in the job's logs the line
begins).  JSON has no nan and no infinity: such a value stands in the file as a text.

`scan` is a program that looks through the logs; `collect` is the thread of the coordinator that starts it and writes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import UsageError
from launcher.model import MetricDefinition

LONGEST_REGEX = 1000
LONGEST_NAME = 100
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def definitions(said: Iterable[MetricDefinition], where: str = "") -> tuple[MetricDefinition, ...]:
    """The definitions, each of which can be looked for; UsageError, which begins with ``where``, lists every one that cannot."""
    found = tuple(said)
    problems = problems_of(found)
    if problems:
        raise UsageError("metrics that cannot be collected", where=where, problems=problems, next_step="see docs/metrics.md")
    return found


def problems_of(said: Sequence[MetricDefinition]) -> list[str]:
    """Why these cannot be looked for, a sentence each."""
    problems = [f"{one.name or 'a metric without a name'}: {why}" for one in said if (why := problem_of(one)) is not None]
    names = [one.name for one in said]
    return problems + [f"{name}: defined twice" for name in dict.fromkeys(names) if names.count(name) > 1]


def problem_of(one: MetricDefinition) -> str | None:
    """Why a definition cannot be looked for; None where it can."""
    if not one.name.strip() or not one.name.isprintable() or len(one.name) > LONGEST_NAME:
        return f"a name is a printable text of at most {LONGEST_NAME} characters"
    if not one.regex:
        return "there is no regular expression, with one group around the number (NAME=REGEX)"
    if len(one.regex) > LONGEST_REGEX:
        return f"the regular expression has more than {LONGEST_REGEX} characters"
    try:
        groups = re.compile(one.regex).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"{one.regex!r} is no regular expression: {error}"
    if groups != 1:
        return f"{one.regex!r} has {groups or 'no'} groups; exactly one is wanted, around the number: write others as (?:...)"
    return None


def parse_option(text: str) -> MetricDefinition:
    """NAME=REGEX, as after --metric, as it is: `definitions` tells what is wrong with all there are."""
    name, _, regex = text.partition("=")
    return MetricDefinition(name.strip(), regex)


def of_mappings(said: Iterable[Mapping[str, str]]) -> tuple[MetricDefinition, ...]:
    """PAI's form, [{"Name": ..., "Regex": ...}]; UsageError lists every entry that is none, or cannot be looked for."""
    entries = list(said)
    wrong = [
        f"metric_definitions[{number}]: {{'Name': text, 'Regex': text}} is wanted, not {entry!r}"
        for number, entry in enumerate(entries)
        if not isinstance(entry, Mapping)
        or set(entry) != {"Name", "Regex"}
        or not all(isinstance(value, str) for value in entry.values())
    ]
    if wrong:
        raise UsageError("metrics that cannot be collected", problems=wrong)
    return definitions((MetricDefinition(entry["Name"], entry["Regex"]) for entry in entries), "metric_definitions")


def number(text: str) -> float | None:
    """The number that a program printed; None where that is no number.  nan and inf are, in the words of C and Python."""
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def as_json(value: float) -> float | str:
    """As it stands in the file: finite, or a text that `float` reads."""
    return value if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records in the file, their values floats; a line that is not whole (its writer died) is passed over."""
    yield from Records(path).new()


class Records:
    """Reads a growing metrics.jsonl from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Those that were not told before."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                record = _record(line)
                if record is not None:
                    yield record


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        value = record["value"]
        return {**record, "value": _WORDS[value] if isinstance(value, str) else float(value)}
    except (ValueError, TypeError, KeyError):
        return None

"""Durations, sizes, job names and labels as people write them, on the command line and in files alike."""

from __future__ import annotations

import re

DURATION_ALLOWED = "seconds, or a number with a unit: 90s, 15m, 2h, 1d, 1h30m"
SIZE_ALLOWED = "bytes, or a number with a unit: 500MB, 2GiB (K, M, G alone are KiB, MiB, GiB)"

NAME_ALLOWED = "letters, digits, dot, dash and underscore, a letter or digit first, at most 60"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$"

LABEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"

DURATION_PATTERN = r"^\s*(\d+(\.\d+)?|(\d+(\.\d+)?\s*[sSmMhHdD]\s*)+)\s*$"
SIZE_PATTERN = r"^\s*\d+(\.\d+)?\s*([kKmMgGtT]([iI]?[bB])?|[bB])?\s*$"

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
LONGEST_TIME = 100 * 365 * 86400.0
LARGEST_SIZE = 1 << 60


def parse_duration(text: str) -> float:
    """Seconds.  ValueError, with a sentence, when ``text`` is no duration."""
    if len(text) > 64 or not re.match(DURATION_PATTERN, text, re.ASCII):
        raise ValueError(DURATION_ALLOWED)
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.lower(), re.ASCII)
    seconds = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
    if seconds > LONGEST_TIME:
        raise ValueError("at most 100 years")
    return seconds


def parse_size(text: str) -> int:
    """Bytes.  kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB and single letters (as rsync and du read them) of 1024."""
    if len(text) > 64 or not re.match(SIZE_PATTERN, text, re.ASCII):
        raise ValueError(SIZE_ALLOWED)
    number, unit = re.findall(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower(), re.ASCII)[0]
    base = 1000 if len(unit) == 2 else 1024
    factor = base ** _POWERS.get(unit[:1], 0)
    size = int(number) * factor if number.isdigit() else int(float(number) * factor)
    if size > LARGEST_SIZE:
        raise ValueError("at most 1 EiB")
    return size


def parse_name(text: str) -> str:
    """The base of a job's id, which names folders here and on the nodes.  ValueError, with a sentence, when it cannot be one."""
    if not re.match(NAME_PATTERN, text, re.ASCII) or text.endswith("\n"):
        raise ValueError(NAME_ALLOWED)
    return text


def parse_label(name: str, value: str = "") -> tuple[str, str]:
    """A label's name and text as they came.  ValueError, with a sentence, where one of them cannot be."""
    if not re.match(LABEL_PATTERN, name, re.ASCII) or name.endswith("\n"):
        raise ValueError("a label's name: letters, digits and . _ - /, a letter or digit first, at most 63")
    if not value.isprintable() or len(value) > 1024:
        raise ValueError("a label's text: one line of at most 1024 characters")
    return name, value

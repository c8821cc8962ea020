"""Ranges in host names, as Slurm, pdsh and ClusterShell write them: `node[03-16]`, `rack[1-2]n[01-04]`, `n[1,3-5]-ib`."""

from __future__ import annotations

import itertools
import re

LIMIT = 10_000
"""names that one text may stand for; more is a slip of the finger"""

LONGEST = 500
"""characters; a DNS name has 253 at most"""

_ITEM = re.compile(r"(\d+)(?:-(\d+))?\Z", re.ASCII)
_GROUP = re.compile(r"\[[^\[\]]*\]|\[|\]")


def expand(text: str) -> list[str]:
    """All names that ``text`` stands for, the last bracket turning fastest; zero padding is kept.

    Brackets around a colon belong to an IPv6 address and stay as they are.  ValueError, with a sentence, when the
    brackets do not make sense.
    """
    if len(text) > LONGEST:
        raise ValueError(f"a text of {len(text)} characters is no host")
    choices = [[piece] if not _is_range(piece) else _numbers(piece[1:-1]) for piece in _pieces(text)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > LIMIT:
        raise ValueError(f"the ranges stand for {total} names; at most {LIMIT} are taken")
    return ["".join(parts) for parts in itertools.product(*choices)]


def split_list(text: str) -> list[str]:
    """The parts between commas, those inside brackets not counting; blanks around a part are dropped, empty parts too."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth <= 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _pieces(text: str) -> list[str]:
    """``text`` cut into bracket groups and what lies between them."""
    pieces, end = [], 0
    for match in _GROUP.finditer(text):
        if len(match.group()) == 1:
            raise ValueError(f"the bracket {match.group()!r} has no partner")
        pieces += [text[end : match.start()], match.group()]
        end = match.end()
    return [piece for piece in [*pieces, text[end:]] if piece]


def _is_range(piece: str) -> bool:
    return piece.startswith("[") and ":" not in piece


def _numbers(content: str) -> list[str]:
    """The numbers of `1,3-5` as texts."""
    numbers: list[str] = []
    for item in content.split(","):
        match = _ITEM.match(item)
        if match is None:
            raise ValueError(f"{'[' + content + ']'!r} is no range; write numbers, as in [1-4] or [01,03-16]")
        numbers += _span(match.group(1), match.group(2) or match.group(1))
    return numbers


def _span(low: str, high: str) -> list[str]:
    padded = any(len(end) > 1 and end.startswith("0") for end in (low, high))
    if padded and len(low) != len(high) and (high.startswith("0") or len(low) > len(high)):
        raise ValueError(f"the ends of {low}-{high} are padded to different widths")
    if len(low) > 18 or len(high) > 18 or int(low) > int(high):
        raise ValueError(f"{low}-{high} does not count upwards")
    if int(high) - int(low) >= LIMIT:
        raise ValueError(f"{low}-{high} stands for {int(high) - int(low) + 1} names; at most {LIMIT} are taken")
    width = len(low) if padded else 0
    return [str(number).zfill(width) for number in range(int(low), int(high) + 1)]

"""Slurm's compressed host lists, `n[1-3,07]-ib,login`, unfolded in their own order and folded again.

ClusterShell's NodeSet reads each range: padding, suffixes, broken brackets.  A NodeSet is sorted and a node list is
not: the first name of SLURM_JOB_NODELIST is node 0 wherever it stands in the alphabet.  So ranges are given to NodeSet
one by one, and the order between them stays the text's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LIMIT = 65_536
"""names that one list may stand for, as in Slurm itself; more is no node list"""

_NAME = r"[A-Za-z0-9_.:-]"
_GROUP = r"\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]"
_PART = re.compile(rf"(?:{_NAME}|{_GROUP})+", re.ASCII)
_LIST = re.compile(rf"{_PART.pattern}(?:,{_PART.pattern})*", re.ASCII)
_FIRST_GROUP = re.compile(rf"({_NAME}*)\[([^\]]*)\]", re.ASCII)


def expand(text: str) -> list[str]:
    """All names of ``text``, in its order, duplicates kept, as `scontrol show hostnames` prints them.

    ValueError, with a sentence, for a text that is no host list; an empty one included.
    """
    if not _LIST.fullmatch(text):
        raise ValueError(f"{text!r} is no host list of Slurm's, such as n[1-3,07]-ib,login")
    names: list[str] = []
    for part in _PART.findall(text):
        names += _unfold(part, LIMIT - len(names))
    return names


def fold(names: Sequence[str]) -> str:
    """The shortest list that stands for these names, each once and sorted, for Slurm's options and for people."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    # One text for each name: a comma list would be parsed as an expression.
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def _unfold(part: str, room: int) -> list[str]:
    """The names of one part, the last bracket turning fastest; at most ``room`` of them."""
    match = _FIRST_GROUP.match(part)
    if match is None:
        return [part]
    tails = _unfold(part[match.end() :], room) if match.end() < len(part) else [""]
    fronts: list[str] = []
    for item in match.group(2).split(","):
        fronts += _range(match.group(1), item, room // len(tails) - len(fronts))
    return [front + tail for front in fronts for tail in tails]


def _range(head: str, item: str, room: int) -> list[str]:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError

    low, _, high = item.partition("-")
    if int(high or low) - int(low) >= room:
        raise ValueError(f"a host list that stands for more than {LIMIT} names is none of Slurm's")
    try:
        return list(NodeSet(f"{head}[{item}]", resolver=RESOLVER_NOGROUP))
    except NodeSetParseError as error:
        raise ValueError(f"the range [{item}] of a host list: {error}") from None

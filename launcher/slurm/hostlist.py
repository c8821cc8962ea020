"""Slurm's compressed host lists, `n[1-3,07],login`, unfolded in their own order and folded again.

ClusterShell reads the ranges and folds the names.  Its sets are sorted, and a node list is not: the first name of
SLURM_JOB_NODELIST is node 0 wherever it stands in the alphabet.  So ranges are given to it one by one, and the order between
them stays the text's.  Two more differences were met beside `scontrol show hostnames` of Slurm 22.05: ClusterShell
refuses `n[01-100]`, and Slurm refuses a bracket that is followed by a suffix, `n[1-2]-ib`, which is read but never written here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

LIMIT = 65_536
"""names that one list may stand for, as in Slurm itself; more is no node list"""

_NAME = r"[A-Za-z0-9_.:-]"
_GROUP = r"\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]"
_PART = re.compile(rf"(?:{_NAME}|{_GROUP})+", re.ASCII)
_LIST = re.compile(rf"{_PART.pattern}(?:,{_PART.pattern})*", re.ASCII)


def expand(text: str) -> list[str]:
    """All names of ``text``, in its order, duplicates kept, as `scontrol show hostnames` prints them.

    ValueError, with a sentence, for a text that is no host list; an empty one included.
    """
    if not _LIST.fullmatch(text):
        raise ValueError(f"{text!r} is no host list of Slurm's, such as n[1-3,07],login")
    names: list[str] = []
    for part in _PART.findall(text):
        names += _unfold(part)
        _check(len(names))
    return names


def fold(names: Sequence[str]) -> str:
    """The shortest list that stands for these names, each once and sorted, as Slurm's commands take it."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    plain = sorted({name for name in names if not name[-1:].isdigit()})
    # Only the last number is folded, as in Slurm's own lists.
    numbered = NodeSet.fromlist([name for name in names if name[-1:].isdigit()], resolver=RESOLVER_NOGROUP)
    numbered.fold_axis = (-1,)
    return ",".join([*plain, str(numbered)] if numbered else plain)


def _unfold(part: str) -> Iterator[str]:
    """The names of one part: the last bracket turns fastest, then the first, the second and so on, as in Slurm."""
    pieces = re.split(r"\[([^\]]*)\]", part)
    texts, groups = pieces[0::2], [list(itertools.islice(_numbers(group), LIMIT + 1)) for group in pieces[1::2]]
    if not groups:
        yield part
        return
    total = 1
    for group in groups:
        total *= len(group)
    _check(total)
    *front, last = groups
    for chosen in itertools.product(*reversed(front), last):
        numbers = [*reversed(chosen[:-1]), chosen[-1]]
        yield texts[0] + "".join(number + text for number, text in zip(numbers, texts[1:], strict=True))


def _check(names: int) -> None:
    if names > LIMIT:
        raise ValueError(f"a host list that stands for more than {LIMIT} names is none of Slurm's")


def _numbers(group: str) -> Iterator[str]:
    """The numbers of `1,03-16` as texts."""
    from ClusterShell.RangeSet import RangeSet, RangeSetParseError

    for item in group.split(","):
        for low, high in _same_widths(item):
            _check(int(high) - int(low) + 1)
            try:
                yield from RangeSet(f"{low}-{high}").striter()
            except RangeSetParseError as error:
                raise ValueError(f"the range [{item}] of a host list: {error}") from None


def _same_widths(item: str) -> Iterator[tuple[str, str]]:
    """`01-100` as Slurm means it, in ranges that ClusterShell takes: `01-99` and `100-100`; the low end says how wide."""
    low, _, high = item.partition("-")
    first, last = int(low), int(high or low)
    border = 10 ** len(low)
    if first < border <= last:
        yield low, str(border - 1)
        low = str(border)
    yield low, str(last).zfill(len(low))

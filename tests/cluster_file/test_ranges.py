"""Host name ranges: a name list written short means the same as the list written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cluster.ranges import LIMIT, expand, split_list


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("a-b.example.org", ["a-b.example.org"]),
        ("node[03-05]", ["node03", "node04", "node05"]),
        ("n[8-10]", ["n8", "n9", "n10"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[08-101]", ["n" + str(i).zfill(2) for i in range(8, 102)]),
        ("n[0-2]", ["n0", "n1", "n2"]),
        ("n[1,3-5]", ["n1", "n3", "n4", "n5"]),
        ("n[1-3]-ib", ["n1-ib", "n2-ib", "n3-ib"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("n[2,1,2]", ["n2", "n1", "n2"]),
        ("10.0.0.[9-11]", ["10.0.0.9", "10.0.0.10", "10.0.0.11"]),
        ("u@n[1-2]:22", ["u@n1:22", "u@n2:22"]),
        ("[fd00::2]:22", ["[fd00::2]:22"]),
        ("fd00::[1-2]", ["fd00::1", "fd00::2"]),
    ],
)
def test_a_range_stands_for_its_names_in_order_with_their_padding(text: str, names: list[str]) -> None:
    """Padding is that of the first number, several brackets count like digits, suffixes stay."""
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n[1-3", "has no partner"),
        ("n1-3]", "has no partner"),
        ("n[]", "is no range"),
        ("n[a-b]", "is no range"),
        ("n[1-]", "is no range"),
        ("n[1,,2]", "is no range"),
        ("n[1 - 2]", "is no range"),
        ("n[1-2-3]", "is no range"),
        ("n[١-٣]", "is no range"),
        ("n[3-1]", "does not count upwards"),
        ("n[3-016]", "padded to different widths"),
        ("n[003-16]", "padded to different widths"),
        ("n[1-99999999]", "at most 10000"),
        ("n[1-999][1-999]", "at most 10000"),
        ("n[1-" + "9" * 40 + "]", "does not count upwards"),
        ("n" * 501, "501 characters"),
    ],
)
def test_brackets_that_make_no_sense_are_refused_with_a_sentence(text: str, reason: str) -> None:
    """An unknown pattern is an error, never a guess."""
    with pytest.raises(ValueError, match=reason):
        expand(text)


def test_commas_inside_brackets_do_not_separate() -> None:
    """`n[1,3-5]` is one part of a comma list; blanks and empty parts do not count."""
    assert split_list("a, n[1,3-5] ,,b,") == ["a", "n[1,3-5]", "b"]
    assert split_list(" , ") == []


@given(
    low=st.integers(0, 5000), count=st.integers(1, 200), width=st.integers(1, 6), prefix=st.sampled_from(["n", "rack1-", "a.b"])
)
def test_a_range_written_from_numbers_gives_these_numbers_back(low: int, count: int, width: int, prefix: str) -> None:
    """What is written as `[low-high]`, padded or not, expands to the numbers it was written from."""
    numbers = range(low, low + count)
    if len(str(low)) > width or (len(str(numbers[-1])) > width and not str(low).zfill(width).startswith("0")):
        width = 1
    text = f"{prefix}[{str(low).zfill(width)}-{str(numbers[-1]).zfill(width)}]"
    assert expand(text) == [prefix + str(number).zfill(width) for number in numbers]


@given(st.text(alphabet="[]-,:01239ab@. ", max_size=40))
def test_any_text_expands_within_the_limit_or_is_refused_with_a_sentence(text: str) -> None:
    """There is no other outcome than names, no more than the limit, or a ValueError that says why."""
    try:
        names = expand(text)
    except ValueError as error:
        assert str(error)
    else:
        assert 1 <= len(names) <= LIMIT

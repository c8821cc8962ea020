"""Durations, sizes and job names as people write them."""

from __future__ import annotations

import pytest

from launcher.cluster import parse_duration, parse_name, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("1d", 86400),
        ("1.5h", 5400),
        ("1h30m", 5400),
        (" 2 H ", 7200),
        ("0", 0),
        ("0.5", 0.5),
    ],
)
def test_a_duration_is_seconds_or_has_units(text: str, seconds: float) -> None:
    """Units may be added up."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1", "1w", "1h30", "nan", "inf", "1e9", "24:00:00", "1 000", "١", "9" * 70])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """The sentence shows how to write one."""
    with pytest.raises(ValueError, match="90s, 15m, 2h, 1d"):
        parse_duration(text)


def test_a_duration_has_an_end() -> None:
    """What overflows a timer is refused before it does."""
    with pytest.raises(ValueError, match="100 years"):
        parse_duration("99999999d")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("500MB", 500_000_000),
        ("2GiB", 2 << 30),
        ("2G", 2 << 30),
        ("1.5k", 1536),
        ("7 kB", 7000),
        ("9b", 9),
    ],
)
def test_a_size_is_bytes_or_has_a_unit(text: str, size: int) -> None:
    """B after a letter means powers of 1000, iB and the letter alone powers of 1024."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e3", "1PB", "1 G B", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """The sentence shows how to write one."""
    with pytest.raises(ValueError, match="2GiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "-a", ".a", "a/b", "a b", "ü", "a\n", "a" * 61])
def test_a_name_that_cannot_be_a_folder_is_refused(text: str) -> None:
    """The job's id begins with its name and names folders on every node."""
    assert parse_name("a.B-1_c") == "a.B-1_c"
    with pytest.raises(ValueError, match="letters, digits"):
        parse_name(text)

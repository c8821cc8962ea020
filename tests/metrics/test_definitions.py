"""What can be looked for, and what a person hears of what cannot."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from launcher.cluster import load_job
from launcher.errors import UsageError
from launcher.metrics import Records, as_json, definitions, number, of_mappings, parse_option, read
from launcher.model import MetricDefinition


def test_all_that_cannot_be_looked_for_is_told_at_once() -> None:
    """Regular expressions that are none, with no group or two, names twice or unprintable."""
    wrong = [("a", "("), ("b", "x"), ("c", "(x)(y)"), ("d", "(x)"), ("d", "(y)"), ("", "(x)"), ("e\n", "(x)"), ("f", "(x)" * 400)]
    with pytest.raises(UsageError) as caught:
        definitions([MetricDefinition(*one) for one in wrong], "job.yaml:3")
    text = str(caught.value)
    assert text.startswith("job.yaml:3: metrics that cannot")
    parts = ("a: '(' is no regular", "b: 'x' has no groups", "c: '(x)(y)' has 2 groups", "d: defined twice", "more than 1000")
    assert [part for part in parts if part not in text] == []
    assert text.count("a name is a printable text") == 2


def test_groups_that_catch_nothing_do_not_count() -> None:
    """Exactly one group holds the number."""
    assert definitions([MetricDefinition("x", r"(?:loss|acc)=(\S+)")])


def test_an_option_is_a_name_and_a_regex() -> None:
    """The first = parts them; what is wrong with them is told together."""
    assert parse_option("loss=loss=(.*)") == MetricDefinition("loss", "loss=(.*)")
    with pytest.raises(UsageError) as caught:
        definitions([parse_option(text) for text in ("loss", "=(x)", "a=x", "b=(")])
    assert len(caught.value.problems) == 4 and "NAME=REGEX" in caught.value.problems[0]


def test_pais_form() -> None:
    """[{"Name", "Regex"}], and nothing else."""
    assert of_mappings([{"Name": "loss", "Regex": "l=(.*)"}]) == (MetricDefinition("loss", "l=(.*)"),)
    wrong: list[Any] = [{"name": "x"}, "y", {"Name": "x", "Regex": 3}]
    with pytest.raises(UsageError) as caught:
        of_mappings(wrong)
    assert [f"metric_definitions[{n}]" in str(caught.value) for n in range(3)] == [True] * 3


def test_a_job_file_has_them_by_name(tmp_path: Path) -> None:
    """Errors have their line and column."""
    path = tmp_path / "job.yaml"
    path.write_text("command: x\nmetrics:\n  loss: 'loss=([0-9.]+)'\n  acc: acc=(\\S+)\n")
    assert load_job(path).metrics == (MetricDefinition("loss", "loss=([0-9.]+)"), MetricDefinition("acc", r"acc=(\S+)"))
    path.write_text("command: x\nmetrics:\n  loss: loss\n  acc: '('\n")
    with pytest.raises(UsageError) as caught:
        load_job(path)
    assert f"{path}:3:9: metrics.loss" in str(caught.value) and f"{path}:4:8: metrics.acc" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1.0), ("-1.5e-3", -0.0015), ("inf", math.inf), ("-Infinity", -math.inf), ("1_0", None), ("", None)]
)
def test_numbers_as_programs_print_them(text: str, value: float | None) -> None:
    """In the words of C and Python."""
    assert number(text) == value


def test_nan_and_infinity_are_texts_in_json_and_floats_here(tmp_path: Path) -> None:
    """JSON has neither; a torn line is passed over, one that is not whole yet waits."""
    assert [as_json(value) for value in (1.5, math.nan, math.inf, -math.inf)] == [1.5, "nan", "inf", "-inf"]
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"value": "nan"}\n{"value": "-inf"}\n{"val\n{"value": "x"}\n{"value": 2}\n{"value": 3}')
    first, second, third = [record["value"] for record in read(path)]
    assert math.isnan(first) and (second, third) == (-math.inf, 2.0)
    records = Records(path)
    assert len(list(records.new())) == 3
    with path.open("a") as file:
        file.write("\n")
    assert [record["value"] for record in records.new()] == [3.0]
    assert list(read(tmp_path / "none")) == []

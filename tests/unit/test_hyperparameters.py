"""Hyperparameters as variables, arguments and texts, and which of them cannot be."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.hyperparameters import LONGEST, parse, plain, problems, text, texts, variable, variables

GIVEN: dict[str, Any] = {
    "epochs": 10,
    "batch-size": 32,
    "lr": 0.001,
    "opt.name": "ada max",
    "fast": True,
    "layers": [64, 64],
    "no": None,
}


def test_the_contract() -> None:
    """PAI's names, in the order in which they were given."""
    found = variables(GIVEN)
    assert list(json.loads(found["PAI_HPS"]).items()) == list(GIVEN.items())
    assert found["PAI_USER_ARGS"] == (
        "--epochs 10 --batch-size 32 --lr 0.001 --opt.name 'ada max' --fast true --layers '[64, 64]' --no null"
    )
    assert {name: value for name, value in found.items() if name.startswith("PAI_HPS_")} == {
        "PAI_HPS_EPOCHS": "10", "PAI_HPS_BATCH_SIZE": "32", "PAI_HPS_LR": "0.001", "PAI_HPS_OPT_NAME": "ada max",
        "PAI_HPS_FAST": "true", "PAI_HPS_LAYERS": "[64, 64]", "PAI_HPS_NO": "null",
    }  # fmt: skip
    assert list(texts(GIVEN)) == list(GIVEN) and set(map(type, texts(GIVEN).values())) == {str}


def test_no_hyperparameters_no_variables() -> None:
    """A job without any finds nothing of them."""
    assert variables({}) == {"PAI_HPS": "{}", "PAI_USER_ARGS": ""} and problems({}) == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("10", 10), ("0.5", 0.5), ("1e-4", 0.0001), ("true", True), ("null", None), ("[1, 2]", [1, 2]), ('"10"', "10"),
     ("adam", "adam"), ("", ""), ("007", "007"), ("NaN", "NaN"), ("Infinity", "Infinity"), ("1e999", "1e999"), ("{", "{"),
     ("[" * 9999, "[" * 9999)],
)  # fmt: skip
def test_what_is_typed_is_json_or_a_text(typed: str, meant: Any) -> None:
    """Numbers without end, and whatever else JSON does not know, stay texts."""
    assert parse(typed) == meant and type(parse(typed)) is type(meant)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"a-b": 1, "a.b": 2}, "'a-b' and 'a.b' would both be PAI_HPS_A_B"),
        ({"lr": 1, "LR": 2}, "'lr' and 'LR' would both be PAI_HPS_LR"),
        ({"": 1}, "''"),
        ({"--lr": 1}, "'--lr': a name has"),
        ({"a b": 1}, "'a b': a name has"),
        ({"a=b": 1}, "'a=b': a name has"),
        ({"a\n": 1}, "a name has"),
        ({3: 1}, "3: a name is a text"),
        ({"x": float("nan")}, "'x': a value is"),
        ({"x": {1: 2}}, "'x': a value is"),
        ({"x": object()}, "'x': a value is"),
        ({"x": {"y": b"z"}}, "'x': a value is"),
        ({"x": "a\0b"}, "'x': a value is"),
        ({"x": "a" * LONGEST}, "PAI_HPS would have"),
    ],
)
def test_what_cannot_be(given: dict[Any, Any], complaint: str) -> None:
    """Each with a sentence that names it."""
    assert any(complaint in problem for problem in problems(given))


def test_a_tuple_is_no_json() -> None:
    """What would come back as something else is refused rather than changed."""
    assert problems({"x": (1, 2)}) and not problems({"x": [1, 2]})


class Scalar:
    """What numpy's scalars, and tensors of one number, have in common."""

    shape: tuple[int, ...] = ()

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_numpy_s_scalars_stand_for_python_s_own_values() -> None:
    """Also in lists and mappings, with the value that they have exactly; what has none is refused as ever."""
    import numpy as np

    given = {
        "a": np.int64(-3), "b": np.float32(0.1), "c": np.bool_(True), "d": np.str_("x"),
        "e": [np.uint8(7), {"y": np.float16(0.5)}],
        "f": np.array(2), "g": np.float64(0.25),
    }  # fmt: skip
    told = {"a": -3, "b": 0.10000000149011612, "c": True, "d": "x", "e": [7, {"y": 0.5}], "f": 2, "g": 0.25}
    assert problems(given) == [] and plain(given) == told
    assert repr(plain(given)) == repr(told) and json.loads(variables(plain(given))["PAI_HPS"]) == told
    odd = [np.array([1]), np.float32("nan"), np.float64("inf"), np.complex64(1), np.datetime64("2024-01-01"), np.bytes_(b"x"),
           np.float32, (np.int64(1),), Scalar(ValueError("no")), Scalar([1])]  # fmt: skip
    for value in odd:
        assert "a value is a text, a number" in problems({"x": value})[0], value
    circle: list[Any] = []
    circle.append(circle)
    assert "a value is a text" in problems({"x": circle})[0]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,6}", fullmatch=True), JSON, max_size=4))
def test_whatever_was_given_can_be_read_back(given: dict[str, Any]) -> None:
    """From PAI_HPS as it was, and from PAI_USER_ARGS by a shell's rules."""
    if problems(given):
        names = [variable(name) for name in given]
        assert len(set(names)) < len(names)
    elif given:
        found = variables(given)
        assert json.loads(found["PAI_HPS"]) == given
        words = shlex.split(found["PAI_USER_ARGS"])
        assert words == [word for name, value in given.items() for word in (f"--{name}", text(value))]

"""JSON without the json module: the same words, on every Python that a node may have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.agent import lean

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_both_understand_each_other(value: Any) -> None:
    """What lean writes json reads, and the other way round, whatever white space it uses."""
    assert json.loads(lean.dumps(value)) == value
    assert lean.loads(json.dumps(value, indent=2)) == lean.loads(lean.dumps(value)) == value
    assert "\n" not in lean.dumps(value)


@pytest.mark.parametrize("text", ["", " ", "{", "[1] 2", "tru", "{'a': 1}", '{"a":}', "nan", "NaN", "Infinity", '"a', "[1,]"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    """Nothing else comes out of it."""
    with pytest.raises(ValueError):
        lean.loads(text)


def test_what_has_no_json_form_is_refused() -> None:
    """Bytes, for one."""
    with pytest.raises(TypeError, match="bytes"):
        lean.dumps({"a": b"x"})


def test_where_the_c_parts_are_missing_json_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another interpreter, or a later one."""
    dumps, loads = lean._standard()
    assert loads(dumps({"a": [1, "ü"]})) == {"a": [1, "ü"]}
    assert dumps({"a": [1, 2]}) == lean.dumps({"a": [1, 2]})

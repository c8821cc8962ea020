"""The texts of docs/faults.md are those that the program says."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.docs.pages import ROOT, rows, text_of

TEXTS = [text for row in rows(text_of("docs/faults.md")) for text in re.findall(r"`([^`]+)`", row[0])]


@functools.cache
def said() -> str:
    """Every text that stands in the program, what is filled in shown as …."""
    found: list[str] = []
    for path in (ROOT / "launcher").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found).replace("%d", "…")


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_said(text: str) -> None:
    """What a person is told to look for can be met."""
    pieces = [piece for piece in text.split("…") if piece.strip()]
    assert [piece for piece in pieces if piece not in said()] == []

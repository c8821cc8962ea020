"""Reads the pages of this project: their links, tables and command lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("slurm/*.md")])

_CODE = re.compile(r"`([^`\n]+)`")
_FENCED = re.compile(r"^( *)```\w*\n(.*?)^\1```", re.M | re.S)
_INDENTED = re.compile(r"(?:^ {4}\S.*\n?)+", re.M)


def text_of(page: str) -> str:
    """A page's text, by its path from the top."""
    return (ROOT / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """What stands below a heading, up to the next one of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text_of(page), re.M | re.S)
    assert found, f"{page} has no heading {heading!r}"
    return found[2]


def code(text: str) -> list[str]:
    """What stands in backticks, one entry each."""
    return _CODE.findall(_FENCED.sub("", text))


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, heads and rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    kept = [line for number, line in enumerate(lines) if not _rule(line) and not _rule(next(iter(lines[number + 1 :]), ""))]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in kept]


def _rule(line: str) -> bool:
    return re.fullmatch(r"[|\- ]+", line) is not None


def first_column(text: str) -> list[str]:
    """What stands in backticks in the first cell of each row."""
    return [name for row in rows(text) for name in _CODE.findall(row[0])]


def shell_lines(text: str) -> list[str]:
    """Command lines of code blocks and of backticks, comments cut off, quotes that span lines kept whole."""
    blocks = [found[2] for found in _FENCED.finditer(text)]
    blocks += [found[0] for found in _INDENTED.finditer(_FENCED.sub("", text))]
    lines: list[str] = []
    for block in blocks:
        for line in block.splitlines():
            if lines and lines[-1].count("'") % 2:
                lines[-1] += "\n" + line
            else:
                lines.append(re.sub(r"\s+#.*", "", line.strip()))
    return [line for line in [*lines, *code(text)] if line]


def launcher_calls(text: str) -> list[list[str]]:
    """The words behind `launcher` of every command line that calls it."""
    lines = [re.sub(r"^(\S*python3? -m )", "", line) for line in shell_lines(text)]
    return [shlex.split(line.replace("...", "").replace("…", ""))[1:] for line in lines if re.match(r"launcher [a-z]", line)]

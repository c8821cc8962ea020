"""What the pages point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, code, text_of

_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
_PATH = re.compile(r"(?:launcher|tests|docs|scripts|train_src|slurm|agent|transports|coordinator|benchmarks)/[\w./-]*\Z")


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file, and a heading that the file has."""
    broken = []
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        there = (page.parent / target).resolve() if target else page
        if not there.exists():
            broken.append(target)
        elif anchor and anchor not in anchors(there):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual viewers make them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_paths_exist(page: Path) -> None:
    """A path of the source tree that a page names in backticks is there."""
    named = [name for name in code(page.read_text(encoding="utf-8")) if _PATH.match(name) and "/" in name.rstrip("/")]
    assert [name for name in named if not any((top / name).exists() for top in (ROOT, ROOT / "launcher"))] == []


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_every_table_has_a_head(page: Path) -> None:
    """Rows behind an empty line are no table any more, and are shown as they are written."""
    blocks = re.findall(r"(?:^\|.*\n?)+", page.read_text(encoding="utf-8"), re.M)
    assert [block.splitlines()[0] for block in blocks if not re.match(r"\|.*\n\|[-| :]+\|$", block, re.M)] == []


def test_all_decisions_are_listed() -> None:
    """docs/adr/README.md links each record, with the title it has."""
    listed = dict(re.findall(r"\]\((\d[^)]*)\) \| (.*) \|", text_of("docs/adr/README.md")))
    records = {path.name: path.read_text().splitlines()[0].partition(": ")[2] for path in (ROOT / "docs/adr").glob("0*.md")}
    assert listed == records


def test_make_targets_exist() -> None:
    """`make X` in any page is a target of the Makefile; the README's two commands among them."""
    makefile = text_of("Makefile")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    said = {found for page in PAGES for found in re.findall(r"(?:^ {4}|`)make ([a-z][a-z-]*)", page.read_text(), re.M)}
    assert {"demo", "test"} <= said <= targets

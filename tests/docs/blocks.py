"""The code blocks of the pages for users, as a viewer of Markdown sees them, and what each of them is."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt

from tests.docs.pages import PAGES, ROOT, text_of

LANGUAGES = {"sh": "shell", "yaml": "yaml", "python": "python", "json": "json", "text": "output"}
"""language of a fenced block -> its kind"""
_GUESSES = {
    "python": r"(import|from|def) ",
    "shell": r"(launcher|make|pip|srun|salloc|sbatch|tests/cluster/cluster|[A-Z_]+=\S+ launcher) ",
    "hostfile": r"\S+ slots=",
    "yaml": r"[\w-]+:\s",
}
"""kind -> beginning of the first line of an indented block, which names no language"""


@dataclass(frozen=True)
class Block:
    """One block: the page's path from the top, the line where its text begins, the heading above it, its kind and text."""

    page: str
    line: int
    heading: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        """The first line, without a comment."""
        return re.sub(r"\s+#.*", "", self.text.split("\n", 1)[0]).strip()

    @property
    def file(self) -> str | None:
        """The file that the text is: its name stands in a comment that is the whole first line."""
        found = re.match(r"# ([\w./-]+\.\w+)\n", self.text)
        return found[1] if found else None

    @property
    def bare(self) -> list[str]:
        """The lines without comments and spaces at the end."""
        return [line for text in self.text.splitlines() if (line := re.sub(r"(^|\s+)#.*", "", text).rstrip())]


def of_page(page: str) -> Iterator[Block]:
    """All blocks of a page in their order, fenced and indented ones, those in lists, too."""
    heading = ""
    tokens = MarkdownIt().parse(text_of(page))
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[number + 1].content
        elif token.type in ("fence", "code_block"):
            assert token.map
            fenced = token.type == "fence"
            kind = LANGUAGES.get(token.info.strip(), "?") if fenced else _guess(token.content)
            yield Block(page, token.map[0] + 1 + fenced, heading, kind, token.content)


def _guess(text: str) -> str:
    return next((kind for kind, first in _GUESSES.items() if re.match(first, text)), "?")


@functools.cache
def all_blocks() -> tuple[Block, ...]:
    """The blocks of docs/ and of the READMEs."""
    names = [str(page.relative_to(ROOT)) for page in PAGES]
    return tuple(block for name in names if name.startswith(("docs/", "README")) for block in of_page(name))

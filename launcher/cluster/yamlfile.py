"""A YAML file as plain values that remember where they stand.

PyYAML's own constructor is passed by: it turns `010` into 8 and `12:30` into 750, keeps the last of two equal keys
without a word, and forgets every position.  Here the nodes that it composed are read, each scalar is taken for what a
person sees, and whatever is not plain (octal and sexagesimal numbers, dates, other tags) stays a text that no number and
no name accepts.
"""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from typing import Any

import yaml

from launcher.cluster.inventory import complain
from launcher.cluster.textfile import home_expanded, read_text
from launcher.record import dataclass

DEPTH_LIMIT = 40
"""levels; the deepest path of our files has five"""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\Z", re.ASCII)
_DECIMAL = re.compile(r"[-+]?[0-9]{1,30}\.[0-9]{0,30}([eE][-+]?[0-9]{1,2})?\Z", re.ASCII)
_TRUE = {"yes", "true", "on"}

# PyYAML's and libyaml's words for what a person most often did, and what that was.
_SYNTAX_HINTS = (
    ("that cannot start any token", "this character cannot begin a value; put quotes around the text"),
    ("mapping values are not allowed", "a colon where none can stand; check the indentation, or put quotes around the text"),
    ("expected ',' or ']'", "the list is not closed, or a name with brackets stands in it without quotes"),
    ("expected ',' or '}'", "the mapping in braces is not closed, or a name with brackets in it needs quotes"),
    ("node content", "a value is missing here; an address in brackets needs quotes"),
    ("did not find expected key", "the indentation differs from the lines above"),
    ("did not find expected '-' indicator", "the indentation differs from the lines above"),
    ("found unexpected end of stream", "a quote is not closed"),
    ("found undefined alias", "no anchor (&name) of this name stands above"),
    ("exceeded maximum nesting depth", "nested too deeply"),
)


class Whole(int):
    """A whole number, with the text as it was written."""

    text: str


class Fraction(float):
    """A decimal number, with the text as it was written."""

    text: str


@dataclass(frozen=True)
class Odd:
    """A scalar that YAML takes for something else than it looks like: `010`, `0x1F`, `12:30`, a date, a foreign tag."""

    text: str
    kind: str


@dataclass
class Place:
    """Where a value stands, and its text there."""

    line: int
    column: int
    text: str
    """as written, shortened; of lists and mappings what they are"""
    key: tuple[int, int] | None = None
    """line and column of the mapping's key it belongs to"""
    children: dict[str | int, Place] = field(default_factory=dict)


@dataclass
class Document:
    """One file: its values, their places, and what was wrong before anybody looked at the meaning."""

    path: Path
    data: dict[str, Any]
    root: Place
    problems: list[str]

    def where(self, location: tuple[str | int, ...], *, key: bool = False) -> str:
        """`file:line:column` of the value (or of its key) at a path of keys and list positions."""
        place = self.find(location)
        line, column = place.key if key and place.key else (place.line, place.column)
        return f"{self.path}:{line}:{column}"

    def find(self, location: tuple[str | int, ...]) -> Place:
        """The place at a path, or the nearest one above it."""
        place = self.root
        for step in location:
            if step not in place.children:
                break
            place = place.children[step]
        return place


def read_document(path: str | Path, kind: str) -> Document:
    """The file's one document; ``kind`` ("cluster file", "job file") names it in messages.

    UsageError when there is no such file, or it is not UTF-8 text, not YAML, empty, or no mapping.
    """
    path = Path(home_expanded(str(path)))
    text = read_text(path, kind)
    try:
        root = _compose(path, text, kind)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The last two: PyYAML without libyaml, on an escape beyond Unicode.
        complain(f"the {kind} is not YAML", _syntax_problems(path, text, error))
        raise AssertionError("unreachable") from error
    reader = _Reader(path)
    data, place = reader.value(root)
    if not isinstance(data, dict):
        what = "empty" if data is None else f"{place.text}"
        where = f"{path}:{place.line}:{place.column}"
        complain(f"the {kind} cannot be used", [f"{where}: {what}: a mapping of keys is wanted, as in `name: lab`"])
    return Document(path, data, place, reader.problems)


def _compose(path: Path, text: str, kind: str) -> yaml.Node:
    """The root node; depth and number of documents are checked on the event stream first, which does not recurse."""
    depth, documents, content = 0, 0, False
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        content = content or isinstance(event, yaml.NodeEvent)
        mark = event.start_mark
        at = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        if depth > DEPTH_LIMIT:
            complain(f"the {kind} cannot be used", [f"{at}: nested deeper than {DEPTH_LIMIT} levels"])
        if documents > 1:
            complain(f"the {kind} cannot be used", [f"{at}: a second document begins here; one file holds one {kind}"])
    if not content:
        complain(f"the {kind} cannot be used", [f"{path}:1:1: the file is empty; a mapping of keys is wanted, as in `name: lab`"])
    root = yaml.compose(text, _LOADER)
    assert root is not None, "content was seen"
    return root


def _syntax_problems(path: Path, text: str, error: Exception) -> list[str]:
    """The parser's complaint with its place; when lines are indented by tabs, those lines, because that is the reason."""
    lines = re.split(r"\r\n|\n|\r", text)
    tabs = [(number, line) for number, line in enumerate(lines, 1) if re.match(r" *\t\s*\S", line)]
    if tabs:
        sentence = "a tab stands in the indentation; YAML is indented by spaces only"
        return [f"{path}:{number}:{line.index(chr(9)) + 1}: {sentence}" for number, line in tabs]
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return [_unreadable(path, text, error)]
    mark, problem = error.problem_mark, error.problem or "not YAML"
    hint = next((hint for words, hint in _SYNTAX_HINTS if words in problem), "")
    start = error.context_mark
    began = f" (it began in line {start.line + 1})" if start and start.line != mark.line else ""
    said = f"{hint}{began}; the parser says: {problem}" if hint else f"{problem}{began}"
    return [f"{path}:{mark.line + 1}:{mark.column + 1}: {said}"]


def _unreadable(path: Path, text: str, error: Exception) -> str:
    """A control character, or another complaint without a mark."""
    position = getattr(error, "position", None)
    bad = next((i for i, c in enumerate(text) if yaml.reader.Reader.NON_PRINTABLE.match(c)), position)
    if not isinstance(bad, int):
        return f"{path}:1:1: {error}"
    line, column = text.count("\n", 0, bad) + 1, bad - (text.rfind("\n", 0, bad) + 1) + 1
    return f"{path}:{line}:{column}: the character U+{ord(text[bad : bad + 1] or chr(0)):04X} cannot stand in YAML"


class _Reader:
    """Turns composed nodes into plain values and places; one that is reached by several aliases is read once and shared,
    so a file that multiplies itself through aliases costs no more than its text."""

    def __init__(self, path: Path) -> None:
        self.problems: list[str] = []
        self._path = path
        self._done: dict[int, tuple[Any, Place]] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node) -> tuple[Any, Place]:
        """The value of a node and its place; problems are noted."""
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node), _place(node, _shortened(node))
        if id(node) in self._open:
            self._note(node, "contains itself through an alias")
            return None, _place(node, "itself")
        if id(node) not in self._done:
            self._open.add(id(node))
            self._done[id(node)] = self._sequence(node) if isinstance(node, yaml.SequenceNode) else self._mapping(node)
            self._open.discard(id(node))
        return self._done[id(node)]

    def _sequence(self, node: yaml.SequenceNode) -> tuple[Any, Place]:
        place, items = _place(node, "a list"), []
        for index, child in enumerate(node.value):
            item, place.children[index] = self.value(child)
            items.append(item)
        return (items if node.tag == _TAG + "seq" else Odd("a list", node.tag)), place

    def _mapping(self, node: Any) -> tuple[Any, Place]:
        place: Place = _place(node, "a mapping")
        own: dict[str, Any] = {}
        merged: dict[str, tuple[Any, Place]] = {}
        for key_node, child in node.value:
            if key_node.tag == _TAG + "merge":
                merged = {**self._merged(child), **merged}
            elif not isinstance(key_node, yaml.ScalarNode):
                self._note(key_node, "a key is a word, not a list or a mapping; text that begins with a bracket needs quotes")
            elif key_node.value in own:
                first = place.children[key_node.value].key or (0, 0)
                self._note(key_node, f"{_shortened(key_node)}: the same key twice; first in line {first[0]}")
            else:
                value, where = self.value(child)
                own[key_node.value] = value
                at = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
                place.children[key_node.value] = Place(where.line, where.column, where.text, at, where.children)
        for name, (value, where) in merged.items():
            if name not in own:
                own[name], place.children[name] = value, where
        return (own if node.tag == _TAG + "map" else Odd("a mapping", node.tag)), place

    def _merged(self, node: yaml.Node) -> dict[str, tuple[Any, Place]]:
        """What `<<:` brings in; of several mappings the first that has a key wins, as the merge key's page says."""
        value, place = self.value(node)
        sources = [(value, place)] if not isinstance(value, list) else [(item, place.children[i]) for i, item in enumerate(value)]
        found: dict[str, tuple[Any, Place]] = {}
        for source, where in sources:
            if isinstance(source, dict):
                found = {**{name: (source[name], where.children[name]) for name in source}, **found}
            else:
                self._note(node, f"{place.text}: after << stands a mapping, or a list of mappings")
        return found

    def _note(self, node: yaml.Node, sentence: str) -> None:
        self.problems.append(f"{self._path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}: {sentence}")


def _place(node: yaml.Node, text: str) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1, text)


def _shortened(node: yaml.ScalarNode) -> str:
    """A scalar as a person wrote it, on one line and not too long; quoted when it was quoted or is blank."""
    text = str(node.value)
    shown = text if text.isprintable() else repr(text)[1:-1]
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f'"{shown}"' if node.style in ("'", '"') else shown


def _scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar: str, bool, None, Whole, Fraction, or Odd."""
    text, kind = node.value, node.tag[len(_TAG) :] if node.tag.startswith(_TAG) else node.tag
    if kind == "str":
        return text
    if kind == "bool":
        return text.lower() in _TRUE
    if kind == "null":
        return None
    if kind == "int" and _WHOLE.match(text):
        whole = Whole(text)
        whole.text = text
        return whole
    if kind == "float" and _DECIMAL.match(text):
        fraction = Fraction(text)
        fraction.text = text
        return fraction
    return Odd(text, kind)


def scalar_of(text: str) -> Any:
    """What ``text`` would be as a value in a file; what would be no plain value there is a text."""
    try:
        node = yaml.compose(text, _LOADER)
    except yaml.YAMLError:
        return text
    return _scalar(node) if isinstance(node, yaml.ScalarNode) else text

"""Which entries of a source folder stay here: .gitignore and .launcherignore, with git's rules and without git.

In every directory both files may lie.  A pattern of a deeper file wins over one of a file above it, a later line over an
earlier one, and .launcherignore over .gitignore; `!pattern` takes an entry back in.  What lies below an ignored directory
cannot be taken back in.  In a git work tree the .gitignore files above the source folder count too, up to its root.

The matching is written here because pathspec matches a pattern against an entry's parents too: with `*`, `!*/`, `!*.py`,
a usual way to say "Python files only", it left everything out.  As in git a pattern is matched against bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import groupby

from launcher.record import dataclass

GITIGNORE, LAUNCHERIGNORE = ".gitignore", ".launcherignore"

CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9", "graph": r"\x21-\x7e",
    "lower": "a-z", "print": r"\x20-\x7e", "punct": r"!-/:-@\[-`{-~", "space": r" \t-\r", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}
"""POSIX's names inside brackets, in the C locale."""


class _NeverMatches(Exception):
    """A pattern that git takes for broken: it matches nothing."""


@dataclass(frozen=True)
class Patterns:
    """One ignore file: its lines from the last to the first, neighbours of one kind as one expression."""

    directory: str
    runs: tuple[tuple[bool, re.Pattern[str]], ...]
    """(whether a match ignores, expression for the path below ``directory``, with a NUL behind a directory's)"""

    def decide(self, path: str, is_dir: bool) -> bool | None:
        """True: ignored; False: taken in; None: this file does not say.  ``path`` is absolute, below ``directory``."""
        name = os.fsencode(path[len(self.directory) + 1:]).decode("latin-1") + ("\0" if is_dir else "")
        return next((ignores for ignores, pattern in self.runs if pattern.fullmatch(name)), None)


@dataclass(frozen=True)
class IgnoreRules:
    """The rules that hold in one directory, of each kind of file the deepest first."""

    git: tuple[Patterns, ...] = ()
    own: tuple[Patterns, ...] = ()

    @classmethod
    def above(cls, source: str) -> IgnoreRules:
        """The rules that a source folder inherits from the git work tree it lies in."""
        parents: list[str] = []
        directory = source
        while not os.path.exists(os.path.join(directory, ".git")):
            if os.path.dirname(directory) == directory:
                return cls()
            directory = os.path.dirname(directory)
            parents.insert(0, directory)
        rules = cls()
        for parent in parents:
            rules = cls(_with(rules.git, parent, GITIGNORE))
        return rules

    def inside(self, directory: str) -> IgnoreRules:
        """The rules in ``directory``, whose own ignore files are read now."""
        return IgnoreRules(_with(self.git, directory, GITIGNORE), _with(self.own, directory, LAUNCHERIGNORE))

    def ignores(self, path: str, is_dir: bool) -> bool:
        """Whether the entry at absolute ``path``, in a directory that is not ignored itself, stays here."""
        for patterns in (*self.own, *self.git):
            decided = patterns.decide(path, is_dir)
            if decided is not None:
                return decided
        return False


def _with(rules: tuple[Patterns, ...], directory: str, name: str) -> tuple[Patterns, ...]:
    try:
        with open(os.path.join(directory, name), "rb") as file:
            text = file.read().removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    except OSError:
        return rules
    return (Patterns(directory.rstrip("/"), compile_lines(text.split("\n"))), *rules)


def compile_lines(lines: Sequence[str]) -> tuple[tuple[bool, re.Pattern[str]], ...]:
    """The runs of an ignore file's lines, the last first."""
    rules = [rule for line in reversed(lines) if (rule := _rule(line.removesuffix("\r")))]
    return tuple((ignores, re.compile("|".join(expression for _, expression in run), re.DOTALL))
                 for ignores, run in groupby(rules, key=lambda rule: rule[0]))


def _rule(line: str) -> tuple[bool, str] | None:
    """(whether it ignores, its expression) of one line; None for blank lines, comments and broken patterns."""
    if line.startswith("#"):
        return None
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    ignores = not line.startswith("!")
    pattern = line if ignores else line[1:]
    only_dirs = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if not pattern:
        return None
    try:
        if "/" in pattern:
            expression = _expression(pattern.removeprefix("/"), True)
        else:
            expression = "(?:.*/)?" + _expression(pattern, False)
    except _NeverMatches:
        return None
    return ignores, expression + (r"\0" if only_dirs else r"\0?")


def _expression(pattern: str, is_path: bool) -> str:
    """The regular expression of a glob as git's wildmatch reads it; in a path `**` may stand for directories."""
    made, at, end = "", 0, len(pattern)
    while at < end:
        char = pattern[at]
        if char == "*":
            after = at
            while after < end and pattern[after] == "*":
                after += 1
            alone = (at == 0 or pattern[at - 1] == "/") and (after == end or pattern[after] == "/")
            if is_path and alone and after - at > 1:
                made, at = (made + ".+", after) if after == end else (made + "(?:.*/)?", after + 1)
            else:
                made, at = made + r"[^/\0]*", after
        elif char == "[":
            expression, at = _bracket(pattern, at + 1)
            made += expression
        elif char == "\\" and at + 1 == end:
            raise _NeverMatches
        else:
            at += char == "\\"
            made, at = made + (r"[^/\0]" if char == "?" else re.escape(pattern[at])), at + 1
    return made


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """(expression, place behind it) of the bracket that was opened before ``at``; it never matches a slash."""
    negated = pattern[at:at + 1] in ("!", "^") and pattern[at:at + 1] != ""
    at += negated
    members, first = "", True
    while first or pattern[at:at + 1] != "]":
        first = False
        if pattern.startswith("[:", at) and (close := pattern.find(":]", at)) > 0:
            if pattern[at + 2:close] not in CLASSES:
                raise _NeverMatches
            members, at = members + CLASSES[pattern[at + 2:close]], close + 2
            continue
        low, at = _member(pattern, at)
        high = low
        if pattern[at:at + 1] == "-" and pattern[at + 1:at + 2] not in ("", "]"):
            high, at = _member(pattern, at + 1)
        if low <= high:
            members += f"{re.escape(low)}-{re.escape(high)}"
    expression = f"(?![/\\0])[{'^' if negated else ''}{members}]" if members else r"[^/\0]" if negated else "(?!)"
    return expression, at + 1


def _member(pattern: str, at: int) -> tuple[str, int]:
    at += pattern[at:at + 1] == "\\"
    if at >= len(pattern):
        raise _NeverMatches
    return pattern[at], at + 1

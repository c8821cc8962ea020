"""Which entries of a source folder stay here: .gitignore and .launcherignore, with git's rules and without git.

In every directory both files may lie.  A pattern of a deeper file wins over one of a file above it, a later line over an
earlier one, and .launcherignore over .gitignore; `!pattern` takes an entry back in.  What lies below an ignored directory
cannot be taken back in.  In a git work tree the .gitignore files above the source folder count too, up to its root.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

GITIGNORE, LAUNCHERIGNORE = ".gitignore", ".launcherignore"


@dataclass(frozen=True)
class IgnoreRules:
    """The rules that hold in one directory: for each kind of file, (directory, its patterns), the deepest first."""

    git: tuple[tuple[str, GitIgnoreSpec], ...] = ()
    own: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    @classmethod
    def above(cls, source: str) -> IgnoreRules:
        """The rules that a source folder inherits from the git work tree it lies in."""
        parents = []
        directory = source
        while not os.path.exists(os.path.join(directory, ".git")):
            parent = os.path.dirname(directory)
            if parent == directory:
                return cls()
            parents.append(parent)
            directory = parent
        rules = cls()
        for parent in reversed(parents):
            rules = cls(_with(rules.git, parent, GITIGNORE))
        return rules

    def inside(self, directory: str) -> IgnoreRules:
        """The rules in ``directory``, whose own ignore files are read now."""
        return IgnoreRules(_with(self.git, directory, GITIGNORE), _with(self.own, directory, LAUNCHERIGNORE))

    def ignores(self, path: str, is_dir: bool) -> bool:
        """Whether the entry at absolute ``path``, in a directory that is not ignored itself, stays here."""
        for rules in (self.own, self.git):
            for directory, spec in rules:
                name = path[len(directory) + 1:] + ("/" if is_dir else "")
                decided = spec.check_file(name).include
                if decided is not None:
                    return decided
        return False


def _with(rules: tuple[tuple[str, GitIgnoreSpec], ...], directory: str, name: str) -> tuple[tuple[str, GitIgnoreSpec], ...]:
    try:
        with open(os.path.join(directory, name), encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return rules
    from pathspec import GitIgnoreSpec

    return ((directory.rstrip("/"), GitIgnoreSpec.from_lines(lines)), *rules)

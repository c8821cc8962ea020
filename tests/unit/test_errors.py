"""The tree of errors: what a person reads, and the exit codes."""

from __future__ import annotations

import inspect
import re

import pytest

from launcher import errors
from launcher.errors import (
    HostUnreachable,
    LauncherError,
    LoginRefused,
    NodeError,
    NodesFailed,
    NodeUnusable,
    UsageError,
    told,
)

ALL = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, LauncherError)}


def test_the_drawn_tree_is_the_tree() -> None:
    """Every class stands in the module's docstring with its exit code and below its parent, and nothing else does."""
    drawn = re.findall(r"^    ([│ ├└─]*)(\w+) +(\d+) ", errors.__doc__ or "", re.MULTILINE)
    assert {name: int(code) for _, name, code in drawn} == {name: kind.exit_code for name, kind in ALL.items()}
    above: list[str] = []
    for branch, name, _ in drawn:
        depth = len(branch) // 4
        above[depth:] = [name]
        if depth:
            assert ALL[name].__bases__[0] is ALL[above[depth - 1]]


def test_an_error_says_what_where_the_last_lines_and_the_next_step() -> None:
    """In that order, ready to print."""
    error = LauncherError("it broke", where="node7", lines=["first", "second"], next_step="mend it")
    assert str(error) == "node7: it broke\n    first\n    second\n  next: mend it"
    assert str(LauncherError("it broke")) == "it broke"


def test_a_usage_error_lists_every_problem() -> None:
    """All at once, not the first only."""
    error = UsageError("two things", problems=["a.yaml:1:2: x", "a.yaml:3:4: y"])
    assert str(error).splitlines() == ["two things", "    a.yaml:1:2: x", "    a.yaml:3:4: y"]
    assert error.problems == error.lines


def test_several_nodes_errors_are_gathered() -> None:
    """Each with its own lines."""
    gathered = NodesFailed(
        "not all", [NodeUnusable("no python", where="a", next_step="install it"), NodeUnusable("full", where="b")]
    )
    assert str(gathered).splitlines() == ["not all", "    a: no python", "      next: install it", "    b: full"]


def unreachable(name: str, number: int) -> HostUnreachable:
    return HostUnreachable(
        "nothing answers there", where=name, lines=["tried:", f"10.0.0.{number} port 22: No route"], next_step=f"ssh {name}"
    )


def test_what_many_nodes_have_alike_is_told_once_with_all_their_names() -> None:
    """A page for each of 64 nodes is read by nobody; the odd one among them is."""
    names = [f"n{number}" for number in range(1, 12)]
    errors: list[NodeError] = [unreachable(name, number) for number, name in enumerate(names)]
    errors.insert(3, NodeUnusable("no python", where="odd", next_step="install it"))
    assert str(NodesFailed("not all", errors)).splitlines() == [
        "not all",
        f"    {', '.join(names)}: nothing answers there",
        *(f"        {name}: 10.0.0.{number} port 22: No route" for number, name in enumerate(names)),
        "      next: ssh n1 (the others likewise)",
        "    odd: no python",
        "      next: install it",
    ]
    assert told(errors[:2]) == [str(error) for error in errors[:2]]


def test_many_nodes_that_say_the_very_same_are_quoted_once() -> None:
    """But for their own name."""
    errors = [LoginRefused("no key opens it", where=name, lines=[f"{name}: refused"], next_step="ssh-add") for name in "abcd"]
    assert told(errors) == ["a, b, c, d: no key opens it\n    a: refused\n  next: ssh-add"]


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_every_error_explains_itself(kind: type[LauncherError]) -> None:
    """A docstring of its own."""
    assert "__doc__" in vars(kind) and kind.__doc__

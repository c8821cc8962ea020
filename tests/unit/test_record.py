"""`launcher.record.dataclass` behaves as the standard library's does."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import pytest

from launcher import record


@record.dataclass(frozen=True)
class Point:
    """A place."""

    x: int
    y: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.x},{self.y}"


@record.dataclass
class Count:
    """Something that grows."""

    so_far: int = 0


@record.dataclass(frozen=True)
class Named(Point):
    name: str = "here"


@dataclasses.dataclass(frozen=True)
class Like:
    """What `Point` is, by the standard library."""

    x: int
    y: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((1, 2), {}), ((), {"x": 1}), ((1,), {"y": 2, "tags": ["a"]}), ((1, 2, ["a"]), {}), ((), {"tags": [], "x": 3})],
)
def test_values_are_taken_as_by_the_standard_library(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """By place and by name, with the defaults of the rest."""
    assert dataclasses.asdict(Point(*args, **kwargs)) == dataclasses.asdict(Like(*args, **kwargs))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((), {"y": 1}, "missing a required argument: 'x'"),
        ((1, 2, [], 4), {}, "too many positional arguments"),
        ((1,), {"x": 1}, "multiple values for argument 'x'"),
        ((1,), {"z": 1}, "unexpected keyword argument 'z'"),
    ],
)
def test_a_wrong_call_is_a_type_error_that_names_it(args: tuple[object, ...], kwargs: dict[str, object], said: str) -> None:
    """Nothing is made of too little, too much, or what is not known."""
    with pytest.raises(TypeError, match=said):
        Point(*args, **kwargs)  # type: ignore[arg-type]


def test_defaults_that_are_made_are_made_for_each() -> None:
    """A list that one instance fills is not another's."""
    first, second = Point(1), Point(1)
    first.tags.append("mine")
    assert second.tags == []


def test_equal_values_are_equal_and_have_one_hash() -> None:
    """Of one class only; a mutable one has no hash."""
    assert Count(1) == Count(1) != Count(2)
    assert Point(1) != Like(1)
    assert Named(1) != Point(1)
    assert len({record_of(1), record_of(1), record_of(2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Count())


@record.dataclass(frozen=True)
class _Plain:
    value: int


def record_of(value: int) -> _Plain:
    return _Plain(value)


def test_what_is_frozen_does_not_change_and_the_rest_does() -> None:
    """`replace` makes another one."""
    point, count = Point(1), Count()
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x' of a Point"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'y' of a Point"):
        del point.y
    count.so_far += 1
    assert (point, count) == (Point(1), Count(1))
    assert dataclasses.replace(point, y=5) == Point(1, 5)


def test_it_is_shown_copied_and_pickled_as_others_are() -> None:
    """Its text names every field; copies are equal."""
    point = Named(1, tags=["a"])
    assert repr(point) == "Named(x=1, y=0, tags=['a'], name='here')"
    assert str(point) == "1,0"
    assert copy.deepcopy(point) == copy.copy(point) == pickle.loads(pickle.dumps(point)) == point


def test_its_signature_is_there_for_who_asks() -> None:
    """`help` and documentation show the fields."""
    assert str(inspect.signature(Point)) == "(x: 'int', y: 'int' = 0, tags: 'list[str]' = [])"


def test_a_hook_that_would_not_be_called_is_refused() -> None:
    """`__post_init__` is not part of it, and says so where it is written."""

    class Hooked:
        def __post_init__(self) -> None: ...

    with pytest.raises(TypeError, match=r"Hooked\.__post_init__ would never be called"):
        record.dataclass(Hooked)

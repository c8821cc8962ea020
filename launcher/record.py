"""`dataclass`, as `dataclasses` has it, but with methods that all classes share.

The standard library writes the source of up to six methods for each class, and compiles it whenever a process starts: 1 to 2 ms a
class, with the fifty that a coordinator loads a sixth of its whole start.  Here a class gets its fields from the standard library
(`dataclasses.fields`, `replace` and `asdict` work) and its methods from below.  Type checkers see the original.
See docs/adr/0016-starts.md.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False):
        """Make ``cls`` a dataclass; with ``frozen``, one whose instances never change, and can be hashed.

        Raises TypeError for a class with `__post_init__`, which would not be called.
        """
        if cls is None:
            return lambda given: dataclass(given, frozen=frozen)
        if hasattr(cls, "__post_init__"):
            raise TypeError(f"{cls.__name__}.__post_init__ would never be called: see launcher.record")
        cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library asks for the signature, which takes long
        made = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        made._fields = {field.name: field for field in dataclasses.fields(made)}
        for name, method in (_FROZEN if frozen else _SHARED).items():
            if name not in vars(cls):
                setattr(made, name, method)
        return made


def _init(self: Any, /, *args: Any, **kwargs: Any) -> None:
    fields, values = self._fields, self.__dict__
    values.update(zip(fields, args, strict=False))
    if len(args) > len(fields) or not (kwargs.keys() <= fields.keys() and kwargs.keys().isdisjoint(values)):
        type(self).__signature__.bind(*args, **kwargs)  # which raises, in Python's own words
    values.update(kwargs)
    if len(values) == len(fields):
        return
    for name, field in fields.items():
        if name in values:
            continue
        if field.default is not dataclasses.MISSING:
            values[name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            values[name] = field.default_factory()
        else:
            type(self).__signature__.bind(*args, **kwargs)


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self._fields)


def _repr(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name in self._fields)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _never(self: Any, name: str, value: Any = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change {name!r} of a {type(self).__name__}")


class _Signature:
    """The constructor's signature, worked out for the few who ask (help, documentation, a wrong call)."""

    def __get__(self, instance: object, owner: Any) -> Any:
        import inspect

        def parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            given = inspect.Parameter.empty if default is dataclasses.MISSING else default
            return inspect.Parameter(field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=given, annotation=field.type)

        return inspect.Signature([parameter(field) for field in owner._fields.values()])


_SHARED = {"__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": None, "__signature__": _Signature()}
_FROZEN = {**_SHARED, "__hash__": _hash, "__setattr__": _never, "__delattr__": _never}

"""Calls of the C library that Python has no names for.

Through ctypes' own C part where it takes them: `ctypes` itself builds its types, and imports a dozen things, for a tenth
of the CPU time of an agent's start.  Used on both sides.  Standard library only, Python 3.8.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def _own() -> tuple:  # type: ignore[type-arg]
    """(call, last errno) from the C part, the same names from 3.8 on (Modules/_ctypes)."""
    import _ctypes  # type: ignore[import-not-found]

    class Int(_ctypes._SimpleCData):  # type: ignore[misc]
        _type_ = "i"

    class Function(_ctypes.CFuncPtr):  # type: ignore[misc]
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = Int

    library = _ctypes.dlopen(None, 0)

    def call(name: str, *arguments: Any) -> int:
        result: int = Function(_ctypes.dlsym(library, name))(*arguments)
        return result

    if call("abs", -7) != 7 or call("strlen", b"seven") != 5:
        raise ImportError
    return call, _ctypes.get_errno


def _standard() -> tuple:  # type: ignore[type-arg]
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: Any) -> int:
        result: int = library[name](*arguments)
        return result

    return call, ctypes.get_errno


def _parts() -> tuple:  # type: ignore[type-arg]
    try:
        return _own()
    except (ImportError, AttributeError, TypeError, OSError):
        return _standard()


if TYPE_CHECKING:
    call: Callable[..., int]
    last_errno: Callable[[], int]
call, last_errno = _parts()

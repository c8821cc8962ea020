"""What the functions of `launcher.run` returned, read from a job's collected outputs: the far half is in `callee.py`.

Nothing that a node wrote is run or believed: no pickle is loaded, files are opened below their own folder and through no link, a
file counts only if it came from the node that it speaks of, and no more is read than was agreed.
"""

from __future__ import annotations

import builtins
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import IO, Any

from launcher.agent.outputs import open_below
from launcher.callee import CHANNEL, RESULT
from launcher.errors import LauncherError, RemoteError, ValueRefused
from launcher.record import dataclass

_NOT_RAISED = ("StopIteration", "StopAsyncIteration", "UnicodeError", "UnicodeDecodeError", "UnicodeEncodeError",
               "UnicodeTranslateError", "ExceptionGroup")  # fmt: skip
"""built-in exceptions that mean something to the interpreter, or are not made of a text"""

_DENSE = re.compile(r"bool|b?float\w+|complex\w+|u?int\w+")
"""names of torch's types whose values are their bytes"""
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError, MemoryError, OSError)
"""what reading something raises that is not as we write it"""


@dataclass(frozen=True)
class Process:
    """One process that called the function."""

    rank: int
    node: int
    host: str


@dataclass
class Budget:
    """Bytes that may still be read."""

    limit: int
    left: int

    def take(self, size: int) -> None:
        """Raises ValueError where that is too much."""
        self.left -= size
        if self.left < 0:
            raise ValueError(f"it is larger than all that may come back, {self.limit} bytes; max_return_bytes=… allows more")


def result_of(output: str, process: Process, sources: Mapping[str, int], leader: int, budget: Budget, job_id: str) -> Any:
    """What one process returned.

    ``output``: the job folder's output/.  ``sources``: {path below it: rank of the node it came from} of all collected files;
    ``leader``: the node that speaks for the file system of this process.  Raises what the function raised, as RemoteError;
    ValueRefused where the value is of a kind that does not travel, is not whole or too large; FileNotFoundError where the
    process left none.
    """
    reader = _Reader(output, f"{CHANNEL}/node-{process.node}/rank-{process.rank}/", sources, leader, budget)
    place = f"rank {process.rank} (node {process.node}, {process.host})"
    reader.owned(RESULT)
    try:
        document = json.loads(reader.content(RESULT))
        if "error" in document:
            error: LauncherError = _exception(document["error"], process, job_id)
        elif "refused" in document:
            error = ValueRefused(str(document["refused"]), where=place)
        else:
            return reader.value(_only(document, "value"))
    except ModuleNotFoundError as missing:
        what, step = f"it returned what only {missing.name} can hold, which is not here", f"install {missing.name} here"
        raise ValueRefused(what, where=place, next_step=step) from missing
    except _MALFORMED as wrong:
        raise ValueRefused(f"its value cannot be read: {_sentence(wrong)}", where=place) from wrong
    raise error


def _only(document: Any, key: str) -> Any:
    if set(document) != {key}:
        raise TypeError(f"an object with other keys than {key}")
    return document[key]


def _sentence(wrong: BaseException) -> str:
    return str(wrong) if type(wrong) is ValueError else f"it is not as launcher writes it ({type(wrong).__name__}: {wrong})"


def _exception(told: Mapping[str, Any], process: Process, job_id: str) -> RemoteError:
    """The remote exception: a RemoteError, and where a text is all that is needed for it, of the same built-in type."""
    name, message, traceback = (str(told[key]) for key in ("type", "message", "traceback"))
    known = {"type_name": name, "rank": process.rank, "node": process.node, "host": process.host}
    return _kind(name)(message, traceback=traceback, job_id=job_id, **known)


def _kind(name: str) -> Callable[..., RemoteError]:
    kind = getattr(builtins, name, None) if name.isidentifier() and name not in _NOT_RAISED else None
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return RemoteError
    made: type[RemoteError] = type(kind.__name__, (RemoteError, kind), {"__module__": "launcher.remote"})
    return made


class _Reader:
    """Files of one process, and the values in them."""

    def __init__(self, output: str, place: str, sources: Mapping[str, int], leader: int, budget: Budget) -> None:
        self._output, self._place, self._sources, self._leader, self._budget = output, place, sources, leader, budget

    def owned(self, name: str) -> str:
        """The path below output/ of a file that came from this process's node; FileNotFoundError for any other."""
        path = self._place + name
        if self._sources.get(path) != self._leader:
            raise FileNotFoundError(path)
        return path

    def open(self, name: str) -> IO[bytes]:
        """A regular file of this process, through no link; FileNotFoundError where there is none of its own."""
        path = self.owned(name)
        file = os.fdopen(open_below(self._output, path), "rb")  # type: ignore[no-untyped-call]
        try:
            self._budget.take(os.fstat(file.fileno()).st_size)
        except ValueError:
            file.close()
            raise
        return file

    def content(self, name: str) -> bytes:
        """All bytes of a file."""
        with self.open(name) as file:
            return file.read(self._budget.limit)

    def value(self, tree: Any) -> Any:
        """The value of a tree; ValueError, TypeError or KeyError for what is none."""
        if tree is None or isinstance(tree, (bool, int, float, str)):
            return tree
        kinds = [kind for kind in _KINDS if kind in tree] if isinstance(tree, dict) else []
        if len(kinds) != 1:
            raise TypeError("a tree of another kind")
        return _KINDS[kinds[0]](self, tree[kinds[0]], tree)

    def values(self, trees: Any) -> list[Any]:
        """Those of a list of trees."""
        if not isinstance(trees, list):
            raise TypeError("no list")
        return [self.value(one) for one in trees]

    def pairs(self, items: Any) -> list[tuple[Any, Any]]:
        """Those of a list of pairs."""
        return [(key, item) for key, item in map(self.values, items)]

    def array(self, number: Any) -> Any:
        """An array from a .npy file, whose head must fit its length before anything is made of it."""
        import numpy

        with self.open(f"{int(number)}.npy") as file:
            version = numpy.lib.format.read_magic(file)
            read = numpy.lib.format.read_array_header_1_0 if version == (1, 0) else numpy.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            count = 1
            for length in shape:
                count *= length
            left = os.fstat(file.fileno()).st_size - file.tell()
            if dtype.hasobject or count * max(dtype.itemsize, 1) > max(left, 1 << 16) or count * dtype.itemsize != left:
                raise TypeError("an array whose head does not fit its content")
            file.seek(0)
            return numpy.load(file, allow_pickle=False)

    def tensor(self, number: Any, told: Mapping[str, Any]) -> Any:
        """A tensor from its bytes."""
        import sys

        import torch

        dtype = getattr(torch, str(told["dtype"]), None) if _DENSE.fullmatch(str(told["dtype"])) else None
        shape = told["shape"]
        if not isinstance(dtype, torch.dtype) or told["order"] != sys.byteorder:
            raise TypeError(f"a tensor of {told['dtype']}, {told['order']} endian")
        content = bytearray(self.content(f"{int(number)}.bin"))
        count = 1
        for length in shape:
            if not isinstance(length, int) or length < 0:
                raise TypeError("no shape")
            count *= length
        if count * torch.empty((), dtype=dtype).element_size() != len(content):
            raise TypeError("a tensor whose shape does not fit its bytes")
        return (torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)).reshape(shape)


def _ordered(reader: _Reader, body: Any, tree: Any) -> Any:
    from collections import OrderedDict

    return OrderedDict(reader.pairs(body))


_KINDS: dict[str, Callable[[_Reader, Any, Any], Any]] = {
    "int": lambda reader, body, tree: int(body, 16),
    "complex": lambda reader, body, tree: complex(float(body[0]), float(body[1])),
    "bytes": lambda reader, body, tree: reader.content(f"{int(body)}.bin"),
    "bytearray": lambda reader, body, tree: bytearray(reader.content(f"{int(body)}.bin")),
    "list": lambda reader, body, tree: reader.values(body),
    "tuple": lambda reader, body, tree: tuple(reader.values(body)),
    "set": lambda reader, body, tree: set(reader.values(body)),
    "frozenset": lambda reader, body, tree: frozenset(reader.values(body)),
    "dict": lambda reader, body, tree: dict(reader.pairs(body)),
    "OrderedDict": _ordered,
    "array": lambda reader, body, tree: reader.array(body),
    "scalar": lambda reader, body, tree: reader.array(body)[()],
    "tensor": lambda reader, body, tree: reader.tensor(body, tree),
}
"""what `callee._Writer` makes of a value -> how it becomes one again"""

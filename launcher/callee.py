"""What runs on a node for `launcher.run`: it calls one function, and writes down what came of it.

It travels as a file, beside the pickled call and what is needed to read that, as the folder `launcher_call` of the working copy.
Standard library only, Python 3.8; numpy and torch are looked at only where the function itself has loaded them.

    $PAI_OUTPUT_MODEL/../returns/node-<node rank>/rank-<rank>/result.json    {"value": tree}, {"error": {…}} or {"refused": …}
                                                              <n>.npy <n>.bin    arrays, and bytes of tensors

A tree is null, true, false, a number or a text; or an object with one kind of `_write` and what belongs to it.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import sys
import traceback
from typing import Any

CHANNEL = "returns"
RESULT = "result.json"
_LONGEST = 1 << 16
"""characters of an exception's text, and of its traceback, that are kept"""

_KNOWN = "None, numbers, texts, bytes, lists, tuples, sets, dicts, numpy arrays and torch tensors"


class Refused(Exception):
    """A value that does not travel."""


def main(folder: str) -> int:
    """Call the function that lies pickled in ``folder``; the exit status."""
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("LOCAL_WORLD_SIZE", "1")
    rank, node = int(os.environ["RANK"]), int(os.environ["NODE_RANK"])
    output = os.path.dirname(os.environ["PAI_OUTPUT_MODEL"].rstrip("/"))
    place = os.path.join(output, CHANNEL, f"node-{node}", f"rank-{rank}")
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(folder, "call.json"), encoding="utf-8") as file:
        call = json.load(file)
    own = os.getpid()
    try:
        function, args, kwargs = _loaded(folder, call["python"])
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told there and in the log, and the process ends
        told = _told(error, call["file"])
        if os.getpid() == own:
            _save(place, {"error": told})
        sys.stderr.write(told["traceback"])
        return _status(error)
    if os.getpid() != own:
        return 0  # a child that the function has forked, and that came back out of it as well: the process's own value counts
    try:
        document = {"value": _Writer(place).write(value, "")}
    except Refused as error:
        _save(place, {"refused": str(error)})
        sys.stderr.write(f"rank {rank}: {error}\n")
        return 1
    _save(place, document)
    return 0


def _loaded(folder: str, made_by: Any) -> Any:
    """(function, args, kwargs).  What was made of byte code can be read by no other version of Python."""
    here = "{}.{}".format(*sys.version_info[:2])
    if made_by not in (None, here):
        raise RuntimeError(
            "the function, or something handed to it, is not of a module that could be imported, so its byte code was sent: "
            f"that is of Python {made_by}, and this node has {here}; put it into a file of its own, or use one version"
        )
    # cloudpickle lies there, too; the node's own modules go before it.
    sys.path.append(folder)
    with open(os.path.join(folder, "call.pkl"), "rb") as file:
        return pickle.load(file)


def _told(error: BaseException, source: str) -> dict[str, Any]:
    """An exception as texts, without the lines about ourselves; byte code that was sent is of file ``source``."""
    lines = traceback.format_exception(type(error), error, _below(error.__traceback__))
    lines = [line.replace('File "<dynamic-code>"', f'File "{source}"') for line in lines]
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        # KeyError's own text is a repr, for the sake of KeyError('').
        text = str(error.args[0]) if isinstance(error, KeyError) and len(error.args) == 1 else str(error)
    except Exception:  # noqa: BLE001 - the text is made by a class of whomever; the traceback says the same of it
        text = "<exception str() failed>"
    return {"type": name, "message": text[:_LONGEST], "traceback": "".join(lines)[-_LONGEST:]}


def _status(error: BaseException) -> int:
    """The exit status of a process that ends with it: what the function asked for, but never success, for there is no value."""
    code = error.code if isinstance(error, SystemExit) else 1
    return code if isinstance(code, int) and 0 < code < 256 else 1


def _below(trace: Any) -> Any:
    """The part of a traceback that is below this file."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    return inner or trace


def _save(place: str, document: dict[str, Any]) -> None:
    """Last, and whole or not at all."""
    part = os.path.join(place, "." + RESULT)
    with open(part, "w", encoding="ascii") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, os.path.join(place, RESULT))


class _Writer:
    """Turns a value into a tree; what is large goes into files beside it."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._files = 0

    def write(self, value: Any, where: str) -> Any:
        """The tree of a value; ``where`` is how one gets to it from the returned one.  Raises Refused."""
        try:
            return self._write(value, where)
        except RecursionError:
            raise Refused("it returned something that contains itself, or is nested too deeply") from None

    def _write(self, value: Any, where: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            return value if abs(value) < 1 << 63 else {"int": hex(value)}
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        if kind in (bytes, bytearray):
            return {kind.__name__: self._file("bin", lambda file: file.write(value))}
        if kind in (list, tuple, set, frozenset):
            return {kind.__name__: [self._write(item, f"{where}[{at}]") for at, item in enumerate(value)]}
        if kind.__name__ in ("dict", "OrderedDict") and kind.__module__ in ("builtins", "collections"):
            return {kind.__name__: [[self._write(key, where + ".keys()"), self._write(item, f"{where}[{key!r:.40}]")]
                                    for key, item in value.items()]}  # fmt: skip
        found = self._array(value, where) or self._tensor(value, where)
        if found is None:
            raise Refused(f"it returned a {_named(kind)}{_at(where)}: {_KNOWN} travel, other things do not")
        return found

    def _array(self, value: Any, where: str) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            return None
        array = numpy.asarray(value)
        if array.dtype.hasobject:
            raise Refused(f"it returned an array of Python objects{_at(where)}: numbers travel, objects do not")
        kind = "array" if type(value) is numpy.ndarray else "scalar"
        return {kind: self._file("npy", lambda file: numpy.save(file, array, allow_pickle=False))}

    def _tensor(self, value: Any, where: str) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return None
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise Refused(f"it returned a sparse, quantized or meta tensor{_at(where)}: dense ones travel")
        data = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        size = data.numel() * data.element_size()
        held = (ctypes.c_char * size).from_address(data.data_ptr()) if size else b""
        number = self._file("bin", lambda file: file.write(held))
        return {"tensor": number, "dtype": str(data.dtype).rpartition(".")[2], "shape": list(data.shape), "order": sys.byteorder}

    def _file(self, ending: str, write: Any) -> int:
        self._files += 1
        with open(os.path.join(self._place, f"{self._files}.{ending}"), "wb") as file:
            write(file)
        return self._files


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _named(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


if __name__ == "__main__":
    sys.exit(main(os.path.dirname(os.path.abspath(__file__))))

"""What a hostile node may write in the place of a value: it gains nothing here."""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest

from launcher.errors import RemoteError, ValueRefused
from launcher.returns import Budget, Process, result_of

HOME = "returns/node-1/rank-3/"
PROCESS = Process(3, 1, "evil")


class Boom:
    """Whoever unpickles it has lost."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/nowhere/unpickled",)


def npy(array: Any, **more: Any) -> bytes:
    """The bytes of a .npy file."""
    file = io.BytesIO()
    numpy.save(file, array, **more)
    return file.getvalue()


def head(shape: str, descr: str = "'<f8'") -> bytes:
    """The head of a .npy file, with any words in it."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text


def read(output: Path, files: dict[str, bytes | str], *, node: int = 1, limit: int = 1 << 20) -> Any:
    """The value, from these files of the process, as if they had come from ``node``."""
    place = output / HOME
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    sources = {str(path.relative_to(output)): node for path in output.rglob("*")}
    return result_of(str(output), PROCESS, sources, 1, Budget(limit, limit), "job")


@pytest.mark.parametrize(
    "document",
    [
        "", "{", "[]", "null", "3", '{"value": 1, "error": 2}', '{"other": 1}', '{"value": {"list": 3}}', '{"value": {}}',
        '{"value": {"list": [], "tuple": []}}', '{"value": {"dict": [[1, 2, 3]]}}', '{"value": {"set": [{"list": []}]}}',
        '{"value": {"dict": [[{"dict": []}, 1]]}}', '{"value": {"int": "x"}}', '{"value": {"bytes": "../../x"}}',
        '{"value": {"bytes": -1}}', '{"value": {"complex": [1]}}', '{"value": {"tensor": 1}}', '{"value": [1]}',
        '{"value": {"pickle": "gASV"}}', '{"error": 3}', '{"error": {"type": "KeyError"}}', '{"value": ' + "9" * 5000 + "}",
        '{"value": ' + '{"list": [' * 50_000 + "]}" * 50_000 + "}",
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_a_document_that_is_none(tmp_path: Path, document: str) -> None:
    """It is a sentence that names the rank, whatever it is."""
    with pytest.raises(ValueRefused, match=r"rank 3 \(node 1, evil\)"):
        read(tmp_path, {"result.json": document})


@pytest.mark.parametrize(
    "content",
    [
        npy(numpy.array([Boom()], dtype=object), allow_pickle=True),
        pickle.dumps(Boom()),
        head("(1 << 60,)") + b"x" * 8,
        head("(1152921504606846976,)") + b"x" * 8,
        head("(1152921504606846976,)", "'|V0'"),
        head("(-1,)") + b"x" * 8,
        head("(1,)", "'|O'") + pickle.dumps([Boom()]),
        head("(1,)", "__import__('os').mkdir('/nowhere')") + b"x" * 8,
        head("(1,)") + b"x" * 9,
        head("(2,)") + b"x" * 8,
        b"PK\x03\x04" + b"x" * 100,
        b"",
    ],
)
def test_an_array_that_is_none(tmp_path: Path, content: bytes) -> None:
    """Objects are not unpickled, and no more memory is taken than the file has bytes."""
    with pytest.raises(ValueRefused):
        read(tmp_path, {"result.json": '{"value": {"array": 1}}', "1.npy": content})


@pytest.mark.xdist_group("torch")  # one process of tests loads it
@pytest.mark.torch
@pytest.mark.parametrize(
    ("dtype", "shape", "order"),
    [("float32", [1 << 60], "little"), ("float32", [-1, -2], "little"), ("load", [2], "little"), ("float32", [2], "big"),
     ("float32", ["2"], "little"), ("float32", 2, "little"), ("qint8", [8], "little"), ("float32", [3], "little")],
)  # fmt: skip
def test_a_tensor_that_is_none(tmp_path: Path, dtype: str, shape: Any, order: str) -> None:
    """Type and shape must be such, and fit the bytes."""
    told = {"value": {"tensor": 1, "dtype": dtype, "shape": shape, "order": order}}
    with pytest.raises(ValueRefused):
        read(tmp_path, {"result.json": json.dumps(told), "1.bin": b"12345678"})


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither that of a file nor that of a folder."""
    (tmp_path / "secret").write_text('{"value": "secret"}')
    output = tmp_path / "output"
    (output / HOME).mkdir(parents=True)
    (output / HOME / "result.json").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueRefused):
        read(output, {})
    other = tmp_path / "other"
    (other / "returns" / "node-1").mkdir(parents=True)
    (other / "returns/node-1/rank-0").mkdir()
    (other / "returns/node-1/rank-0/result.json").write_text('{"value": 1}')
    (other / "returns/node-1/rank-3").symlink_to("rank-0")
    sources = {HOME + "result.json": 1}
    with pytest.raises(ValueRefused):
        result_of(str(other), PROCESS, sources, 1, Budget(100, 100), "job")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe in its place holds nobody up."""
    (tmp_path / HOME).mkdir(parents=True)
    os.mkfifo(tmp_path / HOME / "result.json")
    with pytest.raises(ValueRefused):
        read(tmp_path, {})


def test_a_node_speaks_for_itself_alone(tmp_path: Path) -> None:
    """A value that came from another node than the process ran on counts as none."""
    with pytest.raises(FileNotFoundError):
        read(tmp_path, {"result.json": '{"value": 1}'}, node=2)


def test_a_file_of_holes_takes_no_memory(tmp_path: Path) -> None:
    """A file may claim any size at no cost to its node; more than was agreed is not read."""
    read(tmp_path, {"result.json": '{"value": 1}', "1.bin": b""})
    os.truncate(tmp_path / HOME / "1.bin", 1 << 40)
    with pytest.raises(ValueRefused, match="max_return_bytes"):
        read(tmp_path, {"result.json": '{"value": {"bytes": 1}}'})
    with pytest.raises(ValueRefused, match="max_return_bytes"):
        read(tmp_path, {"result.json": '{"value": "' + "x" * 2000 + '"}'}, limit=1000)


@pytest.mark.parametrize(
    "name",
    ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "StopIteration", "ExceptionGroup", "UnicodeDecodeError",
     "eval", "__import__", "os.system", "print", "", "launcher.errors.UsageError"],
)  # fmt: skip
def test_only_plain_exceptions_are_made(tmp_path: Path, name: str) -> None:
    """What would leave the program, or is no exception, is a RemoteError that names it."""
    told = {"error": {"type": name, "message": "m", "traceback": "t"}}
    with pytest.raises(RemoteError) as error:
        read(tmp_path, {"result.json": json.dumps(told)})
    assert type(error.value) is RemoteError and error.value.type_name == name


@pytest.mark.parametrize("name", ["ValueError", "OSError", "FileNotFoundError", "KeyError", "MemoryError", "ImportError"])
def test_plain_exceptions_are_themselves(tmp_path: Path, name: str) -> None:
    """So that `except` finds them."""
    import builtins

    told = {"error": {"type": name, "message": "the text", "traceback": "Traceback\n  here"}}
    with pytest.raises(getattr(builtins, name)) as error:
        read(tmp_path, {"result.json": json.dumps(told)})
    assert error.value.args == ("the text",) and "    Traceback\n" in str(error.value)

"""launcher.run: functions as jobs, on simulated nodes."""

from __future__ import annotations

import functools
import io
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import launcher
from launcher import RemoteError, TrainingJob, UnexpectedStatusException, functions
from launcher.errors import UsageError, ValueRefused, WrongArguments
from tests.docs.pages import text_of
from tests.estimator import remote_functions
from tests.estimator.test_estimator import interrupt_after
from tests.jobs.desk import Desk

VALUE: dict[str, Any] = {
    "plain": [None, True, -1.5, "Grüße \udcff", float("inf")],
    "big": 2**200,
    "nested": ({1, 2}, frozenset("a"), (), [], {}),
    ("a", 1): b"\0\xff",
    "array": numpy.arange(6).reshape(2, 3),
    "scalar": numpy.float32(1.5),
    "complex": 1 + 2j,
    "ordered": OrderedDict(b=1, a=2),
    "bytes": bytearray(b"x"),
}


def test_every_rank_returns_a_value_in_the_order_of_the_ranks(office: Desk) -> None:
    """One process a node, started without torch; the environment is the one that torch.distributed reads."""
    assert launcher.run(remote_functions.place, nodes=3, show_logs=False) == [(rank, 3, str(rank), "0") for rank in range(3)]
    assert office.folder().name.startswith("place-20")


def test_arguments_and_values_of_every_kind_that_travels(office: Desk) -> None:
    """There and back they are equal, and of the same types."""
    (back,) = launcher.run(lambda value: value, (VALUE,), show_logs=False)
    assert numpy.array_equal(back.pop("array"), VALUE["array"])
    expected = {key: value for key, value in VALUE.items() if key != "array"}
    assert back == expected
    assert [type(value) for value in back.values()] == [type(value) for value in expected.values()]


def test_a_module_of_ones_own_goes_along(office: Desk) -> None:
    """With keyword arguments, and the globals of the module."""
    assert launcher.run(remote_functions.scaled, ("ab",), {"by": 2}, show_logs=False) == [["abab", 0]]
    assert (office.folder() / "code" / "tests" / "estimator" / "remote_functions.py").is_file()
    partial = functools.partial(remote_functions.scaled, "ab", by=2)
    assert launcher.run(partial, nodes=2, show_logs=False) == [["abab", 0], ["abab", 1]]


@pytest.mark.xdist_group("torch")  # one process of tests loads it
@pytest.mark.torch
def test_torch_distributed_works_in_it(office: Desk) -> None:
    """Several processes a node are started by torchrun (by several nodes below); tensors come back with type and shape."""
    import torch

    values = launcher.run(remote_functions.all_reduced, nproc_per_node=2, show_logs=False)
    assert len(values) == 2
    for value in values:
        assert torch.equal(value["sum"], torch.full((2, 3), 1.0, dtype=torch.bfloat16))
        assert value["empty"].shape == (0, 4) and value["empty"].dtype == torch.float32
        torch.nn.Linear(2, 1).load_state_dict(value["model"])


@pytest.mark.torch
def test_the_page_shows_what_works(office: Desk) -> None:
    """Its block about functions, as it stands there."""
    _, block = re.findall(r"```python\n(.*?)```", text_of("docs/estimator.md"), re.S)
    told: dict[str, Any] = {"__name__": "__main__"}
    exec(block, told)  # noqa: S102 - a page of our own
    assert told["values"] == [0, 10, 20, 30]


def test_a_remote_exception_is_raised_here(office: Desk) -> None:
    """Of the same built-in type, and as RemoteError; with the remote traceback, rank and host."""
    with pytest.raises(KeyError) as told:
        launcher.run(remote_functions.fails, (1, "builtin"), nodes=2, show_logs=False)
    error = told.value
    assert isinstance(error, RemoteError) and error.args == ("the key",)
    assert (error.rank, error.node, error.host, error.type_name) == (1, 1, "local-1", "KeyError")
    assert "remote_functions.py" in error.remote_traceback and "callee" not in error.remote_traceback
    assert error.remote_traceback.rstrip() in str(error).replace("\n    ", "\n") and "rank 1 (node 1, local-1)" in str(error)


def test_an_exception_of_nobody_elses_is_a_remote_error(office: Desk) -> None:
    """Its class is named, and not looked for."""
    with pytest.raises(RemoteError) as told:
        launcher.run(remote_functions.fails, (0, "own"), nodes=2, show_logs=False)
    assert type(told.value) is RemoteError
    assert told.value.type_name == "tests.estimator.remote_functions.Odd" and told.value.what == "no text is like this"


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("no file", FileNotFoundError, "rank 0 (node 0, local-0): FileNotFoundError: [Errno 2]"),
        ("exit", RemoteError, "SystemExit: 0"),
        ("kill", UnexpectedStatusException, "SIGKILL"),
        ("unknown", ValueRefused, "rank 0 (node 0, local-0): it returned a object: None, numbers,"),
    ],
)
def test_other_ends(office: Desk, kind: str, error: type[Exception], text: str) -> None:
    """A function that leaves Python is an error of its own; one that is killed is the job's; a value may be of no known kind."""
    with pytest.raises(error) as told:
        launcher.run(remote_functions.fails, (0, kind), nodes=1, show_logs=False)
    assert text in str(told.value)


@pytest.mark.parametrize("raises", [False, True])
def test_a_child_that_comes_back_out_of_the_function_says_nothing_for_it(office: Desk, raises: bool) -> None:
    """What a process returned is its own to tell, not one's that the function forked."""
    with pytest.raises(UnexpectedStatusException, match=r"rank 0 \(node 0, local-0\) left no value"):
        launcher.run(remote_functions.forked, (raises,), show_logs=False)


def test_where_a_value_cannot_travel_its_place_in_the_whole_is_told(office: Desk) -> None:
    """The way to it, and its type."""
    with pytest.raises(ValueRefused, match=r"it returned a threading\.Event at \['x'\]\[1\]: "):
        launcher.run(lambda: {"x": [1, threading.Event()]}, show_logs=False)


def test_a_value_that_contains_itself(office: Desk) -> None:
    """It ends with a sentence, too."""

    def ring() -> list[Any]:
        value: list[Any] = []
        value.append(value)
        return value

    with pytest.raises(ValueRefused, match="contains itself"):
        launcher.run(ring, show_logs=False)


def test_no_more_comes_back_than_was_agreed(office: Desk) -> None:
    """The limit is for all ranks together."""
    with pytest.raises(ValueRefused, match="max_return_bytes"):
        launcher.run(lambda: b"x" * 60_000, nodes=2, max_return_bytes=100_000, show_logs=False)
    assert [len(value) for value in functions.values(TrainingJob.get("latest"))] == [60_000] * 2


def test_with_a_source_folder(office: Desk, tmp_path: Path) -> None:
    """The function finds the folder's files in its working directory, and the folder's modules are those it imports."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "data.txt").write_text("from the folder")
    (source / "extra.py").write_text("NAME = 'extra'\n")

    def look() -> list[str]:
        import extra  # type: ignore[import-not-found]

        return [open("data.txt").read(), extra.NAME]

    assert launcher.run(look, source_dir=source, environments={"A": "b"}, show_logs=False) == [["from the folder", "extra"]]


def test_what_is_no_function(office: Desk) -> None:
    """Wrong arguments are one typed error, those of the Estimator among them."""
    with pytest.raises(WrongArguments, match="a function is wanted, not a text"):
        launcher.run("train")  # type: ignore[arg-type]
    with pytest.raises(WrongArguments, match="the function is the command"):
        launcher.run(print, command="true")
    with pytest.raises(WrongArguments, match=r"instance_tpye.*did you mean instance_type"):
        launcher.run(print, instance_tpye="x")
    with pytest.raises(WrongArguments, match="cannot be sent: "):
        launcher.run(print, (io.TextIOWrapper(io.BytesIO()),))
    with pytest.raises(WrongArguments, match="a function is wanted, not a NoneType"):
        launcher.run(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no such source folder"):
        launcher.run(print, source_dir="x" * 5000)
    assert not TrainingJob.list()


async def asynchronous() -> None:
    """No value comes of calling it."""


def generator() -> Iterator[int]:
    """Nor of this."""
    yield 1


@pytest.mark.parametrize(
    ("fn", "more", "sentences"),
    [
        (asynchronous, {}, ["fn: it is asynchronous: hand over a function that calls asyncio.run()"]),
        (functools.partial(generator), {}, ["fn: it is a generator, "]),
        (max, {"args": "ab"}, ["args: a list or tuple is wanted; of a single argument: (x,)"]),
        (print, {"kwargs": {3: 1}}, ["kwargs: 3 is no name"]),
        (print, {"max_return_bytes": "1"}, ["max_return_bytes: '1': a whole number"]),
        (print, {"show_logs": "no"}, ["show_logs: 'no': True or False is wanted"]),
        (print, {"kwarg": {}, "lables": {}}, ["kwarg: unknown argument (did you mean kwargs?)", "lables: unknown argument (did"]),
        (print, {"instance_count": 2}, ["instance_count: `nodes` says how many"]),
        (remote_functions.fails, {"args": (1,)}, ["args, kwargs: missing a required argument: 'kind', and the function takes ("]),
        (print, {"nodes": 0, "nproc_per_node": "x", "labels": 3}, ["nodes: 0: ", "nproc_per_node: 'x': ", "labels: a dict is "]),
    ],
)
def test_what_cannot_be_called_is_said_before_anything_starts(
    office: Desk, fn: Any, more: dict[str, Any], sentences: list[str]
) -> None:
    """All of it at once, under the names that run has; no job is left of it."""
    with pytest.raises(WrongArguments) as told:
        launcher.run(fn, **more)
    assert len(told.value.problems) == len(sentences)
    assert all(problem.startswith(start) for problem, start in zip(told.value.problems, sentences, strict=True))
    assert not TrainingJob.list()


def test_a_function_may_have_any_name(office: Desk) -> None:
    """The job's id has what of it an id can have."""
    names = ["_" * 3, "训练", "f" * 90]
    for name in names:
        function = type(lambda: 1)((lambda: 1).__code__, {}, name)
        function.__name__ = name
        assert launcher.run(function, show_logs=False) == [1]
    assert {job.training_job_id.rsplit("-", 3)[0] for job in TrainingJob.list()} == {"function", "f" * 40}


def test_an_exception_without_a_text_is_told_too(office: Desk) -> None:
    """Its class is whoever's: what it says of itself may fail."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("none")

    def fails() -> None:
        raise Mute

    with pytest.raises(RemoteError, match=r"Mute: <exception str\(\) failed>"):
        launcher.run(fails, show_logs=False)


def test_an_exit_status_is_the_jobs(office: Desk) -> None:
    """sys.exit(3) in a function ends the job with 3, as in a script."""
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        launcher.run(lambda: sys.exit(3), show_logs=False)
    assert TrainingJob.get("latest").describe()["exit_code"] == 3


def test_ctrl_c_stops_the_job(office: Desk) -> None:
    """Nobody is left who would take the values."""

    def waits() -> None:
        import time

        print("waiting")
        time.sleep(60)

    interrupt_after(lambda: launcher.run(waits, settings={"grace": 2}), "[0] waiting")
    assert TrainingJob.get("latest").status == "Terminated"


SCRIPT = """
import launcher
OFFSET = 40
def plus(a):
    return a + OFFSET
if __name__ == "__main__":
    print(launcher.run(plus, (2,), nodes=2, show_logs=False))
"""


def test_a_function_of_a_script(office: Desk, tmp_path: Path) -> None:
    """It is sent by value, with the globals that it uses."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], env={**office.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "[42, 42]\n"


PACKAGE = """
import launcher
from .beside import OFFSET
def plus(a):
    return a + OFFSET
if __name__ == "__main__":
    print(launcher.run(plus, (2,), show_logs=False))
"""


def test_a_function_of_a_package_that_is_run(office: Desk, tmp_path: Path) -> None:
    """`python -m app.main`: its package goes along, so that relative imports hold; nobody else's module does."""
    (tmp_path / "app").mkdir()
    for name, text in (("__init__", ""), ("beside", "OFFSET = 40"), ("main", PACKAGE), ("__main__", PACKAGE)):
        (tmp_path / f"app/{name}.py").write_text(text)
    for module in ("app.main", "app"):
        done = subprocess.run(
            [sys.executable, "-m", module], env={**office.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.stdout == "[42]\n", done.stderr
        sent = {path.relative_to(office.folder() / "code").parts[0] for path in (office.folder() / "code").rglob("*.py")}
        assert sent == {"app", "launcher_call"}


def test_what_travels_runs_on_the_oldest_python() -> None:
    """The script on the node keeps to Python 3.8 and its standard library."""
    words = [str(Path(sys.executable).with_name("vermin")), "--no-tips", "--quiet", "-t=3.8-", "--violations"]
    from launcher import callee

    assert subprocess.run([*words, callee.__file__], check=False).returncode == 0


def test_on_real_machines(machines: Desk) -> None:
    """One value a node, with an old Python among them; byte code, which that cannot read, is refused there in a sentence."""
    hosts = launcher.run(remote_functions.place, nodes=3, show_logs=False)
    assert hosts == [(rank, 3, str(rank), "0") for rank in range(3)]
    with pytest.raises(RuntimeError, match=r"this node has 3\.9") as told:
        launcher.run(lambda: 1, nodes=3, show_logs=False)
    assert isinstance(told.value, RemoteError) and told.value.host == "node3"

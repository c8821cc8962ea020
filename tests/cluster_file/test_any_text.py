"""Whatever a file holds, it loads or is refused with UsageError: there is no third way."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.cluster import load_cluster, load_hostfile, load_job
from launcher.errors import UsageError

EXAMPLE = (Path(__file__).parents[2] / "cluster.yaml.example").read_text(encoding="utf-8")
JOB = "name: a\nnodes: 2\nhosts: [a, 'b[1-2]']\nscript: [a.py, 3]\nargs: [1.5, x]\nenv: {A: x, B: 3}\ngrace: 1m\nkeep: no\n"
PIECES = [
    "", " ", "\t", "\n", "\r", ":", ": ", "- ", "[", "]", "{", "}", ",", "&a ", "*a", "<<: ", "!!int ",
    "!!binary ", "!x ", "|", ">", "'",
    '"', "#", "%", "@", "`", "? ", "---", "...", "0x1F", "010", "12:30", ".nan", "-.inf", "1e999", "9" * 5000, "no", "null", "~",
    "2024-01-01", "[1-3]", "[3-1]", "fe80::1%eth0", "[::1]:22", "\ufeff", "\x00", "\x85", "\u2028", "\U0001f600", '"\\ud800"',
    '"\\UFFFFFFFF"', "hosts: ", "name: ", "gpus: ", "env: ",
]  # fmt: skip

mutations = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 12), st.sampled_from(PIECES) | st.text(max_size=3)),
    min_size=1,
    max_size=4,
)


def mutated(text: str, changes: list[tuple[float, int, str]]) -> str:
    """``text`` with pieces put in the place of a few characters each."""
    for where, length, piece in changes:
        start = int(where * len(text))
        text = text[:start] + piece + text[start + length :]
    return text


def loads_or_is_refused(load: object, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        load(path)  # type: ignore[operator]
    except UsageError as error:
        assert error.problems
        assert all(problem.startswith(str(path)) for problem in error.problems), error.problems


few = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few
@given(changes=mutations)
def test_a_damaged_cluster_file_loads_or_is_refused(tmp_path: Path, changes: list[tuple[float, int, str]]) -> None:
    """A slip of the hand anywhere gives a sentence with a place, never a traceback."""
    loads_or_is_refused(load_cluster, tmp_path / "c.yaml", mutated(EXAMPLE, changes).encode("utf-8", "surrogatepass"))


@few
@given(changes=mutations)
def test_a_damaged_job_file_loads_or_is_refused(tmp_path: Path, changes: list[tuple[float, int, str]]) -> None:
    """The same for job files."""
    loads_or_is_refused(load_job, tmp_path / "j.yaml", mutated(JOB, changes).encode("utf-8", "surrogatepass"))


@few
@given(content=st.binary(max_size=40) | st.text(alphabet="ab[]0123-=:@#% \t\n\rslots", max_size=60).map(str.encode))
@pytest.mark.parametrize("load", [load_cluster, load_job, load_hostfile])
def test_any_bytes_load_or_are_refused(tmp_path: Path, load: object, content: bytes) -> None:
    """The same for files that never were what they are taken for."""
    loads_or_is_refused(load, tmp_path / "f", content)

"""The house: who may import whom, how long things may be, what must be said, and what must not be loaded."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "launcher"
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

FLOORS: list[set[str]] = [
    {"record", "errors"},
    {"keep", "agent", "callee", "status", "uri", "environments", "oss"},
    {"view", "model", "metrics", "git_source", "code", "ignore", "rsync", "slurm",
     "torchrun", "transports", "objects", "channels", "listing"},
    {"hyperparameters", "requirements", "returns", "cluster", "store", "manifest", "sync", "environ", "policy", "verdict",
     "replica", "reply", "owner"},
    {"planning", "configuration", "bootstrap", "link", "fleet", "incoming", "outputs", "inputs", "publish",
     "provenance", "diagnosis", "feed", "backends", "cleaning", "arguments"},
    {"api", "session", "coordinator", "screen"},
    {"images", "tensorboard", "following", "preflight"},
    {"cli", "__main__", "training_job", "estimator", "functions"},
]
"""rooms, ground floor first; a room imports from floors below, and from the rooms of its own floor that are named here"""
NEIGHBOURS = {
    ("__main__", "cli"),
    ("estimator", "training_job"),
    ("functions", "estimator"),
    ("functions", "training_job"),
    ("link", "bootstrap"),
    ("cleaning", "bootstrap"),
    ("cleaning", "link"),
    ("cluster", "environ"),
    ("cluster", "hyperparameters"),
    ("code", "ignore"),
    ("metrics", "model"),
    ("git_source", "model"),
    ("fleet", "link"),
    ("outputs", "incoming"),
    ("rsync", "transports"),
    ("transports", "model"),
    ("slurm", "model"),
    ("transports", "slurm"),
    ("verdict", "policy"),
}
ACTING = {"coordinator", "fleet", "link", "bootstrap", "transports", "sync", "rsync", "incoming", "outputs", "inputs",
          "diagnosis", "replica", "reply", "cleaning", "preflight"}
"""what acts on nodes: the asking half meets it in the job folder alone"""


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """(module, whether it is loaded with the file) for every import; `if TYPE_CHECKING` is none."""
    return tuple(_imports(tree_of(path)))


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    typing = {id(node) for test in ast.walk(tree) if _only_for_types(test) for node in ast.walk(test)}
    inside = {
        id(node)
        for kind in ast.walk(tree)
        if isinstance(kind, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(kind)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names] if base in ("launcher", "launcher.agent") else [base]
            yield from ((name, id(node) not in inside) for name in names)


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def ours(path: Path) -> set[str]:
    """The rooms that a file enters."""
    return {name.split(".")[1] for name, _ in imports(path) if name.startswith("launcher.")}


def floor(name: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if name in rooms)


def test_every_room_has_a_floor() -> None:
    """A new file must be given its place."""
    known = set().union(*FLOORS) | {"__init__"}
    assert {room(path) for path in FILES} == known


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_room_imports_only_from_floors_below(path: Path) -> None:
    """Nobody calls up, and neighbours visit each other only where it is written down."""
    here = room(path)
    if here == "__init__":
        return
    for there in ours(path) - {here}:
        assert floor(there) < floor(here) or (here, there) in NEIGHBOURS, f"{here} imports {there}"


def test_the_agent_imports_nothing_of_ours_from_outside_its_folder() -> None:
    """It travels alone: standard library, and its own modules."""
    for path in (PACKAGE / "agent").glob("*.py"):
        for name, _ in imports(path):
            top = name.split(".")[0]
            assert name.startswith("launcher.agent") or top in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_the_asking_half_never_opens_a_connection() -> None:
    """api and what it stands on plan, write and read; a coordinator acts."""
    seen, todo = set(), ["api"]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        paths = [path for path in FILES if room(path) == name]
        todo += [there for path in paths for there in ours(path)]
    assert not seen & ACTING


def test_the_command_line_calls_the_front_desk() -> None:
    """No door leads straight to the machines, but for `trust`, which looks at host keys, `check`, and what cleans up."""
    for path in (PACKAGE / "cli").glob("*.py"):
        allowed = {"inventory": {"transports"}, "gc": {"cleaning"}, "check": {"preflight"}}
        assert ours(path) & ACTING <= allowed.get(path.stem, set()), path.name


def test_heavy_packages_are_imported_where_they_are_needed() -> None:
    """Never with a module of the paths that list, status and --help take."""
    heavy = {"ClusterShell", "cloudpickle", "numpy", "paramiko", "fabric", "pydantic", "rich", "yaml", "torch", "pathspec",
             "invoke", "platformdirs", "fsspec"}  # fmt: skip
    rooms = {
        "cli",
        "api",
        "store",
        "policy",
        "planning",
        "environ",
        "feed",
        "following",
        "screen",
        "training_job",
        "estimator",
        "functions",
        "returns",
        "owner",
        "model",
        "errors",
        "torchrun",
        "backends",
        "slurm",
        "__main__",
        "__init__",
    }
    for path in FILES:
        if room(path) in rooms:
            loaded = {name.split(".")[0] for name, at_once in imports(path) if at_once}
            assert not loaded & heavy, path.name


@pytest.mark.parametrize(
    "words",
    [["--help"], ["list"], ["list", "-o", "json"], ["status", "-h"], ["submit", "--help"], ["check", "--help"], ["--version"]],
    ids=" ".join,
)
def test_reading_commands_load_none_of_the_heavy_packages(words: list[str], tmp_path: Path) -> None:
    """What the interpreter says it loaded, not what we believe."""
    loaded = loaded_by(words, tmp_path)
    assert "launcher.cli" in loaded
    heavy = {"paramiko", "fabric", "pydantic", "rich", "torch", "invoke", "submitit", "cryptography", "asyncio", "fsspec"}
    assert not loaded & heavy


def test_status_of_a_job_loads_none_of_them_either(tmp_path: Path) -> None:
    """With a job to look at, finished ones in the list included."""
    job = tmp_path / "jobs" / "a-20250101-000000-aaaa"
    job.mkdir(parents=True)
    (job / "plan.json").write_text(json.dumps({"spec": {"name": "a"}, "nodes": [{"rank": 0, "host": {"name": "h"}}]}))
    (job / "events.jsonl").write_text('{"type":"created","n":0,"time":1,"nodes":[{"rank":0,"host":"h"}]}\n')
    for words in (["status", "latest"], ["status", "latest", "-o", "json"], ["list"]):
        assert not loaded_by(words, tmp_path) & {"paramiko", "fabric", "pydantic", "rich", "yaml", "torch", "cryptography"}
    (job / "slurm.json").write_text('{"slurm_job_id": "1", "submitted_at": 1}')
    assert not loaded_by(["status", "latest"], tmp_path) & {"submitit", "cloudpickle", "ClusterShell", "fabric", "pydantic"}


def loaded_by(words: list[str], home: Path) -> set[str]:
    environment = {**os.environ, "LAUNCHER_HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "launcher", *words],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0 or words == ["--version"], done.stderr[-2000:]
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_and_functions_fit_on_a_screen_or_few(path: Path) -> None:
    """A file has fewer than 500 lines, a function at most 50, a class at most twelve public methods."""
    text = path.read_text()
    assert text.count("\n") < 500
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)]) if "cli" not in path.parts else node.lineno
            assert (node.end_lineno or 0) - first < 50, node.name
        if isinstance(node, ast.ClassDef):
            public = [item.name for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")]
            assert len(public) <= 12 or path.name in ("session.py", "supervise.py", "training_job.py"), (
                f"{node.name} has {len(public)} public methods"
            )


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_dataclasses_are_those_that_load_at_once(path: Path) -> None:
    """`launcher.record` says what the standard library's cost each process."""
    froms = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom) and node.module == "dataclasses"]
    assert path.name == "record.py" or "dataclass" not in {alias.name for node in froms for alias in node.names}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_what_is_public_explains_itself(path: Path) -> None:
    """Modules, and on this side every public class, function and method that is more than a property of one line."""
    tree = tree_of(path)
    assert ast.get_docstring(tree), "the module says nothing of itself"
    if "agent" in path.parts:
        return
    for node in _public(tree):
        assert ast.get_docstring(node) or len(node.body) == 1 or _short(node), f"{node.name} says nothing of itself"


def _public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node
            # What a class with a parent redefines is explained there.
            if isinstance(node, ast.ClassDef) and not node.bases:
                yield from (item for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"))


def _short(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno < 6


def test_nothing_is_left_undone() -> None:
    """No marks of unfinished work, no test that is passed over."""
    word = re.compile(
        "|".join(("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error", "X" + "XX", "mark\\.sk" + "ip", "x" + "fail"))
    )
    for path in [*FILES, *(ROOT / "tests").rglob("*.py")]:
        assert not word.search(path.read_text()), path


def test_there_is_no_drawer_for_everything() -> None:
    """Names are the field's own."""
    drawers = re.compile(r"(utils?|helpers?|managers?|common|misc)(_|\.py|$)", re.IGNORECASE)
    assert not [name for name in NAMES if drawers.search(Path(name).name)]
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                assert not re.search("Manager|Helper|Utils|Handler", node.name), node.name


def test_the_agent_runs_on_the_oldest_python() -> None:
    """No syntax or module newer than 3.8, as a version linter sees it."""
    assert importlib.util.find_spec("vermin"), "vermin is a tool of development: install the dev extra"
    words = [
        str(Path(sys.executable).with_name("vermin")),
        "--no-tips",
        "--quiet",
        "-t=3.8-",
        "--violations",
        str(PACKAGE / "agent"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_broad_exceptions_are_stated() -> None:
    """Each `except Exception` that is not raised again has its reason on the line."""
    for path in FILES:
        lines = path.read_text().splitlines()
        for node in ast.walk(tree_of(path)):
            broad = (
                isinstance(node, ast.ExceptHandler)
                and isinstance(node.type, ast.Name)
                and node.type.id in ("Exception", "BaseException")
            )
            if isinstance(node, ast.ExceptHandler) and (broad or node.type is None):
                ends = any(
                    isinstance(one, ast.Raise) or "exit" in ast.dump(one) or "return" in lines[one.lineno - 1]
                    for one in ast.walk(node)
                    if hasattr(one, "lineno")
                )
                assert ends or "noqa: BLE001 - " in lines[node.lineno - 1], f"{path.name}:{node.lineno}"

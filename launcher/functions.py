"""`launcher.run`: a function instead of a script, called once by every process of a job; what each returned comes back.

The function and what is handed to it go to the nodes pickled (`callee.py` unpacks them there), together with the modules of
yours that this program has loaded.  On the way back no pickle is read: see `returns.py`.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import pickle
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import api, arguments, callee, returns, training_job
from launcher.arguments import Check
from launcher.errors import RemoteError, UnexpectedStatusException, ValueRefused, WrongArguments
from launcher.estimator import ARGUMENTS, Estimator, request_of
from launcher.manifest import MANIFEST, parse
from launcher.model import Command, Failure

if TYPE_CHECKING:
    from launcher.training_job import TrainingJob

_FOLDER = "launcher_call"
"""of the working copy: what the nodes need for the call; `python -m` starts it"""
_GIB = 1 << 30
_NOT_SENT = ("__pycache__", ".")
"""beginnings of the names of files and folders that do not go along with a module"""
_OURS = __name__.partition(".")[0]
_TAKEN = {"command": "the function is the command", "instance_count": "`nodes` says how many"}
"""arguments of an Estimator that mean nothing here"""
_CHECKS: dict[str, Check] = {
    "args": lambda value: None if isinstance(value, (list, tuple)) else "a list or tuple is wanted; of a single argument: (x,)",
    "kwargs": arguments.named,
    "nodes": arguments.count,
    "nproc_per_node": arguments.count_or_auto,
    "show_logs": arguments.flag,
    "max_return_bytes": arguments.count,
}
"""what the arguments of `run` may be"""


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    nodes: int = 1,
    nproc_per_node: int | str = 1,
    show_logs: bool = True,
    max_return_bytes: int = _GIB,
    **options: Any,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` in every process of a new job; the values that they returned, in the order of their ranks.

    With one process per node Python alone is needed there; for more, torchrun starts them.  Each has RANK, WORLD_SIZE,
    LOCAL_RANK, MASTER_ADDR and MASTER_PORT, so torch.distributed.init_process_group() needs nothing else.  ``options`` are
    those of Estimator.  ``max_return_bytes``: all values together may not be larger.

    An exception of the function is raised here as RemoteError, one of a built-in type as that, too; ValueRefused where a
    value is of a kind that does not travel; UnexpectedStatusException where the job failed otherwise; UsageError before
    anything has started.  Ctrl-C stops the job.
    """
    said = _estimator(options, fn, args, kwargs, nodes, nproc_per_node, show_logs, max_return_bytes)
    beside = _beside(fn, args or (), kwargs or {}, None if said.source_dir is None else Path(said.source_dir))
    job = training_job.submit(request_of(said, outputs=[callee.CHANNEL], more={"beside": beside}))
    try:
        job.wait(show_logs=show_logs)
    except KeyboardInterrupt:
        job.stop()
        raise
    except UnexpectedStatusException as failed:
        raise _reason(job, max_return_bytes, failed) from None
    return values(job, max_return_bytes)


def _estimator(options: Mapping[str, Any], fn: Any, *said: Any) -> Estimator:
    """The job that calls the function; WrongArguments, with every problem, for what cannot be.  ``said``: the rest of _CHECKS."""
    given = dict(zip(_CHECKS, said, strict=True))
    odd = _odd_function(fn)
    problems = [f"fn: {odd}"] if odd else []
    problems += [*arguments.problems(_CHECKS, given), *(f"{name}: {why}" for name, why in _TAKEN.items() if name in options)]
    name = re.sub(r"\W+", "-", getattr(fn, "__name__", type(fn).__name__), flags=re.ASCII).strip("-_")[:40] or "function"
    known = [*_CHECKS, *(key for key in ARGUMENTS if key not in _TAKEN)]
    problems += [f"{key}: unknown argument{arguments.meant(key, known)}" for key in options if key not in (*known, *_TAKEN)]
    made = Estimator()
    try:
        made = Estimator(**{"base_job_name": name, **{key: value for key, value in options.items() if key in known}})
    except WrongArguments as error:
        problems += error.problems
    problems = problems or _odd_call(fn, given["args"] or (), given["kwargs"] or {})
    if problems:
        raise WrongArguments("these arguments cannot be", problems=problems, next_step=arguments.next_step("launcher.run"))
    words = ("-m", _FOLDER)
    made.command = Command(argv=("python3", *words)) if given["nproc_per_node"] == 1 else Command(script=words)
    made.instance_count, made.nproc_per_node = given["nodes"], given["nproc_per_node"]
    return made


def _odd_function(fn: Any) -> str | None:
    """Why this cannot be called on a node; None where it can."""
    if not callable(fn):
        return f"a function is wanted, not {arguments.kind(fn)}"
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner):
        return "it is asynchronous: hand over a function that calls asyncio.run()"
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        return "it is a generator, which does not travel: hand over a function that returns a list"
    return None


def _odd_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """What a call would fail with before its first line; nothing for a built-in function, which does not tell."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return []
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return [f"args, kwargs: {error}, and the function takes {signature}"]
    return []


def values(job: TrainingJob, max_return_bytes: int = _GIB) -> list[Any]:
    """What the processes of a job of `run` returned, in the order of their ranks, however long ago.  Raises as `run`."""
    found = _Results(job, max_return_bytes)
    return [found.of(process) for process in found.processes]


def _reason(job: TrainingJob, limit: int, failed: UnexpectedStatusException) -> Exception:
    """Why a job failed: what the function raised, if it was that; of several processes the one that failed first."""
    found = _Results(job, limit)
    first = failed.failure or Failure("")
    for process in sorted(found.processes, key=lambda one: (one.rank != first.rank, one.node != first.node, one.rank)):
        try:
            found.of(process)
        except (RemoteError, ValueRefused) as error:
            return error
        except UnexpectedStatusException:
            continue
    return failed


class _Results:
    """The collected results of a job, by process."""

    def __init__(self, job: TrainingJob, limit: int) -> None:
        folder = api.find(job.training_job_id)
        seen = api.view(folder)
        self._job_id, self._output = folder.job_id, folder.output
        self._budget = returns.Budget(limit, limit)
        self._leaders = {rank: min(group) for group in seen.groups for rank in group}
        self.processes: list[returns.Process] = []
        for node in sorted(seen.nodes.values(), key=lambda node: node.rank):
            for _ in range(node.nproc or 1):
                self.processes.append(returns.Process(len(self.processes), node.rank, node.host))
        try:
            self._sources = {file.path: file.node for file in parse((folder.output / MANIFEST).read_bytes()).files}
        except FileNotFoundError:
            self._sources = {}

    def of(self, process: returns.Process) -> Any:
        """What one returned; raises what it raised, UnexpectedStatusException where it left nothing."""
        leader = self._leaders.get(process.node, process.node)
        try:
            return returns.result_of(str(self._output), process, self._sources, leader, self._budget, self._job_id)
        except FileNotFoundError as missing:
            if isinstance(missing, RemoteError):
                raise  # by the function itself
            what = f"rank {process.rank} (node {process.node}, {process.host}) left no value"
            raise UnexpectedStatusException(f"{self._job_id}: {what}", job_id=self._job_id) from None


def _beside(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], source: Path | None
) -> dict[str, bytes | Path]:
    """The call, and what is needed to make it, by their paths in the working copy."""
    import cloudpickle

    try:
        call = cloudpickle.dumps((fn, tuple(args), dict(kwargs)))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        step = "open files, locks and the like on the node: in the function itself"
        raise WrongArguments(f"the function, or something handed to it, cannot be sent: {error}", next_step=step) from error
    # What is not of a module that can be imported is sent as byte code, which only the same version of Python reads.
    python = "{}.{}".format(*sys.version_info[:2]) if b"cloudpickle" in call else None
    found: dict[str, bytes | Path] = {
        f"{_FOLDER}/__main__.py": Path(callee.__file__),
        f"{_FOLDER}/call.pkl": call,
        f"{_FOLDER}/call.json": json.dumps({"python": python, "file": _file_of(fn)}).encode(),
    }
    for file in sorted(Path(cloudpickle.__file__).parent.glob("*.py")):
        found[f"{_FOLDER}/cloudpickle/{file.name}"] = file
    there = set() if source is None or not os.path.isdir(source) else {entry.name for entry in os.scandir(source)}
    for path, module in _modules(fn):
        if path.partition("/")[0] not in there:
            found[path] = module
    return found


def _file_of(fn: Callable[..., Any]) -> str:
    """The file, or the cell of a notebook, that has the function's text."""
    return str(getattr(getattr(fn, "__code__", None), "co_filename", "?"))


def _modules(fn: Callable[..., Any]) -> Iterator[tuple[str, Path]]:
    """(path below its root, file) of this person's own modules that are loaded and lie beside the one that has the function."""
    root = _root(fn)
    if root is None:
        return
    names = {name.partition(".")[0] for name in list(sys.modules)} - {"__main__", _OURS}
    for name in sorted(names):
        file, folder = root / f"{name}.py", root / name
        if (folder / "__init__.py").is_file() or (folder.is_dir() and not file.is_file() and _is_namespace(name, folder)):
            yield from ((path.relative_to(root).as_posix(), path) for path in _files(folder))
        elif file.is_file():
            yield file.name, file


def _is_namespace(name: str, folder: Path) -> bool:
    return str(folder) in list(getattr(sys.modules.get(name), "__path__", ()))


def _root(fn: Callable[..., Any]) -> Path | None:
    """The folder from which the function's module was imported; None for what is installed, or built in."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__module__", None) or "__main__"
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        return Path.cwd() if name == "__main__" else None
    if name == "__main__":
        # What `python -m` has started has a name of its own; a script has none, and its neighbours lie in its folder.
        name = getattr(getattr(module, "__spec__", None), "name", "")
    at = Path(file).absolute()
    root = at.parents[name.count(".") + (at.name == "__init__.py")]
    paths = sysconfig.get_paths()
    installed = [Path(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed += [Path(path) for path in (*site.getsitepackages(), site.getusersitepackages())]
    return None if any(at.is_relative_to(path) for path in installed) else root


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(_NOT_SENT) or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path

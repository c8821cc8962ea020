"""How long the reading commands take, in times of an empty Python."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from benchmarks import measure
from benchmarks.measure import Sample, median_wall, rounds
from benchmarks.place import ROOT, Place
from benchmarks.report import Line, ratio, seconds

READING, HELP = 8.0, 11.0
_RIVALS = ROOT / "build" / "rivals"
_JOBS = 10


def startup(place: Place, runs: int) -> list[Line]:
    """`list`, `status -o json` and `--help` with ten jobs in the folder."""
    place.forget()
    for _ in range(_JOBS):
        place.launcher("submit", "--backend", "local", "--command", "true")
    contenders: dict[str, Callable[[], Sample]] = {
        "python -c pass": lambda: measure.run([sys.executable, "-c", "pass"]),
        "list": lambda: place.launcher("list"),
        "status -o json": lambda: place.launcher("status", "latest", "-o", "json"),
        "--help": lambda: place.launcher("--help"),
    }
    rivals, missing = _rivals()
    samples = rounds(max(runs, 5) * 3, {**contenders, **rivals})
    wall = {name: median_wall(of) for name, of in samples.items()}
    bounds = {"list": READING, "status -o json": READING, "--help": HELP}
    empty = wall["python -c pass"]
    lines = [ratio("startup", f"launcher {name}, against python -c pass", wall[name], empty, bounds[name]) for name in bounds]
    slowest = max(bounds, key=lambda name: wall[name])
    lines += [ratio("startup", f"launcher {slowest}, against {rival}", wall[slowest], wall[rival], 1.0) for rival in rivals]
    for name, why in missing.items():
        lines.append(Line("startup", f"against {name}: {why}", seconds(wall[slowest]), "not installed", 0.0, "", None))
    return lines


def _rivals() -> tuple[dict[str, Callable[[], Sample]], dict[str, str]]:
    """Commands that could be installed, and why the others could not."""
    found: dict[str, Callable[[], Sample]] = {}
    missing: dict[str, str] = {}
    for package, words in {"torchx": ("torchx", "--help"), "fabric": ("fab", "--version")}.items():
        program = _RIVALS / "bin" / words[0]
        why = _install(package, program)
        if why is None:
            found[" ".join(words)] = _measured(str(program), words[1])
        else:
            missing[" ".join(words)] = why
    return found, missing


def _measured(program: str, option: str) -> Callable[[], Sample]:
    return lambda: measure.run([program, option])


def _install(package: str, program: Path) -> str | None:
    """Have a rival in an environment of its own, kept for the next run; None, or in a line why not."""
    if program.exists():
        return None
    if not (_RIVALS / "bin" / "python").exists():
        venv.create(_RIVALS, with_pip=True)
    words = [str(_RIVALS / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not program.exists():
        return (done.stderr.strip().splitlines() or ["pip failed"])[-1][:120]
    return None

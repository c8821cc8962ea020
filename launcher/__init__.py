"""Launcher: one training job on your own machines, over SSH or on this one.  The command line is `python -m launcher`.

    from launcher import Estimator, TrainingJob, run

Names are loaded when they are first asked for, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.errors import LauncherError, RemoteError, UnexpectedStatusException
    from launcher.estimator import Estimator
    from launcher.functions import run
    from launcher.training_job import TrainingJob

    __version__: str

__all__ = ["Estimator", "LauncherError", "RemoteError", "TrainingJob", "UnexpectedStatusException", "run"]

_ROOMS = {
    "Estimator": "estimator",
    "LauncherError": "errors",
    "RemoteError": "errors",
    "TrainingJob": "training_job",
    "UnexpectedStatusException": "errors",
    "run": "functions",
}


def __getattr__(name: str) -> Any:
    """A public name, from the room that has it; `__version__`, which is `unknown` where the package is not installed."""
    if name not in _ROOMS and name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name == "__version__":
        return importlib.import_module(f"{__name__}.provenance").own_version() or "unknown"
    return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

"""A coordinator as a process of its own on this machine, which no terminal's end and no log-out reaches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launcher.errors import LauncherError
from launcher.store import Folder


def start(folder: Folder) -> None:
    """Start a coordinator for the job; it finds out by itself what is left to do.  Raises LauncherError when it cannot."""
    words = [sys.executable, "-m", "launcher.coordinator", str(folder.root)]
    if sys.platform.startswith("linux"):
        words = [*_scope(), *words]
    try:
        with folder.coordinator_log.open("ab") as log:
            subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=folder.root,
                env=_environment(),
            )
    except OSError as error:
        raise LauncherError(f"the coordinator cannot be started: {error}", where=str(folder.root)) from error


def _scope() -> list[str]:
    """Where a user manager outlives log-outs, the coordinator goes below it."""
    from launcher.agent import facts

    return ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--"] if facts.lingering() else []


def _environment() -> dict[str, str]:
    """Ours, with this very package importable whatever the working directory."""
    import os

    here = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, *([inherited] if inherited else [])])}

"""Programs that stand in for Slurm's commands: what a real one printed, put on a PATH of its own."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.slurm import ask

INVALID = "slurm_load_jobs error: Invalid job id specified"
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
NO_ACCOUNTING = "Slurm accounting storage is disabled"


class Programs:
    """A directory for PATH with programs that print what they are told to, and note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = folder / "bin"
        self._bin.mkdir(parents=True)
        self.environ = {"PATH": f"{self._bin}:{os.environ['PATH']}"}

    def says(self, name: str, out: str = "", *, err: str = "", status: int = 0) -> None:
        """Put a program there, or another one in its place; what is asked for once is asked for again."""
        ask.configuration.cache_clear()
        for stream, text in (("out", out), ("err", err)):
            (self.folder / f"{name}.{stream}").write_text(text)
        script = (
            f'#!/bin/sh\necho "$@" >> {self.folder}/{name}.calls\n'
            f"cat {self.folder}/{name}.out; cat {self.folder}/{name}.err >&2; exit {status}\n"
        )
        path = self._bin / name
        path.write_text(script)
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        """The arguments of each call."""
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

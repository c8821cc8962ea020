"""The launcher as a person uses it: its command line in a process, with a $LAUNCHER_HOME of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from launcher import owner
from launcher.store import Store, read_json
from tests import warm

T = TypeVar("T")
PATIENCE = 120.0
"""seconds that tell a hang: what is waited for comes within one or two, unless the machine is swamped"""

TRAINING = 1000.0
"""the same of a job in which six interpreters load torch"""


def eventually(look: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
    """The first true value of ``look``; for what no event can be waited for from outside."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        value = look()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {patience:g} s: {what}")


def counts(go: str) -> str:
    """A command that prints `line 1` to `line 60`, and in the midst of them waits for a file ``go``, which it removes."""
    waits = f"[ $i != 20 ] || until [ -e {go} ]; do sleep 0.05; done"
    return f"for i in $(seq 1 60); do echo line $i; sleep 0.05; {waits}; done; rm {go}"


COUNTED = b"".join(b"line %d\n" % number for number in range(1, 61))
"""what that prints"""


@dataclass
class Desk:
    """One home of jobs, and the commands that act on it."""

    home: Path
    extra: tuple[str, ...] = ()
    """options that every submit gets: which cluster"""

    @property
    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("LAUNCHER_")}
        return {**clean, "LAUNCHER_HOME": str(self.home)}

    def run(self, *words: str, check: int | None = 0, **more: Any) -> subprocess.CompletedProcess[str]:
        """A command to its end; ``check`` is the exit code it must have."""
        env = {**self.environment, **more.pop("env", {})}
        try:
            done = warm.launcher(words, env=env, errors="replace", **more)
        except subprocess.TimeoutExpired as error:
            told = [(stream or b"")[-4000:] for stream in (error.stdout, error.stderr)]
            raise AssertionError(f"{error}\n{told}\nwhat happened: {self._events_if_any('latest')[-20:]}") from None
        assert check is None or done.returncode == check, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def submit(self, *words: str, check: int | None = 0, **more: Any) -> subprocess.CompletedProcess[str]:
        """An attached submit to its end."""
        return self.run("submit", *self.extra, *words, check=check, **more)

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """An attached submit in the background, in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "launcher", "submit", *self.extra, *words],
            env={**self.environment, **more.pop("env", {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **more,
        )

    def detach(self, *words: str, **more: Any) -> str:
        """A detached submit; the job's id."""
        return self.submit("-d", *words, **more).stdout.strip()

    def json(self, *words: str, check: int | None = 0) -> Any:
        """The document that a command prints with -o json."""
        return json.loads(self.run(*words, "-o", "json", check=check).stdout)

    def folder(self, job: str = "latest") -> Path:
        """A job's folder."""
        # Two jobs of one second have ids that tell no order: which is the latest is known by the program's own rule.
        return [folder.root for folder in Store(self.home).folders()][-1] if job == "latest" else self.home / "jobs" / job

    def events(self, job: str = "latest") -> list[dict[str, Any]]:
        """What is written of the job so far."""
        path = self.folder(job) / "events.jsonl"
        # Whoever reads while a line is written may see its beginning.
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        return [json.loads(line) for line in whole.splitlines()]

    def happened(self, kind: str, job: str = "latest") -> dict[str, Any]:
        """Wait for an event of that type."""

        def look() -> dict[str, Any] | None:
            return next((event for event in self._events_if_any(job) if event["type"] == kind), None)

        try:
            return eventually(look, f"event {kind}")
        except AssertionError as error:
            raise AssertionError(f"{error}; what happened: {self._events_if_any(job)}") from None

    def _events_if_any(self, job: str) -> list[dict[str, Any]]:
        try:
            return self.events(job)
        except (FileNotFoundError, IndexError):
            return []

    def coordinator(self, job: str = "latest") -> int:
        """The pid in the owner's record."""
        return int(json.loads((self.folder(job) / "coordinator.json").read_text())["pid"])

    def at_rest(self, job: str = "latest") -> Path:
        """The folder of a job that has ended, once its coordinator has too: it writes its state behind the end that it told."""
        folder = self.folder(job)
        eventually(lambda: not owner.is_alive(read_json(folder / "coordinator.json")), "the coordinator is gone")
        return folder

    def printed(self, text: bytes, *nodes: int, job: str = "latest") -> None:
        """Wait until the command on each of the nodes has printed that."""
        for node in nodes:
            path = self.folder(job) / "logs" / f"node-{node}" / "stdout.log"
            eventually(lambda path=path: path.exists() and text in path.read_bytes(), f"{text!r} of node {node}")

    def log(self, node: int, stream: str = "stdout", job: str = "latest") -> bytes:
        """A node's own log."""
        return (self.folder(job) / "logs" / f"node-{node}" / f"{stream}.log").read_bytes()

    def pids(self, role: str, node: int, job: str = "latest") -> int:
        """The pid of `pid` (the command), `agent` or `warden` on a node, as its agent told."""
        started = eventually(
            lambda: next(
                (
                    e["event"]
                    for e in self._events_if_any(job)
                    if e["type"] == "agent" and e["node"] == node and e["event"]["type"] == "started"
                ),
                None,
            ),
            f"node {node} started",
        )
        return int(started[role])

    def end_everything(self) -> None:
        """Nothing of this home outlives its test: coordinators, and on this machine their jobs' processes."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                _kill_if(entry, str(self.home).encode())


def _kill_if(entry: Path, mark: bytes) -> None:
    try:
        if mark in (entry / "cmdline").read_bytes() or b"LAUNCHER_HOME=" + mark in (entry / "environ").read_bytes():
            os.kill(int(entry.name), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass


def living(job_mark: str) -> list[str]:
    """Command lines of processes on this machine whose environment names the job."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"LAUNCHER_JOB_ID={job_mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found

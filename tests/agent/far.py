"""A node of this machine for tests: a real agent behind a real link, and a look at what is left of it afterwards.

Everything started for a node carries a mark, in its environment (inherited from the test) or, where a command empties
its environment, in its argv; so what survives can be found without touching anybody else's processes.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import io
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from launcher import bootstrap
from launcher.agent import procs
from launcher.link import Address, Following, Link
from launcher.model import Host
from launcher.replica import Replica

T = TypeVar("T")
PATIENCE = 120.0
"""seconds until a test takes what does not come for a failure: only a hang takes so long, however busy the machine is"""
MARK = "LAUNCHER_TEST_MARK"


@functools.cache
def oldest_python() -> str:
    """An interpreter of the oldest version that nodes may have; where none is installed, this very one."""
    known = [shutil.which("python3.8"), *glob.glob(os.path.expanduser("~/.pyenv/versions/3.8.*/bin/python"))]
    # pyenv's shims are in PATH, too, and run only where a version is chosen.
    works = [path for path in known if path and _runs(path)]
    return works[0] if works else sys.executable


def _runs(path: str) -> bool:
    return subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


def hurried(monkeypatch: pytest.MonkeyPatch, **constants: tuple[object, object]) -> None:
    """Send an agent in which each named constant has another value; (the value it has now, the value wanted)."""
    build, replaced = bootstrap.agent_archive, dict.fromkeys(constants, 0)

    def change(text: str) -> str:
        for name, (old, new) in constants.items():
            changed = text.replace(f"{name} = {old}", f"{name} = {new}")
            replaced[name] += changed != text
            text = changed
        return text

    content = build()
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            target.writestr(name, change(source.read(name).decode()))
    assert set(replaced.values()) == {1}, f"constants not found: {replaced}"
    send_instead(monkeypatch, buffer.getvalue())


def send_instead(monkeypatch: pytest.MonkeyPatch, archive: bytes) -> None:
    """Nodes get another agent, under its own name."""
    monkeypatch.setattr(bootstrap, "agent_name", lambda: hashlib.sha256(archive).hexdigest()[:32])
    monkeypatch.setattr(bootstrap, "agent_archive", lambda: archive)


def eventually(look: Callable[[], T], what: str = "what was waited for") -> T:
    """The first true value of ``look``; fails after PATIENCE.  For what announces itself by no event."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come about: {value!r}"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    return procs.start_time(pid) is not None


class Node:
    """One node with a directory of its own; `close` is for the fixture, which then looks for survivors."""

    def __init__(self, folder: Path, python: str | None = None) -> None:
        self.mark = secrets.token_hex(8)
        os.environ[MARK] = self.mark
        self.folder = folder
        self.job_id = f"job-{self.mark}"
        self.host = Host("node0", "localhost", python=python or oldest_python(), workdir=str(folder / "work"))
        self.marks = {"LAUNCHER_JOB_ID": self.job_id, "NODE_RANK": "0"}
        self.told: queue.Queue[dict[str, Any]] = queue.Queue()
        self.heard: list[dict[str, Any]] = []
        self.links: list[Link] = []

    @property
    def job(self) -> Path:
        """The job's directory on the node."""
        return self.folder / "work" / "node" / "jobs" / self.job_id

    @property
    def spool(self) -> Path:
        return self.job / "rank-0" / "spool"

    def link(self) -> Link:
        made = Link(Address("local", self.host, 0, self.job_id))
        self.links.append(made)
        return made

    def connect(self) -> tuple[Link, dict[str, Any]]:
        made = self.link()
        reply = made.connect(nonce="n", python=self.host.python, venv=None, programs=[])
        (self.job / "code").mkdir(parents=True, exist_ok=True)
        return made, reply

    def following(self, attempt: int = 0, logs: str = "logs") -> Following:
        return Following(attempt, self.marks, Replica(self.folder / logs), self.told.put)

    def start(self, argv: list[str], env: Mapping[str, str] | None = None, attempt: int = 0, drop: tuple[str, ...] = ()) -> Link:
        """Connect and start a command; what it tells comes to `wait_for`."""
        link, _ = self.connect()
        said = self.post_start(link, argv, env, attempt, drop)
        assert said["fresh"], said
        return link

    def post_start(
        self, link: Link, argv: list[str], env: Mapping[str, str] | None = None, attempt: int = 0, drop: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        settings = {**self.marks, **(env or {})}
        return link.follow(self.following(attempt), "node_start", argv=argv, env=settings, defaults={}, drop=list(drop), bin=None)

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next event of that type, those before it kept in `heard`."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                event = self.told.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind!r} within {PATIENCE:g} s; heard {self.heard}") from None
            self.heard.append(event)
            if event["type"] == kind:
                return event

    def log(self, name: str = "stdout.log", logs: str = "logs") -> bytes:
        return (self.folder / logs / name).read_bytes()

    def printed(self, text: bytes) -> bytes:
        """What the command has written to its stdout on the node, once ``text`` is in it."""

        def look() -> bytes:
            path = self.spool / "stdout.log"
            said = path.read_bytes() if path.exists() else b""
            return said if text in said else b""

        return eventually(look, f"{text!r} on stdout")

    def pids(self) -> dict[str, int]:
        """{"agent": pid, "warden": pid} of the attempt that was started last."""
        event = next(event for event in reversed(self.heard) if event["type"] == "started")
        return {"agent": event["agent"], "warden": event["warden"], "command": event["pid"]}

    def kill_at_once(self, *roles: str) -> None:
        """kill -9 of `agent`, `warden` or both; stopped at first, so that none does anything about the other's end."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for role in roles:
                os.kill(self.pids()[role], number)

    def survivors(self) -> list[str]:
        """Every living process with our mark but this one, as `pid comm argv`."""
        found = []
        for pid in procs.everybody():
            environment, argv = procs._read(pid, "environ"), procs._read(pid, "cmdline")
            if self.mark.encode() in environment + argv and pid != os.getpid() and alive(pid):
                found.append(f"{pid} {procs.name(pid)} {argv.decode(errors='replace')[:80]}")
        return found

    def survivors_of_job(self) -> list[int]:
        """Living processes of the command, by the job's marks."""
        return procs.marked(self.marks)

    def close(self) -> None:
        for made in self.links:
            made.close()
        left: list[str] = []

        def none_left() -> bool:
            left[:] = self.survivors()
            return not left

        try:
            eventually(none_left, "the end of every process")
        except AssertionError:
            procs.end(lambda: [int(entry.split()[0]) for entry in self.survivors()], lambda: None)
            raise AssertionError(f"left alive: {left}") from None
        finally:
            os.environ.pop(MARK, None)

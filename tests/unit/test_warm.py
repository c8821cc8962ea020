"""The tests' own way to start commands is as good as the usual one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.agent import procs
from launcher.planning import Request, draft
from launcher.store import Store
from tests import warm
from tests.jobs.desk import Desk, eventually

JOB = re.compile(r"-\d{8}-\d{6}-[a-z]{4}")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "LAUNCHER_HOME": str(tmp_path / "home"), "PYTHONPATH": str(warm.ROOT)}


@pytest.mark.parametrize(
    "words",
    [["--version"], ["--help"], ["list"], ["list", "-o", "json"], ["sumbit"], ["status", "none"], ["nodes", "--cluster", "none"],
     ["submit", "--backend", "local", "--command", "cat; echo ü; exit 3"], ["submit", "--dry-run", "--", b"\xff"]],
)  # fmt: skip
def test_it_answers_as_a_cold_start_does(env: dict[str, str], tmp_path: Path, words: list[str | bytes]) -> None:
    """Exit code, stdout, stderr: in the directory that was asked for."""
    told = warm.launcher(words, env=env, cwd=tmp_path, errors="surrogateescape")
    cold = subprocess.run(
        [sys.executable, "-m", "launcher", *words], env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, errors="surrogateescape", check=False,
    )  # fmt: skip
    assert told.returncode == cold.returncode
    told_out, cold_out = (JOB.sub("JOB", out) for out in (told.stdout, cold.stdout))
    assert told_out == cold_out
    if "local" not in words:  # what is told of a job's progress depends on the time
        assert told.stderr == cold.stderr


def test_a_command_that_takes_too_long_is_killed(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As subprocess would do it."""
    monkeypatch.setenv("LAUNCHER_HOME", env["LAUNCHER_HOME"])
    plan = draft(Request(words=("true",)), {}).plan
    Store().create(plan.job_id)
    warm._server.cache_clear()  # one that has not loaded anything yet
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number, kill=os.kill: (killed.append(pid), kill(pid, number)))
    with pytest.raises(subprocess.TimeoutExpired):
        warm.launcher(["events", "-f", plan.job_id], env=env, timeout=0.1)
    (command,) = killed
    eventually(lambda: procs.start_time(command) is None, "it is gone")


def test_what_python_reads_at_its_start_needs_a_cold_one(env: dict[str, str]) -> None:
    """Such as where it would look for modules first."""
    done = warm.launcher(["list"], env={**env, "PYTHONVERBOSE": "1"})
    assert "import 'launcher.cli'" in done.stderr


def test_nothing_of_it_is_left_open_at_the_end(env: dict[str, str]) -> None:
    """Its process is waited for, and its connection closed: an interpreter would complain of both."""
    asks = "import os; from tests import warm; print(warm.launcher(['--version'], env=os.environ).returncode)"
    words = [sys.executable, "-W", "always::ResourceWarning", "-c", asks]
    done = subprocess.run(words, env=env, cwd=warm.ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_the_end_of_a_test_does_not_end_it(env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even that of the test that has started it, whose home was in the environment."""
    monkeypatch.setenv("LAUNCHER_HOME", env["LAUNCHER_HOME"])
    warm._server.cache_clear()
    assert warm.launcher(["list"], env=env).returncode == 0
    Desk(tmp_path / "home").end_everything()
    assert warm.launcher(["list"], env=env).returncode == 0

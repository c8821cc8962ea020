"""A warning signal: it reaches the training processes that know what to do with it, and nobody else."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import procs
from launcher.agent.workers import Workers
from launcher.link import Link
from tests.agent.far import Node, eventually, hurried

CATCHES = """
import os, signal, sys, time
heard = []
signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
child = os.fork()
if child == 0:
    signal.signal(signal.SIGUSR2, lambda *_: print('dataloader', flush=True))
print('ready', flush=True)
while not heard:
    time.sleep(0.01)
print('saved', flush=True)
os.kill(child, signal.SIGKILL)
"""
SAVES_ON_TERM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), print('saved', flush=True), sys.exit()))
os.write(1, b'ready\\n')
time.sleep(1000)
"""
IGNORANT = "import time; print('ready', flush=True); time.sleep(1000)"
LISTENS = "import signal, time; signal.signal(signal.SIGUSR2, lambda *_: print('heard')); print('ready')\nwhile 1: time.sleep(1)"
LATE = """
import os, signal, sys, time
print('ready', flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
signal.signal(signal.SIGUSR2, lambda *_: (print('saved', flush=True), sys.exit()))
print('listens', flush=True)
while 1:
    time.sleep(1)
"""
TORCHRUN = """
import os, subprocess, sys
texts = sys.argv[1:]
started = [subprocess.Popen([sys.executable, '-Suc', text], env={**os.environ, 'LOCAL_RANK': str(n), 'RANK': str(n + 4)})
           for n, text in enumerate(texts)]
sys.exit(max(abs(one.wait()) for one in started))
"""


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-Suc", text, *arguments]


def warn(node: Node, link: Link, number: int = 1, ranks: bool = False) -> dict[str, Any]:
    """Warn, and the event that says whom it reached."""
    link.ask("node_warn", attempt=0, number=number, signal=int(signal.SIGUSR2), ranks=ranks)
    told = node.wait_for("warned")
    assert told["signal"] == "SIGUSR2"
    return told


def end(node: Node, link: Link) -> None:
    link.ask("node_stop", attempt=0, grace=0, reason="cancel")
    node.wait_for("outcome")


def until_ready(node: Node, count: int = 1) -> None:
    # Two that print at once may have their words before their line ends.
    eventually(lambda: node.log().count(b"ready") == count, "they are ready")


def test_a_warning_reaches_the_ranks_that_catch_it_and_not_torchrun(node: Node) -> None:
    """Nor their data loaders; the rank that would have died of it is named."""
    link = node.start(python(TORCHRUN, CATCHES, IGNORANT))
    until_ready(node, 3)
    told = warn(node, link, ranks=True)
    assert [(one["local_rank"], one["rank"]) for one in told["told"]] == [(0, 4)]
    assert [(one["local_rank"], one["rank"]) for one in told["untold"]] == [(1, 5)]
    eventually(lambda: b"saved" in node.log())
    assert b"dataloader" not in node.log()
    end(node, link)


def test_the_same_warning_is_passed_on_once(node: Node) -> None:
    """It may be sent again after a broken connection; a further one is another."""
    link = node.start(python(LISTENS))
    until_ready(node)
    warn(node, link, 1)
    eventually(lambda: node.log().count(b"heard") == 1)  # two of a kind that wait are one
    link.ask("node_warn", attempt=0, number=1, signal=int(signal.SIGUSR2), ranks=False)
    warn(node, link, 2)
    eventually(lambda: node.log().count(b"heard") == 2)
    assert [event["type"] for event in node.heard].count("warned") == 2
    end(node, link)


@pytest.mark.parametrize("ranks", [True, False])
def test_who_begins_to_listen_after_a_warning_is_told_of_it_once(node: Node, tmp_path: Path, ranks: bool) -> None:
    """Imports take their time, and a warning does not come twice."""
    go = tmp_path / "go"
    text = LATE.replace("sys.argv[1]", repr(str(go)))
    link = node.start(python(TORCHRUN, text, CATCHES) if ranks else ["/bin/sh", "-c", f"true; {shlex.join(python(text))}"])
    until_ready(node, 3 if ranks else 1)
    first = warn(node, link, ranks=ranks)
    assert (len(first["told"]), len(first["untold"])) == (int(ranks), 1)
    go.touch()
    late = node.wait_for("warned")
    assert (late["told"], late["untold"], late["signal"]) == (first["untold"], [], "SIGUSR2") or not ranks
    assert len(late["told"]) == 1
    assert node.wait_for("outcome")["exit_code"] == 0
    node.wait_for("drained")
    assert node.log().count(b"saved") == 1 + ranks


@pytest.mark.parametrize(
    "text",
    [
        "'{python}' -Suc \"$T_CATCHES\" | cat",
        "true; ('{python}' -Suc \"$T_CATCHES\")",
        'env A=1 /bin/sh -c "\'{python}\' -Suc \\"\\$T_CATCHES\\"; :"',
        "timeout 50 '{python}' -Suc \"$T_CATCHES\"",
    ],
)
def test_without_torchrun_it_reaches_what_the_shell_has_started(node: Node, text: str) -> None:
    """Through pipes, further shells and wrappers that do not catch it themselves."""
    link = node.start(["/bin/sh", "-c", text.format(python=sys.executable)], env={"T_CATCHES": CATCHES})
    until_ready(node, 2)
    told = warn(node, link)
    assert len(told["told"]) == 1 and told["untold"] == []
    assert node.wait_for("outcome")["exit_code"] == 0
    node.wait_for("drained")
    assert node.log().count(b"saved") == 1


def test_a_command_that_does_not_catch_it_lives_on(node: Node) -> None:
    """And a torchrun that has no ranks yet, whose own handler for TERM would end them all."""
    link = node.start(python(IGNORANT))
    until_ready(node)
    told = warn(node, link)
    assert told["told"] == [] and [one["name"] for one in told["untold"]] != []
    assert (warn(node, link, 2, ranks=True)["told"], node.heard[-1]["untold"]) == ([], [])
    assert "exited" not in [event["type"] for event in node.heard]
    end(node, link)


def test_what_a_shell_has_started_gets_the_jobs_grace_when_slurm_ends_the_shell(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's TERM comes to both; the shell dies of it at once, the training is still writing."""
    hurried(monkeypatch, LEFTOVER_GRACE=(5.0, 0.2))
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    saves = f"'{sys.executable}' -Suc \"$T_SAVES\"; echo after"
    link, _ = node.connect()
    settings = {**node.marks, "T_SAVES": SAVES_ON_TERM}
    argv = ["/bin/sh", "-c", saves]
    said = link.follow(node.following(), "node_start", argv=argv, env=settings, defaults={}, drop=[], bin=None, grace=600)
    until_ready(node)
    shell = int(said["said"][1:])
    for pid in (*procs.children(shell), shell):
        os.kill(pid, signal.SIGTERM)
    assert node.wait_for("outcome")["signal"] == "SIGTERM"
    node.wait_for("drained")
    assert node.log() == b"ready\nsaved\n"


def test_who_ends_as_soon_as_it_hears_is_told_of_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be gone before anybody looks again."""
    ends = "import os, signal; signal.signal(signal.SIGUSR2, lambda *_: os._exit(0)); os.write(1, b'ready'); signal.pause()"
    send = procs.send
    with subprocess.Popen([sys.executable, "-c", ends], stdout=subprocess.PIPE) as process:

        def and_wait(pids: list[int], number: int) -> None:
            send(pids, number)
            process.wait(60)

        assert process.stdout is not None and process.stdout.read(5) == b"ready"
        monkeypatch.setattr(procs, "send", and_wait)
        told, untold = Workers(process.pid, lambda *_, **__: None).warn(signal.SIGUSR2, False)
    assert told == [{"pid": process.pid, "name": Path(sys.executable).name}] and untold == []

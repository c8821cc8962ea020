"""What stands between the agent and a command in a container: who is told to end, and by whom it is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.far import Node, eventually

SAVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print('saved', flush=True), sys.exit(3)))
os.write(1, b'ready\\n')
while True:
    time.sleep(1)
"""


def executable(path: Path, text: str) -> str:
    """A script that can be run."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_runtime_above_the_command_is_not_told_to_end(node: Node, tmp_path: Path) -> None:
    """apptainer, or an init, may hand TERM on, or die of it with the command: the command itself hears of it, once."""
    above = executable(tmp_path / "apptainer", '#!/bin/sh\ntrap "echo told; exit 1" TERM\n"$@"\nexit $?\n')
    link = node.start([above, node.host.python or "python3", "-uc", SAVES])
    node.printed(b"ready")
    link.ask("node_stop", attempt=0, grace=600, reason="cancel")
    assert node.wait_for("outcome")["exit_code"] == 3
    node.wait_for("drained")
    assert node.log() == b"ready\nsaved\n"


CLIENT = """#!/bin/sh
# A client of an engine: it waits until the container that carries the job's marks is gone.
echo ready
while [ ! -e FOLDER/removed ]; do sleep 0.05; done
exit 137
"""
REMOVES = """#!/bin/sh
echo "$@" >> FOLDER/asked
[ -e FOLDER/late ] && { rm FOLDER/late; echo "Error: No such container" >&2; exit 1; }
touch FOLDER/removed
echo "$2"
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A folder with a client and what removes its container."""
    executable(tmp_path / "run", CLIENT.replace("FOLDER", str(tmp_path)))
    executable(tmp_path / "remove", REMOVES.replace("FOLDER", str(tmp_path)))
    return tmp_path


def start(node: Node, engine: Path) -> None:
    """The client as the command, with the engine's word for its removal."""
    link, _ = node.connect()
    stop = [str(engine / "remove"), "rm", "name-of-it"]
    told = link.follow(
        node.following(), "node_start", argv=[str(engine / "run")], env=node.marks, defaults={}, drop=[], bin=None, stop=stop
    )
    assert told["fresh"]
    node.printed(b"ready")


def asked(engine: Path) -> list[str]:
    """How often the engine was asked to remove it."""
    return (engine / "asked").read_text().splitlines() if (engine / "asked").exists() else []


def test_a_container_is_removed_when_its_client_has_ended(node: Node, engine: Path) -> None:
    """Once; and then nobody has to any more."""
    start(node, engine)
    (engine / "removed").touch()
    assert node.wait_for("outcome")["exit_code"] == 137
    assert asked(engine) == ["rm name-of-it"]
    assert not (node.spool / "container.json").exists()


def test_a_container_is_removed_at_the_end_of_the_grace(node: Node, engine: Path) -> None:
    """Where nobody in it could be told, its client was."""
    start(node, engine)
    node.links[-1].ask("node_stop", attempt=0, grace=0, reason="cancel")
    node.wait_for("outcome")
    assert asked(engine)


@pytest.mark.parametrize("roles", [["agent"], ["agent", "warden"]], ids="+".join)
def test_whoever_is_left_removes_the_container(node: Node, engine: Path, roles: list[str]) -> None:
    """The warden; after both the follower of the spool.  An engine that is still making it is asked again."""
    start(node, engine)
    node.wait_for("started")
    (engine / "late").touch()
    node.kill_at_once(*roles)
    assert node.wait_for("outcome")["kind"] == "agent lost"
    assert len(asked(engine)) == 2


def test_a_sweep_removes_the_container_of_a_spool_that_nobody_looks_after(node: Node, engine: Path) -> None:
    """As gc does it, with the job's folder."""
    start(node, engine)
    node.wait_for("started")
    node.links[-1].close()
    node.kill_at_once("warden", "agent")
    link, _ = node.connect()
    link.ask("node_sweep", marks={"LAUNCHER_JOB_ID": node.job_id}, remove=True)
    eventually(lambda: asked(engine), "the engine was asked")
    assert not node.job.exists()

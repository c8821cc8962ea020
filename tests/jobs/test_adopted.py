"""A job whose coordinator died while it told the nodes to begin."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

from tests.jobs.desk import Desk, eventually, living


def test_what_was_started_is_stopped_where_not_every_node_can_be_reached_again(local: Desk) -> None:
    """The job fails, as it would have at its start; nothing of it goes on."""
    process = local.start("--nodes", "2", "--grace", "1s", "--command", "echo on; exec sleep 1000")
    local.happened("following")
    local.printed(b"on", 0, 1)
    command = local.pids("pid", 1)
    for pid in (process.pid, local.coordinator(), command):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    _as_before_node_1_began(local.folder())
    local.run("wait", "latest", check=69)
    told = local.json("status", "latest")
    assert told["reason_code"] == "NodesUnreachable"
    eventually(lambda: not living(local.folder().name), "the end of what ran")


def _as_before_node_1_began(folder: Path) -> None:
    """What the coordinator had written then; and the interpreter of node 1 has gone since, while its command never began."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
    kept = [event for event in events if event["type"] != "following" and not (event["type"] == "agent" and event["node"] == 1)]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept))
    shutil.rmtree(folder / "logs" / "node-1")
    plan = json.loads((folder / "plan.json").read_text())
    plan["nodes"][1]["host"]["python"] = "/nowhere/python3"
    (folder / "plan.json").write_text(json.dumps(plan))

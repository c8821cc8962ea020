"""What a job's training is told and what it needs installed, from the command line to the node and back."""

from __future__ import annotations

import json

from tests.jobs.desk import Desk


def test_hyperparameters_reach_the_command_and_no_reader(desk: Desk) -> None:
    """As variables, as arguments for a shell, and as a file of texts that only the user can read; secrets stay masked here."""
    show = 'echo "$PAI_HPS"; echo "$PAI_HPS_BATCH_SIZE"; eval "printf \'%s\\n\' $PAI_USER_ARGS"; '
    show += "cat $PAI_CONFIG_DIR/hyperparameters.json; stat -c %a $PAI_CONFIG_DIR/hyperparameters.json"
    said = ("--hp", "batch-size=32", "--hp", "note=a b", "--hp", "api_key=hu'sh", "--hp", "dims=[1, 2]", "--label", "team=vision")
    desk.submit("--nodes", "2", *said, "--command", show)
    for node in (0, 1):
        lines = desk.log(node).decode().splitlines()
        assert json.loads(lines[0]) == {"batch-size": 32, "note": "a b", "api_key": "hu'sh", "dims": [1, 2]}
        assert lines[1] == "32"
        assert lines[2:10] == ["--batch-size", "32", "--note", "a b", "--api_key", "hu'sh", "--dims", "[1, 2]"]
        assert json.loads(lines[10]) == {"batch-size": "32", "note": "a b", "api_key": "hu'sh", "dims": "[1, 2]"}
        assert lines[11] == "600"
    kept = [path for path in desk.folder().rglob("*") if path.is_file() and "logs" not in path.parts]
    assert not [path for path in kept if b"hu'sh" in path.read_bytes()]
    assert [event for event in desk.events() if event["type"] == "prepared"]
    assert desk.json("status", "latest")["labels"] == {"team": "vision"} == desk.json("list")["jobs"][0]["labels"]


def test_a_job_with_nothing_to_prepare_has_no_such_step(local: Desk) -> None:
    """It costs nothing: no request, no event."""
    local.submit("--command", "env")
    assert not [event for event in local.events() if event["type"] == "prepared" or event.get("step") == "prepare"]
    assert b"PAI_HPS" not in local.log(0) and b"PAI_USER_ARGS" not in local.log(0)

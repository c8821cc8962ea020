"""A node that speaks our wire wrongly: the submitting side says so, writes nowhere else, and does not hang."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from launcher.replica import Replica
from tests.attack import hostile
from tests.attack.nodes import Nodes
from tests.jobs.desk import Desk

REAL = shutil.which("python3") or sys.executable


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("garbage", "answers rubbish"),
        ("huge", "answers rubbish"),
        ("hello", "answers without"),
        ("no object", "refused"),
        ("names", "the node sent something odd"),
        ("notes", "the node sent something odd"),
        ("deep", "the node sent something odd"),
        ("types", "b: its list of outputs is none"),
    ],
)
def test_a_node_that_lies_fails_its_job_with_a_sentence(nodes: Nodes, mode: str, sentence: str) -> None:
    """Whatever the lie; the honest node's part is stopped."""
    lie(nodes, mode)
    before = outside(nodes)
    done = nodes.desk.submit("--command", "echo true; echo x > $PAI_OUTPUT_MODEL/$RANK", check=69)
    assert sentence in done.stderr
    assert outside(nodes) == before
    nodes.nothing_left()


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("needs", "b: it wants a file that is not of this input: '../../../../etc/passwd'"),
        ("no need", "b: it wants a file that is not of this input"),
        ("placed", "b: it does not say where the input is"),
    ],
)
def test_a_node_gets_no_file_that_is_not_of_the_input(nodes: Nodes, mode: str, sentence: str) -> None:
    """Whatever it says that it lacks."""
    data = nodes.folder / "data"
    data.mkdir()
    (data / "a").write_text("a")
    lie(nodes, mode)
    done = nodes.desk.submit("--input", f"x={data}", "--command", "true", check=69)
    assert sentence in done.stderr
    nodes.nothing_left()


def test_odd_answers_about_room_change_nothing(nodes: Nodes) -> None:
    """They are only told."""
    data = nodes.folder / "data"
    data.mkdir()
    (data / "a").write_text("a")
    lie(nodes, "free")
    nodes.desk.submit("--input", f"x={data}", "--command", "cat $PAI_INPUT_X/a")


def test_checkpoints_that_would_lie_elsewhere_are_not_copied(nodes: Nodes) -> None:
    """Names that lead out, and sizes that are none; the others are copied."""
    lie(nodes, "checkpoints")
    place, before = nodes.folder / "kept", outside(nodes)
    nodes.desk.submit("--checkpoints-path", str(place), "--command", "echo x > $PAI_OUTPUT_CHECKPOINTS/$RANK")
    assert sorted(path.name for path in place.iterdir()) == ["0", "1", "launcher-manifest.json"]
    assert outside(nodes) - {"kept"} == before


def test_a_checkpoint_larger_than_this_machine_is_refused(nodes: Nodes) -> None:
    """Before a byte of it is taken."""
    lie(nodes, "endless")
    done = nodes.desk.submit("--checkpoints-path", str(nodes.folder / "kept"), "--command", "true", check=69)
    assert "big has" in done.stderr and "are free here" in done.stderr


def test_outputs_that_would_lie_elsewhere_are_left_where_they_are(nodes: Nodes) -> None:
    """Names that lead out, links that do, impossible ones."""
    lie(nodes, "listing")
    before = outside(nodes)
    nodes.desk.submit("--command", "echo true; echo x > $PAI_OUTPUT_MODEL/$RANK")
    output = nodes.desk.folder() / "output"
    assert {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()} >= {"model/0", "model.json"}
    assert not (output / "model" / "out").is_symlink()
    assert outside(nodes) == before


BAD_EVENTS = [
    b'{"type":"started","attempt":"0","pid":1}',
    b'{"type":"started","attempt":0,"pid":"x"}',
    b'{"type":"workers","attempt":0,"workers":[{"rank":{}}]}',
    b'{"type":"workers","attempt":0,"workers":7}',
    b'{"type":"worker gone","attempt":0,"local_rank":[]}',
    b'{"type":"outcome","attempt":0,"kind":[],"exit_code":"x"}',
    b'{"type":["x"]}',
    b"[" * 100000,
    b"\xff\xfe",
    b"7",
]


def test_events_that_are_none_are_passed_over(tmp_path: Path) -> None:
    """By whom they come first, and they are kept as they came."""
    replica = Replica(tmp_path)
    text = b"\n".join([*BAD_EVENTS, b'{"type":"started","attempt":0,"pid":12}', b""])
    assert [event["pid"] for event in replica.write("events.jsonl", 0, text)] == [12]
    assert (tmp_path / "events.jsonl").read_bytes() == text
    replica.close()


def test_events_without_end_are_refused(tmp_path: Path) -> None:
    """A line that never ends is not kept in memory, and no more is kept on the disk than an agent would ever tell."""
    replica = Replica(tmp_path)
    block, at = b"x" * (1 << 20), 0
    with pytest.raises(ValueError, match="events without end"):
        while at < 1 << 30:
            replica.write("events.jsonl", at, block)
            at += len(block)
            assert len(replica._line) <= 1 << 20
    assert (tmp_path / "events.jsonl").stat().st_size <= 64 << 20
    replica.close()


def test_a_spoiled_line_of_the_job_s_events_spoils_no_command(local: Desk) -> None:
    """list, status, events and logs go on as if it were not there."""
    local.submit("--command", "echo said")
    path = local.folder() / "events.jsonl"
    with path.open("ab") as file:
        file.write(b"\n".join([*BAD_EVENTS, b'{"time":1.0,"type":"end"}', b'{"time":1.0,"type":"unheard"}', b'{"n":']))
    assert local.json("status", "latest")["status"] == "Succeed"
    assert local.json("list")
    local.run("events", "latest")
    assert local.run("logs", "latest").stdout == "[0] said\n"


def lie(nodes: Nodes, mode: str) -> None:
    """Make node b answer through hostile.py."""
    program = nodes.folder / "lying-python"
    program.write_text(f'#!/bin/sh\nexec {REAL} {Path(hostile.__file__)} "{mode}" {REAL} "$@"\n')
    program.chmod(0o755)
    text = nodes.inventory.read_text()
    nodes.inventory.write_text(text.replace("name: b\n", f"name: b\n  python: {program}\n"))
    assert str(program) in nodes.inventory.read_text()


def outside(nodes: Nodes) -> set[str]:
    """What lies in the test's folder beside the jobs and the nodes' homes."""
    return {path.name for top in (nodes.folder, nodes.folder.parent) for path in top.iterdir()} - {nodes.desk.home.name}

"""What nodes and commands write does not steer the terminal on which it is shown."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import LauncherError, plain
from launcher.replica import Replica
from launcher.screen import Screen, unsteered
from tests.jobs.desk import PATIENCE, Desk

TITLE, CLIPBOARD, RED = "\x1b]0;stolen\x07", "\x1b]52;c;cm0gLXJm\x1b\\", "\x1b[31mred\x1b[0m"
STEERING = [TITLE, CLIPBOARD, "\x1b[2J\x1b[1;1H", "\x1bc", "\x1b[6n", "\x1bP+q544e\x1b\\", "\x9b2J", "\x07", "\x0e", "\x7f"]


@pytest.mark.parametrize("text", STEERING, ids=ascii)
def test_a_log_line_on_a_terminal_keeps_its_words_and_colors_alone(text: str) -> None:
    """Titles, the clipboard, questions to the terminal, its whole screen: none of it arrives."""
    assert unsteered(f"a{text}b {RED} ü\t€".encode()) == f"ab {RED} ü\t€".encode()


@pytest.mark.parametrize("text", [*STEERING, "\u202e", "\u2066", "\r", "\udcff", "\ud800"], ids=ascii)
def test_a_sentence_of_ours_shows_what_steers_as_an_escape(text: str) -> None:
    """So that whoever reads it sees that it was there; lines and tabs are what they were, and colors go."""
    shown = plain(f"node1: {text} {RED}\n\tnext ü")
    assert shown.isprintable() is False and shown.replace("\n", "").replace("\t", "").isprintable()
    assert "\\" in shown and shown.endswith(" red\n\tnext ü") and plain(shown) == shown
    assert str(LauncherError(f"{text} {RED}", where=text, lines=[text])).replace("\n", "").isprintable()


def on_a_terminal(desk: Desk, *words: str, **env: str) -> bytes:
    """What a command writes to a terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher", *words], env={**desk.environment, "TERM": "xterm", **env},
        stdin=its, stdout=its, stderr=its,
    )  # fmt: skip
    os.close(its)
    said = b""
    try:
        while block := os.read(ours, 65536):
            said += block
    except OSError:
        # The other side of a terminal is closed.
        pass
    os.close(ours)
    process.wait(PATIENCE)
    return said


def test_a_command_writes_to_the_terminal_what_it_may(local: Desk, tmp_path: Path) -> None:
    """As lines of its log and as its traceback, then by logs, status and events; a pipe gets the bytes as they are."""
    (tmp_path / "src").mkdir()
    text = f"print({TITLE + CLIPBOARD + RED!r}, flush=True)\nraise ValueError({TITLE + CLIPBOARD + RED!r})\n"
    (tmp_path / "src" / "a.py").write_text(text)
    said = on_a_terminal(local, "submit", *local.extra, "--source-dir", str(tmp_path / "src"), "--", "a.py")
    said += b"".join(on_a_terminal(local, command, "latest") for command in ("logs", "status", "events"))
    assert b"stolen" in said and b"\x1b]" not in said and b"\x07" not in said
    assert b"\x1b[31mred" in said and b"\\x1b]0;stolen" in said
    assert TITLE in local.run("logs", "latest").stdout


def test_words_in_brackets_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moving line shows what a node says as it is: pip's extras, or what would end a style that never began."""
    import io

    shown = io.StringIO()
    shown.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", shown)
    screen = Screen()
    event = {"type": "progress", "step": "prepare", "done": 0, "total": 2, "what": f"node1: Collecting x[/y] {TITLE}"}
    screen._progress(event)
    screen.rest()
    assert "Collecting x[/y]" in shown.getvalue() and TITLE not in shown.getvalue()


def test_warnings_that_lack_what_is_told_of_them_are_passed_over(tmp_path: Path) -> None:
    """Nothing that follows the job's events falls over them."""
    replica = Replica(tmp_path)
    odd = [{"type": "warned"}, {"type": "warned", "signal": 7, "told": [], "untold": []}]
    odd.append({"type": "warned", "signal": "X", "told": [3], "untold": []})
    assert replica.write("events.jsonl", 0, "".join(json.dumps(one) + "\n" for one in odd).encode()) == []
    replica.close()


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_who_wants_no_colors_gets_none_of_ours(local: Desk, env: dict[str, str]) -> None:
    """The prefix of a log line is plain then; what the command colored is the command's own."""
    local.submit("--command", f"printf '%s' '{RED}'")
    assert on_a_terminal(local, "logs", "latest", **env) == f"[0] {RED}\r\n".encode()
    assert on_a_terminal(local, "logs", "latest") == f"\x1b[36m[0]\x1b[0m {RED}\r\n".encode()

"""TensorBoard on a job's logs: it answers, it ends, and its absence is a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import api, tensorboard
from launcher.agent import procs
from launcher.errors import LauncherError, UsageError
from launcher.store import Folder
from tests.jobs.desk import Desk, eventually

SCALAR = """
import os, sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
writer.add_event(Event(step=1, summary=Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])))
writer.close()
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "home", ("--backend", "local"))
    yield desk
    desk.end_everything()


def tags(uri: str) -> object:
    with urllib.request.urlopen(uri + "data/plugin/scalars/tags", timeout=120) as answer:
        return json.load(answer)


def write(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", SCALAR, str(folder)], check=True, capture_output=True)


def test_it_answers_when_it_is_returned_and_stops(tmp_path: Path) -> None:
    """On a free port of this machine alone; what is written later is found."""
    shown = tensorboard.start(tmp_path / "later")
    try:
        assert shown.app_uri.startswith("http://127.0.0.1:") and shown.status == "Running"
        write(tmp_path / "later")
        eventually(lambda: tags(shown.app_uri), "it finds what was written")
    finally:
        shown.stop()
    assert shown.status == "Stopped" and "Stopped" in repr(shown)
    shown.stop()
    shown.delete()


def test_it_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    """However that ends."""
    text = f"from launcher import tensorboard as t; s = t.start({str(tmp_path)!r}); print(s._process.pid, flush=True); s.wait()"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        os.kill(program.pid, signal.SIGKILL)
    eventually(lambda: procs.start_time(pid) is None, "it is gone")


def test_its_last_lines_are_told_when_it_does_not_start(tmp_path: Path) -> None:
    """As where its port is taken."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LauncherError) as caught:
            tensorboard.start(tmp_path, taken.getsockname()[1])
    assert "in use" in str(caught.value)


def test_its_absence_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"TensorBoard is not installed[\s\S]*-m pip install 'launcher\[tensorboard\]'"):
        tensorboard.start(tmp_path)


def test_a_jobs_logs_while_it_runs_and_after(local: Desk, tmp_path: Path) -> None:
    """`launcher tensorboard` prints the address and ends by Ctrl-C."""
    go = tmp_path / "go"
    (tmp_path / "src").mkdir()
    (tmp_path / "src/scalar.py").write_text(SCALAR)
    command = f"python scalar.py $PAI_OUTPUT_TENSORBOARD; until [ -e {go} ]; do sleep 0.1; done"
    job = local.detach("--source-dir", str(tmp_path / "src"), "--command", command)
    folder = Folder(local.folder())
    place = api.tensorboard_place(folder)
    assert place != folder.output / "tensorboard"
    eventually(lambda: list(place.glob("events*")), "it writes")
    words = [sys.executable, "-m", "launcher", "tensorboard", job]
    with subprocess.Popen(words, env=local.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None
        uri = shown.stdout.readline().strip()
        eventually(lambda: tags(uri + ""), "the running job's scalars")
        shown.send_signal(signal.SIGINT)
        assert shown.wait(120) in (0, 130)
    go.touch()
    local.run("wait", job)
    assert api.tensorboard_place(folder) == folder.output / "tensorboard"

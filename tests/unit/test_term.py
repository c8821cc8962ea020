"""A coordinator hears a TERM whenever it comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.model import to_json
from launcher.planning import Request, draft
from launcher.store import Store, write_json

AT_EVERY_LINE = """
import os, signal, sys
from pathlib import Path
from launcher.coordinator.loop import Coordinator
from launcher.coordinator.owner import Owner
from launcher.store import Folder

def told(frame, event, _):
    if event == "line":
        signal.raise_signal(signal.SIGTERM)
    return told

def watch(frame, event, _):
    within = frame
    while within is not None and within.f_code is not Coordinator._attend.__code__:
        within = within.f_back
    return None if within is None else told

folder = Folder(Path(sys.argv[1]))
with Owner(folder) as owner:
    coordinator = Coordinator(folder, owner)
    sys.settrace(watch)
    coordinator.run()
os._exit(0)
"""


def test_a_term_is_heard_at_every_line_of_what_waits_for_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that waits for a lock which the interrupted code holds waits for ever."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    plan = draft(Request(words=("true",), nodes=1), {}).plan
    folder = Store().create(plan.job_id)
    write_json(folder.plan, to_json(plan))
    subprocess.run([sys.executable, "-c", AT_EVERY_LINE, folder.root], check=True, timeout=120)
    assert "starting" not in folder.events.read_text()

"""A submit that is interrupted leaves a job that runs, or none."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from launcher import api
from launcher.planning import Request, draft
from launcher.store import Folder, Store


def test_a_ctrl_c_at_any_line_of_submit_leaves_no_whole_job_that_nobody_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder would look like that of a job whose coordinator is gone, and the next who attends to it would start it."""
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path))
    monkeypatch.setattr(api, "_start", lambda *_: None)
    at = 0
    while _interrupted(at, whole := list[Folder]()):
        assert whole == []
        at += 1
    assert at > 5 and len(whole) == 1


def _interrupted(line: int, whole: list[Folder]) -> bool:
    """Whether a Ctrl-C at that line of `api.submit` stopped it; ``whole`` gets the jobs that are there then."""
    seen = 0
    started = list[bool]()

    def lines(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            # From `before_start` on a Ctrl-C is only noted.
            if seen == line + 1 and not started:
                raise KeyboardInterrupt
        return lines

    drafted = draft(Request(words=("true",), nodes=1), {})
    before = set(_whole())
    sys.settrace(lambda frame, event, _: lines if frame.f_code is api.submit.__code__ else None)
    try:
        api.submit(drafted, before_start=lambda: started.append(True))
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        whole += [Folder(root) for root in sorted(set(_whole()) - before)]
    return False


def _whole() -> list[Path]:
    return [folder.root for folder in Store().folders() if folder.plan.exists()]

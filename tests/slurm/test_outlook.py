"""Why Slurm signals a job: from what scontrol said of real jobs in that moment."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from launcher.coordinator.notice import Notices
from launcher.planning import Request, draft
from launcher.slurm import ask, warning
from launcher.slurm import outlook as questions
from launcher.slurm.outlook import Outlook, outlook, read
from tests.slurm.programs import AWAY, Programs

DIES_OF_TERM = """import os
for pid in (os.getppid(), os.getpid()):
    os.kill(pid, 15)
print("JobState=COMPLETING Reason=TimeLimit Restarts=0 EndTime=5 PreemptTime=None")
"""
RUNNING = {"JobState": "RUNNING", "Reason": "None", "Restarts": "0", "EndTime": "1000", "PreemptTime": "None"}
OVER = {**RUNNING, "JobState": "COMPLETING"}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, the programs here get their answer out."""
    monkeypatch.setattr(questions, "PATIENCE", 60.0)


@pytest.mark.parametrize(
    ("told", "warned", "expected"),
    [
        (RUNNING, 90, Outlook("Timeout", 1000)),
        ({**RUNNING, "EndTime": "9000"}, 90, Outlook(None, 9000)),
        ({**RUNNING, "EndTime": "Unknown"}, 90, Outlook(None, None)),
        ({**RUNNING, "PreemptTime": "895"}, 90, Outlook("Preempted", 1000)),
        ({**RUNNING, "PreemptTime": "895"}, None, Outlook("Preempted", 1000)),
        (OVER, None, Outlook("Cancelled", 1000, True)),
        ({**OVER, "Reason": "TimeLimit"}, None, Outlook("Timeout", 1000, True)),
        ({**OVER, "Reason": "DeadLine"}, None, Outlook("Deadline", 1000, True)),
        ({**OVER, "PreemptTime": "895"}, None, Outlook("Preempted", 1000, True)),
        ({**OVER, "Restarts": "1", "EndTime": "Unknown"}, None, Outlook("Requeued", None, True)),
        ({**RUNNING, "JobState": "NODE_FAIL"}, None, Outlook("NodeFail", 1000, True)),
        ({**RUNNING, "JobState": "OUT_OF_MEMORY"}, None, Outlook("OutOfMemory", 1000, True)),
    ],
)
def test_one_signal_has_many_reasons(told: dict[str, str], warned: float | None, expected: Outlook) -> None:
    """A warning that comes long before the limit was sent by somebody."""
    assert read(told, 0, warned, 900.0) == expected


def test_a_slurmctld_that_is_away_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """And is not waited for: the job may have no more than KillWait."""
    programs = Programs(tmp_path_factory.mktemp("slurm"))
    programs.says("scontrol", err=AWAY, status=1)
    monkeypatch.setenv("PATH", programs.environ["PATH"])
    assert outlook("7", 0) is None
    programs.says("scontrol", "JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=2 EndTime=5 PreemptTime=None")
    assert outlook("7", 2) == Outlook("Timeout", 5, True)


def test_before_a_limit_there_is_time_for_a_slow_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Why a job is warned is part of the warning; a job that is being ended has no such time."""
    programs = Programs(tmp_path / "slurm")
    programs.says("scontrol", "JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=0 EndTime=5 PreemptTime=None")
    script = programs.folder / "bin/scontrol"
    script.write_text(script.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nsleep 0.5\n"))
    monkeypatch.setenv("PATH", programs.environ["PATH"])
    monkeypatch.setattr(questions, "PATIENCE", 0.1)
    assert outlook("7", 0) is None
    assert outlook("7", 0, 50.0) == Outlook("Timeout", 5, True)


LATE = """#!/bin/sh
case "$*" in *"show job"*) ;; *) exit 1 ;; esac
[ -e {again} ] || {{ touch {again}; exec sleep 600; }}
echo "JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=0 EndTime=5 PreemptTime=None"
"""


def test_what_slurm_did_not_say_in_time_is_asked_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The job is stopped at once; why comes after it."""
    programs = Programs(tmp_path / "slurm")
    programs.says("scontrol")
    (programs.folder / "bin/scontrol").write_text(LATE.format(again=tmp_path / "again"))
    monkeypatch.setenv("PATH", programs.environ["PATH"])
    monkeypatch.setattr(questions, "PATIENCE", 0.1)
    monkeypatch.setattr(ask, "kill_wait", lambda: 180)
    plan, told = replace(draft(Request(words=("true",)), {}).plan, allocation="7"), SimpleQueue[dict[str, Any]]()
    notices = Notices(plan, told.put)
    notices.hear({"node": None, "signal": "SIGTERM"})
    first = notices.answered(told.get()["event"])
    assert (first["type"], first["reason_code"]) == ("revoked", "Cancelled") and notices.unsure
    late = told.get()
    assert (late["type"], late["reason_code"]) == ("why revoked", "Timeout") and "time limit" in late["message"]


def test_a_scontrol_that_cannot_be_started_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As where no process more is allowed: the job goes on without its answer."""
    programs = Programs(tmp_path / "slurm")
    programs.says("scontrol")
    (programs.folder / "bin/scontrol").write_text("no program")
    monkeypatch.setenv("PATH", programs.environ["PATH"])
    assert outlook("7", 0) is None


@pytest.mark.parametrize(
    ("text", "number", "seconds"),
    [("B:USR2@90", 12, 90), ("B:USR1", 10, 60), ("RB:SIGUSR1@5", 10, 5), ("B:1@7", 1, 7)],
)
def test_a_signal_is_named_as_sbatch_takes_it(text: str, number: int, seconds: float) -> None:
    """By name, with or without SIG, or by number; 60 s are sbatch's own."""
    assert warning.parse(text) == (number, seconds)


@pytest.mark.parametrize("text", ["B:USR9@90", "B:TERM@90", "B:INT", "B:9@90", "B:999"])
def test_a_signal_that_would_end_the_job_is_no_warning(text: str) -> None:
    """Nor is one that there is not."""
    with pytest.raises(ValueError, match=r"no signal|something else already"):
        warning.parse(text)


def test_the_question_outlives_slurms_own_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TERM comes to every process of the batch step, scontrol included; ours still hears of it."""
    programs, heard = Programs(tmp_path / "slurm"), list[int]()
    script = programs.folder / "bin/scontrol"
    script.write_text(f"#!{sys.executable} -Su\n{DIES_OF_TERM}")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", programs.environ["PATH"])
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        assert outlook("7", 0) == Outlook("Timeout", 5, True)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]

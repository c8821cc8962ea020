"""Questions put to Slurm's commands: an answer, the answer that there is none, and no answer are three things."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import SlurmSilent
from launcher.slurm import ask
from launcher.slurm.ask import NoAnswer, NoSuchJob, Report
from tests.slurm.programs import AWAY, INVALID, NO_ACCOUNTING, Programs

SUBMITTED = 1796037342.0
SCONTROL = (
    "JobId=51 JobName=train a|b UserId=train(1000) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=0 "
    "ExitCode=1:0 SubmitTime=1796037342 EligibleTime=1796037342 StartTime=1796037343 EndTime=1796037344 NodeList=m[1-2]\n"
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """squeue, sacct and scontrol of a site without accounting that knows no job."""
    made = Programs(tmp_path)
    # However busy this machine is, the programs here get their answer out; who wants to hear that one does not says so.
    for limit in ("PATIENCE", "_PING"):
        monkeypatch.setattr(ask, limit, 60.0)
    monkeypatch.setenv("PATH", made.environ["PATH"])
    made.says("squeue", err=INVALID, status=1)
    made.says("sacct", err=NO_ACCOUNTING, status=1)
    made.says("scontrol", err=INVALID, status=1)
    return made


def squeue(state: str, *, job: str = "51", submit: str = "1796037342", reason: str = "None", name: str = "train") -> str:
    """One line, in the order of our --format."""
    return f"{job}|{state}|{submit}|1796037343|N/A|m[1-2],n-three|{reason}|{name}\n"


def sacct(state: str, *, submit: str = "1796037342", name: str = "train") -> str:
    """One line of --parsable2."""
    return f"51|{state}|{submit}|1796037343|1796037400|0:15|m[1-2],n-three|None|{name}\n"


def test_a_running_job_costs_one_question(programs: Programs) -> None:
    """squeue with explicit fields, whatever SQUEUE_FORMAT says."""
    programs.says("squeue", squeue("RUNNING"))
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, Report)
    assert (told.state.reason_code, told.state.ended, told.source) == ("Running", False, "squeue")
    assert (told.submitted_at, told.started_at, told.ended_at) == (SUBMITTED, SUBMITTED + 1, None)
    assert told.nodes == ("m1", "m2", "n-three")
    assert programs.calls("sacct") == programs.calls("scontrol") == []


def test_a_waiting_job_says_why(programs: Programs) -> None:
    """In Slurm's own word, without nodes and times that are not there yet."""
    programs.says("squeue", "51|PENDING|1796037342|N/A|N/A||Resources|train\n")
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, Report)
    assert (told.state.word, told.reason, told.nodes, told.started_at) == ("PENDING", "Resources", (), None)


def test_a_job_that_squeue_forgot_is_in_the_accounting(programs: Programs) -> None:
    """With who cancelled it, and the signal that ended it."""
    programs.says("sacct", sacct("CANCELLED by 1000"))
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, Report)
    assert (told.state.reason_code, told.word, told.signal, told.source) == ("Cancelled", "CANCELLED by 1000", 15, "sacct")


def test_the_newest_run_of_a_requeued_job_holds(programs: Programs) -> None:
    """The accounting has a line for each."""
    programs.says("sacct", sacct("REQUEUED") + sacct("TIMEOUT"))
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, Report) and told.state.reason_code == "Timeout"


def test_an_ended_job_has_its_exit_code_from_scontrol(programs: Programs) -> None:
    """squeue has no field for it."""
    programs.says("squeue", squeue("FAILED"))
    programs.says("scontrol", SCONTROL)
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, Report)
    assert (told.state.word, told.exit_code, told.signal, told.ended_at) == ("FAILED", 1, None, SUBMITTED + 2)


def test_a_purged_job_without_accounting_is_no_such_job(programs: Programs) -> None:
    """slurmctld has answered; all of its words are kept."""
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, NoSuchJob)
    assert INVALID in told.words and NO_ACCOUNTING in told.words


def test_a_slurmctld_that_is_away_says_nothing(programs: Programs) -> None:
    """Not that the job is gone."""
    programs.says("squeue", err=AWAY, status=1)
    programs.says("scontrol", err=AWAY, status=1)
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, NoAnswer) and AWAY in told.words


def test_an_end_in_the_accounting_holds_while_slurmctld_is_away(programs: Programs) -> None:
    """... but what is no end there may be old: that is no answer."""
    programs.says("squeue", err=AWAY, status=1)
    programs.says("scontrol", err=AWAY, status=1)
    programs.says("sacct", sacct("TIMEOUT"))
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, Report) and told.state.reason_code == "Timeout"
    programs.says("sacct", sacct("RUNNING"))
    assert isinstance(ask.job_state("51", SUBMITTED), NoAnswer)


def test_no_commands_at_all_are_no_answer(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Slurm knows nothing of a job."""
    monkeypatch.setenv("PATH", "/nowhere")
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, NoAnswer) and "there is no squeue on PATH" in told.words


def test_a_command_that_hangs_is_no_answer(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's tools try again for a minute and more."""
    monkeypatch.setattr(ask, "PATIENCE", 0.2)
    for name in ("squeue", "sacct", "scontrol"):
        path = programs.folder / "bin" / name
        path.write_text("#!/bin/sh\nexec sleep 60\n")
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, NoAnswer) and "squeue did not answer within 0.2 s" in told.words


def test_who_is_in_haste_does_not_wait_for_a_slurmctld_that_does_not_run(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's tools try for ten seconds; `scontrol ping` knows at once, and one that is only slow is waited for."""
    monkeypatch.setattr(ask, "HASTE", 0.2)
    answer = squeue("RUNNING").strip()
    slow = programs.folder / "bin/squeue"
    slow.write_text("#!/bin/sh\nexec sleep 300\n")
    programs.says("scontrol", "Slurmctld(primary) at login is DOWN\n")
    # `scontrol` too may be slow where everything is: longer than squeue was waited for.
    ping = programs.folder / "bin/scontrol"
    ping.write_text(ping.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nsleep 0.5\n"))
    told = ask.job_state("51", SUBMITTED, haste=True)
    assert isinstance(told, NoAnswer) and "Slurmctld(primary) at login is DOWN" in told.words
    programs.says("scontrol", "Slurmctld(primary) at login is DOWN\nSlurmctld(backup) at spare is UP\n")
    slow.write_text(f"#!/bin/sh\nuntil [ -e {programs.folder}/scontrol.calls ]; do sleep 0.1; done; echo '{answer}'\n")
    (programs.folder / "scontrol.calls").unlink()
    assert isinstance(ask.job_state("51", SUBMITTED, haste=True), Report)


def test_a_number_that_is_anothers_now_is_no_such_job(programs: Programs) -> None:
    """By its submit time, or by its name where that is known."""
    programs.says("squeue", squeue("COMPLETED", submit="1796999999", name="other"))
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, NoSuchJob) and any("another one: other" in word for word in told.words)
    programs.says("squeue", squeue("COMPLETED", name="other"))
    assert isinstance(ask.job_state("51", SUBMITTED, name="train"), NoSuchJob)


def test_a_reused_number_does_not_hide_our_job_in_the_accounting(programs: Programs) -> None:
    """The accounting keeps both, told apart by their times."""
    programs.says("squeue", squeue("RUNNING", submit="1796999999"))
    programs.says("sacct", sacct("COMPLETED") + sacct("RUNNING", submit="1796999999"))
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, Report) and (told.state.word, told.submitted_at) == ("COMPLETED", SUBMITTED)


def test_a_requeued_job_is_still_ours_though_its_submit_time_is_new(programs: Programs) -> None:
    """A requeue sets it anew: scontrol says how often, and the name says whose."""
    programs.says("squeue", squeue("PENDING", submit="1796999999"))
    programs.says(
        "scontrol", SCONTROL.replace("Restarts=0", "Restarts=1").replace("SubmitTime=1796037342", "SubmitTime=1796999999")
    )
    told = ask.job_state("51", SUBMITTED)
    assert isinstance(told, Report) and told.restarts == 1
    told = ask.job_state("51", SUBMITTED, name="train")
    assert isinstance(told, Report) and told.source == "squeue"


def test_a_name_with_bars_in_it_shifts_no_field(programs: Programs) -> None:
    """It is asked for last."""
    programs.says("squeue", squeue("RUNNING", name="a|b|c"))
    assert isinstance(ask.job_state("51", None, name="a|b|c"), Report)


def test_configuration_is_read_as_values(programs: Programs) -> None:
    """Seconds, a range of ports, and None for what a site has not set."""
    programs.says(
        "scontrol",
        "Configuration data as of 2026-11-30T11:00:00\nClusterName             = lab\nKillWait                = 30 sec\n"
        "SrunPortRange           = 60001-63000\nPrologFlags             = (null)\n",
    )
    assert ask.config("ClusterName") == "lab"
    assert ask.config("PrologFlags") is None and ask.config("Nothing") is None
    assert (ask.kill_wait(), ask.srun_port_range()) == (30, (60001, 63000))
    assert programs.calls("scontrol") == ["show config"], "one question for all of them"
    programs.says("scontrol", "SrunPortRange           = 0-0\n")
    assert (ask.kill_wait(), ask.srun_port_range()) == (30, None)


def test_a_nodes_address_is_its_nodeaddr(programs: Programs) -> None:
    """Not its name; and an unknown node is an error in Slurm's words, wherever it prints them."""
    programs.says("scontrol", "NodeName=n-three Arch=x86_64 NodeAddr=10.0.0.3 NodeHostName=m3 OS=Linux\n")
    assert ask.node_address("n-three") == "10.0.0.3"
    programs.says("scontrol", "Node nope not found\n", status=1)
    with pytest.raises(SlurmSilent, match="Node nope not found"):
        ask.node_address("nope")

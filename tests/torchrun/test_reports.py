"""What is read from reports that torchrun really wrote; see reports/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.torchrun.report import Report, bind_failed, is_consequence, last_traceback, log_hint, parse_report

REPORTS = Path(__file__).parent / "reports"
VERSIONS = sorted(path.name for path in REPORTS.iterdir() if path.is_dir())


def said(version: str, ending: str, file: str = "node-0") -> str:
    return (REPORTS / version / ending / f"{file}.err").read_text()


def report(version: str, ending: str, file: str = "node-0") -> Report:
    found = parse_report(said(version, ending, file))
    assert found is not None
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("ending", "exit_code", "signal"),
    [
        ("raise", 1, None),
        ("chained", 1, None),
        ("launch", 1, None),
        ("recorded", 1, None),
        ("exit3", 3, None),
        ("SIGKILL", 137, "SIGKILL"),
        ("SIGSEGV", 139, "SIGSEGV"),
        ("SIGABRT", 134, "SIGABRT"),
    ],
)
def test_the_rank_that_failed_its_exit_code_and_signal(version: str, ending: str, exit_code: int, signal: str | None) -> None:
    """Whatever way rank 1 dies, its ranks, its exit code as a shell gives it, and its signal are found."""
    found = report(version, ending)
    assert (found.root.rank, found.root.local_rank, found.root.exit_code, found.root.signal) == (1, 1, exit_code, signal)
    assert [failure.rank for failure in found.by_themselves] == [1]
    assert found.root.pid is not None
    assert found.root.time is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_global_rank_differs_from_the_local_one(version: str) -> None:
    """On node 1 of two, local rank 1 is global rank 3."""
    assert (report(version, "peer", "node-1").root.rank, report(version, "peer", "node-1").root.local_rank) == (3, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_file_gives_the_message(version: str) -> None:
    """A script under torch's @record says what went wrong; of the others torchrun knows nothing, and so there is no message."""
    found = report(version, "recorded").root
    assert found.message is not None
    assert found.message.endswith("ValueError: bad luck")
    assert found.error_file is not None
    assert found.error_file.endswith("/attempt_0/1/error.json")
    assert report(version, "raise").root.message is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_script_that_is_not_there_fails_on_all_ranks(version: str) -> None:
    """Both ranks end with Python's 2, and the hint names the file."""
    assert {failure.exit_code for failure in report(version, "missing-script").by_themselves} == {2}
    rank_text = said(version, "missing-script", "node-0-rank-0")
    assert last_traceback(rank_text) is None
    assert "nowhere.py" in (log_hint(rank_text) or "")


@pytest.mark.parametrize("version", VERSIONS)
def test_only_a_taken_port_is_a_failed_bind(version: str) -> None:
    """The lost race for MASTER_PORT is told from every other ending."""
    endings = [path.name for path in (REPORTS / version).iterdir()]
    assert [ending for ending in sorted(endings) if bind_failed(said(version, ending))] == ["port-taken"]
    assert parse_report(said(version, "port-taken")) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stopped_torchrun_reports_no_failure(version: str) -> None:
    """SIGTERM to torchrun is no failure of a rank."""
    assert parse_report(said(version, "term")) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cause_is_told_from_its_consequences(version: str) -> None:
    """Of four ranks only the one that raised is a cause; those that lost their peer are consequences, and their hint says so."""
    ranks = {(node, local): said(version, "peer", f"node-{node}-rank-{local}") for node in range(2) for local in range(2)}
    assert [place for place, text in ranks.items() if not is_consequence(text)] == [(1, 1)]
    assert "other ranks" in (log_hint(ranks[0, 0]) or "")
    assert log_hint(ranks[1, 1]) is None
    assert (last_traceback(ranks[1, 1]) or "").splitlines()[-1] == "ValueError: bad luck of one"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_chained_exception_is_shown_whole(version: str) -> None:
    """The traceback begins with the exception that was the cause of the last one."""
    found = last_traceback(said(version, "chained", "node-0-rank-1")) or ""
    assert found.startswith("Traceback (most recent call last):")
    assert "KeyError: 'missing'" in found
    assert found.endswith("RuntimeError: no such setting")
    assert "[rank" not in found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_report_with_something_before_every_line_is_read_too(version: str) -> None:
    """`srun --label` and tools that run torchrun put a prefix before each line."""
    labelled = "".join(f"0: {line}\n" for line in said(version, "recorded").splitlines())
    assert parse_report(labelled) == report(version, "recorded")


def test_the_last_report_counts() -> None:
    """After a restart by the user's own loop, an earlier report is history."""
    version = VERSIONS[-1]
    both = said(version, "SIGKILL") + said(version, "exit3")
    assert parse_report(both) == report(version, "exit3")


def test_a_log_line_stands_in_for_a_report_that_was_not_written() -> None:
    """A torchrun that was killed after the line `failed (exitcode…)` still told the local rank and the exit code."""
    text = said("2.13.0", "SIGKILL")
    cut = text[: text.index("Traceback")]
    found = parse_report(cut)
    assert found is not None
    assert (found.root.rank, found.root.local_rank, found.root.exit_code, found.root.signal) == (None, 1, 137, "SIGKILL")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_report_cut_anywhere_never_raises(version: str) -> None:
    """Half a report, garbage and nothing are read without an error."""
    text = said(version, "all")
    for end in range(0, len(text), 37):
        parse_report(text[:end])
        parse_report(text[end:])
    parse_report("\ufffd\0\n" * 1000 + "Root Cause:\n[0]:\n  rank: x\n")


def test_a_huge_text_is_read_from_its_end() -> None:
    """Megabytes of a user's output before the report cost little and hide nothing, even if they look like one."""
    assert parse_report("Root Cause:\n" * 500_000) is None
    assert parse_report("Root Cause:\n" * 500_000 + said("2.13.0", "exit3")) == report("2.13.0", "exit3")

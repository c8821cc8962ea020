"""Collecting from logs: whole lines, in order, each once, whatever dies and however bad an expression is."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.metrics import read
from launcher.metrics.collect import Collector, _Memory
from launcher.model import MetricDefinition
from tests.jobs.desk import eventually

HERE = str(Path(__file__).parents[2])
LOSS = MetricDefinition("loss", r"loss=(\S+)")


def _rank_of(node: int, local_rank: int | None) -> int | None:
    return None if local_rank is None else 10 * node + local_rank


class Job:
    """A job folder with logs, and a collector as its coordinator has it."""

    def __init__(self, root: Path, *metrics: MetricDefinition) -> None:
        self.root, self.metrics = root, metrics or (LOSS,)
        self.notes: list[str] = []
        (root / "logs").mkdir()
        self.collector = self.new()

    def new(self) -> Collector:
        return Collector(self.root, self.metrics, _rank_of, self.notes.append, HERE)

    def log(self, text: str | bytes, name: str = "node-0/stdout.log") -> None:
        path = self.root / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text if isinstance(text, bytes) else text.encode())

    def records(self) -> list[dict[str, Any]]:
        return list(read(self.root / "metrics.jsonl"))

    def values(self) -> list[float]:
        return [record["value"] for record in self.records()]

    def finish(self) -> list[dict[str, Any]]:
        self.collector.finish(120)
        return self.records()


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Job]:
    return lambda *metrics: Job(tmp_path, *metrics)


def test_a_record_says_what_when_and_where(make: Callable[..., Job]) -> None:
    """Step counts for each name and process; both streams of all processes are looked through."""
    job = make(LOSS, MetricDefinition("acc", r"acc (\d+)%"))
    rank = "node-1/ranks/attempt_0/restart_0/1/stderr.log"
    job.log("epoch 0 loss=2.5 acc 7%\nnothing\nloss=2\n")
    job.log("loss=9\n", rank)
    job.log("loss=8\n", "node-1/events.jsonl")
    began = time.time()
    records = job.finish()
    told = sorted((r["name"], r["value"], r["step"], r["node"], r["rank"], r["local_rank"], r["offset"]) for r in records)
    assert told == [
        ("acc", 7.0, 0, 0, None, None, 0), ("loss", 2.0, 1, 0, None, None, 32), ("loss", 2.5, 0, 0, None, None, 0),
        ("loss", 9.0, 0, 1, 11, 1, 0),
    ]  # fmt: skip
    assert {record["log"] for record in records} == {"node-0/stdout.log", rank}
    assert all(began - 1 <= record["time"] <= time.time() for record in records) and not job.notes


def test_records_come_while_the_job_runs(make: Callable[..., Job]) -> None:
    """A line when it is whole, also of logs that begin later; what was never ended is no line."""
    job = make()
    job.log("loss=1\nloss=")
    job.collector.start()
    eventually(lambda: job.values() == [1.0], "the first line")
    job.log("2\n")
    eventually(lambda: job.values() == [1.0, 2.0], "the second, now whole")
    job.log("loss=3\n", "requeue-1/node-0/stdout.log")
    eventually(lambda: job.values() == [1.0, 2.0, 3.0], "another log")
    job.log("loss=4")
    assert [record["step"] for record in job.finish()] == [0, 1, 2]


def test_another_coordinator_goes_on_where_the_last_one_died(make: Callable[..., Job]) -> None:
    """Nothing comes twice and nothing is lost, also where only a part of a line's records was written."""
    job = make(LOSS, MetricDefinition("acc", r"acc=(\S+)"))
    job.log("loss=1 acc=1\n" * 3)
    assert len(job.finish()) == 6
    lines = (job.root / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (job.root / "metrics.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][:9])
    job.collector = job.new()
    job.log("loss=2 acc=2\n")
    told = [(record["name"], record["value"], record["step"]) for record in job.finish()]
    assert sorted(told) == sorted((name, 2.0 if step == 3 else 1.0, step) for name in ("acc", "loss") for step in range(4))


def test_a_scan_that_is_killed_is_started_again(make: Callable[..., Job]) -> None:
    """As often as that may be; each record still comes once."""
    job = make()
    job.log("loss=1\n")
    job.collector.start()
    eventually(lambda: job.values() == [1.0], "the first")
    scan = job.collector._scan
    assert scan is not None
    os.kill(scan.pid, signal.SIGKILL)
    job.log("loss=2\n")
    eventually(lambda: job.values() == [1.0, 2.0], "the second, by another scan")
    job.finish()
    assert job.values() == [1.0, 2.0] and not job.notes


def test_a_scan_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """TERM, which Slurm sends to all, does not end it; its stdin's end does."""
    (tmp_path / "node-0").mkdir()
    (tmp_path / "node-0/stdout.log").write_text("loss=1\n")
    order = {"logs": str(tmp_path), "definitions": [["loss", "loss=(.*)"]], "at": {}}
    words = [sys.executable, "-m", "launcher.metrics.scan"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE) as scan:
        assert scan.stdin is not None and scan.stdout is not None
        scan.stdin.write(json.dumps(order).encode() + b"\n")
        scan.stdin.flush()
        assert json.loads(scan.stdout.readline())["found"] == [["loss", "1"]]
        os.kill(scan.pid, signal.SIGTERM)
        with (tmp_path / "node-0/stdout.log").open("a") as log:
            log.write("loss=2\n")
        assert json.loads(scan.stdout.readline())["found"] == [["loss", "2"]]
        scan.stdin.close()
        assert scan.wait(60) == 1


def test_an_expression_without_end_holds_up_nobody(make: Callable[..., Job]) -> None:
    """Its lines are passed over, then it is given up; others are collected, and a person is told."""
    job = make(MetricDefinition("bad", r"(a+)+$"), LOSS)
    job.log(("a" * 60 + "! loss=1\n") * 5)
    assert [record["value"] for record in job.finish()] == [1.0] * 5
    assert [note.partition(", ")[2] for note in job.notes] == ["which is passed over", "and is looked for no more"]


def test_odd_lines(make: Callable[..., Job]) -> None:
    """nan, redrawn bars, Windows ends, bytes that are no text, no number (said once), a line as long as a book."""
    job = make()
    job.log(b"loss=nan\nloss=-inf\n  5% loss=7\r 10% loss=8\r\nloss=3\r\n\xff\xfe loss=4\nloss=x\nloss=y\n")
    job.log(b"x" * 10_000_000 + b" loss=5\nloss=6\n")
    values = [record["value"] for record in job.finish()]
    assert str(values) == "[nan, -inf, 8.0, 3.0, 4.0, 6.0]"
    assert job.notes == ["warning: metric loss: 'x' is no number, and is left out"]


def test_the_end_is_not_waited_for_for_ever(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that stands still is ended, and it is said."""
    job = make()
    job.log("loss=1\n")
    job.collector.start()
    eventually(lambda: job.values() == [1.0], "it runs")
    scan = job.collector._scan
    assert scan is not None
    os.kill(scan.pid, signal.SIGSTOP)
    job.collector.finish(0.2)
    assert "not looked through for metrics within 0.2 s" in job.notes[0]
    assert scan.wait(60) == -signal.SIGKILL and threading.active_count() < 50


def test_a_scan_that_was_killed_in_the_midst_of_a_line_is_over(make: Callable[..., Job]) -> None:
    """What it had not said whole is said by the next one; nobody waits for the line's end, or takes its part for a number."""
    job = make()
    whole = {"log": "node-0/stdout.log", "offset": 0, "found": [["loss", "1"]]}
    said = f'{json.dumps(whole)}\n{{"log": "node-0/stdout.log", "offset": 7, "found": [["loss", "}}'
    ended = list[bool]()

    def take() -> None:
        scan = SimpleNamespace(stdout=io.BufferedReader(io.BytesIO(said.encode())))
        ended.append(job.collector._take(scan, _Memory(job.root / "metrics.jsonl")))

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    taking.join(60)
    assert ended == [False] and job.values() == [1.0]


def test_a_fault_of_the_collector_itself_is_told(make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread would end without a word, and the job with half of its numbers."""
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    job = make()
    monkeypatch.setattr(job.collector, "_rank_of", lambda *place: 1 / 0)
    job.log("loss=1\n")
    assert job.finish() == []
    assert len(job.notes) == 1 and "collected no more" in job.notes[0] and "ZeroDivisionError" in job.notes[0]

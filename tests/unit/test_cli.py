"""The command line as a person or a program meets it: documents, sentences, exit codes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import _COMMANDS
from launcher.model import to_json
from launcher.planning import Request, draft
from launcher.store import Folder, Store, read_json, write_json
from tests import warm
from tests.unit.stories import BADLY, COLLECTED, DIAGNOSED_WELL, FRESH, RUNNING, WELL, Event, broken, created, end, failure

STATUS_KEYS = {
    "job_id", "status", "reason_code", "reason_message", "exit_code", "backend", "attempt", "created_at", "started_at",
    "ended_at",
    "master_addr", "master_port", "nodes", "failure", "model_data", "folder",
}  # fmt: skip
NODE_KEYS = {"rank", "host", "address", "status", "exit_code", "nproc_per_node", "pid"}
FAILURE_KEYS = {"node", "host", "local_rank", "rank", "exit_code", "signal", "message", "traceback", "log", "hint"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.delenv("LAUNCHER_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launcher(*words: str) -> subprocess.CompletedProcess[str]:
    return warm.launcher(words, env=os.environ, errors="surrogateescape")


def document(*words: str, code: int = 0) -> Any:
    """The one JSON document on stdout, and nothing else there."""
    done = launcher(*words, "-o", "json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def job(events: list[Event], name: str = "train", nodes: int = 2) -> Folder:
    """A job's folder as a coordinator left it."""
    plan = draft(Request(words=("hostname",), nodes=nodes, name=name), {}).plan
    folder = Store().create(plan.job_id)
    write_json(folder.plan, to_json(plan))
    for rank in range(nodes):
        folder.node_logs(rank).mkdir(parents=True)
        (folder.node_logs(rank) / "stdout.log").write_bytes(b"hello from %d\nlast \xff line" % rank)
        (folder.node_logs(rank) / "stderr.log").write_bytes(b"oh %d\n" % rank)
    for n, event in enumerate(events):
        folder.append({"n": n, **event})
    return folder


FINISHED = [*WELL, DIAGNOSED_WELL, COLLECTED, end("Succeed", 0)]
FAILED = [
    *BADLY,
    {**failure(3), "failure": {**dict.fromkeys(FAILURE_KEYS), "message": "rank 1 exited with 3", "exit_code": 3}},
    COLLECTED,
    end("Failed", 3),
]


def test_status_has_the_documented_keys(home: Path) -> None:
    """For a finished job, node by node."""
    folder = job(FINISHED)
    told = document("status", "latest")
    assert told.keys() >= STATUS_KEYS and all(node.keys() == NODE_KEYS for node in told["nodes"])
    assert (told["job_id"], told["status"], told["exit_code"], told["failure"]) == (folder.job_id, "Succeed", 0, None)
    assert (told["master_addr"], told["master_port"], told["backend"]) == ("10.0.0.1", 23456, "local")
    assert [(node["rank"], node["host"], node["status"], node["nproc_per_node"], node["pid"]) for node in told["nodes"]] == [
        (0, "local-0", "ended", 2, 100),
        (1, "local-1", "ended", 2, 101),
    ]
    assert told["folder"] == str(folder.root)


def test_a_failure_has_the_documented_keys(home: Path) -> None:
    """And status itself still exits 0: reading is no failing."""
    job(FAILED)
    told = document("status", "latest")
    assert told["failure"].keys() == FAILURE_KEYS and told["exit_code"] == 3


@pytest.mark.parametrize("events", [[], [created()], RUNNING], ids=["nothing", "created", "running"])
def test_status_reads_a_job_at_any_time(home: Path, events: list[Event]) -> None:
    """Also one whose coordinator is gone: it says so and starts none."""
    folder = job(events)
    os.utime(folder.root, (0, 0))
    told = document("status", folder.job_id)
    assert told.keys() >= STATUS_KEYS and len(told["nodes"]) == 2 and told["coordinator"] == "lost"
    assert "attach" in launcher("status", folder.job_id).stdout
    assert not folder.owner.exists() and not folder.coordinator_log.exists()


def test_list_has_every_job(home: Path) -> None:
    """Oldest first; none is an empty list, not an error."""
    assert document("list") == {"schema_version": 1, "jobs": []}
    assert launcher("list").stdout == ""
    first, second = job(FINISHED, "one"), job(RUNNING, "two")
    told = document("list")["jobs"]
    assert {entry["job_id"]: (entry["status"], entry["nodes"]) for entry in told} == {
        first.job_id: ("Succeed", 2),
        second.job_id: ("Running", 2),
    }
    assert {"job_id", "status", "created_at", "ended_at", "exit_code", "model_data", "folder", "backend"} <= told[0].keys()


SPOILED = (
    "3", '"x"', "[" * 9999, '{"spec": 3}', '{"nodes": [{"rank": 0}]}', '{"spec": {"labels": 3}}', '{"spec": {"collect": [3]}}',
)  # fmt: skip
"""what no plan is"""


def test_a_damaged_folder_does_not_hide_the_others(home: Path) -> None:
    """An empty, half-written or spoiled one is listed as what it is."""
    good = job(FINISHED)
    (good.root.parent / "bad-20250101-000000-aaaa").mkdir()
    job([]).events.write_bytes(b'{"half')
    for number, text in enumerate(SPOILED):
        odd = good.root.parent / f"odd-20250101-000000-aaa{number}"
        odd.mkdir()
        (odd / "plan.json").write_text(text)
        (odd / "state.json").write_text(text)
        assert document("status", odd.name)["nodes"] == []
    assert len(document("list")["jobs"]) == 3 + len(SPOILED)
    assert launcher("list").returncode == 0


def test_events_are_json_lines(home: Path) -> None:
    """One event a line, as they were written."""
    folder = job(FINISHED)
    lines = launcher("events", "latest", "-o", "json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == folder.read_events()
    text = launcher("events", "latest")
    assert text.returncode == 0 and len(text.stdout.splitlines()) == len(lines)


def test_logs_are_json_lines_with_their_place(home: Path) -> None:
    """Bytes that are no text are replaced there, and only there."""
    job(FINISHED)
    lines = [json.loads(line) for line in launcher("logs", "latest", "-o", "json").stdout.splitlines()]
    assert {"node": 0, "rank": None, "local_rank": None, "stream": "stderr", "line": "oh 0"} in lines
    assert {"node": 1, "rank": None, "local_rank": None, "stream": "stdout", "line": "last \ufffd line"} in lines
    assert len(lines) == 6


def test_logs_are_shown_byte_by_byte(home: Path) -> None:
    """With the prefix of their node."""
    job(FINISHED)
    done = subprocess.run([sys.executable, "-m", "launcher", "logs", "latest", "--node", "1"], capture_output=True, check=True)
    assert sorted(done.stdout.splitlines()) == [b"[1] hello from 1", b"[1] last \xff line", b"[1] oh 1"]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--tail", "1"], 4),
        (["--tail", "0"], 0),
        (["--grep", "hello"], 2),
        (["--stderr"], 2),
        (["--node", "0", "--stderr"], 1),
    ],
)
def test_logs_can_be_chosen(home: Path, options: list[str], count: int) -> None:
    """By node, rank, stream, number and pattern."""
    job(FINISHED)
    done = launcher("logs", "latest", *options, "-o", "json")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == count


@pytest.mark.parametrize(("option", "text"), [("--rank", "no output of rank 7"), ("--node", "its nodes are 0 to 1")])
def test_a_rank_or_node_that_is_not_there_is_said(home: Path, option: str, text: str) -> None:
    """Silence would look like a process that prints nothing."""
    job(FINISHED)
    done = launcher("logs", "latest", option, "7")
    assert (done.returncode, done.stdout) == (2, "") and text in done.stderr


@pytest.mark.parametrize(("option", "what"), [("--rank", "no process has a rank"), ("--node", "has no node 9")])
def test_logs_of_nobody_are_a_mistake(home: Path, option: str, what: str) -> None:
    """A node or rank that the job does not have is told with those it has."""
    job(FINISHED)
    done = launcher("logs", "latest", option, "9")
    assert done.returncode == 2 and what in done.stderr


def test_model_data_is_one_document(home: Path) -> None:
    """Of a job that collected nothing it has no path, and status has none either."""
    job(RUNNING)
    told = document("model-data", "latest", code=69)
    assert told.keys() >= {"job_id", "status", "model_data", "complete", "problems"}
    assert (told["status"], told["complete"], told["model_data"]) == ("Running", False, None)
    done = launcher("model-data", "latest")
    assert (done.returncode, done.stdout) == (69, "")
    assert "has not succeeded" in done.stderr and "no outputs were collected yet" in done.stderr
    assert document("status", "latest")["model_data"] is None
    assert "not yet: outputs are collected at the end" in launcher("status", "latest").stdout


def test_the_model_of_an_ended_job_without_outputs_is_none(home: Path) -> None:
    """Nor is a place to look for logs named where nothing ran."""
    folder = job([*FRESH, broken(), end("InitializeFailed", 69)])
    for log in folder.logs.rglob("*.log"):
        log.unlink()
    told = launcher("status", "latest").stdout
    assert "model        none: no outputs were collected" in told and f"\n  everything is in {folder.root}" in told
    assert "launcher logs" not in told
    done = launcher("model-data", "latest")
    assert (done.returncode, done.stdout) == (69, "") and "error: no outputs were collected\n" in done.stderr


def training(events: list[Event]) -> Folder:
    """As `job`, of a command that torchrun starts; local rank 1 of node 0 has printed a line."""
    folder = job(events)
    write_json(folder.plan, {**read_json(folder.plan), "spec": {"command": {"script": ["train.py"]}, "nproc_per_node": 2}})
    log = folder.rank_log(0, 0, 1)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"said\n")
    return folder


@pytest.mark.parametrize(
    ("events", "options", "code", "text"),
    [
        ([], ["--rank", "3"], 0, "rank 3 has printed nothing yet"),
        (RUNNING, ["--rank", "3"], 0, "rank 3 has printed nothing yet"),
        (RUNNING, ["--rank", "4"], 2, "ranks: 0 to 3"),
        (RUNNING, ["--rank", "1", "--node", "1"], 2, "rank 1 of"),
        (RUNNING, ["--rank", "1", "--tail", "0"], 0, ""),
        (FINISHED, ["--rank", "3"], 0, "rank 3 printed nothing"),
        (RUNNING, ["--rank", "-1"], 2, "--rank"),
    ],
)
def test_a_rank_that_may_print_later_is_no_mistake(
    home: Path, events: list[Event], options: list[str], code: int, text: str
) -> None:
    """Only one that the job can never have exits 2."""
    training(events)
    done = launcher("logs", "latest", *options)
    assert (done.returncode, done.stdout) == (code, "") and text in done.stderr


def test_a_plain_command_that_runs_may_start_torchrun_later(home: Path) -> None:
    """A shell script may; so a rank of it can come until the job has ended."""
    job(RUNNING)
    assert "has printed nothing yet" in launcher("logs", "latest", "--rank", "5").stderr


def test_wait_exits_as_the_job_did(home: Path) -> None:
    """At once, for a job that is over."""
    job(FAILED)
    assert document("wait", "latest", code=3)["exit_code"] == 3
    assert launcher("wait", "latest").returncode == 3
    assert launcher("attach", "latest").returncode == 3


def test_an_ended_job_is_not_cancelled(home: Path) -> None:
    """Its end stays what it was."""
    folder = job(FINISHED)
    assert document("cancel", "latest")["status"] == "Succeed"
    assert not folder.cancel.exists()


def test_a_dry_run_prints_the_plan_and_makes_nothing(home: Path) -> None:
    """Where each value came from included; secrets masked."""
    done = launcher("submit", "-o", "json", "--dry-run", "--nodes", "2", "--env", "MY_TOKEN=hush", "--", "hostname", "-f", "a b")
    told = json.loads(done.stdout)
    assert told["spec"]["command"]["argv"] == ["hostname", "-f", "a b"] and len(told["nodes"]) == 2
    assert (told["origins"]["nodes"], told["spec"]["env"]) == ("--nodes", {"MY_TOKEN": "****"})
    text = launcher("submit", "--dry-run", "--env", "MY_TOKEN=hush", "--", "hostname").stdout
    assert "[--env]" in text or "****" in text
    assert "hush" not in text and not (home / "home").exists()


def test_a_dry_run_says_where_each_variable_comes_from(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags and this shell are told apart."""
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    shown = launcher("submit", "--dry-run", "--env", "A=b", "--", "true").stdout.splitlines()
    assert [line.split(maxsplit=2) for line in shown if line.startswith("env")] == [
        ["env.NCCL_DEBUG", "INFO", "[this shell]"],
        ["env.A", "b", "[--env]"],
    ]


def test_a_dry_run_shows_how_torchrun_is_started(home: Path) -> None:
    """As it could be typed on a node: the command's environment has the numbers."""
    (home / "train.py").write_text("")
    plain = ("submit", "--dry-run", "--nodes", "2", "--source-dir", str(home), "--")
    settled = "--nnodes=$WORLD_SIZE --node_rank=$RANK --nproc_per_node=$NPROC_PER_NODE"
    line = f"  python -m torch.distributed.run {settled} --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT -- "
    assert f"each node runs\n{line}train.py --name 'a b'\n" in launcher(*plain, "train.py", "--name", "a b").stdout
    assert "each node runs" not in launcher(*plain, "hostname").stdout


def test_a_dry_run_can_show_words_that_are_no_text(home: Path) -> None:
    """Bytes are escaped in JSON, never a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "submit", "--dry-run", "-o", "json", "--", b"prog\xff"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spec"]["command"]["argv"] == [os.fsdecode(b"prog\xff")]
    text = subprocess.run(
        [sys.executable, "-m", "launcher", "submit", "--dry-run", "--", b"prog\xff"], capture_output=True, check=False
    )
    assert text.returncode == 0, text.stderr


WRONG: list[tuple[list[str], str]] = [
    (["sumbit"], "Did you mean submit?"),
    (["status", "none"], "no job 'none'"),
    (["logs", "none"], "no job 'none'"),
    (["status"], "Missing argument"),
    (["list", "--no-such"], "No such option"),
    (["list", "-o", "yaml"], "'yaml' is not one of"),
    (["submit"], "there is no command to run"),
    (["submit", "--"], "nothing after `--`"),
    (["submit", "train.py"], "go behind `--`"),
    (["submit", "hostname"], "go behind `--`"),
    (["submit", "--nodes", "2", "train.py", "--epochs", "2"], "unexpected 'train.py --epochs 2': a script or program and its"),
    (["check", "--nodes", "2", "train.py", "--epochs", "2"], "go behind `--`"),
    (["submit", "--nproc_per_node", "2", "--", "train.py", "--epochs", "2"], "Did you mean '--nproc-per-node'?"),
    (["submit", "--nproc_per_node", "2", "train.py"], "Did you mean '--nproc-per-node'?"),
    (["submit", "--source-dir", __file__, "--", "train.py"], "a file, no folder"),
    (["submit", "none.yaml"], "none.yaml"),
    (["submit", "--nodes", "x", "--", "true"], "--nodes"),
    (["submit", "--nodes", "0", "--", "true"], "at least one node"),
    (["submit", "--nproc-per-node", "many", "--", "true"], "'many': a number of at least 1, or auto"),
    (["submit", "--env", "NOEQUALS", "--", "true"], "not NAME=VALUE: NOEQUALS; this shell's: --forward-env NOEQUALS"),
    (["submit", "--env", "=x", "--", "true"], "not NAME=VALUE"),
    (["submit", "--max-run-time", "soon", "--", "true"], "soon"),
    (["submit", "--max-code-size", "big", "--", "true"], "big"),
    (["submit", "--command", "x", "--", "true"], "two commands"),
    (["submit", "--cluster", "none.yaml", "--", "true"], "none.yaml"),
    (["submit", "--source-dir", "none", "--", "true"], "none"),
    (["submit", "--source-dir", "none", "--", "train.py"], "no such source folder"),
    (["submit", "--source-dir", "none", "--dry-run", "--", "true"], "no such source folder"),
    (["submit", "--env-file", "none", "--", "true"], "none: the env file cannot be read: No such file or directory"),
    (["submit", "--backend", "slurm", "--", "true"], "no sbatch"),
    (["submit", "--spares", "1", "--", "true"], "--spares"),
    (["nodes", "--cluster", "none.yaml"], "none.yaml"),
]


@pytest.mark.parametrize(("words", "text"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_wrong_arguments_exit_2_with_a_sentence(home: Path, words: list[str], text: str) -> None:
    """On stderr, nothing on stdout, no traceback, nothing made."""
    done = launcher(*words)
    assert (done.returncode, done.stdout) == (2, "") and text in done.stderr
    assert "Traceback" not in done.stderr and not list((home / "home" / "jobs").glob("*"))


def test_options_that_cannot_be_read_are_told_together_and_with_all_else(home: Path) -> None:
    """Pairs that are none, numbers, times, choices, and what is wrong with those that can be read."""
    words = (
        *("--hp", "x", "--hp", "=3", "--hp", "a=1", "--env", "BAD", "--env", "RANK=1", "--input", "data", "--input", "y=/nope"),
        *("--nodes", "x", "--nproc-per-node", "many", "--grace", "soon", "--backend", "foo", "--max-requeues", "-1"),
        *("--label", "l", "--shard", "z", "--branch", "b", "--metric", "m=(", "--", "true"),
    )
    done = launcher("submit", *words)
    assert done.returncode == 2 and not (home / "home" / "jobs").exists()
    for sentence in (
        "'--hp': not NAME=VALUE: x, =3",
        "'--env': not NAME=VALUE: BAD",
        "'--input': not NAME=VALUE: data",
        "'--label': not NAME=VALUE: l",
        "'--nodes': 'x' is not a valid integer",
        "'--nproc-per-node': 'many': a number of at least 1, or auto",
        "'--grace': 'soon'",
        "'--backend': 'foo' is not one of",
        "'--max-requeues': -1 is not in the range",
        "--shard z: there is no --input z=…",
        "--branch and --commit belong to --git REPO",
        "these variables are the launcher's own",
        "inputs.y: there is no /nope",
        "m: '(' is no regular expression",
    ):
        assert done.stderr.count(sentence) == 1, (sentence, done.stderr)
    assert launcher("submit", "--hp", "x", "--", "true").stderr == "error: Invalid value for '--hp': not NAME=VALUE: x\n"


def test_a_bad_pattern_is_wrong_arguments(home: Path) -> None:
    """Not a traceback of the regular expressions."""
    job(FINISHED)
    done = launcher("logs", "latest", "--grep", "(")
    assert done.returncode == 2 and "--grep '('" in done.stderr


@pytest.mark.parametrize("words", [["list"], ["status", "latest"], ["status", "some-job"], ["logs", "some-job"]])
def test_jobs_that_cannot_be_read_are_told(home: Path, words: list[str]) -> None:
    """Such as those of a LAUNCHER_HOME that is a file, or somebody else's."""
    (home / "home").write_text("")
    done = launcher(*words)
    assert (done.returncode, done.stdout) == (2, "") and "LAUNCHER_HOME" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_good_as_dev_null(home: Path, closed: str) -> None:
    """A cron job or a daemon has such; the job runs, and its files do not become stdout."""
    said = shlex.join([sys.executable, "-m", "launcher", "submit", "--backend", "local", "--command", "echo hi"])
    subprocess.run(["/bin/sh", "-c", f"{said} {closed}"], capture_output=True, timeout=300, check=True)
    (folder,) = Store().folders()
    assert (folder.node_logs(0) / "stdout.log").read_bytes() == b"hi\n"


def test_a_fault_of_ours_exits_70(home: Path) -> None:
    """What nobody foresaw is told apart from a job that exits with 1."""
    folder = job(FINISHED)
    folder.plan.unlink()
    folder.plan.mkdir()
    done = launcher("status", "latest")
    assert done.returncode == 70 and "Traceback" in done.stderr


def test_help_lists_every_command_and_each_has_its_own(home: Path) -> None:
    """What stands in the table can be called."""
    done = launcher("--help")
    assert done.returncode == 0 and all(f"  {name} " in done.stdout for name in _COMMANDS)
    for name in _COMMANDS:
        helped = launcher(name, "-h")
        assert helped.returncode == 0 and "Usage: launcher " + name in helped.stdout


def test_whoever_stops_reading_is_no_error(home: Path) -> None:
    """`launcher logs JOB | head -1` prints a line and no traceback."""
    folder = job(FINISHED)
    (folder.node_logs(0) / "stdout.log").write_bytes(b"x" * 99 + b"\n" + b"line\n" * 200_000)
    shell = f'"{sys.executable}" -m launcher logs latest | head -1'
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "" and len(done.stdout.splitlines()) == 1


WRITING = """
--help, submit --help, --version, list, status latest, status latest -o json, logs latest, logs latest -o json, logs latest -f,
events latest, events latest -o json, wait latest, attach latest, attach latest -o json, model-data latest, cancel latest,
nodes --hosts a, nodes -o json, submit --dry-run -- true
"""


@pytest.mark.parametrize("words", [words.strip() for words in WRITING.split(",")])
def test_output_that_cannot_be_written_is_said_once(home: Path, words: str) -> None:
    """A full disk behind stdout is no fault of ours, and whoever reads no more is told nothing."""
    job(FINISHED)
    command = [sys.executable, "-m", "launcher", *words.split()]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=300, check=False)
    assert done.returncode == 74
    assert done.stderr.endswith(b"error: stdout cannot be written: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    gone = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=300, check=False)
    os.close(writing)
    assert gone.returncode == 141
    assert all(word not in said for word in (b"Traceback", b"ignored") for said in (gone.stderr, done.stderr))


def test_output_and_errors_that_cannot_be_written(home: Path) -> None:
    """Nobody can be told, but for the exit code."""
    with open("/dev/full", "wb") as full:
        for words in (["list", "-o", "json"], ["status", "none"], ["--help"]):
            command = [sys.executable, "-m", "launcher", *words]
            assert subprocess.run(command, stdout=full, stderr=full, timeout=300, check=False).returncode == 74


def test_a_job_goes_on_where_its_output_cannot_be_written(home: Path) -> None:
    """Whoever submitted it reads how to see the rest."""
    command = [sys.executable, "-m", "launcher", "submit", "--backend", "local", "--", "echo", "hi"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    (folder,) = Store().folders()
    assert done.returncode == 74 and f"the job goes on\n  next: launcher attach {folder.job_id}\n" in done.stderr
    assert launcher("wait", "latest").returncode == 0


@pytest.mark.parametrize(("words", "code"), [(["submit", "--", "true"], 130), (["list"], -15)])
def test_a_stop_before_anything_is_loaded(home: Path, words: list[str], code: int) -> None:
    """TERM is one Ctrl-C to a submit even then; nothing was made."""
    # Python's trace of its imports tells when the program has begun, and has not loaded yet what it needs.
    command = [sys.executable, "-v", "-m", "launcher", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    next(line for line in process.stderr if "launcher/cli/__init__.py" in line)
    process.terminate()
    process.communicate(timeout=300)
    assert process.returncode == code and not list((home / "home" / "jobs").glob("*"))

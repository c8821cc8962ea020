"""The course of a job that goes well, on simulated nodes and over ssh alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.jobs.desk import Desk


def test_a_command_runs_on_every_node_and_its_model_comes_back(desk: Desk) -> None:
    """The last line on stdout is the model's path, and what the nodes wrote there is in it."""
    done = desk.submit("--nodes", "2", "--command", "echo hello from $RANK; echo w > $PAI_OUTPUT_MODEL/weights-$RANK")
    lines = done.stdout.splitlines()
    assert {"[0] hello from 0", "[1] hello from 1"} <= set(lines)
    model = Path(lines[-1])
    assert model == desk.folder() / "output" / "model"
    assert {path.name for path in model.iterdir()} == {"weights-0", "weights-1"}
    assert desk.run("model-data", "latest").stdout.splitlines() == [str(model)]


def test_gc_passes_over_a_job_that_it_does_not_understand(local: Desk) -> None:
    """One of another version, or damaged: it is named, and what the other jobs left goes all the same."""
    local.submit("--command", "exit 1", check=1)
    job = local.folder()
    (job / "plan.json").write_text('{"job_id": "' + job.name + '", "spec": {}}')
    local.submit("--source-dir", "train_src", "--command", "exit 1", check=1)
    done = local.run("gc", "--yes")
    assert f"kept: {job.name}: its plan.json cannot be understood" in done.stderr
    assert not (local.folder() / "code").exists()


def test_many_nodes_need_more_files_than_a_shell_allows(local: Desk) -> None:
    """The limit of open files is raised as far as it may be; where that is too little the error says so."""
    def submit(limit: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "launcher", "submit", "--backend", "local", "--nodes", "8", "--command", "true"]
        limited = ["sh", "-c", f'ulimit {limit} 32; exec "$@"', "sh", *words]
        return subprocess.run(limited, env=local.environment, capture_output=True, text=True, check=False)

    assert submit("-Sn").returncode == 0
    done = submit("-n")
    assert done.returncode == 69 and "raise the limit of open files (`ulimit -n`)" in done.stderr


def test_jobs_that_were_moved_are_told_where_they_are(local: Desk) -> None:
    """LAUNCHER_HOME on another disk, or mounted elsewhere: model and log are told to be there, not where they were."""
    local.submit("--command", "echo w > $PAI_OUTPUT_MODEL/weights")
    local.submit("--command", "exit 3", check=3)
    failed = local.folder().name
    model = local.folder(local.json("list")["jobs"][0]["job_id"]) / "output" / "model"
    moved = Desk(local.home.rename(local.home.with_name("moved")), ("--backend", "local"))
    job, there = model.parts[-3], moved.home / model.relative_to(local.home)
    assert moved.run("model-data", job).stdout == moved.run("wait", job).stdout == f"{there}\n"
    assert moved.json("status", job)["model_data"] == moved.json("list")["jobs"][0]["model_data"] == str(there)
    log = moved.json("status", failed)["failure"]["log"]
    assert Path(log).is_relative_to(moved.home) and Path(log).is_file()
    assert f"log: {log}" in moved.run("wait", failed, check=3).stderr


def test_the_last_node_may_be_the_only_one_that_leaves_something(desk: Desk) -> None:
    """Also where it shares its folder with one that ended before it, and had left nothing then."""
    command = "[ $RANK = 0 ] || { sleep 1; echo w > $PAI_OUTPUT_MODEL/weights; }"
    model = Path(desk.submit("--nodes", "2", "--command", command).stdout.splitlines()[-1])
    assert [path.name for path in model.iterdir()] == ["weights"]


def test_the_environment_is_the_one_of_pai(desk: Desk, tmp_path: Path) -> None:
    """WORLD_SIZE and RANK are those of nodes, the master is one address for all, inherited values are dropped."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "show.sh").write_text("env\n")
    polluted = {
        "RANK": "9",
        "WORLD_SIZE": "99",
        "MASTER_ADDR": "nowhere",
        "NCCL_DEBUG": "INFO",
        "WANDB_DIR": "/here",
        "MINE": "x",
    }
    desk.submit(
        "--nodes",
        "2",
        "--nproc-per-node",
        "3",
        "--source-dir",
        str(tmp_path / "src"),
        "--forward-env",
        "MINE",
        "--env",
        "A=b c=d",
        "--",
        "sh",
        "show.sh",
        env=polluted,
    )
    seen = [dict(line.split("=", 1) for line in desk.log(node).decode().splitlines() if "=" in line) for node in (0, 1)]
    assert [env["RANK"] for env in seen] == [env["NODE_RANK"] for env in seen] == ["0", "1"]
    for env in seen:
        assert (env["WORLD_SIZE"], env["NNODES"], env["NPROC_PER_NODE"]) == ("2", "2", "3")
        assert (env["NCCL_DEBUG"], env["MINE"], env["A"]) == ("INFO", "x", "b c=d")
        # A simulated node's own environment is this shell's, so there it stays.
        assert "WANDB_DIR" not in env or "local" in desk.extra
        assert env["LAUNCHER_JOB_ID"] == desk.folder().name
        assert env["PWD"] == env["PAI_WORKING_DIR"].rstrip("/")
        assert env["PAI_OUTPUT_MODEL"].endswith("/output/model/")
    assert seen[0]["MASTER_ADDR"] == seen[1]["MASTER_ADDR"] != "nowhere"
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"]


def test_arguments_arrive_byte_equal(desk: Desk, tmp_path: Path) -> None:
    """Quotes, newlines, unicode, globs, empty words: sys.argv on every node is what was typed."""
    words = ["I'm 72\" tall", "--q=a b", "--r", "-4C", "", "line1\nline2", "ünï", "$HOME", "*", ";", "a\\b", "!x", "`id`", "\t"]
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "show").write_text("#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    desk.submit("--nodes", "2", "--source-dir", str(tmp_path / "src"), "--", "python3", "show", *words)
    for node in (0, 1):
        assert json.loads(desk.log(node)) == words


def test_logs_are_byte_exact(desk: Desk) -> None:
    """Invalid UTF-8, a progress bar and a last line without its end are kept as they were printed."""
    desk.submit("--nodes", "2", "--command", r"printf 'a\377b\n10%%\r20%%\r30%%\nno end'; printf '\000' >&2")
    for node in (0, 1):
        assert desk.log(node) == b"a\xffb\n10%\r20%\r30%\nno end"
        assert desk.log(node, "stderr") == b"\0"


def test_status_has_its_promised_keys(desk: Desk) -> None:
    """`status -o json` after a success."""
    desk.submit("--nodes", "2", "--name", "mine", "--command", "true")
    told = desk.json("status", "mine")
    assert told["status"] == "Succeed"
    assert (told["exit_code"], told["reason_code"], told["failure"], told["attempt"]) == (0, None, None, 0)
    assert told["created_at"] <= told["started_at"] <= told["ended_at"]
    assert told["master_addr"] and told["master_port"]
    assert [node["rank"] for node in told["nodes"]] == [0, 1]
    assert all({"host", "address", "status", "exit_code", "nproc_per_node", "pid"} <= set(node) for node in told["nodes"])
    assert told["folder"] == str(desk.folder())
    assert [job["job_id"] for job in desk.json("list")["jobs"]] == [told["job_id"]]


def test_a_detached_job_says_its_id_and_nothing_else(desk: Desk) -> None:
    """`submit -d` returns once the job runs; `wait` and `attach` end as the job does."""
    command = "trap 'echo two; exit 0' TERM; echo one; while :; do sleep 0.1; done"
    done = desk.submit("-d", "--nodes", "2", "--command", command)
    job = desk.folder().name
    assert done.stdout == f"{job}\n"
    assert done.stderr.endswith(f"  launcher attach {job} shows the rest, launcher cancel {job} stops it\n")
    desk.printed(b"one", 0, 1)
    assert desk.json("status", job)["status"] == "Running"
    assert json.loads(desk.run("wait", job, "--timeout", "0.1s", "-o", "json", check=75).stdout)["status"] == "Running"
    assert "'nan'" in desk.run("wait", job, "--timeout", "nan", check=2).stderr
    desk.run("cancel", job)
    assert desk.run("cancel", "--no-wait", job).stdout == f"{job}: Terminated\n"
    desk.run("wait", job, check=130)
    out = desk.run("attach", job, check=130).stdout
    assert [out.splitlines().count(f"[{node}] {word}") for node in (0, 1) for word in ("one", "two")] == [1, 1, 1, 1]


def test_json_output_is_one_document(desk: Desk) -> None:
    """`submit -o json` prints its document at the end; log lines go to stderr."""
    done = desk.submit("--nodes", "2", "-o", "json", "--command", "echo hello")
    assert json.loads(done.stdout)["status"] == "Succeed"
    assert "[1] hello" in done.stderr


def test_code_is_delivered_and_the_job_may_write_into_it(desk: Desk, tmp_path: Path) -> None:
    """A job that changes its working copy harms neither the source folder nor the next job."""
    source = tmp_path / "src"
    (source / ".hidden").mkdir(parents=True)
    (source / ".hidden" / "a").write_text("1")
    (source / "big.tmp").write_text("ignored")
    (source / ".gitignore").write_text("*.tmp\n")
    command = "ls -A | sort | tr '\\n' ' '; cat .hidden/a; echo 2 > .hidden/a; rm .gitignore"
    for _ in range(2):
        desk.submit("--nodes", "1", "--source-dir", str(source), "--command", command)
        assert desk.log(0) == b".gitignore .hidden 1"
    assert (source / ".hidden" / "a").read_text() == "1"


def test_a_success_leaves_nothing_on_the_nodes_and_keep_keeps_it(local: Desk) -> None:
    """Working copy and spool go after a collected success, unless --keep."""
    local.submit("--nodes", "2", "--command", "true")
    assert list((local.home / "node" / "jobs").iterdir()) == []
    local.submit("--nodes", "2", "--keep", "--command", "true")
    assert [path.name for path in (local.home / "node" / "jobs").iterdir()] == [local.folder().name]
    local.run("gc", "--yes")
    assert list((local.home / "node" / "jobs").iterdir()) == []

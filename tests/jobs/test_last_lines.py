"""A process that fails without a traceback: what it said last stands beside how it ended."""

from __future__ import annotations

from pathlib import Path

from tests.jobs.desk import Desk


def test_what_a_failed_process_said_last_is_told(desk: Desk, tmp_path: Path) -> None:
    """As after a forgotten argument, where torchrun prints sixty lines of its own below it."""
    (tmp_path / "train.py").write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--epochs', required=True)\n"
        "parser.parse_args()\n"
    )
    done = desk.submit("--nodes", "1", "--nproc-per-node", "1", "--source-dir", str(tmp_path), "--", "train.py", check=2)
    told = done.stderr.partition("Failed: rank 0 on node 0")[2]
    assert "\n    train.py: error: the following arguments are required: --epochs\n  log: " in told
    failure = desk.json("status", "latest")["failure"]
    assert failure["traceback"] is None and failure["last_lines"].endswith("are required: --epochs")
    assert failure["log"].endswith("/stderr.log")


def test_a_command_that_speaks_on_stdout_only_is_quoted_too(local: Desk) -> None:
    """The log that is named is the one quoted; a progress bar is quoted as it was last seen, and no more than a few lines."""
    command = r"for i in $(seq 100); do echo line $i; done; printf '1%%\r99%%\n\n'; exit 3"
    done = local.submit("--command", command, check=3)
    told = done.stderr.partition("exited with 3\n")[2].splitlines()
    assert told[0] == "    line 92" and told[8:10] == ["    line 100", "    99%"]
    assert told[10] == f"  log: {local.folder()}/logs/node-0/stdout.log"


def test_a_killed_process_is_quoted_too(local: Desk, tmp_path: Path) -> None:
    """What it said last tells more than torchrun, which only repeats the signal."""
    (tmp_path / "train.py").write_text("import os\nprint('epoch 7', flush=True)\nos.kill(os.getpid(), 9)\n")
    done = local.submit("--nodes", "1", "--nproc-per-node", "1", "--source-dir", str(tmp_path), "--", "train.py", check=137)
    told = done.stderr.partition("Failed: ")[2].splitlines()
    assert told[0].endswith("was killed by SIGKILL") and told[1] == "    epoch 7"
    assert told[3].endswith("/stdout.log")


def test_a_silent_failure_names_its_log(local: Desk) -> None:
    """Nothing was said, so nothing is quoted."""
    local.submit("--command", "exit 4", check=4)
    failure = local.json("status", "latest")["failure"]
    assert failure["last_lines"] is None and Path(failure["log"]).name == "stderr.log"

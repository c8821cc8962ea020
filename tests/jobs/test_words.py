"""What a person reads on the way: only what is true of this job."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.jobs.desk import Desk


def test_a_plain_command_is_told_without_processes_and_code(local: Desk) -> None:
    """Only torchrun starts processes, and without a source folder nothing is in place."""
    said = local.submit("--nodes", "2", "--nproc-per-node", "2", "--", "true").stderr
    assert "reached 2 nodes\n" in said and "to come" not in said and "code is" not in said


def test_processes_and_code_are_told_where_there_are_some(local: Desk) -> None:
    """A command that starts torchrun says how many; the second time the code is there already."""
    words = ("--nodes", "2", "--nproc-per-node", "2", "--source-dir", "train_src", "--command", "true || torchrun x.py")
    assert "reached 2 nodes, 4 processes to come\ncode is in place: 1 file" in local.submit(*words).stderr
    assert "code is in place: nothing had to be sent" in local.submit(*words).stderr


def test_a_program_that_is_not_here_is_told_once(local: Desk) -> None:
    """Simulated nodes are one machine: neither ssh nor an inventory has to do with it."""
    said = local.submit("--nodes", "3", "--", "no-such-program", check=69).stderr
    assert said.count("there is no no-such-program in PATH here") == 1
    assert "log-in" not in said and "cluster.yaml" not in said


def test_a_port_that_cannot_be_had_names_the_alternative(local: Desk, tmp_path: Path) -> None:
    """Wherever it was asked for, the way to leave the choice to the launcher is named with it."""
    inventory = tmp_path / "cluster.yaml"
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        inventory.write_text(f"backend: local\nmaster: {{port: {port}}}\n")
        said = local.run("submit", "--cluster", str(inventory), "--", "true", check=69).stderr
        assert f"local-0: port {port} is taken on this node" in said
        assert "next: name another port, or write `master: {port: auto}` in cluster.yaml: a free one" in said
        said = local.submit("--env", f"MASTER_PORT={port}", "--", "true", check=69).stderr
        assert "or leave MASTER_PORT out of the environment" in said

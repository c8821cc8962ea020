"""Nodes as one meets them: one machine under two ports, start-up files that read, flood, forbid and lead astray."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher import bootstrap, link
from launcher.errors import NodeUnusable
from launcher.model import Host
from tests.attack.nodes import Nodes
from tests.transports.sshd import Sshd

PLAIN = "echo plain; echo $RANK > $PAI_OUTPUT_MODEL/$RANK"


def test_one_machine_under_two_ports_is_two_nodes(nodes: Nodes) -> None:
    """Its addresses are node 0's own, although the other host has them, too."""
    nodes.desk.submit("--source-dir", "train_src", "--command", PLAIN)
    assert nodes.desk.log(0) == nodes.desk.log(1) == b"plain\n"
    assert {path.name for path in (nodes.desk.folder() / "output" / "model").iterdir()} == {"0", "1"}
    nodes.nothing_left()


@pytest.mark.parametrize(
    "start_up_file",
    [
        "read -t 1 answer\n",
        "head -c 5000000 /dev/urandom; head -c 1000000 /dev/urandom >&2\n",
        "set -eu; readonly PATH HOME RANK IFS; umask 077; ulimit -n 64\n",
        "export PYTHONHOME=/nowhere PYTHONPATH=/nowhere PYTHONINSPECT=1 PYTHONIOENCODING=utf-16 TMPDIR=/nowhere LC_ALL=xx\n",
        "trap '' TERM HUP INT PIPE; trap 'echo bye' EXIT; exec 2>&-; cd /\n",
    ],
    ids=["reads", "floods", "restricts", "environment", "traps"],
)
def test_what_start_up_files_do_is_no_concern_of_the_job(nodes: Nodes, start_up_file: str) -> None:
    """The log has the command's words alone."""
    nodes.bashrc(start_up_file)
    nodes.desk.submit("--command", PLAIN)
    assert nodes.desk.log(0) == nodes.desk.log(1) == b"plain\n"


def test_a_shell_that_never_stops_printing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little it prints at a time: what counts is when our program comes."""
    monkeypatch.setattr(bootstrap, "BOOT_SECONDS", 1.0)
    with Sshd(tmp_path / "sshd") as server:
        (server.home / ".bashrc").write_text("while :; do echo .; sleep 0.1; done\n")
        host = Host(name="box", address="box")
        with pytest.raises(NodeUnusable, match="no answer within"):
            link.Link(link.Address("ssh", host, 0, "job", server.options)).connect()


def test_a_shell_that_ends_before_our_program_is_told_as_that(nodes: Nodes) -> None:
    """With what it said, and where to look."""
    nodes.bashrc("echo maintenance >&2; exit 7\n")
    done = nodes.desk.submit("--command", "true", check=69)
    assert "exit status 7" in done.stderr and "maintenance" in done.stderr and "start-up files" in done.stderr

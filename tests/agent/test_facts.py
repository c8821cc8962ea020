"""What a node tells of itself, and how it finds its place in the network."""

from __future__ import annotations

import ast
import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import facts, probe, procs
from launcher.agent import node as agent_node
from launcher.agent.install import compile_into
from launcher.bootstrap import agent_archive
from launcher.errors import NodeUnusable
from launcher.link import Link
from tests.agent.far import Node


def connect(link: Link, port: int, nonce: str, timeout: float) -> dict[str, Any]:
    """What a node says of a connection to 127.0.0.1."""
    request = {"candidates": ["127.0.0.1"], "port": port, "nonce": nonce, "patience": timeout}
    return dict(link.wait(link.post("probe_connect", **request))["results"])


def test_hello_tells_what_a_plan_depends_on(node: Node) -> None:
    """Python, GPUs, space, addresses, programs."""
    link = node.link()
    told = link.connect(nonce="n", python=None, venv=None, programs=["sh", "no-such-program"])
    assert told.keys() >= {
        "hostname",
        "user",
        "python_version",
        "gpus",
        "gpu_ids",
        "free_bytes",
        "addresses",
        "logout",
        "boot_id",
        "job_dir",
    }
    assert told["programs"]["sh"].endswith("/sh") and told["programs"]["no-such-program"] is None
    assert told["python_version"].startswith("3.") and told["boot_id"] == procs.boot_id() and not told["claimed"]


def test_an_interpreter_that_is_not_there_is_refused(node: Node) -> None:
    """Before anything starts, and with its path."""
    with pytest.raises(NodeUnusable, match="no interpreter at /no/such/bin/python"):
        node.link().connect(nonce="n", python=None, venv="/no/such", programs=[])


def test_an_interpreters_directory_goes_first_in_the_path(node: Node) -> None:
    """So that its torchrun is found."""
    folder = node.folder / "venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "torchrun"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o700)
    told = node.link().connect(nonce="n", python=None, venv=str(node.folder / "venv"), programs=["torchrun"])
    assert (told["bin"], told["python"]) == (str(folder), str(folder / "python"))
    assert told["programs"]["torchrun"] == str(folder / "torchrun")


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        ("0,1", ["0", "1"]),
        ("GPU-abc, GPU-def", ["GPU-abc", "GPU-def"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("MIG-1/2/3", ["MIG-1/2/3"]),
    ],
)
def test_gpus_are_those_a_process_may_see(monkeypatch: pytest.MonkeyPatch, visible: str, ids: list[str]) -> None:
    """Numbers, UUIDs and MIG slices alike."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert facts.gpu_ids() == ids


def test_addresses_are_those_others_may_reach() -> None:
    """No loopback, no link-local."""
    found = facts.addresses()
    assert all(not text.startswith(("127.", "169.254.", "fe80:")) and text != "::1" for _, text in found)
    assert {name for name, _ in found} <= set(os.listdir("/sys/class/net"))


@pytest.mark.root
def test_addresses_of_every_kind_are_found() -> None:
    """Second ones, labelled ones, point to point, IPv6; not those of a card that is down. Asked in a network of its own."""
    script = """
set -e
ip link set lo up
ip link add one type veth peer name two; ip link add off type veth peer name lower
ip link set one up; ip link set two up
ip addr add 192.0.2.1/24 dev one; ip addr add 192.0.2.2/24 dev one label one:2
ip addr add 198.51.100.1 peer 198.51.100.9 dev two; ip addr add 2001:db8::5/64 dev two nodad
ip addr add 203.0.113.1/24 dev off
exec "$0" -c 'from launcher.agent import facts; print(facts.addresses())'
"""
    done = subprocess.run(["unshare", "--net", "sh", "-c", script, sys.executable], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(ast.literal_eval(done.stdout)) == [
        ["one", "192.0.2.1"],
        ["one", "192.0.2.2"],
        ["two", "198.51.100.1"],
        ["two", "2001:db8::5"],
    ]


def test_a_port_is_held_until_it_is_given_free(node: Node) -> None:
    """Outside the ephemeral range, answering the nonce to every node that asks."""
    link, _ = node.connect()
    port = link.ask("probe_listen", port=None, nonce="secret")["port"]
    low, high = probe._ephemeral()
    assert 1024 < port < 32768 and not low <= port <= high
    told = connect(link, port, "secret", 60)
    assert told["127.0.0.1"] == {"local": "127.0.0.1", "interface": "lo"}
    with pytest.raises(NodeUnusable, match=rf"port {port} is taken on this node \(held by pid \d+"):
        node.connect()[0].ask("probe_listen", port=port, nonce="other")
    take = f"import socket; s = socket.socket(); s.bind(('0.0.0.0', {port})); s.listen()"  # as torch's store will
    node.post_start(link, [sys.executable, "-c", take])
    assert node.wait_for("outcome")["exit_code"] == 0


def test_nobody_waits_for_somebody_else_at_the_port(node: Node) -> None:
    """Neither for one who stays connected and says nothing, nor for one who left before he was heard."""
    link, _ = node.connect()
    port = link.ask("probe_listen", port=None, nonce="secret")["port"]
    with contextlib.ExitStack() as stay:
        for _ in range(20):
            stay.enter_context(socket.create_connection(("127.0.0.1", port)))
            socket.create_connection(("127.0.0.1", port)).close()
        told = connect(link, port, "secret", 20)
        assert told["127.0.0.1"] == {"local": "127.0.0.1", "interface": "lo"}
    take = f"import socket; s = socket.socket(); s.bind(('0.0.0.0', {port})); s.listen()"
    node.post_start(link, [sys.executable, "-c", take])
    assert node.wait_for("outcome")["exit_code"] == 0


@pytest.mark.root
def test_a_port_that_is_for_root_alone_is_not_called_taken() -> None:
    """Whoever looks for its holder would look in vain."""
    os.seteuid(65534)
    try:
        with pytest.raises(ValueError, match="port 1 is root's on this node"):
            probe.bind(1)
    finally:
        os.seteuid(0)


def test_who_cannot_be_reached_says_why(node: Node) -> None:
    """Refused, somebody else's port, silence: each in words of its own."""
    link, _ = node.connect()
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        told = connect(link, port, "n", 0.2)
        assert "timed out" in told["127.0.0.1"]["error"]
        told = connect(link, closed.getsockname()[1], "n", 60)
        assert "refused" in told["127.0.0.1"]["error"]
    other, _ = node.connect()
    port = other.ask("probe_listen", port=None, nonce="theirs")["port"]
    told = connect(link, port, "mine..", 60)
    assert told["127.0.0.1"]["error"] == "something else answers there"


def test_an_address_is_found_among_the_nodes_own(node: Node) -> None:
    """A name is resolved there, not here; a foreign one is none of its own."""
    link, _ = node.connect()
    assert link.ask("probe_locate", address="localhost")["own"]
    assert not link.ask("probe_locate", address="192.0.2.1")["own"]
    assert not link.ask("probe_locate", address="no-such-name.invalid")["own"]


def test_nodes_of_one_directory_find_one_mark(node: Node, tmp_path: Path) -> None:
    """That is how a shared file system is found out: what one wrote there, others read, and nobody could guess."""
    one, same = (node.connect()[1]["directory_id"] for _ in range(2))
    with contextlib.closing(Node(tmp_path / "elsewhere")) as other:
        elsewhere = other.connect()[1]["directory_id"]
    assert one == same != elsewhere
    assert len(one) == len(elsewhere) == 32


def test_each_look_for_a_shared_directory_leaves_a_mark_of_its_own(tmp_path: Path) -> None:
    """What an earlier one left says nothing of today's mounts."""
    assert agent_node._mark(str(tmp_path / "job"), "one") != agent_node._mark(str(tmp_path / "job"), "two")
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o700


def test_a_file_system_without_symbolic_links_is_marked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As exFAT is, and SMB may be; many at once agree, and nothing but the mark stays."""
    def refuse(text: str, path: str) -> None:
        raise PermissionError(errno.EPERM, "no symbolic links here")

    monkeypatch.setattr(os, "symlink", refuse)
    start, found = threading.Barrier(8), []

    def one() -> None:
        start.wait()
        found.append(agent_node._mark(str(tmp_path), "n"))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert os.listdir(tmp_path) == ["mark-n"]


def test_without_code_the_working_copy_is_there_at_once(node: Node) -> None:
    """An empty one, beside the directories of every job."""
    node.link().connect(nonce="n", python=None, venv=None, programs=[], no_code=True)
    assert list((node.job / "code").iterdir()) == []
    assert sorted(path.name for path in (node.job / "output").iterdir()) == ["checkpoints", "model", "tensorboard"]


def test_byte_code_is_compiled_once_and_a_full_disk_is_no_error(tmp_path: Path) -> None:
    """The archive works without."""
    plain = tmp_path / "a.pyz"
    plain.write_bytes(agent_archive())
    compile_into(str(plain), str(tmp_path / "a.c.pyz"))
    assert (tmp_path / "a.c.pyz").stat().st_size > plain.stat().st_size
    compile_into(str(plain), str(tmp_path / "none" / "a.c.pyz"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.c.pyz", "a.pyz"]


def test_logind_has_a_say_only_where_systemd_runs_it(tmp_path: Path) -> None:
    """Its directory of seats alone may be a leftover in a container."""
    (tmp_path / "seats").mkdir()
    assert not facts._logind_runs(str(tmp_path))
    (tmp_path / "system").mkdir()
    assert facts._logind_runs(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "kill"),
    [
        ({"killuserprocesses": "yes", "killexcludeusers": "root", "killonlyusers": ""}, True),
        ({"killuserprocesses": "no", "killexcludeusers": "root", "killonlyusers": ""}, False),
        ({"killuserprocesses": "yes", "killexcludeusers": "root me", "killonlyusers": ""}, False),
        ({"killuserprocesses": "1", "killexcludeusers": "", "killonlyusers": "you me"}, True),
        ({"killuserprocesses": "on", "killexcludeusers": "", "killonlyusers": "you"}, False),
    ],
)
def test_whether_a_log_out_kills_is_read_as_logind_reads_it(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], kill: bool
) -> None:
    """KillUserProcesses, KillExcludeUsers, KillOnlyUsers."""
    monkeypatch.setattr(facts, "user", lambda: "me")
    assert facts._applies(settings) is kill

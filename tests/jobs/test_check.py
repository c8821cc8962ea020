"""`launcher check`: everything that is in a job's way, at once, and nothing of the look stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.agent import procs
from tests.cluster import engine
from tests.cluster.handle import Cluster
from tests.jobs.desk import PATIENCE, Desk, eventually

IDLE = "check-"
"""how the names of what a look makes on a node begin"""


def check(desk: Desk, *words: str, code: int, **more: Any) -> dict[str, Any]:
    """The document of a look, which leaves no trace here."""
    told: dict[str, Any] = json.loads(desk.run("check", "-o", "json", *desk.extra, *words, check=code, **more).stdout)
    assert told["ok"] is (code == 0) and not (desk.home / "jobs").exists()
    return told


def left_here(desk: Desk) -> list[str]:
    """What it made below the home, and processes of it; the agent is kept for jobs to come."""
    # Not by pathlib, which minds a folder that is gone before it was looked into.
    found = [os.path.join(top, name) for top, folders, _ in os.walk(desk.home / "node") for name in folders if IDLE in name]
    return found + [str(pid) for pid in procs.everybody() if str(desk.home).encode() in b" ".join(cmdline(pid))]


def cmdline(pid: int) -> list[bytes]:
    """The words of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_a_line_for_each_node_and_nothing_stays(local: Desk) -> None:
    """Our own interpreter and its torch, a port, no job, no folder."""
    done = local.run("check", "--nodes", "2")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NODE", "HOST", "ADDRESS", "USER", "PYTHON", "TORCH", "GPUS", "FREE", "RSYNC", "CLOCK"]
    version = ".".join(map(str, sys.version_info[:3]))
    assert [line.split()[:6:2] for line in lines[1:3]] == [[str(n), "localhost", sys.executable] for n in (0, 1)]
    assert all(version in line for line in lines[1:3])
    assert lines[-1].startswith("a job could start on 2 nodes: master 127.0.0.1 port ") and not done.stderr
    assert local.json("list")["jobs"] == [] and left_here(local) == []


def test_the_words_are_those_of_a_start(local: Desk) -> None:
    """A program that is missing: what submit says, check says; arguments that cannot be are told alike, all at once."""
    words = ("--backend", "local", "--nodes", "2", "--", "nosuchprogram")
    started = local.run("submit", *words, check=69).stderr
    looked = local.run("check", *words, check=69).stdout
    sentence = "this machine: there is no nosuchprogram in PATH here\n  next: install it, or name it by its path\n"
    assert sentence in started and f"error: {sentence}" in looked and looked.endswith("no job could start on 2 nodes: 1 error\n")
    wrong = ("--backend", "local", "--nodes", "0", "--", "train.py")
    assert local.run("check", *wrong, check=2).stderr == local.run("submit", *wrong, check=2).stderr


def test_where_slurm_has_given_no_nodes_there_is_nothing_to_look_at(local: Desk) -> None:
    """The sentence says how to get some."""
    said = local.run("check", "--backend", "slurm", "--nodes", "3", check=2).stderr
    assert "outside of an allocation" in said and "salloc -N3 launcher check" in said


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_whatever_ends_it_nothing_stays(local: Desk, tmp_path: Path, name: str) -> None:
    """In the middle of a look, which an interpreter that does not answer holds up; even where nobody can say good-bye."""
    slow, asked = tmp_path / "slow", tmp_path / "asked"
    slow.write_text(f'#!/bin/sh\n[ "$1" = -ISuc ] && exec {sys.executable} "$@"\ntouch {asked}\nexec sleep 600\n')
    slow.chmod(0o755)
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump({"backend": "local", "defaults": {"python": str(slow)}}))
    words = [sys.executable, "-m", "launcher", "check", "--cluster", str(tmp_path / "cluster.yaml"), "--nodes", "2"]
    process = subprocess.Popen(
        words, env=local.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    eventually(asked.exists, "the interpreter is asked")
    assert [path for path in (local.home / "node" / "jobs").iterdir() if path.name.startswith(IDLE)]
    process.send_signal(signal.Signals[name])
    process.communicate(timeout=PATIENCE)
    assert process.returncode == {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}[name]
    eventually(lambda: not left_here(local), f"nothing is left: {left_here(local)}")


# --- Containers ----------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_a_runtime_that_is_not_there_or_does_not_answer_is_a_sentence(local: Desk, tmp_path: Path) -> None:
    """No docker in PATH; a daemon that is away; an image that nobody has. Each once for this machine, however many nodes."""
    engine.ensure_engine()
    image = ("--nodes", "2", "--image", "docker://127.0.0.1:1/none:1")
    (missing,) = check(local, *image, code=69, env={"PATH": str(tmp_path)})["errors"]
    assert missing["message"] == "there is no docker there" and "install docker there" in missing["next_step"]
    (away,) = check(local, *image, code=69, env={"DOCKER_HOST": "tcp://127.0.0.1:1"})["errors"]
    assert away["message"].startswith("docker there cannot be used: Cannot connect to the Docker daemon at tcp://127.0.0.1:1")
    (unknown,) = check(local, *image, code=69)["errors"]
    assert "docker has no image 127.0.0.1:1/none:1" in unknown["message"] and "docker pull" in unknown["next_step"]
    assert left_here(local) == []


@pytest.mark.cluster
def test_what_an_image_has_is_what_counts(local: Desk) -> None:
    """Its own Python, no torch; no container of the look stays."""
    engine.ensure_engine()
    image = engine.ensure_images(["bookworm"])["bookworm"]
    told = check(local, "--image", f"docker://{image}", "--", "torchrun", "x.py", code=69)
    assert [error["message"] for error in told["errors"]] == [f"there is no torchrun in docker://{image}"]
    told = check(local, "--image", f"docker://{image}", "--nodes", "2", code=0)
    assert [(node["python"], node["torch"]) for node in told["nodes"]] == [("/usr/bin/python3", None)] * 2
    assert "NoTorch" in [warning["kind"] for warning in told["warnings"]]
    assert engine.docker("ps", "--all", "--filter", f"name=launcher-{IDLE}", "--format", "{{.Names}}") == ""


# --- Over ssh ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(remote: Desk, cluster: Cluster, tmp_path: Path) -> Iterator[Desk]:
    """An inventory of a test's own: write `cluster.yaml` there; afterwards no node may have a trace of the look."""
    desk = Desk(remote.home, ("--cluster", str(tmp_path / "cluster.yaml")))
    yield desk
    for node in ("node1", "node2", "node3", "hidden"):
        traces = cluster.exec(node, "sh", "-c", f"ls -d /home/*/.launcher/node/jobs/{IDLE}* 2>/dev/null", check=False)
        assert traces.stdout == ""


def write(desk: Desk, cluster: Cluster, *hosts: object) -> None:
    """The inventory, over the fake cluster's ssh_config."""
    ssh = {"config": str(cluster.ssh_config)}
    Path(desk.extra[1]).write_text(yaml.safe_dump({"name": "odd", "backend": "ssh", "hosts": list(hosts), "ssh": ssh}))


def test_every_node_says_what_it_has(lab: Desk, cluster: Cluster) -> None:
    """Two nodes with torch, one of them with a noisy log-in shell, and a process of a job that nobody here knows."""
    write(lab, cluster, {"name": "node1", "python": cluster.python}, {"name": "node2-noisy", "python": cluster.python})
    left = "LAUNCHER_JOB_ID=old-20250102-120000-abcd setsid sleep 30 > /dev/null 2>&1 & echo $!"
    pid = cluster.exec("node1", "sh", "-c", left, user="train").stdout.strip()
    try:
        told = check(lab, code=0)
    finally:
        cluster.exec("node1", "kill", pid)
    assert (told["backend"], told["master_addr"]) == ("ssh", cluster.address("node1"))
    first, second = told["nodes"]
    assert (first["address"], first["user"], first["python"]) == (cluster.address("node1"), "train", cluster.python)
    assert first["torch"] is not None and first["torch"] == second["torch"] and first["rsync"] is True
    assert abs(first["clock_ahead"]) < 5 and first["free_bytes"] > 0
    warnings = {warning["kind"]: warning for warning in told["warnings"]}
    assert warnings["NoisyShell"]["hosts"] == ["node2-noisy"] and warnings["NoisyShell"]["lines"]
    assert warnings["JobRuns"]["hosts"] == ["node1"] and first["jobs"] == ["old-20250102-120000-abcd"]


def test_all_that_is_wrong_is_told_at_once(lab: Desk, cluster: Cluster) -> None:
    """A node that is away, one without its interpreter, no docker on the others, and these two cannot reach each other."""
    away = {"name": "away", "address": "127.0.0.1", "port": 1}
    bare = {"name": "node3", "venv": "/nowhere/env"}
    write(lab, cluster, away, "node1", {"name": "node2", "python": "/nowhere/python"}, "hidden", bare)
    told = check(lab, "--image", "docker://debian", code=69)
    said = {(error["kind"], *error["hosts"]): error for error in told["errors"]}
    assert set(said) == {
        ("HostUnreachable", "away"),
        ("NodeUnusable", "node2"),
        ("NodeUnusable", "node3"),
        ("NodeUnusable", "node1", "hidden"),
        ("NoMasterAddress",),
    }
    assert said["NodeUnusable", "node2"]["message"] == "/nowhere/python was not found there"
    assert said["NodeUnusable", "node3"]["message"] == "the environment /nowhere/env was not found there"
    assert "`venv:`" in said["NodeUnusable", "node3"]["next_step"]
    assert said["NodeUnusable", "node1", "hidden"]["message"] == "there is no docker there"
    assert "hidden: cannot reach node 1 (node1)" in "\n".join(said["NoMasterAddress",]["lines"])
    assert [node["reached"] for node in told["nodes"]] == [False, True, False, True, False]
    assert (told["master_addr"], told["nodes"][3]["user"]) == (None, "train")


def test_a_firewall_that_opens_node_0_alone_is_seen(lab: Desk, cluster: Cluster) -> None:
    """torch's processes listen on every node; a command that starts none needs no more than node 0's port."""
    write(lab, cluster, "node1", "node2")
    rule = ("INPUT", "-p", "tcp", "-s", cluster.address("node1"), "--syn", "-j", "REJECT", "--reject-with", "tcp-reset")
    cluster.exec("node2", "iptables", "-A", *rule)
    try:
        (closed,) = check(lab, code=69)["errors"]
        plain = check(lab, "--command", "hostname", code=0)
    finally:
        cluster.exec("node2", "iptables", "-D", *rule)
    assert (closed["kind"], closed["hosts"], closed["lines"]) == ("PortClosed", ["node1"], ["connection refused"])
    assert f"cannot reach node 1 (node2) at {cluster.address('node2')} port " in closed["message"]
    assert plain["master_addr"] == cluster.address("node1")


def test_nodes_that_differ_in_their_torch_are_told(lab: Desk, cluster: Cluster, tmp_path: Path) -> None:
    """An old Debian without torch beside one with it; and a host key that nobody knows is advised on with the inventory."""
    write(lab, cluster, {"name": "node1", "python": cluster.python}, "node3")
    (differs,) = check(lab, code=69)["errors"]
    assert differs["kind"] == "TorchDiffers" and "none: node3" in differs["lines"]
    told = check(lab, "--mixed-torch", code=0)
    assert {"TorchDiffers", "PythonDiffers"} <= {warning["kind"] for warning in told["warnings"]}
    own = tmp_path / "ssh_config"
    own.write_text(cluster.ssh_config.read_text().replace(str(cluster.known_hosts), str(tmp_path / "known_hosts")))
    done = lab.run("check", "--cluster", unknown(lab, own), check=69)
    assert done.stdout.count("nobody has vouched for its host key yet") == 2
    assert f"launcher trust node3 --cluster {lab.extra[1]}" in done.stdout


def unknown(desk: Desk, config: Path) -> str:
    """The inventory again, over another ssh_config."""
    path = Path(desk.extra[1])
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "ssh": {"config": str(config)}}))
    return str(path)

"""The fake cluster keeps its own promises: what other tests conclude from it is only worth as much."""

from __future__ import annotations

import socket
import subprocess

import pytest

from tests.cluster import processes
from tests.cluster.handle import Cluster
from tests.jobs.desk import eventually


def ssh(cluster: Cluster, host: str, command: str) -> str:
    """Stdout of a command run over the system's ssh; an error shows what ssh said."""
    argv = ["ssh", "-F", str(cluster.ssh_config), "-o", "BatchMode=yes", host, command]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("host", ["node1", "node2", "node3", "hidden", "hidden2"])
def test_every_host_lets_train_in(cluster: Cluster, host: str) -> None:
    """`ssh -F .cluster/ssh_config HOST` logs in as train, directly or through the bastion."""
    assert ssh(cluster, host, "id -un; hostname").split() == ["train", host]


def test_hidden_hosts_refuse_all_but_the_bastion(cluster: Cluster) -> None:
    """This machine shares a network with the hidden hosts and yet gets no connection."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((cluster.address("hidden"), 22), timeout=60)


def test_node3_is_an_old_far_side(cluster: Cluster) -> None:
    """node3 has the oldest software that is promised to work, or nearly: Python 3.9 and OpenSSH 8.4."""
    assert ssh(cluster, "node3", "python3 -V; ssh -V 2>&1 | cut -c-11").splitlines() == ["Python 3.9.2", "OpenSSH_8.4"]


@pytest.mark.torch
def test_nodes_have_the_torch_of_these_tests(cluster: Cluster) -> None:
    """User train on node1 and node2 can run the interpreter, and with it the torch, that runs these tests."""
    assert cluster.with_torch == ("node1", "node2")
    assert ssh(cluster, "node2", f"{cluster.python} -c 'import torch; print(torch.ones(2).sum().item())'").strip() == "2.0"


def test_what_a_job_leaves_is_seen(cluster: Cluster) -> None:
    """leftovers() is empty on an idle node, and shows a process with the job id of its environment."""
    # sshd's of a log-in that has just ended may not be buried yet.
    eventually(lambda: not cluster.leftovers("node3"), "nothing")
    cluster.exec("node3", "sh", "-c", "LAUNCHER_JOB_ID=j1 setsid sleep 300 >/dev/null 2>&1 &", user="train")
    # Until then it is setsid.
    eventually(lambda: [one for one in cluster.leftovers("node3") if one.argv[0] == "sleep"], "sleep")
    (left,) = cluster.leftovers("node3")
    assert (left.uid, left.argv, left.job_id) == (1000, ("sleep", "300"), "j1")
    cluster.exec("node3", "kill", str(left.pid))


def test_processes_are_the_same_from_here_and_from_within(cluster: Cluster) -> None:
    """A zombie is one of them; this machine's table and the container's own tell the same of each."""
    script = "import os, time\nif os.fork() == 0: os._exit(0)\ntime.sleep(300)"
    cluster.exec("node3", "sh", "-c", f"LAUNCHER_JOB_ID=j2 setsid python3 -c '{script}' >/dev/null 2>&1 &", user="train")
    eventually(lambda: [p for p in cluster.leftovers("node3") if p.state == "Z"], "a zombie")

    def looks() -> list[set[tuple[object, ...]]]:
        both = processes.parse(cluster.exec("node3", *processes.READ).stdout), cluster.processes("node3")
        # One that sleeps may be awake at one of two looks.
        return [{(p.pid, p.ppid, p.uid, p.argv, p.job_id, p.state == "Z") for p in look} for look in both]

    # A log-in may end between two looks.
    eventually(lambda: len(set(map(frozenset, looks()))) == 1, "both tell the same")
    eventually(lambda: cluster.leftovers("node3")[0].state == "S", "its parent sleeps")
    parent, zombie = cluster.leftovers("node3")
    assert (parent.job_id, zombie.state) == ("j2", "Z")
    cluster.exec("node3", "kill", str(parent.pid))
    eventually(lambda: not cluster.leftovers("node3"), "nothing")


def test_a_killed_node_comes_back_at_its_address(cluster: Cluster) -> None:
    """After kill and start a node answers where it did, with the host key it had."""
    cluster.kill("node3")
    cluster.start("node3")
    assert ssh(cluster, "node3", "hostname").strip() == "node3"

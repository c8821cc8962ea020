"""Odd nodes: what a real cluster has in store, on the fake one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.handle import Cluster
from tests.jobs.desk import COUNTED, PATIENCE, Desk, counts, eventually


@pytest.fixture
def inventory(cluster: Cluster, tmp_path: Path) -> Path:
    """A cluster.yaml of one's own: call `write` on it."""
    return tmp_path / "cluster.yaml"


def write(path: Path, cluster: Cluster, hosts: list[object], **sections: object) -> Desk:
    """An inventory over the fake cluster's ssh_config, and a desk that uses it."""
    ssh = {"config": str(cluster.ssh_config), **sections.pop("ssh", {})}  # type: ignore[dict-item]
    path.write_text(yaml.safe_dump({"name": "odd", "backend": "ssh", "hosts": hosts, "ssh": ssh, **sections}))
    return Desk(path.parent / "home", ("--cluster", str(path)))


def test_old_and_new_nodes_work_together(remote: Desk) -> None:
    """Debian bullseye (Python 3.9, OpenSSH 8.4) beside bookworm."""
    remote.submit("--hosts", "node1,node3", "--command", "python3 --version; echo x > $PAI_OUTPUT_MODEL/$RANK")
    assert remote.log(1).startswith(b"Python 3.9")


def test_nodes_behind_a_bastion(remote: Desk) -> None:
    """ProxyJump for everything: code, probe between the nodes, logs, outputs."""
    remote.submit("--hosts", "hidden,hidden2", "--source-dir", "train_src", "--command", "ls; echo x > $PAI_OUTPUT_MODEL/$RANK")
    assert (remote.folder() / "output" / "model" / "1").exists()


def test_a_bastion_that_drops_us_midway_costs_nothing(remote: Desk, cluster: Cluster) -> None:
    """One connection carries both nodes; both come back through one new connection, and no line is lost or twice."""
    go = f"/tmp/go-{os.urandom(6).hex()}"

    def sessions() -> str:
        # One that served what has ended a moment ago may still be there.
        return cluster.exec("bastion", "sh", "-c", "pgrep -c -u train -f 'sshd: train'", check=False).stdout.strip()

    eventually(lambda: sessions() == "0", "nobody else is connected")
    process = remote.start("--hosts", "hidden,hidden2", "--command", counts(go))
    remote.happened("following")
    assert sessions() == "1"
    cluster.exec("bastion", "pkill", "-9", "-u", "train", "-f", "sshd: train")
    eventually(lambda: {event["node"] for event in remote.events() if event["type"] == "lost"} == {0, 1}, "both are lost")
    for host in ("hidden", "hidden2"):
        cluster.exec(host, "touch", go, user="train")
    assert process.wait(PATIENCE) == 0
    assert remote.log(0) == remote.log(1) == COUNTED
    eventually(lambda: sessions() == "0", "the connection is ended with the job")


def test_an_address_that_others_cannot_reach_is_told_per_pair(remote: Desk) -> None:
    """node1 and the hidden ones share no network."""
    done = remote.submit("--hosts", "node1,hidden", "--command", "true", check=69)
    assert "hidden: cannot reach node 0 (node1)" in done.stderr
    assert remote.json("status", "latest")["status"] == "InitializeFailed"


@pytest.mark.parametrize("shell", ["fish", "tcsh", "noisy"])
def test_log_in_shells_and_noisy_start_up_files(cluster: Cluster, inventory: Path, shell: str) -> None:
    """Whatever the log-in shell is and prints, the job runs and its log has only the command's words."""
    desk = write(inventory, cluster, [f"node1-{shell}", f"node2-{shell}"])
    desk.submit("--source-dir", "train_src", "--command", "echo plain")
    assert desk.log(0) == desk.log(1) == b"plain\n"


def test_a_shared_file_system_is_found_and_synced_once(cluster: Cluster, inventory: Path) -> None:
    """One working copy, one output directory, one collection."""
    desk = write(inventory, cluster, ["node1", "node2"], defaults={"workdir": "/shared/work"})
    desk.submit("--source-dir", "train_src", "--command", "echo $RANK > $PAI_OUTPUT_MODEL/$RANK; ls $PAI_OUTPUT_MODEL | wc -l")
    events = {event["type"]: event for event in desk.events()}
    assert events["reached"]["groups"] == [[0, 1]]
    assert [entry["node"] for entry in events["synced"]["nodes"]] == [0]
    assert {path.name for path in (desk.folder() / "output" / "model").iterdir()} == {"0", "1"}


def test_a_full_disk_is_named_with_host_and_path(cluster: Cluster, inventory: Path, tmp_path: Path) -> None:
    """10 MB there, 20 MB to bring."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "big").write_bytes(os.urandom(20 << 20))
    desk = write(inventory, cluster, ["node1", {"name": "node2", "workdir": "/small/work"}])
    done = desk.submit("--source-dir", str(tmp_path / "src"), "--command", "true", check=69)
    assert "node2" in done.stderr and "/small" in done.stderr


def test_a_second_card_nobody_reaches_is_not_chosen(cluster: Cluster, inventory: Path) -> None:
    """node1 has another address, first in its list, that leads nowhere; and 127.0.1.1 for its own name."""
    cluster.exec("node1", "ip", "link", "add", "card1", "type", "veth", "peer", "name", "card2")
    for words in ("addr add 10.99.0.1/24 dev card1", "link set card1 up", "link set card2 up"):
        cluster.exec("node1", "ip", *words.split())
    cluster.exec("node1", "sh", "-c", "echo 127.0.1.1 $(hostname) >> /etc/hosts")
    try:
        desk = write(inventory, cluster, ["node1", "node2"])
        desk.submit("--command", "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME")
        assert desk.log(0) == desk.log(1) == f"{cluster.address('node1')} eth0\n".encode()
        done = desk.submit("--env", "MASTER_ADDR=10.99.0.1", "--command", "true", check=69)
        assert "10.99.0.1" in done.stderr
    finally:
        cluster.exec("node1", "ip", "link", "del", "card1", check=False)


def test_a_master_address_that_is_not_node_0_is_refused(remote: Desk, cluster: Cluster) -> None:
    """Every process would wait for ever."""
    done = remote.submit(
        "--hosts", "node1,node2", "--env", f"MASTER_ADDR={cluster.address('node2')}", "--command", "true", check=69
    )
    assert "not an address of node 0" in done.stderr


def test_a_taken_port_names_its_holder(remote: Desk, cluster: Cluster) -> None:
    """The user's own MASTER_PORT is checked."""
    server = "import socket,time;s=socket.socket();s.bind(('',24680));s.listen();time.sleep(600)"
    holder = subprocess.Popen(["ssh", "-F", str(cluster.ssh_config), "node1", "python3", "-c", f'"{server}"'])
    try:
        eventually(lambda: "24680" in cluster.exec("node1", "ss", "-ltn").stdout, "the port is taken")
        done = remote.submit("--hosts", "node1,node2", "--env", "MASTER_PORT=24680", "--command", "true", check=69)
        assert "24680 is taken" in done.stderr and "python3" in done.stderr
    finally:
        cluster.exec("node1", "pkill", "-f", "24680", check=False)
        holder.kill()
        holder.wait()


def test_unequal_nodes(cluster: Cluster, inventory: Path) -> None:
    """gpus: of the inventory decides where --nproc-per-node is auto."""
    desk = write(inventory, cluster, [{"name": "node1", "gpus": 2}, {"name": "node2", "gpus": 1}])
    desk.submit("--command", "echo $NPROC_PER_NODE")
    assert (desk.log(0), desk.log(1)) == (b"2\n", b"1\n")


def test_a_missing_program_is_told_before_anything_starts(remote: Desk) -> None:
    """node3 has no torchrun."""
    done = remote.submit("--hosts", "node1,node3", "--command", "torchrun --help", check=69)
    assert "node3: no torchrun" in done.stderr
    assert not any(event["type"] == "starting" for event in remote.events())


def test_a_log_out_that_kills_is_no_place_for_a_detached_job(remote: Desk, cluster: Cluster) -> None:
    """KillUserProcesses=yes without lingering: refused with what to do; attached it runs."""
    cluster.exec("node1", "mkdir", "-p", "/run/systemd/seats", "/run/systemd/system", "/etc/systemd")
    cluster.exec("node1", "tee", "/etc/systemd/logind.conf", stdin="[Login]\nKillUserProcesses=yes\n")
    try:
        done = remote.submit("-d", "--hosts", "node1,node2", "--command", "true", check=69)
        assert "node1" in done.stderr and "enable-linger" in done.stderr
        done = remote.submit("--hosts", "node1,node2", "--command", "true")
        assert "warning: node1: when the last log-in of this user ends" in done.stderr
    finally:
        cluster.exec("node1", "rm", "-rf", "/run/systemd/seats", "/run/systemd/system", "/etc/systemd/logind.conf")


def test_a_model_that_cannot_be_read_is_no_success(remote: Desk, cluster: Cluster) -> None:
    """All else is collected, the file is named, exit 69; once it can be read `resume` brings it, without training again."""
    closing = "mkdir shut; echo x > shut/x; chmod 000 of-1 shut"
    command = f"cd $PAI_OUTPUT_MODEL; echo $RANK > of-$RANK; [ $RANK = 0 ] || {{ {closing}; }}"
    done = remote.submit("--hosts", "node1,node2", "--command", command, check=69)
    told = remote.json("status", "latest")
    stayed = f"/home/train/.launcher/node/jobs/{told['job_id']}/output/model"
    assert (told["status"], told["reason_code"]) == ("Failed", "CollectFailed")
    assert f"warning: node2: {stayed}/of-1: could not be read: Permission denied; it stays there" in done.stderr
    assert f"the model is not whole: node2: {stayed}/of-1: could not be read: Permission denied (and 1 more)" in done.stderr
    assert "launcher resume" in done.stderr
    assert done.stdout.splitlines()[-1] == told["model_data"] and Path(told["model_data"], "of-0").read_text() == "0\n"
    said = remote.json("model-data", "latest", check=69)
    assert not said["complete"] and f"{stayed}/shut: could not be read" in said["problems"][1]
    cluster.exec("node2", "chmod", "-R", "u+rwX", stayed)
    remote.run("resume", "latest")
    assert sorted(remote.json("model-data", "latest")["files"]) == ["of-0", "of-1", "shut/x"]


def test_what_else_cannot_be_read_or_has_no_place_here_is_a_warning(remote: Desk) -> None:
    """The model is whole: Succeed; the rest is named, and stays on its node until the job is named to gc."""
    command = "echo m > $PAI_OUTPUT_MODEL/m; cd $PAI_OUTPUT_TENSORBOARD; echo x > events; chmod 000 events; mkfifo pipe"
    done = remote.submit("--hosts", "node1", "--command", command)
    told = remote.json("status", "latest")
    stayed = f"/home/train/.launcher/node/jobs/{told['job_id']}/output/tensorboard"
    assert f"warning: node1: {stayed}/events: could not be read: Permission denied; it stays there" in done.stderr
    assert f"warning: node1: {stayed}/pipe: a socket, pipe or device; it stays there" in done.stderr
    assert "--collect brings" not in done.stderr and told["status"] == "Succeed"
    assert "tensorboard, of which not everything was collected" in remote.run("gc", "--yes").stderr
    remote.run("gc", told["job_id"], "--yes")


@pytest.fixture
def agent(cluster: Cluster) -> Iterator[dict[str, str]]:
    """An ssh-agent that has the cluster's key: the environment that names it."""
    told = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    names = dict(part.split("=", 1) for part in told.replace("\n", "").split(";") if "=" in part)
    subprocess.run(["ssh-add", str(cluster.identity_file)], env={**os.environ, **names}, check=True, capture_output=True)
    yield {"SSH_AUTH_SOCK": names["SSH_AUTH_SOCK"], "pid": names["SSH_AGENT_PID"]}
    subprocess.run(["kill", names["SSH_AGENT_PID"]], check=False, capture_output=True)


def test_a_key_that_went_with_its_agent(cluster: Cluster, tmp_path: Path, inventory: Path, agent: dict[str, str]) -> None:
    """The job goes on; status says `key unavailable`; a command from a terminal that has the key replaces the coordinator."""
    config = tmp_path / "ssh_config"
    text = cluster.ssh_config.read_text()
    config.write_text("\n".join(line for line in text.splitlines() if "identit" not in line.lower()) + "\n")
    desk = write(inventory, cluster, ["node1", "node2"], ssh={"config": str(config)})
    socket = {"SSH_AUTH_SOCK": agent["SSH_AUTH_SOCK"]}
    home = tmp_path / "empty"
    (home / ".ssh").mkdir(parents=True)
    job = desk.detach("--command", "while :; do echo line; sleep 0.1; done", env={**socket, "HOME": str(home)})
    os.kill(int(agent["pid"]), signal.SIGTERM)
    cluster.exec("node2", "pkill", "-9", "-f", "sshd: train", check=False)
    eventually(lambda: desk.json("status", job)["coordinator"] == "key unavailable", "the coordinator says what it lacks")
    assert desk.json("status", job)["status"] == "Running"
    fresh = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    names = dict(part.split("=", 1) for part in fresh.replace("\n", "").split(";") if "=" in part)
    try:
        subprocess.run(["ssh-add", str(cluster.identity_file)], env={**os.environ, **names}, check=True, capture_output=True)
        desk.run("cancel", job, env={"SSH_AUTH_SOCK": names["SSH_AUTH_SOCK"], "HOME": str(home)})
    finally:
        subprocess.run(["kill", names["SSH_AGENT_PID"]], check=False, capture_output=True)
    assert desk.json("status", job)["status"] == "Terminated"


def test_where_a_user_manager_lingers_the_agent_goes_below_it(remote: Desk, cluster: Cluster) -> None:
    """`systemd-run --user --scope` is what starts it there; a log-out that kills is then no obstacle to a detached job."""
    stand_in = '#!/bin/sh\necho "$@" > /tmp/scope\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    files = "/run/systemd/seats /run/systemd/system /run/user/1000/systemd /var/lib/systemd/linger /etc/systemd"
    cluster.exec("node1", "mkdir", "-p", *files.split())
    cluster.exec("node1", "touch", "/run/user/1000/systemd/private", "/var/lib/systemd/linger/train")
    cluster.exec("node1", "tee", "/etc/systemd/logind.conf", stdin="[Login]\nKillUserProcesses=yes\n")
    cluster.exec("node1", "tee", "/usr/local/bin/systemd-run", stdin=stand_in)
    cluster.exec("node1", "chmod", "a+rx", "/usr/local/bin/systemd-run", "/run/user", "/run/user/1000", "/run/user/1000/systemd")
    try:
        job = remote.detach("--hosts", "node1", "--command", "echo in scope; echo x > $PAI_OUTPUT_MODEL/x")
        remote.run("wait", job)
        assert remote.log(0) == b"in scope\n"
        assert cluster.exec("node1", "cat", "/tmp/scope").stdout.startswith("--user --scope ")
    finally:
        made = "/usr/local/bin/systemd-run /etc/systemd/logind.conf /run/systemd/seats /run/systemd/system /run/user/1000"
        cluster.exec("node1", "rm", "-rf", *made.split(), "/tmp/scope", "/var/lib/systemd/linger")

"""What goes wrong, and what a person reads and gets then."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import owner
from launcher.agent import procs
from launcher.store import read_json, write_json
from tests.cluster.handle import Cluster
from tests.jobs.desk import COUNTED, PATIENCE, Desk, counts, eventually, living

LINES = "for i in $(seq 1 60); do echo line $i; sleep 0.05; done"


def test_the_first_failure_stops_all_nodes_and_is_told(desk: Desk) -> None:
    """Exit code and message are those of the node that failed; the others are stopped at once."""
    done = desk.submit("--nodes", "2", "--command", "if [ $RANK = 1 ]; then echo bad >&2; exit 7; fi; sleep 600", check=7)
    told = desk.json("status", "latest")
    assert (told["status"], told["exit_code"]) == ("Failed", 7)
    assert (told["failure"]["node"], told["failure"]["exit_code"]) == (1, 7)
    assert Path(told["failure"]["log"]).read_text() == "bad\n"
    assert "node 1" in done.stderr and "exited with 7" in done.stderr
    assert told["ended_at"] - told["started_at"] < 300


def test_a_killed_command_is_told_by_its_signal(desk: Desk) -> None:
    """128+n, and the signal's name."""
    desk.submit("--nodes", "2", "--command", "[ $RANK = 0 ] && kill -9 $$; sleep 600", check=137)
    assert desk.json("status", "latest")["failure"]["signal"] == "SIGKILL"


def test_outputs_are_collected_after_a_failure_too(desk: Desk) -> None:
    """What the nodes had written is here, and the logs are whole."""
    done = desk.submit("--nodes", "2", "--command", "echo half > $PAI_OUTPUT_MODEL/part-$RANK; echo said; exit 3", check=3)
    assert done.stdout.splitlines()[-1] == str(desk.folder() / "output" / "model")
    assert (desk.folder() / "output" / "model" / "part-0").read_text() == "half\n"
    assert desk.log(0) == b"said\n"


def test_nothing_survives_a_job(desk: Desk) -> None:
    """Daemons that a command leaves behind (new session, empty environment) end with it."""
    # Seconds that nobody else asks for: this machine's table has the nodes of other workers' tests in it, too.
    sleep = f"sleep 4242.{int.from_bytes(os.urandom(6), 'big')}"
    desk.submit("--nodes", "2", "--command", f"(setsid env -i {sleep} &) ; (setsid {sleep} &) ; true")
    assert living(desk.folder().name) == []
    mark = sleep.replace(" ", "\0").encode() + b"\0"
    assert [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _cmdline(entry) == mark] == []


def _cmdline(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_cancel_gives_grace_and_then_kills(desk: Desk) -> None:
    """A command that saves on TERM is let finish; one that ignores TERM is killed after its grace."""
    command = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    job = desk.detach("--nodes", "2", "--grace", "10m", "--command", command)
    desk.printed(b"up", 0, 1)
    told = desk.json("cancel", job)
    assert (told["status"], told["exit_code"], told["reason_code"]) == ("Terminated", 130, "Cancelled")
    assert desk.log(0) == desk.log(1) == b"up\nsaved\n"
    job = desk.detach("--nodes", "2", "--grace", "1s", "--command", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    desk.printed(b"up", 0, 1)
    desk.run("cancel", job)
    killed = [event["event"]["pids"] for event in desk.events(job) if event.get("event", {}).get("type") == "killing"]
    assert len(killed) == 2 and all(killed)
    assert desk.json("status", job)["status"] == "Terminated"


def test_ctrl_c_stops_the_job_and_exits_130(desk: Desk) -> None:
    """Once, gracefully."""
    process = desk.start("--nodes", "2", "--command", "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    desk.happened("following")
    desk.printed(b"up", 0, 1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert desk.json("status", "latest")["status"] == "Terminated"


@pytest.mark.parametrize("when", ["coordinator", "reached", "synced", "master", "following"])
def test_ctrl_c_works_in_every_phase(desk: Desk, when: str) -> None:
    """Nothing is left, whatever was going on."""
    process = desk.start("--nodes", "2", "--source-dir", "train_src", "--command", "sleep 600")
    desk.happened(when)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == 130
    assert desk.json("status", "latest")["status"] == "Terminated"
    assert living(desk.folder().name) == []


def test_two_ctrl_c_kill_at_once(desk: Desk) -> None:
    """The second one does not wait for the grace."""
    process = desk.start("--nodes", "2", "--grace", "10m", "--command", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    desk.happened("following")
    desk.printed(b"up", 0, 1)
    os.killpg(process.pid, signal.SIGINT)
    desk.happened("stopping")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130


def test_max_run_time_stops_the_job(desk: Desk) -> None:
    """The reason says so."""
    desk.submit("--nodes", "2", "--max-run-time", "1s", "--grace", "1s", "--command", "sleep 600", check=143)
    assert desk.json("status", "latest")["reason_code"] == "MaxRunTimeExceeded"


def test_the_job_outlives_its_terminal(desk: Desk) -> None:
    """kill -9 of the attached command line; attach shows every line once."""
    process = desk.start("--nodes", "2", "--command", LINES)
    desk.happened("following")
    process.kill()
    process.wait()
    out = desk.run("attach", "latest").stdout.splitlines()
    for node in (0, 1):
        assert [line for line in out if line.startswith(f"[{node}] line")] == [f"[{node}] line {i}" for i in range(1, 61)]


@pytest.mark.parametrize("when", ["coordinator", "reached", "synced", "master", "starting", "following"])
def test_a_killed_coordinator_is_replaced(desk: Desk, request: pytest.FixtureRequest, when: str) -> None:
    """kill -9 in every phase: status says lost, wait starts a new one, nothing is lost or done twice."""
    go = f"/tmp/go-{os.urandom(6).hex()}-"
    command = f"{counts(go + '$RANK')}; echo $RANK > $PAI_OUTPUT_MODEL/$RANK"
    process = desk.start("--nodes", "2", "--source-dir", "train_src", "--command", command)
    desk.happened(when)
    kill_both(desk, process)
    assert desk.json("status", "latest")["coordinator"] == "lost"
    for rank in (0, 1):
        if "--cluster" in desk.extra:
            request.getfixturevalue("cluster").exec(f"node{rank + 1}", "touch", f"{go}{rank}", user="train")
        else:
            Path(f"{go}{rank}").touch()
    desk.run("wait", "latest")
    assert desk.log(0) == desk.log(1) == COUNTED
    assert {path.name for path in (desk.folder() / "output" / "model").iterdir()} == {"0", "1"}


def kill_both(desk: Desk, process: subprocess.Popen[str]) -> None:
    """kill -9 of coordinator and command line as if at one moment: else who is left first might start a new coordinator."""
    process.send_signal(signal.SIGSTOP)
    os.kill(desk.coordinator(), signal.SIGKILL)
    process.kill()
    process.wait()


HALTING = """
import os, signal, sys
def halt(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and "/.incoming/parts/" in arguments[0]:
        parts = os.path.dirname(arguments[0])
        if any(os.path.getsize(os.path.join(parts, name)) for name in os.listdir(parts)):
            os.kill(os.getpid(), signal.SIGSTOP)
if "launcher.coordinator" in " ".join(sys.orig_argv):
    sys.addaudithook(halt)
"""
"""makes a coordinator stop when it begins with another file while it has some of what it collects"""


def test_a_coordinator_killed_while_it_collects_is_replaced(desk: Desk, tmp_path: Path) -> None:
    """The next one goes on with what has arrived; the outputs are whole, and checked."""
    command = "cd $PAI_OUTPUT_MODEL; for i in a b; do head -c 20000000 /dev/urandom > $RANK$i; done; sha256sum $RANK?"
    (tmp_path / "halting").mkdir()
    (tmp_path / "halting" / "sitecustomize.py").write_text(HALTING)
    process = desk.start("--nodes", "2", "--command", command, env={"PYTHONPATH": str(tmp_path / "halting")})
    desk.happened("collecting")
    eventually(lambda: procs.stopped(desk.coordinator()), "the coordinator halts")
    incoming = desk.folder() / "output" / ".incoming" / "parts"
    assert any(part.stat().st_size for part in incoming.iterdir())
    kill_both(desk, process)
    done = desk.run("wait", "latest")
    for node in (0, 1):
        told = [line.split() for line in desk.log(node).decode().splitlines()]
        assert [name for _, name in told] == [f"{node}a", f"{node}b"]
        for digest, name in told:
            assert hashlib.sha256((desk.folder() / "output" / "model" / name).read_bytes()).hexdigest() == digest
    assert desk.json("model-data", "latest")["complete"] and done.returncode == 0


def test_cancel_of_a_job_without_coordinator_stops_it(desk: Desk) -> None:
    """A new coordinator is started for it."""
    job = desk.detach("--nodes", "2", "--command", "sleep 600")
    os.kill(desk.coordinator(), signal.SIGKILL)
    assert desk.json("cancel", job)["status"] == "Terminated"
    assert living(job) == []


def test_a_killed_agent_is_a_failure_and_leaves_nothing(local: Desk) -> None:
    """The warden ends everything, the job fails as `agent lost`."""
    process = local.start("--nodes", "2", "--command", "setsid sleep 600")
    local.happened("following")
    os.kill(local.pids("agent", 1), signal.SIGKILL)
    assert process.wait(PATIENCE) == 69
    told = local.json("status", "latest")
    assert "agent lost" in told["failure"]["message"]
    assert told["failure"]["node"] == 1
    assert living(local.folder().name) == []


def test_a_killed_warden_does_no_harm(local: Desk) -> None:
    """A new one takes its place, and does its work when the agent is killed afterwards."""
    process = local.start("--nodes", "1", "--command", "setsid sleep 600")
    local.happened("following")
    os.kill(local.pids("warden", 0), signal.SIGKILL)
    eventually(
        lambda: any(e["type"] == "agent" and e["event"]["type"] == "warden lost" for e in local.events()), "the warden is missed"
    )
    assert local.json("status", "latest")["status"] == "Running"
    os.kill(local.pids("agent", 0), signal.SIGKILL)
    assert process.wait(PATIENCE) == 69
    assert living(local.folder().name) == []


def test_agent_and_warden_killed_together(local: Desk) -> None:
    """The follower notices, ends what has the job's marks, and says so."""
    process = local.start("--nodes", "1", "--command", "sleep 600")
    local.happened("following")
    agent, warden = (local.pids(role, 0) for role in ("agent", "warden"))
    # Stopped at first: none of them sees the other's end.
    for pid in (agent, warden):
        os.kill(pid, signal.SIGSTOP)
    for pid in (agent, warden):
        os.kill(pid, signal.SIGKILL)
    assert process.wait(PATIENCE) == 69
    assert living(local.folder().name) == []


def test_two_jobs_at_once_on_the_same_nodes(desk: Desk) -> None:
    """Both succeed, each with a port of its own, and stopping one leaves the other alone."""
    holds = "import os, socket, time; s = socket.create_server(('', int(os.environ['MASTER_PORT']))); print('up', flush=True); "
    command = f'[ $RANK = 1 ] || exec python3 -c "{holds}time.sleep(600)"; sleep 600'
    first = desk.detach("--nodes", "2", "--name", "first", "--command", command)
    desk.printed(b"up", 0, job=first)
    second = desk.detach("--nodes", "2", "--name", "second", "--command", "sleep 2; echo done > $PAI_OUTPUT_MODEL/x")
    desk.run("cancel", first)
    desk.run("wait", second)
    assert desk.json("status", first)["master_port"] != desk.json("status", second)["master_port"]


def test_a_paused_node_is_found_again(remote: Desk, cluster: Cluster) -> None:
    """A sentence after twenty seconds of silence, and afterwards not a line is lost."""
    go = f"/tmp/go-{os.urandom(6).hex()}"
    process = remote.start("--nodes", "2", "--command", counts(go))
    remote.happened("following")
    cluster.pause("node2")
    lost = remote.happened("lost")
    assert lost["node"] == 1
    cluster.unpause("node2")
    remote.happened("found")
    go_on(cluster, go)
    assert process.wait(PATIENCE) == 0
    assert remote.log(1) == COUNTED


def go_on(cluster: Cluster, go: str) -> None:
    """Make the file for which a command waits."""
    for host in ("node1", "node2"):
        cluster.exec(host, "touch", go, user="train")


def test_a_cut_connection_loses_no_line(remote: Desk, cluster: Cluster) -> None:
    """The sshd processes of a running job are killed; the log is whole in the end."""
    go = f"/tmp/go-{os.urandom(6).hex()}"
    process = remote.start("--nodes", "2", "--command", counts(go))
    remote.happened("following")
    cluster.exec("node1", "pkill", "-9", "-f", "sshd: train")
    assert remote.happened("lost")["node"] == 0
    go_on(cluster, go)
    assert process.wait(PATIENCE) == 0
    assert remote.log(0) == remote.log(1) == COUNTED


def test_a_node_that_restarts_fails_the_job(remote: Desk, cluster: Cluster) -> None:
    """Power loss: the job does not wait for ever, and the other node is stopped."""
    process = remote.start("--nodes", "2", "--command", "sleep 600")
    remote.happened("following")
    cluster.kill("node2")
    cluster.start("node2")
    assert process.wait(PATIENCE) == 69
    assert remote.json("status", "latest")["failure"]["node"] == 1


def test_a_job_of_another_machine_is_taken_over_only_when_asked(local: Desk, tmp_path: Path) -> None:
    """Its coordinator may sleep there: attach and wait say how, and nothing is started; then no line is lost or twice."""
    go = tmp_path / "go"
    job = local.detach("--command", f"for i in 1 2 3; do echo $i; done; until [ -e {go} ]; do sleep 0.1; done; echo 4")
    local.printed(b"3", 0)
    record = local.folder() / "coordinator.json"
    assert "there is no coordinator to take over from: alive" in local.run("resume", "--take-over", job, check=2).stderr
    os.kill(local.coordinator(), signal.SIGKILL)
    local.at_rest()
    write_json(record, {**read_json(record), "host": "elsewhere", "heartbeat": 1000.0})
    for command in ("attach", "wait"):
        told = local.run(command, job, check=2).stderr
        assert "its coordinator was on elsewhere" in told and f"launcher resume --take-over {job}" in told
    assert local.json("status", job)["coordinator"] == "lost"
    go.touch()
    out = local.run("resume", "--take-over", job).stdout.splitlines()
    assert out[:-1] == ["[0] 1", "[0] 2", "[0] 3", "[0] 4"] and Path(out[-1]).is_dir()


def test_a_coordinator_that_was_replaced_leaves_the_job(local: Desk, tmp_path: Path) -> None:
    """Its machine slept, say, and somebody took over meanwhile: two would stop, collect and write against each other."""
    go = tmp_path / "go"
    job = local.detach("--command", f"until [ -e {go} ]; do sleep 0.1; done; echo done")
    record, pid = local.folder() / "coordinator.json", local.coordinator()
    write_json(record, {**read_json(record), "host": "elsewhere", "heartbeat": 1000.0})
    eventually(lambda: owner.start_time(pid) is None, "the coordinator is gone")
    assert local.json("status", job)["coordinator"] == "lost"
    go.touch()
    assert local.run("resume", "--take-over", job).stdout.splitlines()[0] == "[0] done"


@contextlib.contextmanager
def at_home_on(tmp_path: Path, size: str) -> Iterator[Desk]:
    """Nodes simulated on this machine; the home is on a disk of that size, and what the nodes have is on another."""
    home, inventory = tmp_path / "home", tmp_path / "cluster.yaml"
    home.mkdir()
    (tmp_path / "work").mkdir()
    inventory.write_text(f"backend: local\ndefaults: {{workdir: {tmp_path}/work}}\n")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(home)], check=True)
    desk = Desk(home, ("--cluster", str(inventory)))
    try:
        yield desk
    finally:
        desk.end_everything()
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.root
def test_a_failed_collection_can_be_resumed(tmp_path: Path) -> None:
    """No room here: Failed, CollectFailed, exit 69, the outputs stay on the nodes; with room `resume` brings them, untrained."""
    with at_home_on(tmp_path, "24m") as desk:
        command = "echo trained; head -c 30000000 /dev/zero > $PAI_OUTPUT_MODEL/big"
        done = desk.submit("--nodes", "1", "--command", command, check=69)
        assert desk.json("status", "latest")["reason_code"] == "CollectFailed"
        assert "launcher resume" in done.stderr
        desk.run("gc", "--yes")
        subprocess.run(["mount", "-o", "remount,size=100m", str(desk.home)], check=True)
        done = desk.run("resume", "latest")
        assert Path(done.stdout.splitlines()[-1], "big").stat().st_size == 30000000
        assert desk.log(0) == b"trained\n"
        assert desk.json("status", "latest")["status"] == "Succeed"
        assert desk.run("resume", "latest", check=2).stderr.startswith("error:")


@pytest.mark.root
def test_a_disk_that_fills_up_meanwhile_is_told_and_the_job_goes_on(tmp_path: Path) -> None:
    """Exit code 74 where no coordinator has room to work; with room `attach` shows all, no line lost or twice."""
    with at_home_on(tmp_path, "1m") as desk:
        done = desk.submit("--nodes", "1", "--command", "seq 300000", check=74)
        assert "No space left on device" in done.stderr and "launcher attach" in done.stderr
        subprocess.run(["mount", "-o", "remount,size=50m", str(desk.home)], check=True)
        desk.run("attach", "latest")
        assert desk.log(0) == b"".join(b"%d\n" % number for number in range(1, 300001))


JUMPING = """
import sys, time
if "launcher.coordinator" in " ".join(sys.orig_argv):
    true, began = time.time, time.monotonic()
    time.time = lambda: true() + (36000.0 if time.monotonic() - began > 2 else 0.0)
"""


def test_a_clock_that_is_set_ends_no_job(local: Desk, tmp_path: Path) -> None:
    """Ten hours forward on this machine, while a job with a max_run_time of one hour runs for seconds."""
    (tmp_path / "jumping").mkdir()
    (tmp_path / "jumping" / "sitecustomize.py").write_text(JUMPING)
    local.submit("--max-run-time", "3600", "--command", "sleep 4", env={"PYTHONPATH": str(tmp_path / "jumping")})
    told = local.json("status", "latest")
    assert told["status"] == "Succeed"


TAKEN = Path("tests/torchrun/reports/2.13.0/port-taken/node-0.err").resolve()


def race_lost_once(tmp_path: Path, then: str) -> tuple[str, ...]:
    """A command whose node 0 finds the port taken in attempt 0, in torchrun's recorded words."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "taken").write_bytes(TAKEN.read_bytes())
    first = "case $PET_LOG_DIR in *attempt_0) [ $RANK = 0 ] || sleep 600; cat taken >&2; exit 1;; esac"
    return ("--nodes", "2", "--source-dir", str(source), "--command", f"{first}; {then}")


def test_a_lost_race_for_the_port_is_a_new_attempt(local: Desk, tmp_path: Path) -> None:
    """With another port, and without costing a restart."""
    local.submit(*race_lost_once(tmp_path, "echo $LAUNCHER_RESTART_COUNT $MASTER_PORT"))
    told = local.json("status", "latest")
    assert (told["status"], told["attempt"]) == ("Succeed", 1)
    assert local.log(0) == f"0 {told['master_port']}\n".encode()


def test_a_later_failure_is_not_taken_for_another_race(local: Desk, tmp_path: Path) -> None:
    """What an earlier attempt wrote into the log says nothing about this one."""
    local.submit(*race_lost_once(tmp_path, "exit 5"), check=5)
    told = local.json("status", "latest")
    assert (told["attempt"], told["exit_code"]) == (1, 5)


def test_a_job_that_waits_for_one_mirror_keeps_no_other(tmp_path: Path) -> None:
    """Else two jobs of one project, each first on another node, would wait for each other for ever."""
    nodes = ", ".join(f"{{name: n{rank}, workdir: {tmp_path}/n{rank}}}" for rank in range(2))
    inventory, source = tmp_path / "cluster.yaml", tmp_path / "src"
    inventory.write_text(f"backend: local\nhosts: [{nodes}]\n")
    source.mkdir()
    (source / "file").write_text("content")
    desk = Desk(tmp_path / "home", ("--cluster", str(inventory)))
    words = ("--source-dir", str(source), "--command", "cat file")
    desk.submit(*words)
    first, second = (next(tmp_path.glob(f"n{rank}/node/mirrors/*/lock")) for rank in range(2))
    with second.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        job = desk.start(*words)
        eventually(lambda: any("waiting for another job" in str(event) for event in desk.events()), "it waits for n1's mirror")
        eventually(lambda: _lockable(first), "n0's mirror is for others again")
    assert job.wait(PATIENCE) == 0


def _lockable(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

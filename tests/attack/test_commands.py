"""Commands that harm themselves: what they remove, fill or replace must neither hang the job nor leave anything of ours."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

from tests.attack.nodes import Nodes
from tests.jobs.desk import PATIENCE, Desk, eventually, living


def alive(name: str) -> list[int]:
    """Processes of this machine whose first word is ``name``."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(name.encode() + b"\0"):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def environment(pid: str) -> list[bytes]:
    """What a process was started with; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


@pytest.mark.parametrize(
    "removed",
    ["$(dirname $PWD)/rank-$RANK", "$(dirname $(dirname $(dirname $PWD)))"],
    ids=["rank", "all"],
)
def test_a_command_that_removes_what_we_know_of_it_is_lost(nodes: Nodes, removed: str) -> None:
    """It is not started a second time, its job ends with a sentence, and no agent stays behind."""
    # An agent that writes there meanwhile has rm say that a directory is not empty.
    command = f"echo x >> ~/starts; until rm -rf {removed}; do sleep 0.05; done; exit 3"
    nodes.desk.submit("--command", command, check=69)
    assert nodes.desk.json("status", "latest")["reason_code"] == "NodeLost"
    assert [(server.home / "starts").read_text() for server in nodes.servers] == ["x\n", "x\n"]
    nodes.nothing_left()
    homes = [f"HOME={server.home}".encode() for server in nodes.servers]

    def agents() -> list[str]:
        found = subprocess.run(["pgrep", "-x", "launcher-(agent|warden)"], capture_output=True, text=True, check=False)
        return [pid for pid in found.stdout.split() if any(home in environment(pid) for home in homes)]

    eventually(lambda: not agents(), f"no agent stays behind: {agents()}")


def test_a_command_that_removes_its_events_halfway_is_lost(local: Desk) -> None:
    """The end that is told into a new file is not taken for one that was heard."""
    go = local.home.parent / "go"
    waits = f"until [ -e {go} ]; do sleep 0.05; done"
    process = local.start("--command", f"{waits}; rm $(dirname $PWD)/rank-0/spool/events.jsonl")
    local.pids("pid", 0)
    go.touch()
    assert process.wait(PATIENCE) == 69


def test_daemons_of_every_kind_end_with_the_command(nodes: Nodes) -> None:
    """New sessions, no environment, another name, TERM ignored, stopped, fifty at once."""
    name = f"odd{os.urandom(6).hex()}"
    escape = (
        "import os, signal\n"
        "for _ in range(3):\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"os.execve('/bin/sleep', [{name!r}, '8282'], {{}})\n"
    )
    (nodes.folder / "src").mkdir()
    (nodes.folder / "src" / "escape.py").write_text(escape)
    command = "for i in $(seq 50); do sleep 8282 & done; kill -STOP $!; python3 escape.py; exit 0"
    nodes.desk.submit("--source-dir", str(nodes.folder / "src"), "--command", command)
    assert alive(name) == []
    nodes.nothing_left()


def test_bytes_of_every_kind_arrive_as_they_are(nodes: Nodes) -> None:
    """A million lines, noise, and an end without a newline; and nothing where the command closed its outputs."""
    command = "seq 1000000; head -c 1000000 /dev/urandom > noise; cat noise; printf end"
    nodes.desk.submit("--command", f"{command}; sha256sum < noise > $PAI_OUTPUT_MODEL/$RANK; exec >&- 2>&-; echo never; exit 0")
    lines = b"".join(b"%d\n" % number for number in range(1, 1000001))
    for node in (0, 1):
        log = nodes.desk.log(node)
        noise = (nodes.desk.folder() / "output" / "model" / str(node)).read_text().split()[0]
        assert log[: len(lines)] == lines and log[-3:] == b"end"
        assert hashlib.sha256(log[len(lines) : -3]).hexdigest() == noise


@pytest.mark.root
def test_a_command_that_fills_the_disk_fails_with_its_own_words(tmp_path: Path) -> None:
    """Its end can still be written down, and a cancel still reaches it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(disk)], check=True)
    try:
        inventory = tmp_path / "cluster.yaml"
        inventory.write_text(f"backend: local\ndefaults: {{workdir: {disk}/work}}\n")
        desk = Desk(tmp_path / "home", ("--cluster", str(inventory)))
        desk.submit("--command", "echo begun; head -c 20000000 /dev/zero > big; exit 5", check=5)
        assert desk.log(0) == b"begun\n"
        desk.run("gc", "--yes")
        job = desk.detach("--command", "head -c 20000000 /dev/zero > big; sleep 600")
        eventually(lambda: os.statvfs(disk).f_bfree == 0, "the disk is full")
        assert desk.json("cancel", job)["status"] == "Terminated"
        assert living(job) == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_odd_things_in_the_output_are_brought_or_named(nodes: Nodes) -> None:
    """Names of any bytes are brought; pipes, sockets and links that lead out are named; nothing hangs."""
    (nodes.folder / "src").mkdir()
    (nodes.folder / "src" / "odd.py").write_text(
        "import os, socket\n"
        "os.chdir(os.environ['PAI_OUTPUT_MODEL'])\n"
        "for name in [b'a\\nb', b'\\xff\\xfe', b'..a', b'...', b'x' * 255, b'model.json', b' -rf', b'~']:\n"
        "    open(name, 'w').close()\n"
        "os.mkfifo('pipe'); socket.socket(socket.AF_UNIX).bind('socket')\n"
        "os.symlink('/etc/passwd', 'out'); os.symlink('loop', 'loop')\n"
    )
    nodes.desk.submit("--nodes", "1", "--source-dir", str(nodes.folder / "src"), "--command", "python3 odd.py")
    model = os.fsencode(nodes.desk.folder() / "output" / "model")
    brought = {b"a\nb", b"\xff\xfe", b"..a", b"...", b"x" * 255, b"model.json", b" -rf", b"~", b"loop"}
    assert set(os.listdir(model)) == brought
    nodes.desk.run("model-data", "latest")


def test_a_link_in_the_place_of_the_output_leads_us_nowhere(nodes: Nodes) -> None:
    """What it leads to is neither brought nor removed; that is said."""
    place = nodes.servers[0].home / "thesis"
    (place / "checkpoints").mkdir(parents=True)
    (place / "chapter").mkdir()
    (place / "chapter" / "text").write_text("years")
    (place / "checkpoints" / "last").write_text("x")
    command = f"O=$(dirname $PAI_OUTPUT_MODEL); rm -rf $O; ln -s {place} $O"
    done = nodes.desk.submit("--nodes", "1", "--command", command)
    assert f"a link in the place of the outputs, to {place}; it stays there" in done.stderr
    assert (place / "chapter" / "text").read_text() == "years" and (place / "checkpoints" / "last").exists()
    (left,) = json.loads((nodes.desk.folder() / "output" / "model.json").read_text())["left"]
    assert left["path"].endswith("/output")
    assert list((nodes.servers[0].home / ".launcher" / "node" / "jobs").iterdir()) == []


def test_what_was_not_collected_stays_whatever_the_workdir_is_called(nodes: Nodes) -> None:
    """Also below a directory that is called output."""
    nodes.write(workdir="~/output/my work/ü")
    nodes.desk.submit("--nodes", "1", "--command", "mkdir -p $PAI_OUTPUT_CHECKPOINTS; echo x > $PAI_OUTPUT_CHECKPOINTS/last")
    (kept,) = nodes.servers[0].home.rglob("checkpoints/last")
    assert kept.read_text() == "x\n"


def test_more_logs_than_files_may_be_open_arrive(local: Desk) -> None:
    """As of a torchrun that has restarted its workers hundreds of times; and what is added to an old one, too."""
    logs = "$PET_LOG_DIR/none_x/attempt_$i/0"
    begin = f"for i in $(seq 0 299); do mkdir -p {logs}; echo $i > {logs}/stdout.log; done"
    command = f"{begin}; sleep 0.5; i=0; echo more >> {logs}/stdout.log"
    process = local.start("--command", command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)))
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    arrived = local.folder() / "logs" / "node-0" / "ranks" / "attempt_0"
    assert {path.name: (path / "0" / "stdout.log").read_text() for path in arrived.iterdir()} == {
        "restart_0": "0\nmore\n", **{f"restart_{number}": f"{number}\n" for number in range(1, 300)}
    }


@pytest.mark.parametrize("deep", [600, 3000])
def test_folders_without_end_are_named_and_removed(nodes: Nodes, deep: int) -> None:
    """Deeper than a program can call itself, longer than a path may be: the rest is brought, and gc leaves nothing of them."""
    (nodes.folder / "src").mkdir()
    (nodes.folder / "src" / "deep.py").write_text(
        "import os\n"
        "os.chdir(os.environ['PAI_OUTPUT_MODEL'])\n"
        "open('top', 'w').close()\n"
        f"for _ in range({deep}):\n"
        "    os.mkdir('a'); os.chdir('a')\n"
        "open('f', 'w').close()\n"
    )
    done = nodes.desk.submit("--nodes", "1", "--source-dir", str(nodes.folder / "src"), "--command", "python3 deep.py", check=69)
    assert "the model is not whole" in done.stderr and ("too long" in done.stderr)
    assert (nodes.desk.folder() / "output" / "model" / "top").is_file()
    nodes.desk.run("gc", "--yes", nodes.desk.folder().name)
    assert list((nodes.servers[0].home / ".launcher" / "node" / "jobs").iterdir()) == []

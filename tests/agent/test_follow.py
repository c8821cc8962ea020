"""Following a spool: from any offset, over broken connections, while it grows."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from launcher import bootstrap
from launcher import link as module
from launcher.agent import procs
from launcher.errors import LinkLost, NodeUnusable
from launcher.link import Link
from tests.agent.far import MARK, PATIENCE, Node, eventually, send_instead

WRITER = """
import os, sys
for n in range(int(sys.argv[1])):
    os.write(1 + n % 2, b"%d " % n * 50 + b"\\n")
    if n % 500 == 0:
        input() if n and n % 1000 == 0 and len(sys.argv) > 2 else None
"""


COUNTER = """
import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    os.write(1, b"%09d\\n" % n)
    n += 1
    time.sleep(0.0005)
"""
TALKER = """
import os, time
for n in range(100_000):
    os.write(1, b"x" * 100 + b"\\n")
print("done")
time.sleep(1000)
"""


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-Suc", text, *arguments]


def same(node: Node, name: str, logs: str = "logs") -> bool:
    return node.log(name, logs) == (node.spool / name).read_bytes()


def test_the_replicas_are_the_files_byte_by_byte(node: Node) -> None:
    """Both streams and the events, whole when `drained` is told."""
    node.start(python(WRITER, "20000"))
    node.wait_for("drained")
    assert all(same(node, name) for name in ("stdout.log", "stderr.log", "events.jsonl"))
    assert node.log().count(b"\n") == 10_000


@pytest.mark.parametrize(
    ("leaves", "empty"),
    [
        ("true", True),
        ("mkdir -p deep/er; : > ../output/model/weights", False),
        ("mkdir ../output/own ../output/own/folder", False),
        ("rmdir ../output/model && ln -s /tmp ../output/model", False),
        ("mv ../output elsewhere", False),
    ],
)
def test_with_the_last_bytes_comes_whether_there_are_outputs(node: Node, leaves: str, empty: bool) -> None:
    """Where nothing lies in any channel nobody needs to ask for a list; where that cannot be told, somebody does."""
    link = node.link()
    link.connect(nonce="n", no_code=True, python=node.host.python, venv=None, programs=[])
    node.post_start(link, ["/bin/sh", "-c", leaves])
    assert node.wait_for("drained")["empty"] is empty


def test_a_connection_that_breaks_again_and_again_loses_and_doubles_nothing(node: Node) -> None:
    """Each time the link comes back by itself and goes on from the bytes it has."""
    gate = node.folder / "gate"
    link = node.start(python(COUNTER, str(gate)))
    node.wait_for("started")
    for _ in range(3):
        have = len(node.log())
        eventually(lambda have=have: len(node.log()) > have)  # type: ignore[misc]
        assert link.transport is not None
        link.transport.close()
        node.wait_for("lost")
        node.wait_for("found")
    gate.touch()
    node.wait_for("drained")
    assert same(node, "stdout.log") and same(node, "events.jsonl")
    numbers = [int(line) for line in node.log().split()]
    assert numbers == list(range(len(numbers)))
    assert [event["type"] for event in node.heard].count("started") == 1


def test_a_successor_goes_on_from_what_is_here(node: Node) -> None:
    """A new coordinator has the replicas of the old one, half a line included."""
    link = node.start(python("import sys; print('one\\ntw', end='', flush=True)"))
    node.wait_for("drained")
    link.close(polite=False)
    path = node.folder / "logs" / "stdout.log"
    path.write_bytes(path.read_bytes()[:2])
    again = node.link()
    again.resume(node.following())
    node.wait_for("found")
    node.wait_for("drained")
    assert node.log() == b"one\ntw"


@pytest.fixture
def back(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No link comes back before this is set."""
    made, come_back = threading.Event(), Link._come_back

    def later(link: Link, *arguments: Any, **more: Any) -> bool:
        assert made.wait(PATIENCE)
        return come_back(link, *arguments, **more)

    monkeypatch.setattr(Link, "_come_back", later)
    return made


def test_a_connection_that_broke_before_the_start_starts_when_it_is_back(node: Node, back: threading.Event) -> None:
    """Whoever asked hears that it broke; the command runs nevertheless, once."""
    link, _ = node.connect()
    assert link.transport is not None
    link.transport.close()
    eventually(lambda: link.transport is None)
    with pytest.raises(LinkLost):
        node.post_start(link, python("print('once')"))
    back.set()
    node.wait_for("found")
    node.wait_for("drained")
    assert node.log() == b"once\n"


def test_a_connection_that_broke_in_the_start_follows_what_was_started(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply was lost, the command was not: it is followed, and not started twice."""
    link, _ = node.connect()
    send = link._send

    def send_and_break(frame: bytes) -> None:
        send(frame)
        node.printed(b"once")
        monkeypatch.undo()
        os.environ[MARK] = node.mark
        assert link.transport is not None
        link.transport.close()

    monkeypatch.setattr(link, "_send", send_and_break)
    with contextlib.suppress(LinkLost):
        node.post_start(link, ["/bin/sh", "-c", "echo once; echo x >>count"])
    node.wait_for("found")
    node.wait_for("drained")
    assert node.log() == b"once\n" and (node.job / "code" / "count").read_text() == "x\n"


def test_an_attempt_of_which_no_trace_is_left_is_gone(node: Node) -> None:
    """Who goes on with a job whose directory was removed does not wait for it for ever."""
    node.connect()
    again = node.link()
    again.resume(node.following(4))
    assert "no trace" in node.wait_for("gone")["message"]


def test_a_start_that_is_refused_when_the_link_is_back_is_gone(node: Node, back: threading.Event) -> None:
    """The refusal is the reason that is given."""
    link, _ = node.connect()
    assert link.transport is not None
    link.transport.close()
    eventually(lambda: link.transport is None)
    shutil.rmtree(node.job)
    node.job.write_text("in the way")
    with pytest.raises(LinkLost):
        link.follow(node.following(), "node_start", argv=["true"], env={}, drop=[])
    back.set()
    assert str(node.job) in node.wait_for("gone")["message"]
    node.job.unlink()


def test_ranks_logs_are_followed_from_the_moment_they_appear(node: Node) -> None:
    """Under names without torchrun's random part."""
    text = (
        "import os\nd=os.environ['PET_LOG_DIR']+'/none_abc/attempt_0/0'\nos.makedirs(d)\n"
        "open(d+'/stdout.log','w').write('rank\\n')\nopen(d+'/error.json','w').write('{}')\n"
    )
    node.start(python(text))
    node.wait_for("drained")
    assert node.log("ranks/attempt_0/restart_0/0/stdout.log") == b"rank\n"
    found = {str(path.relative_to(node.folder / "logs")) for path in (node.folder / "logs").rglob("*") if path.is_file()}
    assert found == {"stdout.log", "stderr.log", "events.jsonl", "ranks/attempt_0/restart_0/0/stdout.log"}


def test_workers_and_their_ends_are_told(node: Node) -> None:
    """By LOCAL_RANK in their environment; what a worker starts is none."""
    text = (
        "import os,subprocess,sys\n"
        'work=\'import subprocess; subprocess.call(["sh", "-c", "until [ -e go ]; do sleep 0.05; done"])\'\n'
        "run=lambda r: subprocess.Popen([sys.executable,'-Suc',work],env={**os.environ,'LOCAL_RANK':str(r),'RANK':str(r+4)})\n"
        "[p.wait() for p in [run(0),run(1)]]\n"
    )
    node.start(python(text))
    told: list[dict[str, Any]] = []
    while len(told) < 2:
        told += node.wait_for("workers")["workers"]
    (node.job / "code" / "go").touch()
    node.wait_for("drained")
    told = [worker for event in node.heard if event["type"] == "workers" for worker in event["workers"]]
    assert sorted((worker["local_rank"], worker["rank"]) for worker in told) == [(0, 4), (1, 5)]
    gone = [event for event in node.heard if event["type"] == "worker gone"]
    assert sorted(event["local_rank"] for event in gone) == [0, 1]


def test_a_follower_of_an_attempt_that_never_began_says_so(node: Node) -> None:
    """Its spool is not there."""
    link, _ = node.connect()
    assert link.follow(node.following(7)) == {"claimed": False}


def test_a_supervisor_does_not_work_harder_for_a_talkative_command(node: Node) -> None:
    """It need not look at what the command prints; the kernel writes that by itself."""
    node.start(python(TALKER))
    node.wait_for("started")
    node.printed(b"done")
    agent = node.pids()["agent"]
    ticks = sum(int(field) for field in Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[11:13])
    assert ticks / os.sysconf("SC_CLK_TCK") < 0.1
    assert procs.name(agent) == "launcher-agent"
    node.links[0].ask("node_stop", attempt=0, grace=0, reason="cancel")
    node.wait_for("drained")


def test_what_a_job_leaves_is_removed_when_it_is_released(node: Node) -> None:
    """A read-only directory that the command made does not keep the rest."""
    node.start(["/bin/sh", "-c", "mkdir -p a/b; touch a/b/c; chmod 500 a/b a"])
    node.wait_for("drained")
    node.links[0].ask("node_release")
    assert not node.job.exists() and not list(node.job.parent.iterdir())


def test_what_is_asked_meanwhile_takes_no_bytes_from_whoever_waits_for_them(node: Node) -> None:
    """A warning is passed on to a node that is back while its outputs are fetched."""
    link, _ = node.connect()
    content = os.urandom(1 << 20)
    (node.job / "output" / "model").mkdir(parents=True)
    (node.job / "output" / "model" / "weights").write_bytes(content)
    received, numbers = bytearray(), list[int]()

    def take(stream: int, offset: int, chunk: bytes) -> None:
        if not numbers:
            numbers.append(link.post("preflight_clock"))
        received.extend(chunk)

    link.ask("outputs_fetch", PATIENCE, take, files=[["model/weights", 0, len(content)]])
    assert bytes(received) == content and link.wait(numbers[0], PATIENCE)["time"] > 0


def test_a_removal_that_hangs_does_not_hold_up_the_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a file system whose server is away: the agent lives, and has no answer."""
    hanging = node.folder / "hanging.pyz"
    with zipfile.ZipFile(hanging, "w") as target, zipfile.ZipFile(io.BytesIO(bootstrap.agent_archive())) as source:
        for name in source.namelist():
            text = source.read(name).decode()
            target.writestr(name, text.replace("    session.follower = None\n", "    import time; time.sleep(1000)\n"))
    send_instead(monkeypatch, hanging.read_bytes())
    monkeypatch.setattr(module, "_RELEASE_SECONDS", 0.5)
    link, _ = node.connect()
    with pytest.raises(NodeUnusable, match=r"could not be removed: no answer within 0\.5 s"):
        link.close(release={"keep": []})
    assert not link.connected


def test_jobs_and_their_processes_are_listed_and_swept(node: Node) -> None:
    """By the job's marks, whatever became of its agents."""
    link = node.start(["/bin/sh", "-c", "echo on; exec sleep 1000"])
    node.printed(b"on")
    assert link.ask("node_jobs")["jobs"][node.job_id]["alive"]
    told = link.ask("node_sweep", marks=node.marks)
    assert len(told["ended"]) == 1 and told["left"] == []
    node.wait_for("drained")
    link.ask("node_sweep", marks=node.marks, remove=True)
    assert not node.job.exists()

"""How an agent comes to a node: sent once, one round trip afterwards, and a sentence for everything that is in the way."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import socket
import stat
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from launcher import bootstrap as module
from launcher import transports
from launcher.agent import seldom, wire
from launcher.errors import NodeError, NodeUnusable
from launcher.link import Link
from tests.agent.far import PATIENCE, Node, hurried, send_instead


class Counting:
    """A transport that counts what goes out before something comes in: round trips."""

    def __init__(self, inner: transports.Transport) -> None:
        self.inner, self.trips, self.sent = inner, 0, 0

    def open(self, words: Any) -> Any:
        channel, counting = self.inner.open(words), self
        send = channel.send

        def counted(data: bytes) -> None:
            counting.trips += 1
            counting.sent += len(data)
            send(data)

        channel.send = counted  # type: ignore[method-assign]
        return channel

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Counting]:
    made: list[Counting] = []
    connect = transports.connect

    def counting(*arguments: Any) -> Counting:
        made.append(Counting(connect(*arguments)))
        return made[-1]

    monkeypatch.setattr(transports, "connect", counting)
    return made


def wrapped(node: Node, text: str) -> None:
    """Let a shell script stand for the node's Python, and for what a log-in shell prints before it."""
    script = node.folder / "python3"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o700)
    node.host = dataclasses.replace(node.host, python=str(script))


def complaint(node: Node) -> NodeError:
    with pytest.raises(NodeUnusable) as caught:
        node.connect()
    assert caught.value.where == "node0"
    return caught.value


def test_the_agent_is_sent_once_and_then_one_round_trip_is_enough(node: Node, counted: list[Counting]) -> None:
    """The first time it is sent behind the boot text; later hello's answer comes without another word."""
    for _ in range(3):
        node.connect()
    assert [one.trips for one in counted] == [2, 1, 1]
    assert counted[0].sent > len(module.agent_archive()) > counted[1].sent


def test_the_agent_is_kept_for_its_owner_and_compiled(node: Node) -> None:
    """Under its sources' hash; the second file has this Python's byte code."""
    node.connect()
    folder = node.folder / "work" / "node" / "agents"
    plain, compiled = sorted(folder.iterdir(), key=lambda path: len(path.name))
    assert plain.name == module.agent_name() + ".pyz" and plain.read_bytes() == module.agent_archive()
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0 and stat.S_IMODE(folder.parent.stat().st_mode) & 0o077 == 0
    assert compiled.name.startswith(module.agent_name() + ".") and compiled.stat().st_size > plain.stat().st_size


def test_a_node_that_cannot_keep_byte_code_works_without(node: Node) -> None:
    """A compiled file is a convenience."""
    node.connect()
    folder = node.folder / "work" / "node" / "agents"
    for path in folder.glob("*.cpython*"):
        path.unlink()
        path.mkdir()
        (path / "in the way").touch()
    assert node.connect()[1]["job_dir"] == str(node.job)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"i\x00\x00\x00\x00", b"cut"])
def test_damaged_byte_code_is_made_anew(node: Node, content: bytes) -> None:
    """The archive beside it is whole."""
    node.connect()
    (path,) = (node.folder / "work" / "node" / "agents").glob("*.cpython*")
    whole = path.read_bytes()
    path.write_bytes(whole[:1000] if content == b"cut" else content)
    assert node.connect()[1]["job_dir"] == str(node.job)
    assert path.stat().st_size > len(whole) * 0.9


def test_the_archive_is_the_same_every_time() -> None:
    """Its hash depends on the sources alone, not on when it was made."""
    first = module.agent_archive()
    module.agent_archive.cache_clear()
    assert module.agent_archive() == first


def test_a_damaged_agent_is_not_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes must have the hash that was announced; the error says what happened."""
    announced = module.announced
    monkeypatch.setattr(module, "announced", lambda content: announced(content)[:-1] + b"x")
    error = complaint(node)
    assert "damaged" in str(error)
    assert not (node.folder / "work" / "node" / "agents" / f"{module.agent_name()}.pyz").exists()
    monkeypatch.undo()
    os.environ["LAUNCHER_TEST_MARK"] = node.mark


NOISE = [
    "echo Welcome; echo 'last log-in: never' >&2",
    "head -c 300000 /dev/urandom",
    "printf 'no newline at the end'",
    'printf \'+\'; printf \'{"marker": ["a", "b"]}\'',
]


@pytest.mark.parametrize("noise", NOISE)
def test_whatever_is_printed_before_the_marker_is_skipped(node: Node, noise: str) -> None:
    """Banners, binary rubbish, text that looks like ours."""
    wrapped(node, f'{noise}\nexec "{node.host.python}" "$@"')
    assert node.connect()[1]["user"]


def test_a_shell_that_echoes_its_input_cannot_fake_the_marker(node: Node) -> None:
    """The marker goes out in two halves."""
    wrapped(node, f'exec "{sys.executable}" -c "$ECHO" "{node.host.python}" "$@"')
    os.environ["ECHO"] = (
        "import os,subprocess,sys\n"
        "p=subprocess.Popen(sys.argv[1:],stdin=subprocess.PIPE)\n"
        "while True:\n"
        "  b=os.read(0,65536)\n"
        "  if not b: break\n"
        "  if p.poll() is None and not globals().get('done'): os.write(1,b); done=1\n"
        "  os.write(p.stdin.fileno(),b)\n"
    )
    try:
        assert node.connect()[1]["user"]
    finally:
        del os.environ["ECHO"]


def test_a_python_that_is_too_old_says_its_version(node: Node) -> None:
    """And what to do."""
    old = "import sys; sys.version_info = (3, 6, 9); sys.version = '3.6.9 (old)'; "
    old += "exec(next(line for line in sys.stdin.buffer if len(line)>1))"
    wrapped(node, f'exec "{sys.executable}" -ISuc "{old}"')
    error = complaint(node)
    assert "Python 3.6.9 there is older than 3.8" in str(error) and "`python:`" in error.next_step


def test_without_python_the_error_says_which_was_looked_for(node: Node) -> None:
    """As a shell would report it, and as the local transport does."""
    node.host = dataclasses.replace(node.host, python="/no/such/python")
    assert "/no/such/python" in str(complaint(node))
    wrapped(node, "echo 'sh: 1: python3: not found' >&2; exit 127")
    error = complaint(node)
    assert "was not found there" in str(error) and "Python 3.8" in error.next_step


def test_a_log_in_that_ends_at_once_shows_its_last_words(node: Node) -> None:
    """A forced command or an expired account speaks there."""
    wrapped(node, "echo 'This account is currently not available.'; exit 1")
    error = complaint(node)
    assert "exit status 1" in str(error) and "This account is currently not available." in str(error)


def test_a_log_in_that_answers_nothing_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it printed so far; the time counts from there, as it takes the shell some to start."""
    early = module.receive_early

    def counted(channel: Any, host: Any, deadline: float, seen: bytes = b"") -> bytes:
        return early(channel, host, deadline if seen else deadline + PATIENCE, seen)

    monkeypatch.setattr(module, "receive_early", counted)
    monkeypatch.setattr(module, "BOOT_SECONDS", 0.3)
    wrapped(node, "echo 'Press any key'; cat >/dev/null")
    error = complaint(node)
    assert "no answer within 0.3 s" in str(error) and "Press any key" in str(error)


def test_a_log_in_that_is_replaced_by_something_else_is_told_soon(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """`exec cat` in a start-up file: what we send comes back, which is a sentence, without our own words in it."""
    monkeypatch.setattr(module, "_ECHO_SECONDS", 0.3)
    monkeypatch.setattr(module, "BOOT_SECONDS", 2 * PATIENCE)
    for how in ("exec cat", "cat; exit 3"):
        wrapped(node, f"echo 'Welcome to the cluster'; {how}")
        began = time.monotonic()
        error = complaint(node)
        assert "what we send to our program comes back" in error.what and time.monotonic() - began < PATIENCE
        assert error.lines == ("Welcome to the cluster",) and "start-up files" in error.next_step


def test_a_directory_that_cannot_be_made_is_named(node: Node) -> None:
    """A full or read-only place, or a file in the way."""
    (node.folder / "work").write_text("in the way")
    assert str(node.folder / "work") in str(complaint(node))


def test_a_place_of_somebody_elses_is_not_used(node: Node) -> None:
    """Whoever can write there could give us a program to run: below a directory that all may write into, anybody can be first."""
    for mine, owner, refused in ((1000, 1001, True), (0, 1001, True), (1000, 0, False), (0, 65534, False), (1000, 1000, False)):
        pretended = f"import os; os.geteuid = lambda: {mine}; os.lstat = lambda path: type('', (), dict(st_uid={owner})); "
        pretended += "exec(next(line for line in sys.stdin.buffer if len(line)>1))"
        wrapped(node, f'exec "{sys.executable}" -ISuc "import sys; {pretended}"')
        if refused:
            error = complaint(node)
            assert "it belongs to another user" in str(error) and "agents" in str(error) and "`workdir:`" in error.next_step
        else:
            node.connect()


def test_a_second_program_has_a_clean_stream(node: Node) -> None:
    """`open` skips the same noise, and the program has the whole channel to itself."""
    wrapped(node, f'echo Welcome; exec "{node.host.python}" "$@"')
    link, _ = node.connect()
    channel = link.open(["/bin/sh", "-c", "echo clean; cat; exit 3"])
    channel.send(b"\x00\xffdata")
    channel.finish()
    received = b""
    while piece := channel.receive(100, PATIENCE):
        received += piece
    assert received == b"clean\n\x00\xffdata" and channel.close()[0] == 3


# --- The session ---


def test_what_is_printed_inside_an_agent_does_not_disturb_the_wire(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptors 0 and 1 lead nowhere; the wire has private copies."""
    content = module.agent_archive()
    noisy = Path(node.folder / "noisy.pyz")
    with zipfile.ZipFile(noisy, "w") as target, zipfile.ZipFile(io.BytesIO(content)) as source:
        for name in source.namelist():
            text = source.read(name).decode()
            if name.endswith("node.py"):
                head = 'def hello(session, request):\n    import subprocess\n    print("print")\n    os.write(1, b"write")\n'
                text = text.replace(
                    "def hello(session, request):\n", head + '    assert subprocess.call("echo child; cat", shell=True) == 0\n'
                )
            target.writestr(name, text)
    send_instead(monkeypatch, noisy.read_bytes())
    assert node.connect()[1]["job_dir"] == str(node.job)


def test_a_session_ends_when_its_stdin_closes(node: Node) -> None:
    """The near side is gone: nothing stays behind (the fixture looks)."""
    link, _ = node.connect()
    assert node.survivors()
    link.close(polite=False)


def test_a_session_ends_in_the_midst_of_its_work_when_its_stdin_closes(node: Node) -> None:
    """Tools of a running request end with it."""
    link, _ = node.connect()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link.post("probe_connect", candidates=["127.0.0.1"], port=silent.getsockname()[1], nonce="x", patience=600)
        peer, _ = silent.accept()
        link.close(polite=False)
        assert peer.recv(1) == b""
        peer.close()


def test_a_session_that_hears_nothing_for_too_long_ends_itself(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A near side that vanished without a word holds nothing; the command goes on."""
    hurried(monkeypatch, FAR_PATIENCE=(60.0, 3.0), BEAT_SECONDS=(5.0, 0.1))
    monkeypatch.setattr(Link, "_come_back", lambda *_, **__: False)
    link = node.start(["/bin/sh", "-c", "echo on; exec sleep 1000"])
    node.wait_for("started")
    assert "ended" in node.wait_for("lost")["message"]
    assert node.survivors_of_job()
    monkeypatch.undo()
    os.environ["LAUNCHER_TEST_MARK"] = node.mark
    link.close()
    again, _ = node.connect()
    again.ask("node_stop", attempt=0, grace=0, reason="cancel")


def test_beats_keep_a_silent_session_alive(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides send them; longer than the patience nothing else is said, and the link still answers."""
    hurried(monkeypatch, FAR_PATIENCE=(60.0, 3.0), BEAT_SECONDS=(5.0, 0.1))
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(wire, "NEAR_PATIENCE", 3.0)
    link, _ = node.connect()
    tick, until = threading.Event(), time.monotonic() + 4.5
    while time.monotonic() < until:
        tick.wait(0.1)
        link.beat()
    assert link.ask("probe_locate", timeout=PATIENCE, address="127.0.0.1")["own"]


def test_an_operation_that_is_not_there_is_refused_and_the_session_goes_on(node: Node) -> None:
    """So is one with a bad argument; neither ends the connection."""
    link, _ = node.connect()
    for op, arguments in (("node_dance", {}), ("dance", {}), ("node_stop", {})):
        with pytest.raises(NodeUnusable):
            link.ask(op, timeout=PATIENCE, **arguments)
    assert link.ask("probe_locate", timeout=PATIENCE, address="127.0.0.1")["own"]


def test_goodbye_ends_the_agent_before_close_returns(node: Node) -> None:
    """A polite close leaves nobody to be waited for."""
    link, _ = node.connect()
    link.close()
    assert node.survivors() == []


def test_nodes_that_share_a_home_take_an_agent_in_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their processes have the same number, as those of containers often do."""
    content = os.urandom(1000)
    told, replace = b"%s %d\n" % (hashlib.sha256(content).hexdigest().encode(), len(content)), os.replace
    others = [1]

    def meanwhile(part: str, path: str) -> None:
        if others:
            others.pop()
            seldom.receive(io.BytesIO(told + content), path)
        replace(part, path)

    monkeypatch.setattr(os, "replace", meanwhile)
    path = tmp_path / "node" / "agents" / "a.pyz"
    seldom.receive(io.BytesIO(told + content), str(path))
    assert path.read_bytes() == content and os.listdir(path.parent) == ["a.pyz"]

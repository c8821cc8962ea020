"""One body of tests over every transport: what `launcher.transports` promises, over pipes, a real sshd, and a step's tasks.

A step is started by a stand-in for srun here; tests/slurm has the real one.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import LinkLost, NodeError
from launcher.model import Host, SshOptions
from launcher.transports import Channel, Transport, connect
from launcher.transports.srun import Order
from launcher.transports.step import Step
from tests.transports.sshd import PATIENCE, Sshd

MANY = 24 << 20
"""bytes: several windows of a channel and many pipes' worth"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def reach(kind: str, server: Sshd) -> Transport:
    if kind == "ssh":
        return connect("ssh", server.host(), server.options)
    return connect("local", Host("here", "here"), SshOptions())


@pytest.fixture(scope="module")
def steps() -> Iterator[dict[str, Step]]:
    """A step whose tasks call back, and one whose tasks cannot: everything goes through its stdin and stdout."""
    order = Order("1", ("here", "there"), sys.executable, program=str(Path(__file__).parents[1] / "slurm" / "srun.py"))
    made = {"step": Step(order, addresses=["127.0.0.1"]), "step by stdio": Step(order, addresses=[])}
    yield made
    for step in made.values():
        step.close()


@pytest.fixture(params=["local", "ssh", "step", "step by stdio"])
def transport(request: pytest.FixtureRequest, server: Sshd, steps: dict[str, Step]) -> Iterator[Transport]:
    kind = request.param
    made = connect("slurm", Host("there", "there"), steps[kind]) if kind in steps else reach(kind, server)
    yield made
    made.close()


def python(transport: Transport, tmp_path: Path, text: str, *arguments: str) -> Channel:
    """Start a Python program given as text."""
    script = tmp_path / "program.py"
    script.write_text(text)
    return transport.open([sys.executable, "-S", str(script), *arguments])


def read_all(channel: Channel, timeout: float = PATIENCE) -> bytes:
    pieces = []
    while piece := channel.receive(1 << 18, timeout):
        pieces.append(piece)
    return b"".join(pieces)


def test_every_byte_comes_back_as_it_was_sent(transport: Transport) -> None:
    """A transport is clean for all 256 byte values, newlines and NUL among them."""
    channel = transport.open(["cat"])
    channel.send(bytes(range(256)) * 10)
    channel.finish()
    assert read_all(channel) == bytes(range(256)) * 10
    assert channel.close() == (0, b"")


def test_a_piece_never_exceeds_the_limit(transport: Transport) -> None:
    """`receive` gives what is there at once, and never more than was asked for."""
    channel = transport.open(["cat"])
    channel.send(b"abcdef")
    got = [channel.receive(4, PATIENCE)]
    while sum(map(len, got)) < 6:
        got.append(channel.receive(4, PATIENCE))
    assert b"".join(got) == b"abcdef"
    assert max(map(len, got)) <= 4
    channel.close()


def test_megabytes_go_both_ways_at_once(transport: Transport) -> None:
    """One thread sends while another receives, and not a byte is lost, doubled or changed."""
    block = os.urandom(1 << 20)
    channel = transport.open(["cat"])

    def feed() -> None:
        for _ in range(MANY >> 20):
            channel.send(block)
        channel.finish()

    sender = threading.Thread(target=feed)
    sender.start()
    digest, size = hashlib.sha256(), 0
    while piece := channel.receive(1 << 16, PATIENCE):
        digest.update(piece)
        size += len(piece)
    sender.join(PATIENCE)
    assert size == MANY
    assert digest.digest() == hashlib.sha256(block * (MANY >> 20)).digest()
    assert channel.close()[0] == 0


def test_output_is_still_received_after_the_input_was_closed(transport: Transport, tmp_path: Path) -> None:
    """`finish` is the end of input only."""
    channel = python(transport, tmp_path, "import sys; n = len(sys.stdin.buffer.read()); print(n)")
    channel.send(b"x" * 1000)
    channel.finish()
    assert read_all(channel) == b"1000\n"
    channel.close()


def test_a_flood_on_stderr_blocks_nobody(transport: Transport, tmp_path: Path) -> None:
    """A program may write megabytes to stderr; its output goes on, and only the last 4 KiB of stderr are kept."""
    channel = python(transport, tmp_path, f"""
import sys
for _ in range({MANY >> 20}):
    sys.stderr.write("e" * ((1 << 20) - 1) + "\\n")
sys.stderr.write("the last words\\n")
sys.stderr.flush()
print("done")
""")
    assert read_all(channel) == b"done\n"
    status, tail = channel.close()
    assert status == 0
    assert len(tail) == 4096
    assert tail.endswith(b"e\nthe last words\n")


def test_the_exit_status_is_the_programs_own(transport: Transport, tmp_path: Path) -> None:
    """`close` tells how the program ended, and what it said last."""
    channel = python(transport, tmp_path, "import sys; sys.exit('no such thing')")
    assert read_all(channel) == b""
    assert channel.close() == (1, b"no such thing\n")


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("", 0, b""),
        ("sys.exit(3)", 3, b""),
        ("sys.exit('no such thing')", 1, b"no such thing\n"),
        ("1 / 0", 1, b"ZeroDivisionError: division by zero\n"),
    ],
)
def test_a_text_for_our_own_python_runs_as_in_a_new_one(transport: Transport, ending: str, status: int, said: bytes) -> None:
    """A step's task has a Python already: what it runs there sees what a new one would show, and ends as there."""
    ours = "[name for name in sys.modules if 'launcher' in name], len(os.listdir('/proc/self/fd'))"
    seen = f"sys.argv, __name__, signal.getsignal(13) == signal.SIG_IGN, {ours}"
    text = f"import os, signal, sys; print(sys.stdin.readline(), {seen}); {ending}"
    channel = transport.open([sys.executable, "-ISuc", "import sys;exec(sys.stdin.buffer.readline())"])
    channel.send(text.encode() + b"\nheard\n")
    assert read_all(channel) == b"heard\n ['-c'] __main__ True [] 4\n"
    told, tail = channel.close()
    assert told == status
    assert tail.endswith(said)
    assert bool(tail) == bool(said)


def test_a_killed_program_has_no_exit_status(transport: Transport, tmp_path: Path) -> None:
    """Death by a signal is no exit status: None."""
    channel = python(transport, tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert read_all(channel) == b""
    assert channel.close()[0] is None


def test_silence_is_a_timeout_and_nothing_is_lost_by_it(transport: Transport) -> None:
    """After a TimeoutError the channel goes on as before."""
    channel = transport.open(["cat"])
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.receive(10, 0.2)
    assert 0.15 < time.monotonic() - began < PATIENCE
    channel.send(b"later")
    assert channel.receive(10, PATIENCE) == b"later"
    channel.close()


def test_sending_to_a_program_that_ended_is_a_lost_link(transport: Transport) -> None:
    """The sender learns that nobody reads any more."""
    channel = transport.open(["true"])
    assert read_all(channel) == b""
    with pytest.raises(LinkLost):
        for _ in range(1000):
            channel.send(b"x" * 65536)
    channel.close()


def test_closing_the_transport_wakes_whoever_waits(transport: Transport) -> None:
    """A thread inside `receive` gets LinkLost, not an end of output that never was."""
    channel = transport.open(["cat"])
    channel.send(b"x")
    assert channel.receive(1, PATIENCE) == b"x"
    outcome: list[object] = []

    def wait() -> None:
        try:
            outcome.append(channel.receive(10, PATIENCE))
        except LinkLost as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)  # let it begin to wait; if it has not, the outcome is the same
    transport.close()
    waiting.join(PATIENCE)
    assert [type(item) for item in outcome] == [LinkLost]
    transport.close()


def test_a_program_that_does_not_end_is_let_go_after_a_second(transport: Transport) -> None:
    """`close` waits about a second, not until the end, and does not pretend to know the exit status."""
    channel = transport.open(["sleep", "10"])
    assert channel.close() == (None, b"")


def test_programs_run_side_by_side(transport: Transport) -> None:
    """One transport carries several programs at once."""
    channels = [transport.open(["cat"]) for _ in range(5)]
    for number, channel in enumerate(channels):
        channel.send(b"%d" % number)
    assert [channel.receive(10, PATIENCE) for channel in channels] == [b"0", b"1", b"2", b"3", b"4"]
    for channel in channels:
        channel.close()


def test_words_arrive_as_they_are(transport: Transport, tmp_path: Path) -> None:
    """No shell on the way splits, expands or drops a word."""
    words = ["two words", "$HOME", "*", "a;b|c&d", "", "ü→", "-x", "a=b", "#no", "{1,2}", "`id`", '"q"', "x^y", "%5", "~nobody~"]
    channel = python(transport, tmp_path, "import sys; sys.stdout.buffer.write('\\0'.join(sys.argv[1:]).encode())", *words)
    assert read_all(channel).decode().split("\0") == words
    channel.close()


def test_a_leading_tilde_is_the_home_directory(transport: Transport, server: Sshd) -> None:
    """`~/x` means the file in the home directory of that side, also with a space in the rest."""
    channel = transport.open(["echo", "~/a", "~/b c"])
    home = read_all(channel).decode().split("/a ")[0]
    assert home in (os.path.expanduser("~"), str(server.home))
    channel.close()
    channel = transport.open(["echo", "~/b c"])
    assert read_all(channel).decode() == f"{home}/b c\n"
    channel.close()


def test_a_program_that_is_not_there_is_told(transport: Transport) -> None:
    """Either `open` raises a NodeError, or the program ends at once with 127 and a word on stderr."""
    try:
        channel = transport.open(["no-such-program-anywhere"])
    except NodeError as error:
        assert "no-such-program-anywhere" in str(error)
    else:
        assert read_all(channel) == b""
        status, tail = channel.close()
        assert status == 127
        assert b"no-such-program-anywhere" in tail


def test_a_program_is_in_a_session_of_its_own(transport: Transport, tmp_path: Path) -> None:
    """Ctrl-C in our terminal is not for it."""
    channel = python(transport, tmp_path, "import os; print(os.getsid(0))")
    assert int(read_all(channel)) != os.getsid(0)
    channel.close()

"""A command on a node: started as it was said, ended to its last descendant, whoever dies in between."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.agent import procs, supervise
from tests.agent.far import Node, alive, eventually, hurried

SHOW = """
import json, os, sys
print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith('T_')}, os.getcwd()]))
"""
BYTES = "import os,sys; b=[os.fsencode(a) for a in sys.argv[1:]]+[os.environb[b'T_X']]; print(repr(b))"
SIGNALS = """
import json, signal
known = sorted(set(signal.Signals) - {signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ})
print(json.dumps([
    [s.name for s in known if signal.getsignal(s) is not signal.SIG_DFL],
    signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    [int(line.split()[1], 16) & ~(3 << 31) for line in open('/proc/self/status') if line.startswith('SigIgn')],
]))
"""


@pytest.fixture(params=["spawned", "forked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the node's Python can start the command: older C libraries make no session in posix_spawn."""
    if request.param == "forked":
        hurried(monkeypatch, CAN_SPAWN=('hasattr(os, "posix_spawn")', "False"))


both_ways = pytest.mark.usefixtures("way")


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-Suc", text, *arguments]


def finish(node: Node) -> dict[str, object]:
    outcome = node.wait_for("outcome")
    node.wait_for("drained")
    return outcome


def test_a_command_runs_and_its_outcome_is_told(node: Node) -> None:
    """started, exited, outcome, drained, in that order; both logs are here to the last byte."""
    node.start(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    outcome = finish(node)
    assert (outcome["kind"], outcome["exit_code"], outcome["signal"], outcome["survivors"]) == ("exited", 3, None, [])
    assert [event["type"] for event in node.heard] == ["started", "exited", "outcome", "drained"]
    assert (node.log(), node.log("stderr.log")) == (b"out\n", b"err\n")


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (36, "SIG36")])
def test_a_signal_is_told_as_a_shell_tells_it(node: Node, number: int, name: str) -> None:
    """128 + n, and the signal's name; a real-time signal has a number only."""
    node.start(python(f"import os; os.kill(os.getpid(), {number})"))
    outcome = finish(node)
    assert (outcome["exit_code"], outcome["signal"]) == (128 + number, name)


@both_ways
def test_argv_environment_and_directory_are_as_they_were_said(node: Node) -> None:
    """Quotes, newlines, unicode, empty words, dollars: no shell has looked at them."""
    argv = ["", "a b", "'", '"', "\\", "new\nline", "é日本🚀", "$HOME `id` $(id)", "--", "-x", "*", "~", "\t", "#", "!!"]
    env = {"T_A": "", "T_B": "a\nb'\"$X é日本", "T_C": " x "}
    node.start(python(SHOW, *argv), env=env)
    finish(node)
    assert json.loads(node.log()) == [argv, env, str(node.job / "code")]


@both_ways
def test_bytes_that_are_no_text_arrive_as_they_are(node: Node) -> None:
    """File names of another age are arguments, too."""
    odd = b"\xff\xfe caf\xe9"
    node.start(python(BYTES, os.fsdecode(odd)), env={"T_X": os.fsdecode(odd)})
    finish(node)
    assert node.log().decode().strip() == repr([odd, odd])


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8", "xx_YY.ISO-8859-1"])
def test_whatever_the_nodes_locale_unicode_stays_utf8(node: Node, monkeypatch: pytest.MonkeyPatch, locale: str) -> None:
    """A log-in without a locale, or with an unknown one, changes no byte."""
    monkeypatch.setenv("LC_ALL", locale)
    node.start(python(BYTES, "é日本"), env={"T_X": "ü"})
    finish(node)
    assert node.log().decode().strip() == repr(["é日本".encode(), "ü".encode()])


def test_on_a_node_that_knows_ascii_alone_no_byte_changes(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose file system encoding cannot say the words passes their UTF-8 on."""
    plain = node.folder / "python"
    plain.write_text(f'#!/bin/sh\nLC_ALL=C exec "{node.host.python}" -X utf8=0 "$@"\n')
    plain.chmod(0o700)
    monkeypatch.setenv("T_Y", "ü")
    node.host = dataclasses.replace(node.host, python=str(plain))
    node.start(python(BYTES + "; print(os.environb[b'T_Y'])", "é日本"), env={"T_X": "ü"})
    finish(node)
    assert node.log().decode().splitlines() == [repr(["é日本".encode(), "ü".encode()]), repr("ü".encode())]


def test_what_is_dropped_is_not_inherited(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact names and prefixes; what is set wins over what is there."""
    for name in ("T_PLAIN", "T_DROP_1", "T_DROP_2", "T_SET"):
        monkeypatch.setenv(name, "node")
    node.start(python(SHOW), env={"T_SET": "mine"}, drop=("T_PLAINX", "T_DROP_*"))
    finish(node)
    assert json.loads(node.log())[1] == {"T_PLAIN": "node", "T_SET": "mine"}


@both_ways
def test_the_command_starts_with_default_signals_and_an_empty_mask(node: Node) -> None:
    """Although whoever started us ignores and blocks some."""
    old = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1)
    }
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
    try:
        node.start(python(SIGNALS))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in old.items():
            signal.signal(number, handler)
    finish(node)
    # Python itself ignores SIGPIPE and SIGXFSZ and handles SIGINT: 13 and 25 of the mask.  32 and 33 are glibc's own:
    # below a program that uses its posix_spawn, such as make, they are ignored, and glibc lets nobody change them.
    assert json.loads(node.log()) == [[], True, [], [(1 << 12) | (1 << 24)]]


@both_ways
def test_the_command_has_a_session_of_its_own_and_no_open_files(node: Node) -> None:
    """Nothing of ours leaks into it; its stdin is empty."""
    text = (
        "import os,sys; print(os.getsid(0) == os.getpid(), sorted(map(int, os.listdir('/proc/self/fd'))), sys.stdin.read() == '')"
    )
    node.start(python(text))
    finish(node)
    # The highest one is listdir's own.
    assert node.log() == b"True [0, 1, 2, 3] True\n"


@both_ways
def test_a_program_that_is_not_there_is_a_sentence(node: Node) -> None:
    """The outcome says `not started`, and names the program once."""
    node.start(["/no/such/program", "x"])
    outcome = finish(node)
    assert outcome["kind"] == "not started" and outcome["exit_code"] is None
    assert outcome["message"] == "/no/such/program: No such file or directory"


@both_ways
@pytest.mark.parametrize("code", [0o644, 0o000], ids=oct)
def test_a_program_is_looked_for_in_the_commands_own_path(node: Node, tmp_path: Path, code: int) -> None:
    """What may not be executed there is passed over while a later place has one that may; alone it is refused by name."""
    for name, mode in (("first", code), ("second", 0o755)):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "greet"
        program.write_text(f"#!/bin/sh\necho {name}\n")
        program.chmod(mode)
    node.start(["greet"], env={"PATH": f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second:/bin"})
    assert finish(node)["exit_code"] == 0 and node.log() == b"second\n"


@both_ways
@pytest.mark.parametrize(("argv", "env"), [(["a\0b"], {}), (["true"], {"T_X": "a\0b"})])
def test_a_command_that_cannot_be_said_to_the_system_is_a_sentence(node: Node, argv: list[str], env: dict[str, str]) -> None:
    """A NUL fits into no argv; it is not taken for a program that ended with 127."""
    node.start(argv, env=env)
    outcome = finish(node)
    assert outcome["kind"] == "not started" and "null" in str(outcome["message"])


def test_an_attempt_is_started_once(node: Node) -> None:
    """Whoever asks again, with a new connection, follows the first."""
    node.start(python("print('once'); input()"))
    node.wait_for("started")
    again, _ = node.connect()
    following = node.following(logs="again")
    said = again.follow(following, "node_start", argv=["false"], env=node.marks, defaults={}, drop=[], bin=None)
    assert not said["fresh"]
    assert finish(node)["kind"] == "exited"
    eventually(lambda: (node.folder / "again" / "stdout.log").read_bytes() == b"once\n")


# --- Stopping ---

TREE = """
import os, sys, subprocess, time
mark = sys.argv[1]
tail = ["sh", "-c", "trap '' TERM HUP INT; echo $$ >>pids; while :; do sleep 0.2; done", mark]
def daemon(argv):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp(argv[0], argv)
        os._exit(0)
    os.wait()
daemon(tail)
daemon(["env", "-i", *tail])
daemon(["env", "-i", "setsid", "nohup", *tail])
subprocess.Popen(["setsid", "env", "-u", "LAUNCHER_JOB_ID", *tail])
print("ready")
time.sleep(1000)
"""


def tree(node: Node) -> list[int]:
    """Start a command with descendants of every kind that hides; their pids."""
    node.start(python(TREE, node.mark))
    node.wait_for("started")
    path = node.job / "code" / "pids"
    pids = eventually(
        lambda: [int(word) for word in path.read_text().split()] if path.exists() and path.read_text().count("\n") == 4 else []
    )
    node.printed(b"ready\n")
    return [*pids, node.pids()["command"]]


def test_every_descendant_is_gone_after_a_stop(node: Node) -> None:
    """Double forks, sessions of their own, emptied environments, ignored signals: descent finds them all."""
    pids = tree(node)
    link = node.links[0]
    link.ask("node_stop", attempt=0, grace=0, reason="cancel")
    outcome = finish(node)
    assert (outcome["signal"], outcome["survivors"]) == ("SIGKILL", [])
    assert not [pid for pid in pids if alive(pid)]
    assert node.survivors_of_job() == []


def test_what_outlives_its_command_is_ended_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ends well leaves nothing behind; its leftovers get a TERM first."""
    hurried(monkeypatch, LEFTOVER_GRACE=(5.0, 600.0))
    shell = "trap 'echo bye; exit' TERM; echo on; while :; do sleep 0.05; done"
    text = "import subprocess, sys; subprocess.Popen(['sh', '-c', sys.argv[2], sys.argv[1]])"
    node.start(python(text, node.mark, shell))
    outcome = finish(node)
    assert (outcome["exit_code"], outcome["survivors"]) == (0, [])
    assert b"bye" in node.log() or b"on" not in node.log()


POLITE = """
import signal, sys, time
def term(number, frame):
    print("term", flush=True)
signal.signal(signal.SIGTERM, term)
print("ready", flush=True)
while True:
    time.sleep(0.02)
"""


def test_term_comes_once_and_kill_after_the_grace(node: Node) -> None:
    """A command that shrugs at TERM is killed when its grace is over, not sooner and not asked twice."""
    link = node.start(python(POLITE))
    node.printed(b"ready\n")
    began = time.monotonic()
    link.ask("node_stop", attempt=0, grace=2, reason="cancel")
    outcome = finish(node)
    assert time.monotonic() - began >= 2
    assert (outcome["signal"], node.log()) == ("SIGKILL", b"ready\nterm\n")
    assert [event["type"] for event in node.heard] == ["started", "stopping", "killing", "exited", "outcome", "drained"]


def test_a_command_that_obeys_ends_at_once(node: Node) -> None:
    """The grace is a limit, no delay."""
    text = "import signal,sys,time; signal.signal(15, lambda *_: sys.exit(7)); print('ready', flush=True); time.sleep(1000)"
    link = node.start(python(text))
    node.printed(b"ready\n")
    link.ask("node_stop", attempt=0, grace=600, reason="cancel")
    assert finish(node)["exit_code"] == 7


def test_below_a_shell_the_programs_get_the_term(node: Node) -> None:
    """A shell would sit on it until its child ends."""
    child = "import signal,sys,time; signal.signal(15, lambda *_: sys.exit(9)); print('ready', flush=True); time.sleep(1000)"
    link = node.start(["/bin/sh", "-c", f'"{sys.executable}" -Suc "{child}"; echo code $?; exit 4'])
    node.printed(b"ready\n")
    link.ask("node_stop", attempt=0, grace=600, reason="cancel")
    finish(node)
    assert b"code 9" in node.log() or node.log() == b"ready\n"


HELD = """
import os, signal, subprocess, sys, time
def bye(*_):
    print(sys.argv[1], "ends", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
if sys.argv[1] == "first":
    child = subprocess.Popen([sys.executable, "-Suc", sys.argv[2], "second"])
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(1000)
"""


def test_a_command_that_is_held_still_hears_of_the_stop(node: Node) -> None:
    """Stopped by a signal, as its child is: both run again, to obey the TERM instead of sleeping through their grace."""
    link = node.start(["/bin/sh", "-c", 'exec "$0" "$@"', *python(HELD, "first", HELD)])
    node.wait_for("started")
    eventually(lambda: procs.stopped(node.pids()["command"]))
    link.ask("node_stop", attempt=0, grace=600, reason="cancel")
    assert finish(node)["exit_code"] == 0
    assert b"first ends" in node.log()


def test_an_agent_that_is_held_still_hears_of_the_stop(node: Node) -> None:
    """Whoever stopped it, with its warden, does not keep its command alive."""
    link = node.start(python("print('ready', flush=True); __import__('time').sleep(1000)"))
    node.printed(b"ready\n")
    node.wait_for("started")
    for who in ("warden", "agent"):
        os.kill(node.pids()[who], signal.SIGSTOP)
        eventually(lambda who=who: procs.stopped(node.pids()[who]))
    link.ask("node_stop", attempt=0, grace=600, reason="cancel")
    assert finish(node)["signal"] == "SIGTERM"


def test_a_second_wish_with_less_grace_is_obeyed(node: Node) -> None:
    """The first Ctrl-C waits, the second does not."""
    link = node.start(python(POLITE))
    node.printed(b"ready\n")
    link.ask("node_stop", attempt=0, grace=600, reason="cancel")
    node.wait_for("stopping")
    link.ask("node_stop", attempt=0, grace=0, reason="cancel")
    assert finish(node)["signal"] == "SIGKILL"


def test_a_wish_to_stop_another_attempt_is_not_ours(node: Node) -> None:
    """An old wish does not end a new attempt."""
    link = node.start(python("print('ready', flush=True); input()"), attempt=1)
    link.ask("node_stop", attempt=0, grace=0, reason="cancel")
    assert finish(node)["signal"] is None


# --- Who dies in between ---


def test_when_the_supervisor_is_killed_the_warden_ends_everything(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, emptied environments included; the outcome is `agent lost`, and it is not the follower who tells it at last."""
    hurried(monkeypatch, _LOST_SECONDS=(5.0, 3600.0))
    pids = tree(node)
    os.kill(node.pids()["agent"], signal.SIGKILL)
    outcome = finish(node)
    assert outcome["kind"] == "agent lost" and outcome["survivors"] == []
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_warden_is_killed_the_job_goes_on_with_a_new_one(node: Node, number: signal.Signals) -> None:
    """The command does not notice, and the new warden does the old one's duty."""
    pids = tree(node)
    first = node.pids()
    os.kill(first["warden"], number)
    assert node.wait_for("warden lost")["pid"] == first["warden"]
    assert all(alive(pid) for pid in pids)
    second = eventually(lambda: wardens(node))
    assert second != [first["warden"]]
    seen_by_the_agent(node, pids)
    os.kill(first["agent"], signal.SIGKILL)
    assert finish(node)["kind"] == "agent lost"
    assert not [pid for pid in pids if alive(pid)]


def seen_by_the_agent(node: Node, pids: list[int]) -> None:
    """Wait until it has written down that all these are below it: it looks now and then."""
    path = node.spool / "family.json"
    eventually(lambda: path.exists() and set(pids) <= {pid for pid, _ in json.loads(path.read_text())["pids"]})


def wardens(node: Node) -> list[int]:
    return [int(entry.split()[0]) for entry in node.survivors() if entry.split()[1] == "launcher-warden"]


def test_without_a_warden_a_stop_works_as_before(node: Node) -> None:
    """The new warden is not taken for a part of the command."""
    pids = tree(node)
    os.kill(node.pids()["warden"], signal.SIGKILL)
    node.wait_for("warden lost")
    node.links[0].ask("node_stop", attempt=0, grace=0, reason="cancel")
    outcome = finish(node)
    assert (outcome["kind"], outcome["survivors"]) == ("exited", [])
    assert not [pid for pid in pids if alive(pid)]


def test_when_both_are_killed_the_follower_speaks_for_them(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few seconds without a sign of either: `agent lost`, and nothing with the job's marks is left."""
    hurried(monkeypatch, _LOST_SECONDS=(5.0, 0.5))
    below = tree(node)
    seen_by_the_agent(node, below)
    node.kill_at_once("warden", "agent")
    outcome = finish(node)
    assert outcome["kind"] == "agent lost" and outcome["survivors"] == []
    assert not [pid for pid in below if alive(pid)]


def test_a_note_of_processes_that_is_none_does_no_harm(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command may write anything there; numbers that are other processes' by now are left alone."""
    hurried(monkeypatch, _LOST_SECONDS=(5.0, 0.2))
    node.start(python("input()"))
    finish(node)
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        another = json.dumps({"boot_id": procs.boot_id(), "pids": [[stranger.pid, 1]]}).encode()
        for number, text in enumerate((another, b"[1]", b'{"boot_id": 1}', b"\xff"), 5):
            (node.spool / f"claim-{number}").touch()
            (node.spool / "family.json").write_bytes(text)
            link, _ = node.connect()
            link.follow(node.following(number, f"later-{number}"))
            outcomes = iter(lambda: node.wait_for("outcome"), None)
            assert next(event for event in outcomes if event["attempt"] == number)["kind"] == "agent lost"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_restarted_node_is_told_from_a_lost_agent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another boot id: the outcome is `rebooted`."""
    hurried(monkeypatch, _LOST_SECONDS=(5.0, 0.2))
    node.start(python("input()"))
    finish(node)
    # What a restart leaves: a claimed attempt whose agent belonged to another boot, and no outcome.
    (node.spool / "claim-5").touch()
    (node.spool / "agent-5.json").write_text(json.dumps({"boot_id": "another", "pids": {"agent": [1, 1]}}))
    link, _ = node.connect()
    assert link.follow(node.following(5, "later")) == {"claimed": True}
    events = iter(lambda: node.wait_for("outcome"), None)
    assert next(event for event in events if event["attempt"] == 5)["kind"] == "rebooted"


def test_the_supervisor_shrugs_at_polite_signals(node: Node) -> None:
    """TERM, INT and HUP to the agent end nothing: its command is stopped by wish alone."""
    node.start(python("print('ready', flush=True); input() if 0 else __import__('time').sleep(1000)"))
    node.printed(b"ready\n")
    node.wait_for("started")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(node.pids()["agent"], number)
    node.links[0].ask("node_stop", attempt=0, grace=0, reason="cancel")
    assert finish(node)["kind"] == "exited"


def test_an_agent_that_has_nothing_to_say_leaves_no_log(node: Node) -> None:
    """Each file costs every start on every node."""
    node.start(["true"])
    finish(node)
    assert "agent.log" not in os.listdir(node.spool)


def test_an_agent_that_fails_says_why_in_its_log(tmp_path: Path) -> None:
    """With the traceback, and with an exit code that is told apart from a command's."""
    script = (
        "import os, sys\n"
        "from launcher.agent import supervise\n"
        "from launcher.agent.spool import Spool\n"
        "supervise._detach(Spool(sys.argv[1]), os.dup(0))\n"
        "supervise.never_return(lambda: {}['lost'])\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert ended.returncode == 70
    assert (tmp_path / "agent.log").read_text().rstrip().endswith("KeyError: 'lost'")


def test_a_supervisor_for_whose_new_warden_no_process_is_left_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it the command would end; the next look tries again."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    supervisor = object.__new__(supervise.Supervisor)
    supervisor.warden, supervisor.helper = gone.pid, None

    def none_left() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", none_left)
    before = os.listdir("/proc/self/fd")
    supervisor.look_after_warden()
    assert (supervisor.warden, supervisor.helper) == (gone.pid, None) and os.listdir("/proc/self/fd") == before

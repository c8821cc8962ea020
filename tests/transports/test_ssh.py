"""Reaching a host over ssh: what works in a terminal works here, and what does not is a sentence within seconds."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import HostUnreachable, LinkLost, LoginRefused, NodeError
from launcher.model import SshOptions
from launcher.transports import Transport, connect
from launcher.transports.ssh import command_line
from tests.transports.sshd import PATIENCE, Sshd, generate_key, held_port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd") as running:
        yield running


def reach(server: Sshd, **fields: object) -> Transport:
    return connect("ssh", server.host(**fields), server.options)


def answer(transport: Transport) -> bytes:
    """What `echo` says over there; the transport is closed."""
    channel = transport.open(["echo", "here"])
    said = channel.receive(100, PATIENCE)
    channel.close()
    transport.close()
    return said


def refused(server: Sshd) -> LoginRefused:
    with pytest.raises(LoginRefused) as caught:
        reach(server)
    return caught.value


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_every_common_kind_of_key_opens_the_host(server: Sshd, tmp_path: Path, kind: str) -> None:
    """A key file of each kind works."""
    key = generate_key(tmp_path / "key", kind)
    server.authorized_keys.write_text(key.with_suffix(".pub").read_text())
    server.write_client_config(identity=key)
    assert answer(reach(server)) == b"here\n"


def test_an_old_pem_key_opens_the_host(server: Sshd, tmp_path: Path) -> None:
    """A key in the PEM format of before 2018 works, also without its public half beside it."""
    key = tmp_path / "pem"
    subprocess.run(["ssh-keygen", "-q", "-m", "PEM", "-t", "rsa", "-N", "", "-f", str(key)], check=True)
    server.authorized_keys.write_text(key.with_suffix(".pub").read_text())
    key.with_suffix(".pub").unlink()
    server.write_client_config(identity=key)
    assert answer(reach(server)) == b"here\n"


def test_a_certificate_beside_the_key_opens_the_host(tmp_path: Path) -> None:
    """`KEY-cert.pub` is shown to the server, as ssh does."""
    authority = generate_key(tmp_path / "authority")
    with Sshd(tmp_path / "sshd", [f"TrustedUserCAKeys {authority}.pub"]) as server:
        server.authorized_keys.write_text("")
        subprocess.run(["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", server.user, f"{server.key}.pub"], check=True)
        assert answer(reach(server)) == b"here\n"


def test_a_wrong_key_is_named_with_what_the_server_offers(server: Sshd, tmp_path: Path) -> None:
    """The error says which key was tried, what the server offers, and the command to try by hand."""
    wrong = generate_key(tmp_path / "wrong")
    server.write_client_config(identity=wrong)
    said = str(refused(server))
    assert f"{wrong}: refused" in said
    assert "SHA256:" in said
    assert "the server offers: publickey" in said
    assert f"ssh -F {server.ssh_config} box" in said
    assert said.startswith(f"box: the log-in as {server.user} was refused")


def test_a_key_that_others_may_read_is_not_used(server: Sshd) -> None:
    """As in ssh; the error gives the cure."""
    server.key.chmod(0o644)
    assert f"mode 0644), so it is not used: chmod 600 {server.key}" in str(refused(server))


def test_a_missing_key_file_is_told(server: Sshd) -> None:
    """An identity file somebody named, and which is not there, is no mystery."""
    server.key.unlink()
    assert f"{server.key}: No such file or directory" in str(refused(server))


def test_an_encrypted_key_without_an_agent_is_told_and_nobody_is_asked(server: Sshd, tmp_path: Path) -> None:
    """No prompt that nobody sees: a sentence with `ssh-add`."""
    key = generate_key(tmp_path / "locked", passphrase="secret")
    server.authorized_keys.write_text(key.with_suffix(".pub").read_text())
    server.write_client_config(identity=key)
    assert f"{key}: encrypted, and not in the agent; load it: ssh-add {key}" in str(refused(server))


def test_a_file_that_is_no_key_is_told(server: Sshd) -> None:
    """Rubbish in an identity file is a sentence, not a traceback."""
    server.key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nrubbish\n-----END OPENSSH PRIVATE KEY-----\n")
    assert f"{server.key}: not a private key that can be read here" in str(refused(server))


def test_a_password_only_server_is_refused_at_once(tmp_path: Path) -> None:
    """A password prompt never hangs: the error says what would be asked for."""
    with Sshd(tmp_path / "sshd", ["PubkeyAuthentication no", "PasswordAuthentication yes"]) as server:
        began = time.monotonic()
        said = str(refused(server))
        assert time.monotonic() - began < PATIENCE
        assert "a password would be asked for, and nobody is there to type it" in said


class Agent:
    """A running ssh-agent."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "agent"
        self._process = subprocess.Popen(["ssh-agent", "-D", "-a", str(self.path)], stdout=subprocess.PIPE)
        assert self._process.stdout
        self._process.stdout.readline()  # it announces its socket

    def add(self, key: Path, passphrase: str = "") -> None:
        asking = key.parent / "askpass"
        asking.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
        asking.chmod(0o700)
        subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL, env={
            **os.environ, "SSH_AUTH_SOCK": str(self.path), "SSH_ASKPASS": str(asking), "SSH_ASKPASS_REQUIRE": "force"})

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=PATIENCE)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    running = Agent(tmp_path)
    yield running
    running.stop()


def use_agent(server: Sshd, agent: Agent, *lines: str) -> None:
    text = server.ssh_config.read_text().replace("IdentityAgent none", f"IdentityAgent {agent.path}")
    server.ssh_config.write_text(text + "".join(f"  {line}\n" for line in lines))


def test_a_key_that_lives_only_in_the_agent_opens_the_host(server: Sshd, agent: Agent) -> None:
    """No file is needed."""
    agent.add(server.key)
    server.write_client_config(identity=Path("none"))
    use_agent(server, agent)
    server.key.unlink()
    assert answer(reach(server)) == b"here\n"


def test_an_encrypted_key_in_the_agent_opens_the_host(server: Sshd, agent: Agent, tmp_path: Path) -> None:
    """The agent's copy is used, without a word about the file; also with IdentitiesOnly and a file of the public half."""
    key = generate_key(tmp_path / "locked", passphrase="secret")
    server.authorized_keys.write_text(key.with_suffix(".pub").read_text())
    agent.add(key, "secret")
    server.write_client_config(identity=key)
    use_agent(server, agent, "IdentitiesOnly yes")
    assert answer(reach(server)) == b"here\n"
    key.unlink()
    assert answer(reach(server)) == b"here\n"


def test_the_inventorys_key_comes_first_however_many_the_agent_holds(server: Sshd, agent: Agent, tmp_path: Path) -> None:
    """Six other keys in the agent do not use up the server's patience (MaxAuthTries 6)."""
    for number in range(7):
        agent.add(generate_key(tmp_path / f"other{number}"))
    key = server.key.rename(tmp_path / "mine")
    server.write_client_config(identity=Path("none"))
    use_agent(server, agent)
    assert answer(reach(server, identity_file=str(key))) == b"here\n"


def test_a_dead_agent_is_told_and_files_still_work(server: Sshd, agent: Agent, tmp_path: Path) -> None:
    """The socket of an agent that went with its terminal."""
    agent.stop()
    use_agent(server, agent)
    assert answer(reach(server)) == b"here\n"
    server.write_client_config(identity=generate_key(tmp_path / "wrong"))
    use_agent(server, agent)
    assert f"the agent at {agent.path} does not answer" in str(refused(server))


def test_a_refused_port_says_so(server: Sshd) -> None:
    """Nobody listens: at once, with address and port."""
    with held_port() as nobodys:
        port = nobodys.getsockname()[1]
        with pytest.raises(HostUnreachable, match=f"127.0.0.1 port {port}: Connection refused"):
            reach(server, port=port)


def test_a_silent_port_is_given_up_in_time(server: Sshd) -> None:
    """Something accepts and never speaks: an error after connect_timeout, not a hang."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(HostUnreachable, match="no ssh server answered in 1 s"):
            connect("ssh", server.host(port=silent.getsockname()[1]), SshOptions(str(server.ssh_config), connect_timeout=1.0))
        assert time.monotonic() - began < PATIENCE


def test_a_port_that_speaks_something_else_is_told(server: Sshd) -> None:
    """A web server is no sshd."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        def serve() -> None:
            connection = other.accept()[0]
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(HostUnreachable, match="is that the port of sshd"):
            reach(server, port=other.getsockname()[1])


def test_a_stopped_server_is_given_up_in_time(server: Sshd) -> None:
    """The kernel accepts, sshd is stopped: still only connect_timeout."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(HostUnreachable, match="no ssh server answered"):
            connect("ssh", server.host(), SshOptions(str(server.ssh_config), connect_timeout=1.0))
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_an_unknown_name_says_so(server: Sshd) -> None:
    """A name that does not resolve is not a dead host."""
    with pytest.raises(HostUnreachable, match=r"the name no-such-host\.invalid does not resolve"):
        connect("ssh", server.host(name="n1", address="no-such-host.invalid"), server.options)


def test_a_missing_ssh_program_says_so(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `ssh` here there is no configuration to go by."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NodeError, match="there is no `ssh` program here"):
        reach(server)


def test_a_peer_that_dies_is_a_lost_link(server: Sshd) -> None:
    """When the session's sshd is killed, the receiver gets LinkLost and not an end of output."""
    transport = reach(server)
    channel = transport.open(["cat"])
    channel.send(b"x")
    assert channel.receive(1, PATIENCE) == b"x"
    server.signal_children(signal.SIGKILL)
    with pytest.raises(LinkLost):
        channel.receive(1, PATIENCE)
    assert channel.close() == (None, b"")
    with pytest.raises(LinkLost):
        transport.open(["true"])
    transport.close()


def test_a_frozen_peer_blocks_nobody_for_long(server: Sshd) -> None:
    """With the far sshd stopped, waiting times out, closing is prompt, and a blocked sender is set free."""
    transport = reach(server)
    channel = transport.open(["cat"])
    channel.send(b"x")
    assert channel.receive(1, PATIENCE) == b"x"
    server.signal_children(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        channel.receive(1, 0.2)
    outcome: list[object] = []

    def flood() -> None:
        try:
            channel.send(b"x" * (32 << 20))
        except LinkLost as error:
            outcome.append(error)

    sender = threading.Thread(target=flood)
    sender.start()
    began = time.monotonic()
    assert channel.close() == (None, b"")
    transport.close()
    sender.join(PATIENCE)
    assert time.monotonic() - began < PATIENCE
    assert [type(item) for item in outcome] == [LinkLost]


def test_a_second_session_that_is_not_granted_says_so(tmp_path: Path) -> None:
    """MaxSessions 1: a sentence the caller can act on; the first program goes on."""
    with Sshd(tmp_path / "sshd", ["MaxSessions 1"]) as server:
        transport = reach(server)
        channel = transport.open(["cat"])
        with pytest.raises(NodeError, match=r"no further session .*MaxSessions"):
            transport.open(["true"])
        channel.send(b"still here")
        assert channel.receive(100, PATIENCE) == b"still here"
        channel.close()
        transport.close()


def test_an_ipv6_address_works(tmp_path: Path) -> None:
    """::1, straight from the inventory."""
    with Sshd(tmp_path / "sshd", address="::1") as server:
        host = server.host(name="six", address="::1", port=server.port, identity_file=str(server.key))
        server.ssh_config.write_text(f"Host *\n  UserKnownHostsFile {server.known_hosts}\n  IdentityAgent none\n")
        assert answer(connect("ssh", host, server.options)) == b"here\n"


def test_two_servers_behind_one_address_are_two_hosts(tmp_path: Path) -> None:
    """Ports tell them apart, in known_hosts too."""
    with Sshd(tmp_path / "a", ["ForceCommand echo a"]) as one, Sshd(tmp_path / "b", ["ForceCommand echo b"]) as two:
        assert answer(reach(one)) == b"a\n"
        assert answer(reach(two)) == b"b\n"


def test_a_proxy_command_carries_the_connection(server: Sshd) -> None:
    """As ssh runs it: tokens expanded, through the shell; its complaints are in the error."""
    relay = server.folder / "relay.py"
    relay.write_text("""
import select, socket, sys, os
far = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for ready in select.select([far, 0], [], [])[0]:
        data = far.recv(65536) if ready is far else os.read(0, 65536)
        if not data: sys.exit()
        os.write(1, data) if ready is far else far.sendall(data)
""")
    server.ssh_config.write_text(server.ssh_config.read_text() + f"  ProxyCommand {sys.executable} -S {relay} %h %p\n")
    assert answer(reach(server)) == b"here\n"
    server.write_client_config()
    server.ssh_config.write_text(server.ssh_config.read_text() + "  ProxyCommand echo 'no way through' >&2; exit 1\n")
    with pytest.raises(HostUnreachable, match="no way through"):
        reach(server)


@pytest.mark.parametrize("shell", ["bash", "dash", "ksh", "zsh", "fish", "tcsh"])
def test_any_log_in_shell_with_noisy_files_will_do(tmp_path: Path, shell: str) -> None:
    """Words arrive unharmed through every shell; what its rc files print comes before, which a marker cuts off."""
    path = shutil.which(shell)
    assert path, f"{shell} is needed by this test: apt-get install {shell}"
    # As if it were the log-in shell: sshd runs `SHELL -c LINE`.
    with Sshd(tmp_path / "sshd", [f'ForceCommand exec {path} -c "$SSH_ORIGINAL_COMMAND"']) as server:
        (server.home / ".config/fish").mkdir(parents=True)
        for name in (".bashrc", ".zshenv", ".tcshrc", ".config/fish/config.fish"):
            (server.home / name).write_text("echo welcome to this machine\n")
        transport = reach(server)
        channel = transport.open([sys.executable, "-S", "-c", "import sys; print(sys.argv[1:])", "MARK", "two words", "$HOME",
                                  "*", "a=b", "=ls", "%1", "{a,b}", "", "~root", "x#y", "#z", "^", "ü"])
        said = b""
        while piece := channel.receive(1000, PATIENCE):
            said += piece
        assert said.decode().partition("[")[2].strip() == str(["MARK", "two words", "$HOME", "*", "a=b", "=ls", "%1", "{a,b}", "",
                                                               os.path.expanduser("~root"), "x#y", "#z", "^", "ü"])[1:]
        assert channel.close()[0] == 0
        transport.close()


@pytest.mark.parametrize("word", ["it's", "back\\slash", "bang!", "new\nline", "bell\a", "nul\0"])
def test_a_word_no_quoting_saves_is_refused(word: str) -> None:
    """Such data belongs on standard input; half the shells would mangle it."""
    with pytest.raises(ValueError, match="cannot stand in a remote command line"):
        command_line(["echo", word])


def test_the_command_line_is_plain_where_it_can_be() -> None:
    """Safe words stay bare, so that ~ is expanded; the rest is in single quotes."""
    words = ["~/x/bin/python", "-S", "a b", "~/my dir/x", "~", "a~b"]
    assert command_line(words) == "~/x/bin/python -S 'a b' ~/'my dir/x' ~ 'a~b'"


def test_nothing_is_printed_when_a_connection_fails(server: Sshd) -> None:
    """paramiko's tracebacks do not reach the user's terminal."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        program = f"""
from launcher.errors import HostUnreachable
from launcher.model import Host, SshOptions
from launcher.transports import connect
try:
    connect("ssh", Host("box", "box", port={other.getsockname()[1]}), SshOptions({str(server.ssh_config)!r}, connect_timeout=0.5))
except HostUnreachable as error:
    print("told")
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ("told\n", "")


def test_many_hosts_at_once(tmp_path: Path) -> None:
    """Thirty-two threads connect at the same time, twice, each to a connection of its own."""
    with Sshd(tmp_path / "sshd") as server:
        answers: list[bytes] = []
        together = threading.Barrier(32)

        def visit() -> None:
            for _ in range(2):
                together.wait(PATIENCE)
                transport = reach(server)
                together.wait(PATIENCE)
                answers.append(answer(transport))

        threads = [threading.Thread(target=visit) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
        assert answers == [b"here\n"] * 64

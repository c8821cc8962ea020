"""What `ssh -G` says is what happens: Include, Match, tokens, precedence, and chains of jump hosts."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import HostUnreachable, LoginRefused, NodeError
from launcher.model import Host, SshOptions
from launcher.transports import connect, ssh_config
from launcher.transports.known_hosts import record, scan
from launcher.transports.ssh_config import SshSettings
from tests.transports.sshd import PATIENCE, Sshd, generate_key


def resolve(tmp_path: Path, config: str, **fields: object) -> SshSettings:
    file = tmp_path / "config"
    file.write_text(config)
    return ssh_config.resolve(Host(**{"name": "node", "address": "node", **fields}),  # type: ignore[arg-type]
                              SshOptions(config=str(file)))


def test_what_the_inventory_says_beats_a_host_star_block(tmp_path: Path) -> None:
    """User, port and key of the inventory win, whatever `Host *` at the top says."""
    star = "Host *\n  User other\n  Port 77\n  IdentityFile /other\n"
    found = resolve(tmp_path, star, user="me", port=22, identity_file="/mi ne")
    assert (found.user, found.port, found.identity_files[0], found.identities_only) == ("me", 22, "/mi ne", True)


def test_what_the_inventory_does_not_say_is_the_users_configuration(tmp_path: Path) -> None:
    """Nothing is passed that was not asked for."""
    found = resolve(tmp_path, "Host *\n  User other\n  Port 77\n  HostName real\n  IdentityAgent none\n")
    assert (found.user, found.port, found.hostname) == ("other", 77, "real")
    assert (found.identity_agent, found.identities_only) == (None, False)


def test_include_and_match_are_ssh_s_own(tmp_path: Path) -> None:
    """paramiko knows no Include; ssh does."""
    (tmp_path / "more").write_text("Match host node exec true\n  User matched\n")
    assert resolve(tmp_path, f"Include {tmp_path}/more\n").user == "matched"


def test_tokens_and_variables_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token of ssh_config(5) for a file name; ~ is the account's home."""
    monkeypatch.setenv("WHERE", "/somewhere")
    found = resolve(tmp_path, "Host node\n  HostName real\n  User remote\n  Port 2222\n  HostKeyAlias alias\n"
                              "  IdentityFile ${WHERE}/%n-%h-%p-%r-%k-%u-%%-%i-%L\n  IdentityFile ~/key\n  IdentityFile %d/key\n"
                              "  UserKnownHostsFile ~/a%h \"/with space/b\"\n  IdentityAgent ${WHERE}/agent\n")
    home = os.path.expanduser(f"~{getpass.getuser()}")
    short = socket.gethostname().partition(".")[0]
    assert found.identity_files == (
        f"/somewhere/node-real-2222-remote-alias-{getpass.getuser()}-%-{os.getuid()}-{short}", f"{home}/key")
    assert found.user_known_hosts[:2] == (f"{home}/areal", "/with space/b")
    assert found.identity_agent == "/somewhere/agent"


def test_a_variable_that_is_not_set_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ssh; the name is told."""
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(NodeError, match="NOT_SET"):
        resolve(tmp_path, "IdentityFile ${NOT_SET}/key\n")


@pytest.mark.parametrize(("config", "expected"), [
    ("", "/run/agent"), ("IdentityAgent none\n", None), ("IdentityAgent SSH_AUTH_SOCK\n", "/run/agent"),
    ("IdentityAgent $OTHER\n", "/run/other"), ("IdentityAgent /x/%r\nUser u\n", "/x/u"),
])
def test_the_agent_is_the_one_ssh_would_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, expected: str) -> None:
    """IdentityAgent in all its forms."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("OTHER", "/run/other")
    assert resolve(tmp_path, config).identity_agent == expected


def test_a_configuration_ssh_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    """The file and line come from ssh."""
    with pytest.raises(NodeError, match=r"config: line 2: Bad configuration option: nosuchoption"):
        resolve(tmp_path, "Host *\n  NoSuchOption yes\n")


def test_a_missing_configuration_file_is_an_error(tmp_path: Path) -> None:
    """Never silently the defaults."""
    with pytest.raises(NodeError, match="absent"):
        ssh_config.resolve(Host("node", "node"), SshOptions(config=str(tmp_path / "absent")))


def test_an_address_cannot_become_an_option(tmp_path: Path) -> None:
    """`-oProxyCommand=…` as an address is refused, not obeyed."""
    with pytest.raises(NodeError):
        resolve(tmp_path, "", address="-oProxyCommand=touch /tmp/x")


def test_shorter_connect_timeout_wins(tmp_path: Path) -> None:
    """The inventory's limit holds; a shorter one of the user's is kept."""
    assert resolve(tmp_path, "ConnectTimeout 3\n").connect_timeout == 3
    assert resolve(tmp_path, "ConnectTimeout 300\n").connect_timeout == 10


CHAIN = """
Host node
  ProxyJump {jump}
Host a
  HostName a.real
  User ua
  {a}
Host b
  HostName b.real
  ProxyJump never-used
Host *
  User star
"""


def way(settings: SshSettings) -> list[tuple[str, str, int]]:
    return [(hop.user, hop.hostname, hop.port) for hop in (*settings.jumps, settings)]


def test_each_jump_host_has_its_own_settings(tmp_path: Path) -> None:
    """`-J a,b`: a first, then b through a alone; user and port from the jump's text or its own block."""
    found = resolve(tmp_path, CHAIN.format(jump="ssh://a:23,x@b", a=""))
    assert way(found) == [("ua", "a.real", 23), ("x", "b.real", 22), ("star", "node", 22)]
    assert [hop.where for hop in found.jumps] == ["node (jump host a)", "node (jump host b)"]


def test_the_first_jump_hosts_own_jump_comes_before_it(tmp_path: Path) -> None:
    """a's own ProxyJump applies to the way to a."""
    found = resolve(tmp_path, CHAIN.format(jump="a,b", a="ProxyJump z@[::1]:24"))
    assert way(found) == [("z", "::1", 24), ("ua", "a.real", 22), ("star", "b.real", 22), ("star", "node", 22)]


def test_proxy_jump_none_is_the_straight_way(tmp_path: Path) -> None:
    """One host is excepted from a `Host *` jump."""
    assert resolve(tmp_path, "Host node\n  ProxyJump none\nHost *\n  ProxyJump b\n").jumps == ()


def test_jump_hosts_in_a_circle_are_told(tmp_path: Path) -> None:
    """No endless search."""
    with pytest.raises(NodeError, match="circle"):
        resolve(tmp_path, "Host node\n  ProxyJump a\nHost a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(NodeError, match="jumphost loop"):
        resolve(tmp_path, "Host *\n  ProxyJump a\n")


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[tuple[Sshd, Sshd, Sshd, Path]]:
    """Three servers, each with a key of its own; the last is reached through the other two."""
    with Sshd(tmp_path / "a") as a, Sshd(tmp_path / "b") as b, Sshd(tmp_path / "c", ["ForceCommand echo reached c"]) as c:
        config, known = tmp_path / "config", tmp_path / "known"
        known.write_text("".join(server.known_hosts.read_text() for server in (a, b, c)))
        blocks = [f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n"
                  f"  IdentityFile {server.key}\n{more}"
                  for name, server, more in (("a", a, ""), ("b", b, "  ProxyJump a\n"), ("c", c, "  ProxyJump b\n"))]
        config.write_text("".join(blocks) + f"Host *\n  IdentityAgent none\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n")
        yield a, b, c, config


def test_a_chain_of_two_jump_hosts_is_walked(chain: tuple[Sshd, Sshd, Sshd, Path]) -> None:
    """Each hop with its own key, over real servers."""
    transport = connect("ssh", Host("n1", "c"), SshOptions(str(chain[3]), connect_timeout=PATIENCE))
    channel = transport.open(["true"])
    assert channel.receive(100, PATIENCE) == b"reached c\n"
    channel.close()
    transport.close()


def test_a_fault_on_the_way_names_the_jump_host(chain: tuple[Sshd, Sshd, Sshd, Path], tmp_path: Path) -> None:
    """A wrong key at a, a dead c behind b: the error says which machine."""
    a, _, c, config = chain
    options = SshOptions(str(config), connect_timeout=PATIENCE)
    c.halt()
    with pytest.raises(HostUnreachable, match=rf"n1: the jump host 127.0.0.1 cannot reach 127.0.0.1 port {c.port}"):
        connect("ssh", Host("n1", "c"), options)
    c.start()
    a.authorized_keys.write_text(generate_key(tmp_path / "other").with_suffix(".pub").read_text())
    with pytest.raises(LoginRefused, match=r"n1 \(jump host a\)"):
        connect("ssh", Host("n1", "c"), options)


def test_a_frozen_jump_host_holds_nobody(chain: tuple[Sshd, Sshd, Sshd, Path]) -> None:
    """Closing a connection through a stopped jump host is prompt."""
    transport = connect("ssh", Host("n1", "c"), SshOptions(str(chain[3]), connect_timeout=PATIENCE))
    chain[0].signal_children(signal.SIGSTOP)
    began = time.monotonic()
    transport.close()
    assert time.monotonic() - began < PATIENCE


def test_a_jump_host_that_forwards_nothing_says_so(tmp_path: Path) -> None:
    """AllowTcpForwarding no is not a dead node."""
    with Sshd(tmp_path / "a", ["AllowTcpForwarding no"]) as a:
        a.ssh_config.write_text(a.ssh_config.read_text() + "Host far\n  ProxyJump box\n")
        with pytest.raises(HostUnreachable, match="forwards nothing"):
            connect("ssh", Host("far", "far"), a.options)


def test_trust_goes_along_the_chain(chain: tuple[Sshd, Sshd, Sshd, Path], tmp_path: Path) -> None:
    """One machine after another is shown and recorded, until all are known."""
    (tmp_path / "known").unlink()
    host, options, seen = Host("n1", "c"), SshOptions(str(chain[3]), connect_timeout=PATIENCE), []
    while keys := scan(host, options):
        seen.append(keys[0].machine)
        record(keys)
    assert seen == ["n1 (jump host a)", "n1 (jump host b)", "n1"]
    connect("ssh", host, options).close()

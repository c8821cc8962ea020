"""Jump hosts that many hosts share: one connection to each, made again when it broke."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from launcher.errors import HostUnreachable, LinkLost, LoginRefused, NodeError
from launcher.model import Host, SshOptions
from launcher.transports import Transport, connect
from launcher.transports.gateways import Gateway, Gateways, SshWay
from launcher.transports.ssh import SshTransport
from tests.agent.far import eventually
from tests.transports.sshd import PATIENCE, Sshd, generate_key


class Site:
    """A bastion with a stingy MaxStartups, and behind it one server that answers to many names, the odd ones through
    one more jump host."""

    def __init__(self, folder: Path, bastion: Sshd, inner: Sshd, server: Sshd) -> None:
        self.bastion, self.inner, self.server = bastion, inner, server
        self.config = folder / "config"
        known = folder / "known"
        known.write_text("".join(one.known_hosts.read_text() for one in (bastion, inner, server)))
        blocks = [
            f"Host {pattern}\n  HostName 127.0.0.1\n  Port {one.port}\n  User {one.user}\n  IdentityFile {one.key}\n{more}"
            for pattern, one, more in (
                ("bastion", bastion, ""),
                ("inner", inner, "  ProxyJump bastion\n"),
                ("n*", server, "  ProxyJump bastion\n"),
                ("deep*", server, "  ProxyJump inner\n"),
            )
        ]
        self.config.write_text("".join(blocks) + f"Host *\n  IdentityAgent none\n  UserKnownHostsFile {known}\n")
        self.way = SshWay(self.options())

    def options(self, connect_timeout: float = PATIENCE) -> SshOptions:
        return SshOptions(str(self.config), connect_timeout=connect_timeout)

    def give_up_after(self, seconds: float) -> None:
        """How long whoever connects waits, of those to come."""
        self.way._options = self.options(seconds)

    def reach(self, *names: str) -> list[Transport | NodeError]:
        """Connect to all at once: a transport or an error each."""
        found: dict[str, Transport | NodeError] = {}

        def one(name: str) -> None:
            try:
                found[name] = connect("ssh", Host(name, name), self.way)
            except NodeError as error:
                found[name] = error

        threads = [threading.Thread(target=one, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
        return [found[name] for name in names]

    @staticmethod
    def log_ins(server: Sshd) -> int:
        return (server.folder / "sshd.log").read_text().count("Accepted publickey")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with (
        Sshd(tmp_path / "bastion", ["MaxStartups 1:100:1", "MaxSessions 1"]) as bastion,
        Sshd(tmp_path / "inner", ["MaxStartups 1:100:1"]) as inner,
        Sshd(tmp_path / "server") as server,
    ):
        yield Site(tmp_path, bastion, inner, server)


def says(transport: Transport | NodeError, word: str = "here") -> bool:
    assert not isinstance(transport, NodeError), str(transport)
    channel = transport.open(["echo", word])
    said = channel.receive(100, PATIENCE)
    channel.close()
    return said == f"{word}\n".encode()


def close(transports: Sequence[Transport | NodeError]) -> None:
    for transport in transports:
        assert not isinstance(transport, NodeError), str(transport)
        transport.close()


def test_a_bastion_is_connected_to_once_for_all_hosts_behind_it(site: Site) -> None:
    """Although it takes one connection at a time; it goes with the last of them, not before."""
    made = site.reach(*(f"n{number}" for number in range(10)))
    assert all(says(transport) for transport in made)
    assert (site.log_ins(site.bastion), site.log_ins(site.server)) == (1, 10)
    close(made[1:])
    assert says(made[0]) and site.bastion.children()
    close(made[:1])
    close(made)
    eventually(lambda: not site.bastion.children())


def test_two_threads_that_close_one_connection_do_not_close_the_bastion_under_each_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first: its good-bye goes through the bastion, which the last user closes."""
    (made,) = site.reach("n1")
    assert isinstance(made, SshTransport)
    second = threading.Thread(target=made.close)
    bye = made._connection.client.close
    left = threading.Event()
    leave = Gateways.leave

    def leaving(gateways: Gateways, gateway: Gateway) -> None:
        leave(gateways, gateway)
        left.set()

    def slow() -> None:
        made._connection.client.close = bye
        second.start()
        assert not left.wait(0.3), "the bastion was left while somebody still said good-bye through it"
        bye()

    monkeypatch.setattr(Gateways, "leave", leaving)
    made._connection.client.close = slow
    made.close()
    second.join(PATIENCE)
    assert left.is_set()
    eventually(lambda: not site.bastion.children())


def test_chains_share_what_they_have_in_common(site: Site) -> None:
    """Hosts behind a second jump host, and hosts behind the first alone."""
    made = site.reach("deep1", "deep2", "deep3", "n1", "n2")
    assert all(says(transport) for transport in made)
    assert (site.log_ins(site.bastion), site.log_ins(site.inner)) == (1, 1)
    close(made[3:])
    assert says(made[0])
    close(made[:3])
    eventually(lambda: not site.bastion.children() and not site.inner.children())


def test_a_bastion_that_broke_is_connected_to_anew(site: Site) -> None:
    """Everybody behind it hears of it, comes back, and shares the new connection."""
    made = site.reach("n1", "n2", "n3")
    channels = [made[0].open(["sleep", "1000"]), made[1].open(["sleep", "1000"])]  # type: ignore[union-attr]
    site.bastion.signal_children(signal.SIGKILL)
    for channel in channels:
        with pytest.raises(LinkLost):
            channel.receive(10, PATIENCE)
    # One has noticed and let go, the others not yet.
    close(made[:1])
    again = site.reach("n1", "n2", "n3")
    assert all(says(transport) for transport in again) and site.log_ins(site.bastion) == 2
    close(made)
    assert all(says(transport) for transport in again)
    close(again)
    eventually(lambda: not site.bastion.children())


def test_a_bastion_that_says_nothing_any_more_is_not_kept(site: Site) -> None:
    """Who cannot get through it in time fails alone; the next try makes a new connection, and closing is prompt."""
    site.give_up_after(10)
    made = site.reach("n1", "n2")
    site.bastion.signal_children(signal.SIGSTOP)
    began = time.monotonic()
    (late,) = site.reach("n3")
    assert isinstance(late, HostUnreachable) and late.where == "n3" and time.monotonic() - began < PATIENCE / 2
    (again,) = site.reach("n3")
    assert says(again) and site.log_ins(site.bastion) == 2
    began = time.monotonic()
    close(made)
    assert time.monotonic() - began < PATIENCE / 2
    assert says(again)
    close([again])


def test_a_host_that_is_down_takes_nobody_with_it(site: Site) -> None:
    """The bastion's word that it cannot be reached is about that host."""
    made = site.reach("n1")
    with site.config.open("a") as config:
        config.write("Host dead\n  HostName 127.0.0.1\n  Port 1\n  ProxyJump bastion\n")
    (dead,) = site.reach("dead")
    assert isinstance(dead, HostUnreachable) and "cannot reach" in dead.what
    made += site.reach("n2")
    assert all(says(transport) for transport in made) and site.log_ins(site.bastion) == 1
    close(made)


def test_everybody_hears_why_the_bastion_was_not_opened(site: Site, tmp_path: Path) -> None:
    """A refused key is told of each host behind it by its own name; once mended the next try succeeds."""
    keys = site.bastion.authorized_keys.read_text()
    site.bastion.authorized_keys.write_text(generate_key(tmp_path / "other").with_suffix(".pub").read_text())
    refused = site.reach("n1", "n2", "deep1")
    assert all(isinstance(error, LoginRefused) for error in refused)
    assert sorted(error.where for error in refused if isinstance(error, NodeError)) == [
        "deep1 (jump host bastion)", "n1 (jump host bastion)", "n2 (jump host bastion)",
    ]
    site.bastion.authorized_keys.write_text(keys)
    made = site.reach("n1", "n2", "deep1")
    assert all(says(transport) for transport in made)
    close(made)


def test_a_bastion_that_does_not_answer_is_waited_for_once(site: Site) -> None:
    """All hosts behind it fail within one connect_timeout, not one after the other."""
    os.kill(site.bastion.pid, signal.SIGSTOP)
    try:
        site.give_up_after(5)
        began = time.monotonic()
        failed = site.reach(*(f"n{number}" for number in range(6)))
        assert all(isinstance(error, HostUnreachable) for error in failed) and time.monotonic() - began < 6 * 5
    finally:
        os.kill(site.bastion.pid, signal.SIGCONT)

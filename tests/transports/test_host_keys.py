"""Whose key is it?  Unknown, changed and revoked keys, and every kind of line a known_hosts file may have."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import HostKeyChanged, HostKeyRevoked, HostKeyUnknown, NodeError
from launcher.transports import connect
from launcher.transports.host_keys import KnownHosts, Presented, append, fingerprint, line_for
from launcher.transports.known_hosts import record, scan
from launcher.transports.ssh_config import SshSettings
from tests.transports.sshd import Sshd, generate_key

KEY = Presented("ssh-ed25519", b"\0\0\0\x0bssh-ed25519" + b"k" * 32)
OTHER = Presented("ssh-ed25519", b"\0\0\0\x0bssh-ed25519" + b"o" * 32)
RSA = Presented("ssh-rsa", b"\0\0\0\x07ssh-rsa" + b"r" * 32)


def text(key: Presented) -> str:
    return f"{key.kind} {base64.b64encode(key.blob).decode()}"


def settings(path: Path, **changes: object) -> SshSettings:
    return SshSettings(**{  # type: ignore[arg-type]
        "name": "n1", "where": "n1", "hostname": "node1.example.org", "port": 22, "user": "u", "by_hand": "ssh n1",
        "connect_timeout": 5.0, "user_known_hosts": (str(path),), **changes})


@pytest.mark.parametrize(("names", "port", "matches"), [
    ("node1.example.org", 22, True),
    ("NODE1.Example.org", 22, True),
    ("other,node1.example.org", 22, True),
    ("node*.example.org", 22, True),
    ("node?.example.org", 22, True),
    ("*,!node1.example.org", 22, False),
    ("node2.example.org", 22, False),
    ("node[1].example.org", 22, False),
    ("[node1.example.org]:2222", 2222, True),
    ("[node*]:2222", 2222, True),
    ("[node1.example.org]:22", 2222, False),
    ("node1.example.org", 2222, True),  # as in ssh: good enough when it fits
])
def test_which_lines_speak_of_a_host(tmp_path: Path, names: str, port: int, matches: bool) -> None:
    """Names, wildcards, negation and ports are read as sshd(8) tells."""
    file = tmp_path / "known_hosts"
    file.write_text(f"{names} {text(KEY)}\n")
    assert KnownHosts(settings(file, port=port)).knows(KEY) is matches


def test_lines_nobody_understands_harm_nothing(tmp_path: Path) -> None:
    """Comments, rubbish, authorities, broken base64, NULs and CRLF are passed over; the rest counts."""
    file = tmp_path / "known_hosts"
    file.write_bytes(b"# a comment\n\n\xff\xfe\x00 rubbish\nonly-two fields\nnode1.example.org ssh-ed25519 !!!\n"
                     b"|1|broken ssh-rsa AAAA\n@cert-authority *.example.org " + text(OTHER).encode() + b"\n"
                     b"@odd node1.example.org ssh-rsa AAAA\n"
                     b"node1.example.org " + text(KEY).encode() + b" comment with words\r\n")
    KnownHosts(settings(file)).judge(KEY)


def test_several_files_are_one(tmp_path: Path) -> None:
    """Missing files are no error, and the last file counts as the first."""
    last = tmp_path / "last"
    last.write_text(f"node1.example.org {text(KEY)}\n")
    KnownHosts(settings(tmp_path / "absent", global_known_hosts=(str(tmp_path), str(last)))).judge(KEY)


def test_hashed_names_are_found(tmp_path: Path) -> None:
    """What `ssh-keygen -H` writes is read, and what we write hashed, ssh-keygen finds."""
    file = tmp_path / "known_hosts"
    file.write_text(f"node1.example.org {text(KEY)}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert file.read_text().startswith("|1|")
    KnownHosts(settings(file)).judge(KEY)

    ours = settings(tmp_path / "ours", hash_known_hosts=True, port=2222)
    append(ours, [line_for(ours, KEY)])
    assert "node1" not in (tmp_path / "ours").read_text()
    found = subprocess.run(["ssh-keygen", "-F", "[node1.example.org]:2222", "-f", str(tmp_path / "ours")], capture_output=True,
                           text=True, check=True)
    assert base64.b64encode(KEY.blob).decode() in found.stdout


def test_an_unknown_key_is_named_with_the_way_to_trust_it(tmp_path: Path) -> None:
    """Fingerprint, kind, and the command; nothing is written."""
    file = tmp_path / "known_hosts"
    with pytest.raises(HostKeyUnknown) as caught:
        KnownHosts(settings(file)).judge(KEY)
    assert fingerprint(KEY.blob) in str(caught.value)
    assert "ssh-ed25519" in str(caught.value)
    assert "launcher trust n1" in str(caught.value)
    assert not file.exists()


def test_a_changed_key_is_named_with_file_and_line(tmp_path: Path) -> None:
    """Where the old one stands, and how to remove it after a reinstallation."""
    file = tmp_path / "known_hosts"
    file.write_text(f"# first\nnode1.example.org {text(KEY)}\n")
    with pytest.raises(HostKeyChanged) as caught:
        KnownHosts(settings(file)).judge(OTHER)
    assert f"{file}:2" in str(caught.value)
    assert f"ssh-keygen -f {file} -R 'node1.example.org'" in str(caught.value)


def test_a_key_of_another_kind_is_unknown_not_changed(tmp_path: Path) -> None:
    """As in ssh: known by RSA, seen with Ed25519."""
    file = tmp_path / "known_hosts"
    file.write_text(f"node1.example.org {text(RSA)}\n")
    with pytest.raises(HostKeyUnknown, match="known only by a key of another type"):
        KnownHosts(settings(file)).judge(KEY)
    assert KnownHosts(settings(file)).algorithms() == ["rsa-sha2-512", "rsa-sha2-256"]


@pytest.mark.parametrize("strict", ["ask", "no", "accept-new"])
def test_a_revoked_key_is_refused_whatever_else_vouches_for_it(tmp_path: Path, strict: str) -> None:
    """@revoked wins over a good line and over StrictHostKeyChecking."""
    file = tmp_path / "known_hosts"
    file.write_text(f"node1.example.org {text(KEY)}\n@revoked * {text(KEY)}\n")
    with pytest.raises(HostKeyRevoked, match="known_hosts:2"):
        KnownHosts(settings(file, strict=strict)).judge(KEY)
    KnownHosts(settings(file, strict=strict)).refuse_bad(RSA)


def test_a_host_key_alias_is_the_name(tmp_path: Path) -> None:
    """HostKeyAlias stands without a port."""
    file = tmp_path / "known_hosts"
    file.write_text(f"lab {text(KEY)}\n")
    KnownHosts(settings(file, host_key_alias="LAB", port=2222)).judge(KEY)


def test_accept_new_records_once_and_refuses_a_change(tmp_path: Path) -> None:
    """Threads that meet the same new key write one line, after whatever the file held; another key is still a change."""
    file = tmp_path / "known_hosts"
    file.write_text("# no newline at the end")
    new = settings(file, strict="accept-new")
    threads = [threading.Thread(target=lambda: KnownHosts(new).judge(KEY)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_text() == f"# no newline at the end\nnode1.example.org {text(KEY)}\n"
    with pytest.raises(HostKeyChanged):
        KnownHosts(new).judge(OTHER)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    """What was parsed for one host serves the next, until somebody edits the file."""
    file = tmp_path / "known_hosts"
    file.write_text(f"node1.example.org {text(KEY)}\n")
    os.utime(file, (1, 1))  # two edits of one tick of the clock, and of one length, look alike
    KnownHosts(settings(file)).judge(KEY)
    file.write_text(f"node1.example.org {text(OTHER)}\n")
    with pytest.raises(HostKeyChanged):
        KnownHosts(settings(file)).judge(KEY)


def test_no_goes_on_with_a_changed_key_as_ssh_does(tmp_path: Path) -> None:
    """StrictHostKeyChecking no: the user's own choice."""
    file = tmp_path / "known_hosts"
    file.write_text(f"node1.example.org {text(KEY)}\n")
    KnownHosts(settings(file, strict="no")).judge(OTHER)
    assert len(file.read_text().splitlines()) == 1


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(NodeError, match=f"cannot be recorded in {tmp_path}"):
        append(settings(tmp_path), [f"node1.example.org {text(KEY)}"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd", host_key_types=["ed25519", "rsa"]) as running:
        yield running


def test_the_key_is_checked_before_any_log_in(server: Sshd, tmp_path: Path) -> None:
    """With no usable user key at all, it is still the host key that is complained about."""
    server.know()
    server.write_client_config(identity=tmp_path / "absent")
    with pytest.raises(HostKeyUnknown, match="launcher trust box"):
        connect("ssh", server.host(), server.options)


def test_a_host_known_by_its_rsa_key_is_asked_for_that(server: Sshd) -> None:
    """It also has an Ed25519 key, and that is no reason for alarm."""
    server.know(server.host_keys[1])
    connect("ssh", server.host(), server.options).close()


def test_a_reinstalled_server_is_stopped_at(server: Sshd, tmp_path: Path) -> None:
    """File and line of the recorded key are named."""
    server.know(generate_key(tmp_path / "old"))
    with pytest.raises(HostKeyChanged, match=f"{server.known_hosts}:1"):
        connect("ssh", server.host(), server.options)
    with pytest.raises(HostKeyChanged):
        scan(server.host(), server.options)


def test_accept_new_connects_and_records(server: Sshd) -> None:
    """As ssh would."""
    server.know()
    server.write_client_config("StrictHostKeyChecking accept-new")
    connect("ssh", server.host(), server.options).close()
    assert server.known_hosts.read_text().startswith(f"{server.host_name} ssh-ed25519 ")


def test_trust_shows_every_key_and_records_them_once(server: Sshd) -> None:
    """`scan` logs in to nobody; `record` makes the file for the user alone; then the host is known, to ssh as well."""
    server.known_hosts.unlink()
    server.key.rename(server.key.with_name("elsewhere"))
    keys = scan(server.host(), server.options)
    expected = [subprocess.check_output(["ssh-keygen", "-l", "-f", f"{key}.pub"], text=True).split()[1]
                for key in server.host_keys]
    assert [(key.type, key.fingerprint, key.machine) for key in keys] == [
        ("ssh-ed25519", expected[0], "box"), ("ssh-rsa", expected[1], "box")]
    assert record(keys) == str(server.known_hosts)
    assert record(keys) == str(server.known_hosts)
    assert len(server.known_hosts.read_text().splitlines()) == 2
    assert stat.S_IMODE(server.known_hosts.stat().st_mode) == 0o600
    assert scan(server.host(), server.options) == []
    server.key.with_name("elsewhere").rename(server.key)
    connect("ssh", server.host(), server.options).close()
    subprocess.run(["ssh", "-F", str(server.ssh_config), "-o", "StrictHostKeyChecking=yes", "box", "true"], check=True,
                   stdin=subprocess.DEVNULL)

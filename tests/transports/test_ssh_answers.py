"""`ssh -G` is asked again exactly when something it depends on has changed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from launcher.transports.ssh_answers import ask


class Counted:
    """A real ssh behind a script that counts its calls, and a home for the user's own files."""

    def __init__(self, folder: Path) -> None:
        self.calls = folder / "calls"
        self.calls.write_text("")
        self.home = folder / "account"
        (self.home / ".ssh").mkdir(parents=True)
        self.config = folder / "config"
        program = folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho x >>{self.calls}\nexec {shutil.which("ssh")} "$@"\n')
        program.chmod(0o755)

    def ask(self, address: str = "node", *options: str) -> dict[str, list[str]]:
        return ask(["ssh", "-F", str(self.config), *options], address, "node", 120.0, str(self.home))

    @property
    def count(self) -> int:
        return len(self.calls.read_text().splitlines())


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """All files are older than a moment, as far as anybody can tell."""
    made = Counted(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    later = time.time_ns() + 3_600_000_000_000
    monkeypatch.setattr("launcher.keep.time.time_ns", lambda: later)
    return made


def test_a_second_question_needs_no_process(ssh: Counted) -> None:
    """The same words, the same files: the same answer; other words are another question."""
    ssh.config.write_text("Host node\n  HostName one\n")
    first = ssh.ask()
    assert first["hostname"] == ["one"]
    assert ssh.ask() == first
    assert ssh.count == 1
    assert ssh.ask("node", "-l", "me")["user"] == ["me"]
    assert ssh.ask("other")["hostname"] == ["other"]
    assert ssh.count == 3


def test_an_edited_file_is_seen(ssh: Counted) -> None:
    """Also one of the same length."""
    ssh.config.write_text("Host node\n  HostName one\n")
    os.utime(ssh.config, (1, 1))  # two edits of one tick of the clock look alike
    ssh.ask()
    ssh.config.write_text("Host node\n  HostName two\n")
    assert ssh.ask()["hostname"] == ["two"]


@pytest.mark.parametrize("pattern", ["{folder}/conf.d/*.conf", "{folder}/*.d/a.conf", "{folder}/conf.d/a.conf"])
def test_a_file_that_an_include_finds_later_is_seen(ssh: Counted, tmp_path: Path, pattern: str) -> None:
    """Wildcards and plain names, in a directory that is there or not; also when it goes again."""
    ssh.config.write_text(f"Include {pattern.format(folder=tmp_path)}\nHost node\n  HostName one\n")
    assert ssh.ask()["hostname"] == ["one"]
    assert ssh.ask()["hostname"] == ["one"]
    assert ssh.count == 1
    (tmp_path / "conf.d").mkdir()
    assert ssh.ask()["hostname"] == ["one"]
    (tmp_path / "conf.d" / "a.conf").write_text("Host node\n  HostName two\n")
    assert ssh.ask()["hostname"] == ["two"]
    (tmp_path / "conf.d" / "a.conf").unlink()
    assert ssh.ask()["hostname"] == ["one"]


def test_an_included_file_that_changes_is_seen(ssh: Counted, tmp_path: Path) -> None:
    """Includes of includes, too."""
    (tmp_path / "one").write_text(f"Include {tmp_path}/two\n")
    (tmp_path / "two").write_text("Host node\n  User a\n")
    ssh.config.write_text(f"Include {tmp_path}/one\n")
    assert ssh.ask()["user"] == ["a"]
    (tmp_path / "two").write_text("Host node\n  User b\n")
    assert ssh.ask()["user"] == ["b"]


@pytest.mark.parametrize("text", ["Match host node\n  User a\n", "match=all\n  User a\n", "CanonicalizeHostname always\n",
                                  "Host node\n  IdentityFile ${SOMEWHERE}/key\n"])
def test_what_follows_from_more_than_files_is_asked_every_time(ssh: Counted, text: str) -> None:
    """A program's answer, the network, the environment: nobody can see that they have changed."""
    ssh.config.write_text(text)
    ssh.ask()
    ssh.ask()
    assert ssh.count == 2


def test_another_ssh_is_asked_anew(ssh: Counted, tmp_path: Path) -> None:
    """An upgrade may bring other defaults."""
    ssh.config.write_text("Host node\n")
    ssh.ask()
    program = tmp_path / "bin" / "ssh"
    program.write_text(program.read_text() + "# newer\n")
    ssh.ask()
    assert ssh.count == 2

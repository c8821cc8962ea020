"""A real sshd for a test: on a loopback port, as the user who runs the tests, with keys of its own, and an empty
home directory for its log-ins.

    with Sshd(tmp_path, config_lines=["MaxSessions 1"]) as server:
        transport = connect("ssh", server.host(), server.options)

The ssh configuration it writes (`ssh_config`) knows it as `box`; nothing outside ``folder`` is read or written.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from launcher.model import Host, SshOptions

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
PATIENCE = 120.0
"""seconds that tell a hang, however busy the machine is"""


def generate_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A key pair made by ssh-keygen; the path of its private half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)], check=True)
    return path


def held_port(address: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A socket that keeps a port for us while it is open, and on which nobody listens.

    A server that sets SO_REUSEADDR, as sshd and torch do, can listen there beside it; to all others the port is taken.
    """
    held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, port))
    return held


class Sshd:
    """One sshd process, started when made."""

    def __init__(self, folder: Path, config_lines: Sequence[str] = (), *, address: str = "127.0.0.1",
                 host_key_types: Sequence[str] = ("ed25519",)) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.folder, self.address, self._held = folder, address, held_port(address)
        self.port: int = self._held.getsockname()[1]
        self.home = folder / "home"
        self.home.mkdir(exist_ok=True)
        self.user = getpass.getuser()
        self.key = generate_key(folder / "user_key")
        self.host_keys = [generate_key(folder / f"host_{kind}", kind) for kind in host_key_types]
        self.known_hosts, self.ssh_config = folder / "known_hosts", folder / "ssh_config"
        self.authorized_keys = folder / "authorized_keys"
        self.authorized_keys.write_text(self.key.with_suffix(".pub").read_text())
        self.know(*self.host_keys)
        self.write_client_config()
        self._write_server_config(config_lines)
        self.start()

    def host(self, **fields: object) -> Host:
        """The inventory's entry for it."""
        return Host(**{"name": "box", "address": "box", **fields})  # type: ignore[arg-type]

    @property
    def options(self) -> SshOptions:
        return SshOptions(config=str(self.ssh_config), connect_timeout=PATIENCE)

    @property
    def host_name(self) -> str:
        """As known_hosts writes it."""
        return f"[{self.address}]:{self.port}"

    def know(self, *keys: Path) -> None:
        """Make known_hosts vouch for these host keys, and nothing else."""
        self.known_hosts.write_text("".join(f"{self.host_name} {key.with_suffix('.pub').read_text()}" for key in keys))

    def write_client_config(self, *lines: str, identity: Path | None = None) -> None:
        """The `ssh -F` file: ``lines`` of the user's, then the block for `box`."""
        block = [f"HostName {self.address}", f"Port {self.port}", f"User {self.user}", f"IdentityFile {identity or self.key}",
                 "IdentityAgent none", f"UserKnownHostsFile {self.known_hosts}", "GlobalKnownHostsFile none"]
        self.ssh_config.write_text("\n".join([*lines, "Host box", *(f"  {line}" for line in block)]) + "\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it listens."""
        self._log = open(self.folder / "sshd.log", "ab")  # noqa: SIM115 - held while sshd runs
        self._process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")], stdin=subprocess.DEVNULL,
                                         stdout=self._log, stderr=self._log, start_new_session=True)
        end = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < end:
            with socket.socket(socket.AF_INET6 if ":" in self.address else socket.AF_INET) as probe:
                if probe.connect_ex((self.address, self.port)) == 0:
                    return
            time.sleep(0.01)  # sshd tells nobody when it is ready
        raise RuntimeError((self.folder / "sshd.log").read_text())

    def stop(self) -> None:
        """End it and every session it serves, for good."""
        self.halt()
        self._held.close()

    def halt(self) -> None:
        """End it and every session it serves; nobody else gets its port, at which `start` has it listen again."""
        children = self.children()
        self._process.terminate()
        self._process.wait(PATIENCE)
        for pid in children:
            _signal(pid, signal.SIGCONT)
            _signal(pid, signal.SIGKILL)
        self._log.close()

    def children(self) -> list[int]:
        """The process ids of its sessions, with what they started."""
        found, look_at = [], [self._process.pid]
        while look_at:
            pid = look_at.pop()
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a session may end meanwhile
                for task in Path(f"/proc/{pid}/task").glob("*/children"):
                    born = [int(child) for child in task.read_text().split()]
                    found += born
                    look_at += born
        return found

    def signal_children(self, number: signal.Signals) -> None:
        """Send a signal to every session."""
        for pid in self.children():
            _signal(pid, number)

    def __enter__(self) -> Sshd:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _write_server_config(self, lines: Sequence[str]) -> None:
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # privilege separation wants it
        (self.folder / "sshd_config").write_text("\n".join([
            *lines, f"Port {self.port}", f"ListenAddress {self.address}", *(f"HostKey {key}" for key in self.host_keys),
            f"AuthorizedKeysFile {self.authorized_keys}", "StrictModes no", "UsePAM no", "PidFile none", "PermitRootLogin yes",
            "PasswordAuthentication no", "KbdInteractiveAuthentication no", "MaxStartups 100", "PrintMotd no",
            f"SetEnv HOME={self.home}", ""]))


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended by itself

"""Two real sshd's at one address, and an inventory that names them: the same machine twice, as the launcher sees it."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.jobs.desk import Desk, eventually, living
from tests.transports.sshd import Sshd


class Nodes:
    """Hosts `a` and `b`, and the desk from which jobs go there."""

    def __init__(self, folder: Path, config_lines: tuple[str, ...] = (), count: int = 2) -> None:
        self.folder = folder
        self.servers = [Sshd(folder / name, config_lines) for name in "abcdef"[:count]]
        self.config = folder / "ssh_config"
        self.config.write_text("".join(_block(server) for server in self.servers))
        self.inventory = folder / "cluster.yaml"
        self.desk = Desk(folder / "near", ("--cluster", str(self.inventory)))
        self.write()

    def write(self, **defaults: object) -> None:
        """Write cluster.yaml, with these defaults."""
        hosts = [{"name": server.folder.name, "address": server.folder.name} for server in self.servers]
        value = {"name": "odd", "backend": "ssh", "hosts": hosts, "defaults": defaults, "ssh": {"config": str(self.config)}}
        self.inventory.write_text(yaml.safe_dump(value, allow_unicode=True))

    def bashrc(self, text: str) -> None:
        """What the log-in shell of every node reads first."""
        for server in self.servers:
            (server.home / ".bashrc").write_text(text)

    def nothing_left(self) -> None:
        """No process of the newest job is alive."""
        job = self.desk.folder().name
        eventually(lambda: not living(job), f"nothing left of {job}: {living(job)}")

    def stop(self) -> None:
        self.desk.end_everything()
        for server in self.servers:
            server.stop()


def _block(server: Sshd) -> str:
    text = server.ssh_config.read_text()
    return text.replace("Host box", f"Host {server.folder.name}")

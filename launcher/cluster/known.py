"""The inventory of a cluster.yaml that was found right before, without YAML and pydantic."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from launcher.cluster.inventory import Cluster
from launcher.cluster.textfile import home_expanded
from launcher.keep import keep, recall
from launcher.model import from_json, to_json


def recall_cluster(path: str | Path) -> Cluster | None:
    """What the file said when it was read last; None where it, a file that it names, or our own code has changed."""
    known = recall(_question(path))
    if known is None:
        return None
    cluster = from_json(Cluster, known)
    return dataclasses.replace(cluster, path=Path(home_expanded(str(path))))


def keep_cluster(path: str | Path, cluster: Cluster) -> None:
    """Remember a file that was found right, unless there is something secret in it."""
    from launcher.environ import masked

    hosts = (cluster.template, *cluster.hosts)
    if all(masked(host.env) == host.env for host in hosts):
        value = to_json(dataclasses.replace(cluster, path=None))
        keep(_question(path), value, [os.path.abspath(home_expanded(str(path))), *_named(cluster), *_our_code()])


def _question(path: str | Path) -> list[str]:
    # `~` and relative names in the file depend on the last two.
    return ["cluster file", os.path.abspath(home_expanded(str(path))), str(path), os.environ.get("HOME", "")]


def _named(cluster: Cluster) -> Iterator[str]:
    """The files that are looked for when a cluster file is read."""
    if cluster.ssh.config:
        yield cluster.ssh.config
    for key in {host.identity_file for host in (cluster.template, *cluster.hosts) if host.identity_file}:
        for written in (key, key + ".pub"):
            yield os.path.expanduser(written)


def _our_code() -> Iterator[str]:
    """Another version of ours may read the same text in another way."""
    package = Path(__file__).parent
    yield str(package.parent / "model.py")
    yield from sorted(entry.path for entry in os.scandir(package) if entry.name.endswith(".py"))

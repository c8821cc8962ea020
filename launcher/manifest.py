"""The manifest of what was collected: output/model.json of the job folder, and a copy of it wherever outputs are published.

It names every file with its hash, what stayed on the nodes, and what made the model: source, command, nodes, versions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher.channels import MANIFEST as MANIFEST  # noqa: PLC0414 - handed on
from launcher.model import from_json, to_json
from launcher.record import dataclass

MODEL = "model"
"""the channel that must be whole"""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class OutputFile:
    """A file that was brought here."""

    path: str
    """below output/; its first component is the channel"""
    size: int
    sha256: str
    node: int
    host: str


@dataclass(frozen=True)
class OutputLink:
    """A link that was made here as it was on the node."""

    path: str
    target: str
    node: int
    host: str


@dataclass(frozen=True)
class Left:
    """Something that stayed on its node."""

    path: str
    """absolute, on the node"""
    size: int
    node: int
    host: str
    reason: str
    channel: str = ""
    """below which it lies; "" for all of output/"""
    kind: str = "unfit"
    """unasked: of a channel that was not asked for; conflict: a lower node's was brought; unreadable: the node could not
    read it; unfit: what is no file, or has no place beside a lower node's"""

    def __str__(self) -> str:
        return f"{self.host}: {self.path}: {self.reason}"


@dataclass(frozen=True)
class Conflict:
    """One path that nodes filled differently: the lowest rank's was brought, the others stayed."""

    path: str
    node: int
    """the rank whose version is here"""
    others: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path}: node {self.node}'s was kept; other content on node {', '.join(map(str, self.others))}"


@dataclass(frozen=True)
class Manifest:
    """The content of model.json."""

    channels: tuple[str, ...]
    files: tuple[OutputFile, ...] = ()
    links: tuple[OutputLink, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    left: tuple[Left, ...] = ()
    made_by: Mapping[str, Any] = field(default_factory=dict)
    """what made the files: job, source, command, hyperparameters, nodes, versions (see `launcher.provenance`)"""
    schema_version: int = 1

    def only(self, channels: Sequence[str]) -> Manifest:
        """What it says of these channels."""

        def of(path: str) -> bool:
            return path.partition("/")[0] in channels

        return dataclasses.replace(
            self,
            channels=tuple(channels),
            files=tuple(file for file in self.files if of(file.path)),
            links=tuple(link for link in self.links if of(link.path)),
            conflicts=tuple(conflict for conflict in self.conflicts if of(conflict.path)),
            left=tuple(entry for entry in self.left if entry.channel in (*channels, "")),
        )

    def missing(self) -> tuple[Left, ...]:
        """What was asked for, and of which nothing is here."""
        return tuple(entry for entry in self.left if entry.kind in ("unreadable", "unfit"))

    def gaps(self) -> tuple[Left, ...]:
        """That for which the model is not whole."""
        return tuple(entry for entry in self.left if entry.kind == "unreadable" and entry.channel in (MODEL, ""))


def hash_of(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def parse(text: bytes) -> Manifest:
    """The manifest that a file holds; ValueError where it is none, or names a file outside of its folder."""
    try:
        manifest = from_json(Manifest, json.loads(text))
        for path in [file.path for file in manifest.files] + [link.path for link in manifest.links]:
            if any(part in ("", ".", "..") or "\0" in part for part in path.split("/")):
                raise ValueError(f"it names a file outside of its folder: {path!r}")
        lists = (manifest.channels, manifest.files, manifest.links, manifest.conflicts, manifest.left)
        if not all(isinstance(one, tuple) for one in lists) or not all(isinstance(name, str) for name in manifest.channels):
            raise ValueError("it has other values than a manifest")
        if not isinstance(manifest.made_by, dict) or not all(isinstance(link.target, str) for link in manifest.links):
            raise ValueError("it has other values than a manifest")
        for file in manifest.files:
            if not isinstance(file.size, int) or not isinstance(file.sha256, str):
                raise ValueError(f"it has no size or hash of {file.path}")
        return manifest
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("it has not the keys of a manifest") from error


def save(path: Path, manifest: Manifest) -> None:
    """Write it: whole or not at all."""
    unfinished = path.with_name(path.name + ".tmp")
    with open(unfinished, "wb") as file:
        file.write(text_of(manifest))
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def text_of(manifest: Manifest) -> bytes:
    """The manifest as a file holds it."""
    return json.dumps(to_json(manifest), indent=1).encode("ascii")


def load(output: Path) -> Manifest:
    """The manifest of a collected ``output`` folder; ValueError with a sentence where there is none."""
    try:
        return parse((output / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{output / MANIFEST} is not there: the outputs were not collected whole") from None
    except ValueError as error:
        raise ValueError(f"{output / MANIFEST} is no manifest: {error}") from error


def verify(output: Path) -> list[str]:
    """What is wrong with a collected ``output`` folder, a sentence each; empty when it is whole."""
    try:
        manifest = load(output)
    except ValueError as error:
        return [str(error)]
    problems = [str(gap) for gap in manifest.gaps()]
    problems += [problem for entry in manifest.files if (problem := wrong(output / entry.path, entry))]
    return problems + [
        f"{output / link.path} is no link to {link.target}"
        for link in manifest.links
        if not os.path.islink(output / link.path) or os.readlink(output / link.path) != link.target
    ]


def wrong(path: Path, entry: OutputFile) -> str | None:
    """In what a file on this machine is not the one that was collected; None where it is."""
    if path.is_symlink() or not path.is_file():
        return f"{path} is missing"
    if (size := path.stat().st_size) != entry.size:
        return f"{path} has {size} bytes, {entry.size} were collected"
    return None if hash_of(path) == entry.sha256 else f"{path} is not what was collected: its hash differs"

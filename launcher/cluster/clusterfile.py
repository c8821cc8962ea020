"""cluster.yaml: from the file to the frozen inventory, every default applied to every host."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from launcher.cluster.hosts import checked_address, endpoints
from launcher.cluster.inventory import Cluster, complain, in_order, repeated
from launcher.cluster.models import ClusterFile, Defaults, HostEntry, Image, MappingHost, Master, Ssh
from launcher.cluster.problems import Location, dotted, validated
from launcher.cluster.ranges import expand
from launcher.cluster.textfile import home_expanded
from launcher.cluster.yamlfile import Document, read_document
from launcher.model import Host, ImageInfo, MasterOptions, SlurmOptions, SshOptions

KIND = "cluster file"
Entry = tuple[int, str | MappingHost]
"""(position in `hosts:`, what stands there)"""

_NOT_LOCAL = ("address", "internal_address", "user", "port", "identity_file")
"""keys of a host, or of defaults, that mean something only where hosts are reached by ssh"""
_NO_FILE = "none"
"""what ssh takes for no file at all, as in `ssh -F none`"""


def read_cluster_file(path: str | Path) -> Cluster:
    """The inventory; UsageError lists everything wrong in the file at once."""
    document = read_document(path, KIND)
    model, found, locations = validated(ClusterFile, document, KIND)
    problems = [*document.problems, *found]
    defaults = _defaults(document, model, locations)
    hosts = _hosts(document, _entries(document, model, locations), _names_of_wrong(document, locations), defaults, problems)
    if isinstance(document.data.get("backend", "ssh"), str):
        problems += _contradictions(document, document.data.get("backend", "ssh"))
    problems += _missing_files(document)
    problems += _images_twice(document)
    complain("the cluster file cannot be used", in_order(document.path, problems))
    assert model is not None
    return Cluster(
        name=model.name or document.path.stem,
        backend=model.backend,
        hosts=tuple(hosts),
        template=_host("local", "localhost", None, None, defaults, None, document.path.parent),
        ssh=_ssh(model.ssh, document.path.parent),
        master=_master(model.master),
        slurm=SlurmOptions(**model.slurm.model_dump()),
        images=tuple(_image(entry) for entry in model.images),
        path=document.path,
    )


def _defaults(document: Document, model: ClusterFile | None, locations: list[Location]) -> Defaults:
    """The defaults, or none of them while something in them is wrong."""
    if model is not None:
        return model.defaults
    if any(location[:1] == ("defaults",) for location in locations):
        return Defaults()
    return Defaults.model_validate(document.data.get("defaults") or {})


def _entries(document: Document, model: ClusterFile | None, locations: list[Location]) -> list[Entry]:
    """The entries of `hosts:` that are right in themselves, with their positions."""
    if model is not None:
        return list(enumerate(model.hosts))
    raw = document.data.get("hosts")
    wrong = {location[1] for location in locations if location[:1] == ("hosts",) and len(location) > 1}
    adapter: TypeAdapter[str | MappingHost] = TypeAdapter(HostEntry)
    entries: list[Entry] = []
    for index, value in enumerate(raw if isinstance(raw, list) else []):
        if index in wrong:
            continue
        try:
            entries.append((index, adapter.validate_python(value)))
        except ValidationError:  # pragma: no cover - the whole file's validation has named it already
            continue
    return entries


def _names_of_wrong(document: Document, locations: list[Location]) -> list[tuple[int, str]]:
    """(position, name) of the entries of `hosts:` in which something is wrong, but not the name."""
    wrong = {location[1] for location in locations if location[:1] == ("hosts",) and len(location) > 1}
    about_name = {location[1] for location in locations if location[:1] == ("hosts",) and location[2:] == ("name",)}
    raw = document.data.get("hosts")
    entries = enumerate(raw if isinstance(raw, list) else [])
    named = [(index, entry["name"]) for index, entry in entries if index in wrong - about_name and isinstance(entry, dict)]
    return [(index, name) for index, text in named for name in expand(text)]


def _hosts(
    document: Document, entries: list[Entry], names: list[tuple[int, str]], defaults: Defaults, problems: list[str]
) -> list[Host]:
    """The hosts of all entries, ranges expanded; what no entry shows alone becomes a problem.

    ``names``: (position, name) of entries that are wrong otherwise; a name of theirs must not stand twice either.
    """
    hosts: list[tuple[int, Host]] = []
    names = list(names)
    for index, entry in entries:
        place = f"{document.where(('hosts', index))}: {dotted(('hosts', index))}"
        try:
            hosts += [(index, host) for host in _expanded(entry, defaults, document.path.parent)]
        except ValueError as error:
            problems.append(f"{place}: {error}")
            names += [(index, name) for name in expand(entry if isinstance(entry, str) else entry.name)]
    for index, sentence in repeated(hosts, lambda index: document.where(("hosts", index)), names):
        problems.append(f"{document.where(('hosts', index))}: {dotted(('hosts', index))}: {sentence}")
    return [host for _, host in hosts]


def _expanded(entry: str | MappingHost, defaults: Defaults, folder: Path) -> list[Host]:
    """The hosts of one entry; ValueError when a mapping's ranges do not pair."""
    if isinstance(entry, str):
        return [_host(e.name, e.address, None, None, _with(defaults, e.user, e.port), None, folder) for e in endpoints(entry)]
    names = expand(entry.name)
    addresses = _paired(names, entry.address, "address") if entry.address else names
    internal = _paired(names, entry.internal_address, "internal_address") if entry.internal_address else [None] * len(names)
    return [
        _host(name, checked_address(address), inner and checked_address(inner), entry.instance_type, defaults, entry, folder)
        for name, address, inner in zip(names, addresses, internal, strict=True)
    ]


def _paired(names: list[str], text: str, key: str) -> list[str]:
    found = expand(text)
    if len(found) != len(names):
        raise ValueError(f"`name` stands for {len(names)} hosts and `{key}` for {len(found)}; the ranges must pair one to one")
    return found


def _with(defaults: Defaults, user: str | None, port: int | None) -> Defaults:
    """What a string entry says itself wins."""
    said = {key: value for key, value in (("user", user), ("port", port)) if value is not None}
    return defaults.model_copy(update=said)


def _host(
    name: str, address: str, internal: str | None, label: str | None, defaults: Defaults, own: MappingHost | None, folder: Path
) -> Host:
    """A host with every default applied: its own value wins, env is merged, one interpreter displaces the other."""

    def pick(key: str) -> Any:
        value = getattr(own, key, None)
        return getattr(defaults, key) if value is None else value

    own_interpreter = own is not None and (own.python is not None or own.venv is not None)
    interpreter: Defaults | MappingHost = own if own is not None and own_interpreter else defaults
    key = pick("identity_file")
    return Host(
        name=name,
        address=address,
        user=pick("user"),
        port=pick("port"),
        identity_file=_beside(folder, key) if key else None,
        internal_address=internal,
        gpus=_number(pick("gpus")),
        slots=own.slots if own else None,
        instance_type=label,
        python=interpreter.python,
        venv=interpreter.venv,
        workdir=pick("workdir") or Host.workdir,
        env={**defaults.env, **(own.env if own else {})},
    )


def _number(value: Any) -> int | None:
    """`auto` is None."""
    return value if isinstance(value, int) else None


def _beside(folder: Path, text: str) -> str:
    """A relative path, made absolute from the file's folder; ssh itself expands `~` and `%` tokens at the beginning, and
    takes `none` for no file."""
    return text if text == _NO_FILE or text.startswith(("/", "~", "%", "${")) else str(folder.absolute() / text)


def _ssh(section: Ssh, folder: Path) -> SshOptions:
    # `ssh -F` leaves `~` to the shell, so it is expanded here.
    config = home_expanded(_beside(folder, section.config)) if section.config else None
    return SshOptions(config=config, connect_timeout=section.connect_timeout)


def _master(section: Master) -> MasterOptions:
    said: Mapping[str, Any] = {key: None if value == "auto" else value for key, value in section.model_dump().items()}
    return MasterOptions(**said)


def _image(entry: Image) -> ImageInfo:
    said = entry.model_dump(exclude={"name", "uri"})
    return ImageInfo(image_name=entry.name, image_uri=entry.uri, **said)


def _images_twice(document: Document) -> list[str]:
    """Two images of one name, whatever else is wrong with them."""
    images = document.data.get("images")
    found: list[str] = []
    first: dict[str, int] = {}
    for index, entry in enumerate(images if isinstance(images, list) else []):
        name = entry.get("name") if isinstance(entry, dict) else None
        if isinstance(name, str) and name in first:
            place = f"{document.where(('images', index, 'name'))}: {dotted(('images', index, 'name'))}"
            found.append(f"{place}: {name}: the same name twice; first at {document.where(('images', first[name], 'name'))}")
        elif isinstance(name, str):
            first[name] = index
    return found


def _contradictions(document: Document, backend: str) -> list[str]:
    """What the backend leaves without a meaning, or without hosts; nothing is accepted and ignored."""
    data = document.data
    if backend == "ssh" and not data.get("hosts"):
        where = f"{document.where(('hosts',))}: hosts: {'empty' if 'hosts' in data else 'missing'}"
        return [f"{where}: backend ssh needs at least one host (without machines: `backend: local`)"]
    if backend != "local":
        return []
    reason = "means nothing with `backend: local`, whose nodes are simulated on this machine"
    found: list[Location] = [(key,) for key in ("ssh",) if data.get(key)]
    found += [("defaults", key) for key in _NOT_LOCAL if isinstance(data.get("defaults"), dict) and key in data["defaults"]]
    for index, entry in enumerate(data["hosts"] if isinstance(data.get("hosts"), list) else []):
        found += [("hosts", index, key) for key in _NOT_LOCAL if isinstance(entry, dict) and key in entry]
        found += [("hosts", index)] if isinstance(entry, str) and ("@" in entry or ":" in entry) else []
    return [f"{document.where(location, key=True)}: {dotted(location)}: {reason}" for location in found]


def _missing_files(document: Document) -> list[str]:
    """Files on this machine that are named and cannot be read: every host would fail by them, after the job was made."""
    data, folder = document.data, document.path.parent
    if data.get("backend", "ssh") != "ssh":
        return []
    hosts = data["hosts"] if isinstance(data.get("hosts"), list) else []
    sections: list[tuple[Location, Any]] = [(("ssh",), data.get("ssh")), (("defaults",), data.get("defaults"))]
    sections += [(("hosts", index), entry) for index, entry in enumerate(hosts)]
    found = []
    for place, section in sections:
        key = "config" if place == ("ssh",) else "identity_file"
        text = section.get(key) if isinstance(section, dict) else None
        if not isinstance(text, str) or not text.strip() or not text.isprintable():
            continue
        path = _beside(folder, text)
        reason = _unreadable(home_expanded(path)) if key == "config" else _no_key(path)
        if reason:
            location = (*place, key)
            shown = document.find(location).text
            found.append(f"{document.where(location)}: {dotted(location)}: {shown}: the file cannot be read here: {reason}")
    return found


def _no_key(path: str) -> str | None:
    """Why there is no key at ``path``; None where there is one, or only ssh knows.  A public half names a key of the agent."""
    if "%" in path or "${" in path:
        return None
    if path.startswith("~/"):
        # ssh takes `~` from the account, whatever HOME says.
        try:
            path = pwd.getpwuid(os.getuid()).pw_dir + path[1:]
        except KeyError:
            return None
    reason = _unreadable(home_expanded(path))
    return reason if reason and _unreadable(home_expanded(path) + ".pub") else None


def _unreadable(path: str) -> str | None:
    """Why a file cannot be read, None when it can; it is not opened, for it may be a pipe."""
    if path == _NO_FILE:
        return None
    try:
        directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        return error.strerror
    return os.strerror(errno.EISDIR) if directory else None if os.access(path, os.R_OK) else os.strerror(errno.EACCES)

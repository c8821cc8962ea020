"""Writing the user's config and small cluster files, and finding what could stand in them.

A file is written whole, readable by the user alone, after it was read back and found right: nothing half-written stays.
Comments and order of a file that is there are kept where its text allows it.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher.cluster.userfile import LISTS, UserConfig, config_path, read_user_file
from launcher.errors import UsageError
from launcher.record import dataclass

_INCLUDES = 16
"""levels of Include, as ssh has it (readconf.c)"""
_SINFO_SECONDS = 5.0


def changed(text: str, key: Sequence[str], value: str) -> str:
    """The text of a YAML file in which ``key`` (one or two words) has ``value``, which is YAML; all else stays where it can."""
    import yaml

    old = _unshared(yaml.safe_load(text) if text.strip() else None)
    wanted: dict[str, Any] = old if isinstance(old, dict) else {}
    section = wanted
    for step in key[:-1]:
        section[step] = section.get(step) or {}
        section = section[step]
    section[key[-1]] = yaml.safe_load(value)
    edited = _edited(text, key, value)
    try:
        if yaml.safe_load(edited) == wanted:
            return edited
    except yaml.YAMLError:
        pass  # the text is written in an unusual way: it is written anew
    return yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)


def _unshared(value: Any) -> Any:
    """A copy in which no two places are one, as they are where an alias stood."""
    if isinstance(value, dict):
        return {name: _unshared(item) for name, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


def _edited(text: str, key: Sequence[str], value: str) -> str:
    """The change made in the text itself; whoever calls checks whether it came out right."""
    import yaml

    root = yaml.compose(text, yaml.SafeLoader) if text.strip() else None
    body = text if not text or text.endswith("\n") else text + "\n"
    found = _entry(root, key[0])
    if len(key) == 1:
        return _replaced(text, found, value) if found else f"{body}{key[0]}: {value}\n"
    line = f"{as_yaml(key[:1], key[1])}: {value}"
    if found is None:
        return f"{body}{key[0]}:\n  {line}\n"
    inner = _entry(found, key[1])
    if inner is not None:
        return _replaced(text, inner, value)
    if not isinstance(found, yaml.MappingNode) or not found.value:
        end = found.start_mark.index if isinstance(found, yaml.ScalarNode) else found.end_mark.index
        start = text.rindex(":", 0, found.start_mark.index) + 1
        return f"{text[:start]}\n  {line}{text[end:]}"
    first = found.value[0][0].start_mark
    between = ", " if found.flow_style else "\n" + " " * first.column
    return text[: first.index] + line + between + text[first.index :]


def _entry(node: Any, key: str) -> Any:
    pairs = node.value if getattr(node, "id", "") == "mapping" else []
    return next((value for name, value in pairs if name.value == key), None)


def _replaced(text: str, node: Any, value: str) -> str:
    return text[: node.start_mark.index] + value + text[node.end_mark.index :]


def as_yaml(key: Sequence[str], said: str) -> str:
    """A value as a person types it, as YAML on one line: a word as it is (of `job` a number too), a list from commas."""
    import yaml

    if key[-1] in LISTS and key[0] == "job":
        return yaml.safe_dump([part.strip() for part in said.split(",")], default_flow_style=True).strip()
    try:
        read = yaml.safe_load(said)
        plain = "\n" not in said and ": " not in said and " #" not in said and not isinstance(read, (dict, list))
    except yaml.YAMLError:
        plain = False
    # A setting of a job may be a number or a yes; a name or a file is a text, even where YAML would not read it as one.
    if plain and said.strip() and (key[0] == "job" or isinstance(read, str)):
        return said
    return yaml.safe_dump(said, width=10**6, default_style='"').strip()


def save(changes: Sequence[tuple[Sequence[str], str]], environment: Mapping[str, str]) -> Path:
    """Make the changes, each (key, YAML), in the user's config; UsageError where it, or what came of it, is not right."""
    path = config_path(environment)
    if path is None:
        raise UsageError("LAUNCHER_CONFIG says that there is no config", next_step="unset it, or let it name a file")
    path = Path(os.path.realpath(path))
    text = ""
    if path.is_file():
        read_user_file(path)
        text = path.read_text(encoding="utf-8-sig")
    for key, value in changes:
        text = changed(text, key, value)
    write(path, text, check=True)
    return path


def write(path: Path, text: str, *, check: bool = False) -> None:
    """Write a file whole, readable by the user alone, its folder too where it is made; ``check``: as a config, beforehand."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if check:
            read_user_file(part)
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"it cannot be written: {error.strerror}", where=str(path)) from error
    except UsageError as error:
        problems = [problem.replace(str(part), str(path)) for problem in error.problems]
        step = "nothing was changed; `launcher config show` tells what holds"
        raise UsageError("so the user config could not be used", problems=problems, next_step=step) from error
    finally:
        part.unlink(missing_ok=True)


def cluster_text(name: str, hosts: Sequence[str], gpus: str | None, ssh_config: str | None) -> str:
    """A cluster file for machines that answer ssh."""
    import yaml

    told: dict[str, Any] = {"name": name, "backend": "ssh"}
    if gpus is not None:
        told["defaults"] = {"gpus": int(gpus)}
    told["hosts"] = list(hosts)
    if ssh_config is not None:
        told["ssh"] = {"config": ssh_config}
    return _WRITTEN + yaml.safe_dump(told, sort_keys=False, allow_unicode=True)


def slurm_text(name: str, partition: str, gpus: str | None) -> str:
    """A cluster file for a partition of Slurm's."""
    import yaml

    section: dict[str, Any] = {"partition": partition}
    if gpus is not None:
        section["gpus_per_node"] = int(gpus)
    return _WRITTEN + yaml.safe_dump({"name": name, "backend": "slurm", "slurm": section}, sort_keys=False, allow_unicode=True)


_WRITTEN = "# Written by `launcher config`. Every key there is stands in cluster.yaml.example.\n"


@dataclass(frozen=True)
class Partition:
    """A part of Slurm's cluster."""

    name: str
    default: bool
    nodes: int
    gpus: int
    """of a node; 0: none, or not told"""


@dataclass(frozen=True)
class Inventory:
    """A cluster file that was found."""

    path: Path
    name: str
    told: str
    """its backend; or what is wrong with it"""
    right: bool
    hosts: int = 0


@dataclass(frozen=True)
class Found:
    """What is there without a question."""

    inventories: tuple[Inventory, ...] = ()
    hosts: tuple[str, ...] = ()
    """aliases of the ssh configuration"""
    partitions: tuple[Partition, ...] = field(default_factory=tuple)


def find(config: UserConfig, ssh_config: str | None) -> Found:
    """Look for cluster files where they usually lie, hosts in the ssh configuration, and Slurm's partitions."""
    places = ["cluster.yaml", "~/cluster.yaml", "~/.launcher/cluster.yaml", *config.clusters.values()]
    paths = dict.fromkeys(os.path.realpath(os.path.expanduser(place)) for place in places)
    inventories = [inventory(Path(path)) for path in paths if os.path.isfile(path)]
    return Found(tuple(inventories), tuple(ssh_hosts(ssh_config)), tuple(partitions()))


def inventory(path: Path) -> Inventory:
    """A cluster file, read."""
    from launcher.cluster import load_cluster

    try:
        cluster = load_cluster(path)
    except UsageError as error:
        return Inventory(path, path.stem, (error.problems or (error.what,))[0], False)
    return Inventory(path, cluster.name, cluster.backend, True, len(cluster.hosts))


def ssh_hosts(config: str | None) -> list[str]:
    """The names behind `Host` that are no patterns, files of Include followed; none where the file cannot be read."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    found: dict[str, None] = {}
    todo = [(os.path.expanduser(config) if config else f"{home}/.ssh/config", 0)]
    while todo:
        path, depth = todo.pop(0)
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            keyword, words = _ssh_words(line)
            if keyword == "host":
                found.update(dict.fromkeys(word for word in words if not set(word) & set("*?!%,")))
            elif keyword == "include" and depth < _INCLUDES:
                for word in words:
                    # Relative to ~/.ssh, as in ssh_config(5), for user configurations.
                    pattern = word.replace("~", home, 1) if word.startswith("~/") else os.path.join(f"{home}/.ssh", word)
                    todo += [(file, depth + 1) for file in sorted(glob.glob(pattern))]
    return list(found)


def _ssh_words(line: str) -> tuple[str, list[str]]:
    # `Host=a` and `Host = a` are as good as `Host a`.
    try:
        words = shlex.split(re.sub(r"^(\s*\w+)\s*=", r"\1 ", line), comments=True)
    except ValueError:
        return "", []
    return (words[0].lower(), words[1:]) if words else ("", [])


def partitions() -> list[Partition]:
    """Slurm's partitions, as sinfo tells; none where there is no Slurm, or none that answers."""
    try:
        words = ["sinfo", "--noheader", "--format=%P|%D|%G"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SINFO_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found: dict[str, Partition] = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else []:
        name, _, rest = line.strip().partition("|")
        count, _, gres = rest.partition("|")
        known = found.get(name.rstrip("*"))
        nodes = int(count) if count.isdigit() else 0
        # Nodes that differ have a line each; a job gets what all of them have.
        gpus = _gpus(gres) if known is None else min(known.gpus, _gpus(gres))
        found[name.rstrip("*")] = Partition(name.rstrip("*"), name.endswith("*"), nodes + (known.nodes if known else 0), gpus)
    return sorted(found.values(), key=lambda one: not one.default)


def _gpus(gres: str) -> int:
    counts = [part.partition("(")[0].split(":")[-1] for part in gres.split(",") if part.startswith("gpu")]
    return sum(int(count) for count in counts if count.isdigit())

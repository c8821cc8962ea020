"""The inventory as a value, the one that is built in, and the hosts a person picks from it.

Nothing here needs YAML or pydantic: `--hosts` and the local backend work, and start, without them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from launcher.cluster.hosts import endpoints, same_endpoint_key
from launcher.cluster.ranges import expand, split_list
from launcher.errors import UsageError
from launcher.model import Host, ImageInfo, MasterOptions, SlurmOptions, SshOptions
from launcher.record import dataclass

PROBLEMS_SHOWN = 200
"""a file with more problems than this is no cluster file; the rest is counted"""


@dataclass(frozen=True)
class Cluster:
    """The machines a job can run on, every default applied to every host."""

    name: str
    backend: str
    """local, ssh or slurm"""
    hosts: tuple[Host, ...] = ()
    """in the inventory's order, which is the order of node ranks; local: may be empty, any number of nodes is simulated"""
    template: Host = field(default_factory=lambda: Host("local", "localhost"))
    """a host of which only the `defaults:` are known: what a simulated node of the local backend is a copy of"""
    ssh: SshOptions = field(default_factory=SshOptions)
    master: MasterOptions = field(default_factory=MasterOptions)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    images: tuple[ImageInfo, ...] = ()
    path: Path | None = None
    """the file it was read from; None: built in, or named by --hosts"""


def local_cluster() -> Cluster:
    """The cluster that is there without any file: nodes simulated on this machine."""
    return Cluster(name="local", backend="local")


def parse_hosts(text: str, option: str = "--hosts") -> tuple[Host, ...]:
    """The hosts of a comma list with ranges, in its order; UsageError, naming ``option``, lists everything wrong in it."""
    problems: list[str] = []
    hosts: list[Host] = []
    for part in split_list(text):
        try:
            hosts += [Host(name=e.name, address=e.address, user=e.user, port=e.port) for e in endpoints(part)]
        except ValueError as error:
            problems.append(f"{option}: {part}: {error}")
    problems += [f"{option}: {sentence}" for _, sentence in repeated(list(enumerate(hosts)), lambda _: "")]
    if not hosts and not problems:
        problems.append(f"{option}: {text!r} names no host")
    complain(f"the hosts of {option} cannot be used", problems)
    return tuple(hosts)


def select_hosts(cluster: Cluster, hosts: str | None = None, exclude: str | None = None, whole: str | None = None) -> Cluster:
    """The cluster reduced to what --hosts and --exclude leave of it.

    ``hosts`` picks by name, ranges allowed, and its order is the order of node ranks: the first one named is node 0.
    Where there is no inventory (the built-in local cluster), it is the inventory, and the backend is ssh.  ``exclude``
    takes hosts away by name.  UsageError lists every unknown name with a suggestion, and says so when no host is left;
    ``whole`` is its word for what is chosen from, where that is no inventory.
    """
    if hosts is not None and cluster.path is None and not cluster.hosts:
        cluster = dataclasses.replace(cluster, name="--hosts", backend="ssh", hosts=parse_hosts(hosts))
        hosts = None
    problems: list[str] = []
    known = {host.name: host for host in cluster.hosts}
    where = whole or "the inventory"
    picked = list(known) if hosts is None else _names(hosts, "--hosts", known, where, problems)
    dropped = set() if exclude is None else set(_names(exclude, "--exclude", known, where, problems))
    problems += [f"--hosts: {name}: named twice" for name, times in Counter(picked).items() if times > 1]
    left = tuple(known[name] for name in picked if name not in dropped)
    if not left and not problems and (hosts is not None or exclude is not None):
        problems.append("no host is left after --hosts and --exclude")
    named = f"the inventory {cluster.name}{f' ({cluster.path})' if cluster.path else ''}"
    step = "" if whole else f"name some of those{f', or add a host to {cluster.path}' if cluster.path else ''}"
    complain(f"the hosts cannot be chosen from {whole or named}", problems, step)
    return dataclasses.replace(cluster, hosts=left)


def _names(text: str, option: str, known: Mapping[str, Host], where: str, problems: list[str]) -> list[str]:
    """The known names among those that ``text`` stands for; each other one becomes a problem."""
    names: list[str] = []
    parts = split_list(text)
    if not parts:
        problems.append(f"{option}: {text!r} names no host")
    for part in parts:
        try:
            names += [part] if part in known else expand(part)
        except ValueError as error:
            problems.append(f"{option}: {part}: {error}")
    listed = ", ".join(known) if len(known) <= 12 else f"{len(known)} hosts"
    there = f"{where} has {listed or 'no hosts'}"
    unknown = [name for name in names if name not in known]
    problems += [f"{option}: {name}: no host of that name; {there}{did_you_mean(name, known)}" for name in unknown]
    return [name for name in names if name in known]


def repeated(
    hosts: Sequence[tuple[int, Host]], place: Callable[[int], str], names: Sequence[tuple[int, str]] = ()
) -> list[tuple[int, str]]:
    """(entry number, sentence) for each host whose name, or whose endpoint, an earlier one has already.

    ``hosts`` are (entry number, host); ``place`` says where an entry stands, for "first at ...", or "".  ``names`` are
    (entry number, name) of hosts of which no more than the name is known.
    """
    found: list[tuple[int, str]] = []
    first: dict[str, int] = {}
    doors: dict[tuple[str, int | None, str | None], tuple[int, str]] = {}
    known = [(entry, host.name, same_endpoint_key(host.address, host.port, host.user)) for entry, host in hosts]
    for entry, name, door in sorted([*known, *((entry, name, None) for entry, name in names)], key=lambda one: one[0]):
        if name in first:
            found.append((entry, f"{name}: the same name twice{_first(place(first[name]))}"))
        elif door in doors:
            number, other = doors[door]
            found.append((entry, f"{name}: the same address, port and user as {other}{_first(place(number))}"))
        first.setdefault(name, entry)
        if door is not None:
            doors.setdefault(door, (entry, name))
    return found


def _first(place: str) -> str:
    return f"; first at {place}" if place else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean x?)`, or nothing when no known word is near."""
    import difflib  # for bad input alone

    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower()[:64], lowered, n=1, cutoff=0.6)
    return f" (did you mean {lowered[near[0]]}?)" if near else ""


def complain(what: str, problems: Sequence[str], next_step: str = "") -> None:
    """Raise one UsageError with all problems, if there are any."""
    if not problems:
        return
    shown = list(problems[:PROBLEMS_SHOWN])
    if len(problems) > PROBLEMS_SHOWN:
        shown.append(f"... and {len(problems) - PROBLEMS_SHOWN} more")
    raise UsageError(what, problems=shown, next_step=next_step)


def in_order(path: Path, problems: Iterable[str]) -> list[str]:
    """By line and column, each once."""

    def place(problem: str) -> tuple[int, int]:
        line, column = problem.removeprefix(f"{path}:").split(":", 2)[:2]
        return int(line), int(column)

    return sorted(dict.fromkeys(problems), key=place)

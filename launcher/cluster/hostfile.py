"""Hostfiles, as mpirun and DeepSpeed read them: a host a line, `slots=4` after it, comments after #."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.cluster.hosts import endpoints
from launcher.cluster.inventory import Cluster, complain, did_you_mean, in_order, repeated
from launcher.cluster.textfile import home_expanded, read_text
from launcher.model import Host

KIND = "hostfile"
_WORD = re.compile(r"[^ \t\f\v]+")


def read_hostfile(path: str | Path) -> Cluster:
    """The hosts of a hostfile, in its order, to be reached by ssh; UsageError lists everything wrong in it at once."""
    path = Path(home_expanded(str(path)))
    problems: list[str] = []
    hosts: list[tuple[int, Host]] = []
    for number, line in enumerate(re.split(r"\r\n|\n|\r", read_text(path, KIND)), 1):
        words = list(_WORD.finditer(line.partition("#")[0]))
        if words:
            hosts += [(number, host) for host in _line(f"{path}:{number}", words, problems)]
    problems += [f"{path}:{number}:1: {sentence}" for number, sentence in repeated(hosts, lambda number: f"{path}:{number}:1")]
    if not hosts and not problems:
        problems.append(f"{path}:1:1: no host stands in the file; write one a line, as in `node1 slots=4`")
    complain("the hostfile cannot be used", in_order(path, problems))
    return Cluster(name=path.stem, backend="ssh", hosts=tuple(host for _, host in hosts), path=path)


def _line(place: str, words: list[re.Match[str]], problems: list[str]) -> list[Host]:
    """The hosts of one line; what is wrong in it becomes problems."""
    slots: int | None = None
    for word in words[1:]:
        key, equals, value = word.group().partition("=")
        where = f"{place}:{word.start() + 1}"
        if not equals or key != "slots":
            meant = did_you_mean(key, ["slots"]) if equals else ""
            problems.append(f"{where}: {word.group()}: after the host only slots=N may stand{meant}")
        elif not re.fullmatch(r"[1-9]\d{0,4}", value, re.ASCII):
            problems.append(f"{where}: slots: {value or 'nothing'}: a whole number from 1 on")
        elif slots is not None:
            problems.append(f"{where}: slots: given twice in one line")
        else:
            slots = int(value)
    text = words[0].group()
    try:
        return [Host(name=e.name, address=e.address, user=e.user, port=e.port, slots=slots) for e in endpoints(text)]
    except ValueError as error:
        problems.append(f"{place}:{words[0].start() + 1}: {text}: {error}")
        return []

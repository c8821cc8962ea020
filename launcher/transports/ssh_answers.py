"""`ssh -G`: what ssh says of one machine, asked again only when one of its configuration files has changed.

Each question costs a process, 10 ms of CPU: a third of what connecting to a host costs here.  An answer is kept (see
`launcher.keep`) with the files that ssh read, as it names them itself under -v, and with those that an Include could find
later.  What does not follow from files alone is asked every time: a `Match` (it may run programs or look at the network),
a name made canonical by DNS, a ${variable}.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from launcher.errors import NodeError
from launcher.keep import keep, recall

_NOISE = ("Pseudo-terminal will not be allocated", "debug1: ", "OpenSSH_")
_READ = re.compile(r"debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)
_SYSTEM = "/etc/ssh"
_LINE = re.compile(r"[ \t]*(\w+)(?:[ \t]*=[ \t]*|[ \t]+)(.*)")
_EVERY_TIME = ("match", "canonicalizehostname")
"""keywords whose meaning does not follow from the files alone"""


def ask(command: Sequence[str], address: str, where: str, patience: float, account_home: str) -> dict[str, list[str]]:
    """The answer of ``command -G -- address`` as keyword -> values; NodeError when ssh is missing or refuses."""
    program = shutil.which(command[0])
    if program is None:
        raise NodeError("there is no `ssh` program here; its configuration is what we connect by", where=where,
                        next_step="install the OpenSSH client (Debian: apt-get install openssh-client)")
    question = ["ssh -G", program, str(os.getuid()), *command[1:], "--", address]
    known = recall(question)
    if isinstance(known, dict):
        return known
    text, said = _run([program, *command[1:]], address, where, patience)
    answer = _keywords(text)
    depends = _depends_on(_READ.findall(said), os.path.join(account_home, ".ssh"), named="-F" in command)
    if depends is not None:
        keep(question, answer, [program, *depends])
    return answer


def _run(command: Sequence[str], address: str, where: str, patience: float) -> tuple[str, str]:
    """(answer, what ssh told on the way); NodeError when it refuses or hangs."""
    by_hand = f"try by hand: {shlex.join(['ssh', *command[1:], '-G', address])}"
    try:
        done = subprocess.run([command[0], "-v", "-G", *command[1:], "--", address], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=max(patience, 5.0), start_new_session=True,
                              errors="surrogateescape", check=False)
    except subprocess.TimeoutExpired:
        raise NodeError("`ssh -G` did not answer; a `Match exec` in its configuration may hang", where=where,
                        next_step=by_hand) from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line and not line.startswith(_NOISE)]
        raise NodeError("ssh refuses its configuration for this host", where=where, lines=said[-5:], next_step=by_hand)
    return done.stdout, done.stderr


def _keywords(answer: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in answer.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value.strip())
    return found


def _depends_on(files: Sequence[str], own: str, named: bool) -> set[str] | None:
    """Every path that can change the answer; None when it depends on more than files.

    ``own``: the user's ~/.ssh.  ``named``: ssh was given a file (-F), and reads neither the user's nor the system's own.
    """
    paths = set(files) if named else {*files, os.path.join(own, "config"), os.path.join(_SYSTEM, "ssh_config")}
    for file in files:
        # A relative Include of the system's file lies beside that, any other one in ~/.ssh.
        base = _SYSTEM if file.startswith(_SYSTEM + "/") and not named else own
        try:
            with open(file, encoding="utf-8", errors="surrogateescape") as text:
                for keyword, rest in _directives(text):
                    if keyword in _EVERY_TIME or "${" in rest:
                        return None
                    if keyword == "include":
                        paths.update(path for pattern in shlex.split(rest) for path in _could_be_found(pattern, base))
        except (OSError, ValueError):
            return None
    return paths


def _directives(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        match = _LINE.match(line)
        if match:
            yield match[1].lower(), match[2]


def _could_be_found(pattern: str, base: str) -> Iterator[str]:
    """What an Include's pattern finds now, and the directories in which it would find more."""
    path = os.path.join(base, os.path.expanduser(pattern))
    yield path
    while glob.has_magic(path):
        yield from glob.glob(path)
        path = os.path.dirname(path)
        yield path

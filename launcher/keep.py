"""Answers that cost much and change rarely, kept in $LAUNCHER_HOME/cache until a file that they were made from changes.

A file that changed is seen by its times, size and inode.  What was changed less than a moment ago could change again
without any of them showing it, so an answer made from such a file is not kept.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import UsageError

_MOMENT_NS = 1_000_000_000
"""longer than the grain of any file system's times that people work on"""

State = tuple[int, ...] | None


def home() -> Path:
    """$LAUNCHER_HOME, else ~/.launcher; UsageError where that is nobody's."""
    return at_home(os.environ.get("LAUNCHER_HOME") or "~/.launcher", "LAUNCHER_HOME")


def at_home(text: str, said: str) -> Path:
    """An absolute path, `~` and `~user` at its beginning expanded; UsageError, beginning with ``said``, where there is none."""
    if wrong := nobodys(text):
        raise UsageError(wrong, where=said, next_step="name an absolute path")
    return Path(os.path.expanduser(text)).absolute()


def nobodys(text: str) -> str | None:
    """Why ``text`` begins with a home directory that there is not: nobody means a folder here that is called `~name`."""
    first = os.path.expanduser(text).partition(os.sep)[0]
    if not first.startswith("~") or os.path.lexists(first):
        return None
    why = f"there is no user {first[1:]} here" if first[1:] else "HOME is not set, and the account has no directory"
    return f"{text}: {why}"


def unfit(folder: str | os.PathLike[str]) -> str | None:
    """Why nothing else may be put into a folder: $LAUNCHER_HOME itself, and what is in its jobs/, are the launcher's own."""
    real, own = os.path.realpath(folder), os.path.realpath(home())
    jobs = os.path.join(own, "jobs")
    if real in (own, jobs) or real.startswith(jobs + os.sep):
        return f"{os.fspath(folder)}: jobs have their folders there ({jobs}), and nothing else may be put among them"
    return None


def in_outputs(path: str | os.PathLike[str]) -> bool:
    """Whether a path lies in the outputs that a job has brought here: the next job may read them."""
    jobs = os.path.join(os.path.realpath(home()), "jobs")
    parts = os.path.relpath(os.path.realpath(path), jobs).split(os.sep)
    return len(parts) > 2 and parts[0] != os.pardir and parts[1] == "output"


def recall(question: Sequence[str]) -> Any | None:
    """The answer that was kept, if every file it came from is as it was then; None otherwise."""
    try:
        kept = json.loads(_place(question).read_bytes())
        if kept["question"] == list(question) and all(state(path) == (was and tuple(was)) for path, was in kept["files"].items()):
            return kept["answer"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # never asked, or the file is damaged: it is asked anew
    return None


def keep(question: Sequence[str], answer: Any, files: Iterable[str | Path]) -> None:
    """Keep a JSON answer that follows from the question and from ``files``, those that are not there included.

    Only the user can read it.  Where it cannot be written nothing is kept: that is no error.
    """
    states = {str(path): state(str(path)) for path in files}
    newest = max((time_ns for one in states.values() if one for time_ns in one[:2]), default=0)
    if time.time_ns() - newest < _MOMENT_NS:
        return
    place = _place(question)
    part = place.with_name(f"{place.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"question": list(question), "files": states, "answer": answer}, file)
        os.replace(part, place)
    except OSError:
        part.unlink(missing_ok=True)


def _place(question: Sequence[str]) -> Path:
    # Two questions of one name would only displace each other: the file tells whose answer it is.
    text = "\0".join(question).encode(errors="surrogateescape")
    return home() / "cache" / f"{zlib.crc32(text):08x}-{len(text)}.json"


def state(path: str) -> State:
    """What changes when a file does: its times, size and inode; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

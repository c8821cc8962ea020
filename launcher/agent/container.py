"""A command's container: its processes are not below the command but below an engine, and end by the engine's own word.

    container.json    in the spool: the words that end and remove the container, `stop` of the order

The processes are found by the job's marks in their environment, as long as this user may see it.  They are told to end one
by one like any others; the engine's word at last removes the container, also where there is nobody left but a warden.
Runs on the nodes: standard library only, Python 3.8.
"""

import _signal as signal  # the interpreter's own part: `signal` would bring enum
import os
import sys
import time

from launcher.agent import lean, procs

_SECONDS = 30
"""how long an engine may take to remove a container"""
_TRIES, _PAUSE = 3, 0.7
"""where its client was cut short, the engine may be making the container still: so often it is asked, so far apart"""


def record(spool, order):
    """Note how the container is removed, for whoever has to; before the command starts."""
    if order.get("stop"):
        with open(_record(spool), "w") as file:
            file.write(lean.dumps(order["stop"]))


def end(spool, find, reap):
    """As `procs.end`, and the container is gone: first its client is killed, which could otherwise start it after its removal."""
    left = procs.end(find, reap)
    return procs.end(find, reap) if remove(spool) else left


def remove(spool, certain=False):
    """Have the container ended and removed; False where the spool has none.

    ``certain``: its client has come to its own end, and all was made that was ever to be made.
    """
    words = _load(spool)
    if words is None:
        return False
    import subprocess

    for turn in range(1 if certain else _TRIES):
        time.sleep(_PAUSE if turn else 0)
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=_SECONDS, cwd="/")
        except (OSError, subprocess.TimeoutExpired) as error:
            sys.stderr.write("%s: %s\n" % (" ".join(words), error))
            return True
        # It prints the name of what it has removed.
        if done.stdout.strip():
            break
    if done.returncode and b"o such container" not in done.stderr:
        sys.stderr.write("%s: %s\n" % (" ".join(words), done.stderr.decode("utf-8", "replace").strip()))
    else:
        os.unlink(_record(spool))
    return True


def below(pid, marks):
    """Pids of what belongs to the command ``pid``: its descendants, and the processes of its container."""
    return sorted(set(procs.descendants(pid)).union(procs.marked(marks)) - {pid, os.getpid()})


def tops(pid, marks):
    """The processes that a polite TERM is for; where none can be seen in the container, its client, which passes it on."""
    found = [top for root in roots(pid, marks) for top in procs.top_processes(root)]
    return found or procs.top_processes(pid)


def hold(tops):
    """Stop the shells among those that are to be told, and return them: where the topmost one ends, the whole container does.

    Stopped, they do not go on to their next line either; see `let_go`.
    """
    shells = [pid for pid in tops if procs.name(pid) in procs.SHELLS and procs.descendants(pid)]
    procs.send(shells, signal.SIGSTOP)
    return shells


def let_go(shells):
    """Tell the held shells below which nobody lives any more to end; those that are held still."""
    free = [pid for pid in shells if not procs.descendants(pid)]
    procs.send(free, signal.SIGTERM)
    procs.send(free, signal.SIGCONT)
    return [pid for pid in shells if pid not in free]


def roots(pid, marks):
    """The topmost processes of the container of the client ``pid``."""
    client = {pid, *procs.descendants(pid)}
    inside = set(procs.marked(marks)) - client
    return sorted(one for one in inside if procs.parent(one) not in inside)


def _record(spool):
    return os.path.join(spool.path, "container.json")


def _load(spool):
    try:
        with open(_record(spool)) as file:
            words = lean.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None

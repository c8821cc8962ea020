"""The training processes below a command: found by their environment, watched by their pidfds.

torchrun gives each worker LOCAL_RANK; a process that has it and whose parent has none is a worker (so no dataloader).
Which of them dies first is worth knowing: it tells the cause from its consequences.

Runs on the nodes: standard library only, Python 3.8.
"""

import os
import select
import time

from launcher.agent import container, procs

_FIRST_LOOK, _SLOWEST = 0.1, 2.0


class Workers:
    """Looks for workers ever more rarely while nothing changes, and tells of each one's end at once."""

    def __init__(self, command, tell, marks=None):
        """``marks``: the command is a container's client, whose processes are known by them."""
        self._command = command
        self._tell = tell
        self._marks = marks
        self._alive = {}
        self._seen = set()
        self._warning = None
        """(number, ranks) of the last warning"""
        self._warned = set()
        """pids that it was sent to"""
        self._pause = _FIRST_LOOK
        self._due = time.monotonic() + _FIRST_LOOK

    def descriptors(self):
        return [fd for fd, _ in self._alive.values() if fd is not None]

    def next_look(self):
        """Seconds until `look` has something to do."""
        return self._due - time.monotonic()

    def look(self):
        """Note the ended ones; when it is time, look for new ones, and return the pids of all that is below the command."""
        self.gather()
        if time.monotonic() < self._due:
            return None
        below = self._below()
        self._pause = _FIRST_LOOK if self._find(below) else min(self._pause * 1.5, _SLOWEST)
        late = self._warn_those_left()[0] if self._warning else []
        if late:
            self._tell("warned", signal=procs.signal_name(self._warning[0]), told=late, untold=[])
        self._due = time.monotonic() + self._pause
        return below

    def warn(self, number, ranks):
        """Send a signal to the training processes that catch it: (those told, those that would have died of it).

        Where the command starts ``ranks``, nobody else is meant; else the topmost processes below shells are, too.
        Whoever begins, or begins to catch it, later on is told by `look`.
        """
        self._warning, self._warned, self._pause = (number, ranks), set(), _FIRST_LOOK
        self._due = time.monotonic() + self._pause
        self.gather()
        self._find(self._below())
        return self._warn_those_left()

    def _warn_those_left(self):
        number, ranks = self._warning
        told, untold = [], []
        for pid, (_, worker) in self._alive.items():
            if pid not in self._warned:
                hearing = self._send(procs.listeners([pid], number)[0], pid)
                (told if hearing else untold).append(worker)
        if not self._alive and not ranks and not self._warned:
            hearing, deaf = procs.listeners(self._roots(), number)
            # Whoever hears it may be gone a moment later.
            told = [{"pid": pid, "name": procs.name(pid)} for pid in hearing]
            self._send(hearing, *hearing)
            untold = [{"pid": pid, "name": procs.name(pid)} for pid in deaf if not hearing]
        return told, untold

    def _send(self, hearing, *pids):
        """Send the warning; ``pids`` need not be looked at again if somebody heard it."""
        procs.send(hearing, self._warning[0])
        self._warned.update(pids if hearing else ())
        return hearing

    def tops(self):
        """The processes of the command that a polite TERM is for."""
        return container.tops(self._command, self._marks) if self._marks else procs.top_processes(self._command)

    def _below(self):
        return container.below(self._command, self._marks) if self._marks else procs.descendants(self._command)

    def _roots(self):
        return (container.roots(self._command, self._marks) if self._marks else []) or [self._command]

    def gather(self):
        """Note the workers that have ended since the last time."""
        for pid, (fd, worker) in list(self._alive.items()):
            if not _ended(pid, fd):
                continue
            if fd is not None:
                os.close(fd)
            del self._alive[pid]
            self._tell("worker gone", **worker)
            self._pause = _FIRST_LOOK

    def _find(self, below):
        found = []
        for pid in below:
            if pid in self._seen:
                continue
            mine = procs.environment(pid)
            if b"LOCAL_RANK" not in mine:
                continue
            if b"LOCAL_RANK" not in procs.environment(procs.parent(pid) or 0):
                found.append(self._adopt(pid, mine))
            self._seen.add(pid)
        if found:
            self._tell("workers", workers=found)
        return found

    def _adopt(self, pid, environment):
        worker = {"pid": pid}
        for key in ("LOCAL_RANK", "RANK", "TORCHELASTIC_RESTART_COUNT"):
            text = environment.get(key.encode(), b"")
            worker[key.lower().replace("torchelastic_", "")] = int(text) if text.isdigit() else None
        self._alive[pid] = (procs.open_pidfd(pid), worker)
        return worker


def _ended(pid, fd):
    if fd is None:
        return procs.start_time(pid) is None
    return bool(select.select([fd], [], [], 0)[0])

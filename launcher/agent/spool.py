"""What a node's agent writes while a command runs, and what a follower reads: one directory per node of a job.

    events.jsonl              one JSON object a line; written by the supervisor, after its death by the warden
    stdout.log stderr.log     what the command printed; the command itself holds these files open
    ranks/attempt_<n>/...     torchrun's per-rank logs (it makes none_<random>/attempt_<restart>/<local rank>/ below)
    agent-<n>.json            who supervises attempt n: pids and start times of supervisor and warden
    family.json               what was last seen below the supervisor: pids and start times
    stop-<n>.json             a wish to stop attempt n: {"grace": seconds (0 is KILL), "reason": text}, `told` if others did
    warn-<n>.json             the last warning for attempt n: {"number": count, "signal": number, "ranks": for ranks alone}
    agent.log                 what the agent itself had to say when it failed; not there when it had nothing to say
    claim-<n>                 whoever makes it starts attempt n; it takes space for the last events and wishes, and gives it
                              back when the disk is full

Runs on the nodes: standard library only, Python 3.8.
"""

import errno
import os
import time

from launcher.agent import lean, procs
from launcher.agent.lines import add_line

_RESERVED, _PIECE = 64 << 10, 8 << 10
"""bytes kept for a full disk, and how much of them is given back at a time: a command that fills the disk takes some, too"""


class Spool:
    """Paths and small files of one node's spool."""

    def __init__(self, path):
        self.path = path
        self.events_path = os.path.join(path, "events.jsonl")
        self.ranks = os.path.join(path, "ranks")

    def rank_logs(self, attempt):
        """Where torchrun is told to put the logs of its workers."""
        return os.path.join(self.ranks, "attempt_%d" % attempt)

    def append(self, event_type, attempt, **details):
        """Add an event; one write call, so that a reader sees it whole or not at all."""
        event = dict({"type": event_type, "attempt": attempt, "time": time.time()}, **details)
        line = lean.dumps(event).encode() + b"\n"
        self._even_on_a_full_disk(lambda: add_line(self.events_path, line))
        return event

    def outcome(self, attempt):
        """The last word on an attempt, or None while there is none."""
        for event in self._events():
            if event.get("type") == "outcome" and event.get("attempt") == attempt:
                return event
        return None

    def _events(self):
        try:
            with open(self.events_path, "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield lean.loads(line.decode("utf-8", "replace"))
            except ValueError:
                continue

    def claim(self, attempt):
        """True for the one caller that may start this attempt."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        try:
            claim = os.open(self._file("claim-%d", attempt), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(claim, "wb") as file:
            file.write(b"." * _RESERVED)
        return True

    def claimed(self, attempt):
        return os.path.exists(self._file("claim-%d", attempt))

    def record_agent(self, attempt, pids):
        """Note {role: pid} with start times, so that a pid used again is not taken for ours."""
        value = {role: [pid, procs.start_time(pid)] for role, pid in pids.items()}
        self._write("agent-%d.json", attempt, {"boot_id": procs.boot_id(), "pids": value})

    def agent_alive(self, attempt):
        """True while the supervisor or the warden of this attempt lives."""
        return bool(self.agents(attempt))

    def agents(self, attempt):
        """Pids of the supervisor and the warden of this attempt, of those that live."""
        record = self._load("agent-%d.json", attempt)
        if record is None or record["boot_id"] != procs.boot_id():
            return []
        return [pid for pid, started in record["pids"].values() if started is not None and procs.start_time(pid) == started]

    def rebooted(self, attempt):
        """True when the machine was started anew since the attempt began."""
        record = self._load("agent-%d.json", attempt)
        return record is not None and record["boot_id"] != procs.boot_id()

    def wish_stop(self, attempt, grace, reason, told=False):
        self._write("stop-%d.json", attempt, {"grace": grace, "reason": reason, **({"told": True} if told else {})})

    def stop_wish(self, attempt):
        """The wish to stop this attempt, or None."""
        return self._load("stop-%d.json", attempt)

    def logs(self):
        """{name on the near side: path here} of all logs that exist now."""
        found = {"events.jsonl": self.events_path}
        for name in ("stdout.log", "stderr.log"):
            found[name] = os.path.join(self.path, name)
        for directory, _, files in os.walk(self.ranks):
            for file in files:
                path = os.path.join(directory, file)
                name = self._rank_name(os.path.relpath(path, self.ranks))
                if name:
                    found[name] = path
        return {name: path for name, path in found.items() if os.path.exists(path)}

    def _rank_name(self, relative):
        parts = relative.split(os.sep)
        if len(parts) != 5 or parts[4] not in ("stdout.log", "stderr.log"):
            return None
        attempt, run, restart, local_rank = parts[0][8:], parts[1], parts[2][8:], parts[3]
        attempts = parts[0].startswith("attempt_") and parts[2].startswith("attempt_")
        if not attempts or not (attempt + restart + local_rank).isdigit():
            return None
        # A command may start torchrun more than once; the first run has the plain name.
        number = self._runs("attempt_" + attempt).index(run)
        prefix = "" if number == 0 else "run_%d_" % number
        return "ranks/attempt_%s/%srestart_%s/%s/%s" % (attempt, prefix, restart, local_rank, parts[4])

    def _runs(self, attempt):
        top = os.path.join(self.ranks, attempt)
        return sorted(os.listdir(top), key=lambda run: (_began(os.path.join(top, run)), run))

    def _file(self, pattern, attempt):
        return os.path.join(self.path, pattern % attempt)

    def _write(self, pattern, attempt, value):
        path = self._file(pattern, attempt)
        part = "%s.%d" % (path, os.getpid())

        def write():
            with open(part, "w") as file:
                file.write(lean.dumps(value))

        self._even_on_a_full_disk(write)
        os.replace(part, path)

    def _even_on_a_full_disk(self, write):
        """Call ``write``; while there is no space for it, give back some of what was reserved and call it again."""
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._give_back():
                    raise

    def _give_back(self):
        try:
            claims = [os.path.join(self.path, name) for name in os.listdir(self.path) if name.startswith("claim-")]
            left, largest = max((os.stat(claim).st_size, claim) for claim in claims)
            os.truncate(largest, max(0, left - _PIECE))
        except (OSError, ValueError):
            return False
        return left > 0

    def _load(self, pattern, attempt):
        return _read_json(self._file(pattern, attempt))


def wish_warning(spool, attempt, number, signal, ranks):
    """Wish a signal passed on to the training processes; ``number`` counts the wishes."""
    spool._write("warn-%d.json", attempt, {"number": number, "signal": signal, "ranks": ranks})


def warning(spool, attempt):
    """The last warning wished for this attempt, or None."""
    return spool._load("warn-%d.json", attempt)


def record_family(spool, pids):
    """Note which processes are below the supervisor, for whoever ends them should it and its warden be killed.

    No file is no harm, and so it gets nothing of the reserve.
    """
    path = os.path.join(spool.path, "family.json")
    try:
        with open(path + ".part", "w") as file:
            file.write(lean.dumps({"boot_id": procs.boot_id(), "pids": procs.identified(pids)}))
        os.replace(path + ".part", path)
    except OSError:
        pass


def family(spool):
    """Pids of what was below the supervisor when it was last seen and lives on, descendants included."""
    record = _read_json(os.path.join(spool.path, "family.json"))
    try:
        return procs.still(record["pids"]) if record["boot_id"] == procs.boot_id() else []
    except (TypeError, ValueError, LookupError):
        # None, or something that the command put there.
        return []


def _read_json(path):
    try:
        with open(path) as file:
            return lean.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None


def _began(run):
    """When a run of torchrun made its first attempt's directory, which later restarts leave alone (they change the run's own)."""
    first = os.path.join(run, "attempt_0")
    return os.stat(first if os.path.isdir(first) else run).st_ctime_ns

"""The process table, as far as a job needs it: descent, marks in the environment, and how to end a set of processes.

Runs on the nodes: standard library only, Python 3.8.  Facts from proc(5), prctl(2), pidfd_open(2).
"""

import _signal as signal  # the interpreter's own part: `signal` would bring enum
import os

from launcher.agent import libc

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_PIDFD_OPEN = 434
RUNTIMES = frozenset(
    ["docker-init", "tini", "catatonit", "dumb-init", "apptainer", "singularity", "starter", "starter-suid", "appinit", "sinit"]
)
"""what stands above a command in a container: it hands TERM on to one process alone, or not at all"""
SHELLS = frozenset(["sh", "dash", "bash", "ash", "busybox", "zsh", "ksh", "mksh", "fish", "tcsh", "csh"])


def boot_id():
    """A word that changes whenever the machine starts anew (random(4))."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _prctl(option, value):
    if libc.call("prctl", option, value, 0, 0, 0) != 0:
        raise OSError(libc.last_errno(), "prctl(%d)" % option)


def become_subreaper():
    """Orphans among our descendants become our children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name):
    """What `ps -o comm` shows for this process (at most 15 bytes)."""
    _prctl(_PR_SET_NAME, name.encode())


def close_others(keep):
    """Let go of every descriptor of ours but the first three and ``keep``."""
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) > 2 and int(fd) != keep:
            try:
                os.close(int(fd))
            except OSError:
                pass


def open_pidfd(pid):
    """A descriptor that becomes readable when the process ends; None where the kernel has none (before 5.3)."""
    fd = libc.call("syscall", _PIDFD_OPEN, pid, 0)
    return fd if fd >= 0 else None


def start_time(pid):
    """Clock ticks since boot at which the process started, or None when it is gone (a zombie counts as gone)."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in ("Z", "X") else int(stat[19])


def parent(pid):
    stat = _stat(pid)
    return None if stat is None else int(stat[1])


def name(pid):
    """The `comm` of a process, or "" when it is gone."""
    return _read(pid, "comm").decode("utf-8", "replace").strip()


def environment(pid):
    """The environment a process was started with, as {bytes: bytes}; {} when it is gone or somebody else's."""
    pairs = (item.partition(b"=") for item in _read(pid, "environ").split(b"\0") if item)
    return {key: value for key, _, value in pairs}


def children(pid):
    """Pids of a process's children, through all its threads."""
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                found.extend(int(word) for word in file.read().split())
    except FileNotFoundError:
        # Either the process is gone, or this kernel is built without CONFIG_PROC_CHILDREN.
        if os.path.exists("/proc/self/task/%d/children" % os.getpid()):
            return found
        return [child for child in everybody() if parent(child) == pid]
    except (ProcessLookupError, PermissionError):
        pass
    return found


def descendants(pid):
    """Pids of all living descendants of a process, itself not included."""
    found, todo = [], [pid]
    while todo:
        for child in children(todo.pop()):
            if child not in found:
                found.append(child)
                todo.append(child)
    return [child for child in found if start_time(child) is not None]


def marked(marks):
    """Pids of the processes whose initial environment has all these {name: value}, and their descendants."""
    wanted = [("%s=%s" % pair).encode() for pair in marks.items()]
    found = []
    for pid in everybody():
        items = _read(pid, "environ").split(b"\0")
        if pid != os.getpid() and all(mark in items for mark in wanted) and start_time(pid) is not None:
            found.append(pid)
    more = [child for pid in found for child in descendants(pid)]
    return sorted(set(found + more) - {os.getpid()})


def identified(pids):
    """[[pid, start time]] of those that live: what tells a process from a later one with its number."""
    pairs = [[pid, start_time(pid)] for pid in pids]
    return [pair for pair in pairs if pair[1] is not None]


def still(pairs):
    """Pids of the identified processes that still live, and of their descendants."""
    found = [pid for pid, started in pairs if start_time(pid) == started]
    return found + [child for pid in found for child in descendants(pid) if child not in found]


def stopped(pid):
    """True for a process that a signal (SIGSTOP, SIGTSTP) holds still."""
    stat = _stat(pid)
    return stat is not None and stat[0] == "T"


def everybody():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def top_processes(pid):
    """The processes a polite TERM is for: the command itself, and below shells whatever they started."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        below = children(one) if name(one) in SHELLS | RUNTIMES else []
        if not below or name(one) not in RUNTIMES:
            found.append(one)
        todo.extend(below)
    # Children first: a shell that is told first may end, or start its next line, before its child hears of it.
    return found[::-1]


def catches(pid, number):
    """True where the process has a handler of its own for the signal (SigCgt of proc(5))."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def listeners(pids, number):
    """(those that catch the signal, those above them that do not) from some processes downwards.

    Shells are passed by, and below a process that catches it nobody is looked for: its children have inherited the handler.
    """
    told, untold, todo = [], [], list(pids)
    while todo:
        one = todo.pop()
        if name(one) in SHELLS | RUNTIMES:
            todo.extend(children(one))
        elif catches(one, number):
            told.append(one)
        elif start_time(one) is not None:
            untold.append(one)
            todo.extend(children(one))
    return told, untold


def signal_name(number):
    """`SIGTERM`; `SIG36` for a real-time signal, which has no name in Python."""
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:
        return "SIG%d" % number


def send(pids, number):
    """Send a signal to each; who is gone already is passed over."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def reap():
    """Collect every child that has ended: [(pid, wait status)]."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def end(find, reap):
    """KILL whatever ``find()`` lists until it lists nobody, calling ``reap()`` in between; give up after 200 rounds.

    Returns the pids that were still there (processes in uninterruptible sleep, or another user's).
    """
    left = find()
    for _ in range(200):
        if not left:
            break
        send(left, signal.SIGKILL)
        _settle(left[0])
        reap()
        left = find()
    return left


def _settle(pid):
    # A killed process takes a moment to be gone; its pidfd tells when, so that no time is slept away.
    import select

    fd = open_pidfd(pid)
    select.select([] if fd is None else [fd], [], [], 0.02)
    if fd is not None:
        os.close(fd)


def _stat(pid):
    text = _read(pid, "stat").decode("utf-8", "replace")
    # The second field, the name in parentheses, may contain anything; the rest follows its last parenthesis.
    return text[text.rindex(")") + 2 :].split() if ")" in text else None


def _read(pid, entry):
    try:
        with open("/proc/%s/%s" % (pid, entry), "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""

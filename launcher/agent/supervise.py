"""What stays on the node when the connection goes: a warden, its child the supervisor, and below it the command.

    warden        child subreaper; waits for the supervisor; should it die without an outcome, ends every descendant
      supervisor  child subreaper; starts the command, hears of stop wishes, ends what is left, writes the outcome
        command   in a session of its own, default signal dispositions, empty mask

Both are subreapers, so whatever the command forks, daemonises or disowns stays below them: descent is the proof of
what is ours.  Runs on the nodes: standard library only, Python 3.8.
"""

import _signal as signal  # the interpreter's own part: `signal` would bring enum
import errno
import os
import select
import sys
import time

from launcher.agent import container, procs
from launcher.agent.spool import Spool, family, record_family, warning
from launcher.agent.watch import ARRIVED, Watch
from launcher.agent.wire import raw
from launcher.agent.workers import Workers

LEFTOVER_GRACE = 5.0
"""seconds that processes which outlive their command get between TERM and KILL"""
CAN_SPAWN = hasattr(os, "posix_spawn")
LOOK_SECONDS = 0.5
"""how long a death that nothing announces (the warden's) may stay unnoticed"""


def launch(order, report):
    """Leave the session: become warden and supervisor of ``order`` and never return.

    ``report`` is a descriptor; one line goes there: `+<pid>` of the command, or `-<sentence>` when it did not start.
    """
    os.setsid()
    spool = Spool(order["spool"])
    _detach(spool, keep=report)
    procs.become_subreaper()
    procs.set_name("launcher-warden")
    child = os.fork()
    if child == 0:
        never_return(lambda: Supervisor(order, spool, report).run())
    os.close(report)
    never_return(lambda: _guard(order, spool, child))


def _detach(spool, keep):
    null = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    sys.stderr = _Log(os.path.join(spool.path, "agent.log"))
    procs.close_others(keep)
    os.chdir("/")
    os.umask(0o077)


class _Log:
    """agent.log, made when there is something to say."""

    def __init__(self, path):
        self.path = path

    def write(self, text):
        log = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(log, text.encode("utf-8", "backslashreplace"))
        finally:
            os.close(log)

    def flush(self):
        pass


def never_return(work):
    """Do the work of a forked child, which must not run on into its parent's code, whatever happens."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - the process ends here
        import traceback

        # Our stderr is agent.log; that its directory is gone by now is no hindrance.
        try:
            traceback.print_exc()
        finally:
            os._exit(70)
    os._exit(0)


def _guard(order, spool, supervisor):
    """Wait for the supervisor; if it left no outcome, end everything below us and write one."""
    status = None
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == supervisor:
            break
    # It exits with 0 only after its outcome: the spool, which may be gone by now, need not be asked.
    if status != 0:
        _clean_up_after(order, spool)


def _clean_up_after(order, spool, find=None):
    attempt = order["attempt"]
    if spool.outcome(attempt) is not None:
        return
    left = container.end(spool, find or (lambda: _below_us(order)), procs.reap)
    spool.append("outcome", attempt, kind="agent lost", exit_code=None, signal=None, survivors=left)


def _below_us(order):
    """Pids of the command and of all that belongs to it, wherever it runs."""
    return container.below(os.getpid(), order["marks"]) if order.get("stop") else procs.descendants(os.getpid())


def orphans(spool, marks):
    """What a dead supervisor and warden left: what was last seen below them, and what carries the job's marks."""
    return sorted(set(family(spool) + procs.marked(marks)) - {os.getpid()})


def start_command(order, stdout, stderr):
    """Start the command; returns its pid.  OSError, naming the file, when it cannot be started.

    Without a copy of ourselves where the C library can make a session in posix_spawn (glibc from 2.26 on, and a Python
    that was built with it), else by fork and exec.
    """
    # UTF-8 whatever the locale here, so that words arrive byte by byte as they were said.
    argv = [raw(word) for word in order["argv"]]
    env = {raw(name): raw(value) for name, value in order["env"].items()}
    try:
        if any(b"\0" in word for word in [*argv, *env, *env.values()]):
            raise ValueError("embedded null byte")
        try:
            if CAN_SPAWN:
                return _spawn(order, argv, env, stdout, stderr)
        except RuntimeError:
            # Of which the error for a flag that is not there is one.
            pass
        return _fork(order, argv, env, stdout, stderr)
    except (OSError, ValueError) as error:
        raise OSError(*_complaint(error, order)) from None


def _complaint(error, order):
    """errno and a sentence that names the file: the program, or the directory it was to start in."""
    if isinstance(error, ValueError):
        return 0, "%s: %s" % (ascii(order["argv"][0]), error)
    return error.errno or 0, "%s: %s" % (os.fsdecode(error.filename or order["argv"][0]), os.strerror(error.errno or 0))


def _defaults():
    """The signals that the command must find as a fresh log-in has them."""
    return signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def _spawn(order, argv, env, stdout, stderr):
    files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    files += [(os.POSIX_SPAWN_DUP2, source, target) for target, source in ((1, stdout), (2, stderr))]
    # What a spawned process has no flags for, it inherits: our directory and umask, for that long.
    os.chdir(order["cwd"])
    mask = os.umask(order.get("umask", 0o022))
    try:
        for program in _candidates(argv[0], env):
            try:
                return os.posix_spawn(
                    program, argv, env, file_actions=files, setsid=True, setsigmask=(), setsigdef=_defaults()
                )
            except (FileNotFoundError, NotADirectoryError):
                if b"/" in argv[0]:
                    raise
    finally:
        os.umask(mask)
        os.chdir("/")
    raise FileNotFoundError(errno.ENOENT, "", argv[0])


def _candidates(name, env):
    """Where a program may be: the places of the command's own PATH, what is there and may not be executed last."""
    if b"/" in name:
        return [name]
    places = [os.path.join(folder, name) for folder in env.get(b"PATH", os.fsencode(os.defpath)).split(b":")]
    return sorted((place for place in places if os.path.exists(place)), key=lambda place: not os.access(place, os.X_OK))


def _fork(order, argv, env, stdout, stderr):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            _become_command(order, argv, env, stdout, stderr)
        except OSError as error:
            name = os.fsencode(error.filename or argv[0])
            os.write(writer, b"%d %s" % (error.errno or 0, name))
        finally:
            os._exit(127)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        number, _, name = pipe.read().partition(b" ")
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), "", name)
    return pid


def _become_command(order, argv, env, stdout, stderr):
    os.setsid()
    for number in _defaults():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(order.get("umask", 0o022))
    os.chdir(order["cwd"])
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, stdout), (2, stderr)):
        os.dup2(source, target)
    places = _candidates(argv[0], env)
    if not places:
        raise FileNotFoundError(errno.ENOENT, "", argv[0])
    os.execve(places[0], argv, env)


class Supervisor:
    """One command from its start to its outcome."""

    def __init__(self, order, spool, report):
        self.order = order
        self.spool = spool
        self.report = report
        self.attempt = order["attempt"]
        self.marks = order["marks"]
        self.warden = os.getppid()
        self.status = None
        self.deadline = None
        self.grace = None
        self.told = set()
        """pids that have had their TERM: a second one would cut short what the first one began"""
        self.held = []
        """shells of a container that are told once all below them have ended"""
        self.all_told = False
        """Slurm has sent TERM to every process of its step, us among them"""
        self.warned = 0
        """how many warnings were passed on"""
        self.helper = None
        """a warden that is our child, since the first one was killed"""
        self.survivors = []
        self.family = []
        """pids below us when it was last looked"""

    def run(self):
        procs.become_subreaper()
        procs.set_name("launcher-agent")
        self.wake, wake_writer = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_writer, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self.note)
        if not self.start():
            return
        while self.status is None or self.below():
            self.wait()
            self.reap()
            self.look_after_warden()
            self.remember(self.workers.look())
            self.heed()
            self.obey()
            self.enforce()
        self.finish()

    def note(self, number, frame):
        self.all_told = self.all_told or (number == signal.SIGTERM and in_step())

    def start(self):
        # Wishes to stop are renamed into place; what the command prints beside them must not wake us.
        self.watch = Watch(ARRIVED)
        self.watch.add(self.spool.path)
        self.spool.record_agent(self.attempt, {"agent": os.getpid(), "warden": self.warden})
        os.makedirs(self.spool.ranks, exist_ok=True)  # the rest is torchrun's to make; a container is given this
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        logs = [os.open(os.path.join(self.spool.path, name), flags, 0o600) for name in ("stdout.log", "stderr.log")]
        container.record(self.spool, self.order)
        try:
            self.pid = start_command(self.order, *logs)
        except OSError as error:
            self.spool.append("outcome", self.attempt, kind="not started", exit_code=None, signal=None, message=error.strerror)
            self.tell("-%s" % error.strerror)
            return False
        for fd in logs:
            os.close(fd)
        marks = self.marks if self.order.get("stop") else None
        self.workers = Workers(self.pid, lambda kind, **details: self.spool.append(kind, self.attempt, **details), marks)
        self.spool.append("started", self.attempt, pid=self.pid, agent=os.getpid(), warden=self.warden)
        self.tell("+%d" % self.pid)
        return True

    def tell(self, line):
        try:
            os.write(self.report, line.encode() + b"\n")
        except BrokenPipeError:
            pass
        os.close(self.report)

    def wait(self):
        """Until a signal, a file in the spool, a worker's end, or the next thing that time alone brings."""
        soon = [LOOK_SECONDS, self.workers.next_look()]
        if self.deadline is not None:
            soon.append(self.deadline - time.monotonic())
        descriptors = [self.wake, *self.workers.descriptors()]
        if self.watch.fileno() is not None:
            descriptors.append(self.watch.fileno())
        select.select(descriptors, [], [], max(0.0, min(soon)))
        self.watch.clear()
        try:
            os.read(self.wake, 4096)
        except BlockingIOError:
            pass

    def reap(self):
        for pid, status in procs.reap():
            if pid == self.pid:
                self.status = status
                self.workers.gather()
                self.spool.append("exited", self.attempt, **_meaning(status))
                container.remove(self.spool, certain=os.WIFEXITED(status))
                # Slurm's TERM goes to one process after the other, and may not have come to us yet.
                told = in_step() and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
                # A shell dies of it at once, and what it has started may be writing its checkpoint.
                left = max(LEFTOVER_GRACE, self.order.get("grace", 0)) if told else LEFTOVER_GRACE
                self.stop(left if self.grace is None else self.grace, "leftover", told)

    def below(self):
        return [pid for pid in _below_us(self.order) if pid != self.helper]

    def look_after_warden(self):
        """A dead warden is replaced by a child of ours, which knows the others by `family` and by their marks."""
        if procs.start_time(self.warden) is not None and (os.getppid() == self.warden or self.helper is not None):
            return
        reader, writer = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            # The machine has no process left for us just now; the next look tries again.
            os.close(reader)
            os.close(writer)
            return
        if pid == 0:
            os.close(writer)
            never_return(lambda: self.guard_by_pipe(reader))
        os.close(reader)
        self.spool.append("warden lost", self.attempt, pid=self.warden)
        # Held open for as long as we live: its end is what the replacement waits for.
        self.lifeline = writer
        self.helper = self.warden = pid
        self.spool.record_agent(self.attempt, {"agent": os.getpid(), "warden": pid})

    def guard_by_pipe(self, reader):
        signal.set_wakeup_fd(-1)
        os.setsid()
        procs.set_name("launcher-warden")
        while os.read(reader, 1):
            pass
        _clean_up_after(self.order, self.spool, lambda: orphans(self.spool, self.marks))

    def remember(self, below):
        """Write down who is below us (``below`` the command, None when nobody looked), should we and our warden be killed."""
        if below is None:
            return
        # Once the command is reaped its number may be anybody's.
        ours = {self.pid, *below} if self.status is None else set()
        adopted = [pid for pid in procs.children(os.getpid()) if pid not in (self.pid, self.helper)]
        seen = sorted({*ours, *adopted, *(child for pid in adopted for child in procs.descendants(pid))})
        if seen != self.family:
            self.family = seen
            record_family(self.spool, seen)

    def heed(self):
        """Pass a warning on, once, to the training processes that know what to do with it."""
        wish = warning(self.spool, self.attempt)
        if wish is None or wish["number"] <= self.warned or self.status is not None:
            return
        self.warned = wish["number"]
        told, untold = self.workers.warn(wish["signal"], wish["ranks"])
        self.spool.append("warned", self.attempt, signal=procs.signal_name(wish["signal"]), told=told, untold=untold)

    def obey(self):
        wish = self.spool.stop_wish(self.attempt)
        if wish is not None and (self.grace is None or wish["grace"] < self.grace):
            self.stop(wish["grace"], wish["reason"], wish.get("told", False))

    def stop(self, grace, reason, told=False):
        """TERM once to the top processes (unless they were ``told``), or sooner KILL when a shorter grace is asked for later."""
        first = self.grace is None or reason == "leftover"
        self.grace = grace
        deadline = time.monotonic() + grace
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        if grace > 0 and first:
            alive = self.below()
            if alive:
                self.spool.append("stopping", self.attempt, grace=grace, reason=reason)
            top = self.workers.tops() if self.status is None else alive
            if told or self.all_told:
                self.told.update(alive)
            untold = [pid for pid in top if pid in alive and pid not in self.told]
            stopped = [pid for pid in alive if procs.stopped(pid)]
            self.held = container.hold(untold) if self.order.get("stop") and self.status is None else []
            procs.send([pid for pid in untold if pid not in self.held], signal.SIGTERM)
            self.told.update(top)
            # What is held still hears of it only when it runs again.
            procs.send([pid for pid in stopped if pid not in self.held], signal.SIGCONT)

    def enforce(self):
        self.held = container.let_go(self.held)
        if self.deadline is None or time.monotonic() < self.deadline or not self.below():
            return
        self.spool.append("killing", self.attempt, pids=self.below())
        self.survivors = container.end(self.spool, self.below, self.reap)
        if self.survivors:
            self.finish()

    def finish(self):
        meaning = _meaning(self.status) if self.status is not None else {"exit_code": None, "signal": "SIGKILL"}
        self.spool.append("outcome", self.attempt, kind="exited", survivors=self.survivors, **meaning)
        sys.stdout.flush()
        os._exit(0)


def in_step():
    """True in a task of Slurm's, which signals all of its processes at once."""
    return "SLURM_STEP_ID" in os.environ


def _meaning(status):
    """Exit code as a shell gives it (128+n for signal n) and the signal's name."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return {"exit_code": 128 + number, "signal": procs.signal_name(number)}
    return {"exit_code": os.WEXITSTATUS(status), "signal": None}

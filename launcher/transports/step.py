"""One step of a Slurm allocation: a task on every node, which calls back and starts what is asked for there.

A step is what all transports of an attempt share.  One thread does all of its work: it lets callers in, hears what the
tasks say, feeds the channels of tasks that could not call, and keeps the last words of srun.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import os
import select
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from launcher.agent import facts, lanes
from launcher.errors import LauncherError, NodeError, NodeGone
from launcher.model import Host
from launcher.transports import srun
from launcher.transports.callers import Caller, listen
from launcher.transports.task import SrunTransport, Task

PATIENCE = 3.0
"""seconds that a task tries to call back before it falls back to the step's stdin and stdout"""
ARRIVAL = 120.0
"""seconds until every task must have shown up; a prolog may take its time"""
GOODBYE = 15.0
"""seconds a step is given to end after the good-bye; then srun is killed, and Slurm ends the rest"""
_KEPT = 8192
"""bytes of srun's stderr that are remembered, the last ones"""
_AGENT = Path(facts.__file__).parent
_TRAVEL = ("libc", "procs", "lanes", "dial")
"""modules of the agent that a task runs before there is one"""
_BOOT = "import sys;exec(sys.stdin.buffer.readline())"


@functools.cache
def _program() -> bytes:
    """What makes a task ours: a line that unpacks the modules behind it, to where `import` finds them.

    They travel as text, and as byte code, which spares a Python of our own version a third of its start; packed, for srun hands
    stdin on to each task in small pieces.
    """
    paths = {f"launcher.agent.{name}": _AGENT / f"{name}.py" for name in _TRAVEL}
    texts = {name: path.read_text() for name, path in paths.items()}
    codes = {name: marshal.dumps(SourceFileLoader(name, str(path)).get_code(name)) for name, path in paths.items()}
    # What every version reads: marshal's own format of its second version.
    packed = zlib.compress(marshal.dumps((MAGIC_NUMBER, codes, texts), 2))
    return f"exec({_UNPACK.replace('SIZE', str(len(packed)))!r})\n".encode() + packed


_UNPACK = """
import marshal, sys, zlib
magic, codes, texts = marshal.loads(zlib.decompress(sys.stdin.buffer.read(SIZE)))
same = magic == getattr(sys.modules.get("_frozen_importlib_external"), "MAGIC_NUMBER", None)
for name in ("launcher", "launcher.agent"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = []
for name, text in texts.items():
    module = sys.modules[name] = type(sys)(name)
    setattr(sys.modules["launcher.agent"], name.rpartition(".")[2], module)
    exec(marshal.loads(codes[name]) if same else compile(text, name, "exec"), module.__dict__)
sys.modules["launcher.agent.dial"].launch()
"""


class Step:
    """A step that starts with the first transport asked for."""

    def __init__(
        self,
        order: srun.Order,
        heard: Callable[[str, str], None] = lambda node, signal: None,
        ports: Callable[[], tuple[int, int] | None] = lambda: None,
        addresses: Sequence[str] | None = None,
        patience: float = PATIENCE,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``heard(node, signal)`` is told of signals that Slurm sends to the tasks.  ``ports()``: the only ones to listen at.

        ``addresses``: where tasks find us; None: all addresses of this machine; empty: nowhere.
        """
        self._order = order
        self._heard = heard
        self._ports = ports
        self._addresses = addresses
        self._patience = patience
        self._environ = os.environ if environ is None else environ
        self._where = f"Slurm job {order.job}"
        self._secret = os.urandom(32).hex()
        self._lock = threading.RLock()
        self._changes: dict[str, threading.Condition] = {}
        """by node: whoever waits for one node's task is not woken for all the others'"""
        self._tasks: dict[str, Task] = {}
        """by node"""
        self._numbers: dict[int, Task] = {}
        """the same, by the number that Slurm gave them"""
        self._lines: dict[int, _Line] = {}
        self._lanes: dict[tuple[int, int], lanes.Lane] = {}
        """{(task, channel): our end} of channels that go through srun"""
        self._callers: dict[int, Caller] = {}
        self._streams: dict[int, Callable[[bytes], None]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._failure: NodeError | None = None
        self._tail = self._printed = b""
        self._leaving = self._cut = self._cancelled = False

    def transport(self, host: Host) -> SrunTransport:
        """The way to the task on a host; starts the step if need be, and waits until the task has shown up.

        Raises NodeGone, the very same for every host where the step as a whole is the trouble.
        """
        with self._lock:
            if self._thread is None and self._failure is None:
                try:
                    self._start()
                except NodeError as failed:
                    self._failure = failed
            end, changed = time.monotonic() + ARRIVAL, self._changes_of(host.name)
            while (task := self._tasks.get(host.name)) is None and self._failure is None:
                if not changed.wait(end - time.monotonic()):
                    step = "look at slurmd's log there, and at what a prolog does"
                    what = f"its task did not show up within {ARRIVAL:g} s"
                    raise NodeGone(what, where=host.name, lines=self._lines_of(host.name), next_step=step)
            trouble = self._failure if task is None else task.gone
            if task is None or trouble is not None:
                raise trouble or NodeGone("the step has no task there", where=host.name)
            return SrunTransport(task)

    def close(self, polite: bool = True) -> None:
        """End the step, and return when it is gone: with a good-bye, or by hanging up, which ends everything at once."""
        with self._lock:
            thread, process, self._leaving = self._thread, self._process, True
            if thread is None or process is None:
                return
            if polite:
                for task in self._tasks.values():
                    task.say("bye")
            else:
                self._cut = True
                self._wake()
            if not self._tasks:
                process.terminate()
        thread.join(GOODBYE)
        if thread.is_alive():
            process.kill()
            thread.join(GOODBYE)

    def out_of_memory(self) -> bool:
        """Whether processes of the step were killed for their use of memory; told when it is over."""
        return srun.out_of_memory(self._tail)

    def _start(self) -> None:
        """Start srun and the thread; under the lock.  Raises NodeGone."""
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        try:
            self._process = process = subprocess.Popen(
                srun.words(self._order, _BOOT), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                start_new_session=True, env=srun.environment(self._environ), cwd="/",
            )
        except OSError as error:
            what = f"{self._order.program} cannot be started: {error.strerror}"
            raise NodeGone(what, where=self._where, next_step="put Slurm's commands on PATH") from None
        assert process.stdin and process.stdout and process.stderr
        # srun needs longer to reach the nodes than Slurm to say at which ports we may listen.
        self._listener = self._listen()
        self._streams = {process.stdout.fileno(): self._hear_stdout, process.stderr.fileno(): self._hear_stderr}
        self._box = lanes.Outbox(process.stdin.fileno())
        own = _own_addresses() or ["127.0.0.1"]
        addresses = own if self._addresses is None else list(self._addresses)
        port = self._listener.getsockname()[1]
        order = {"secret": self._secret, "addresses": addresses, "port": port, "patience": self._patience}
        self._send(self._box, _program() + ascii(order).encode() + b"\n")
        self._thread = threading.Thread(target=self._work, name="step", daemon=True)
        self._thread.start()

    def _listen(self) -> socket.socket:
        """The listening socket; without one srun is ended again."""
        assert self._process is not None
        try:
            return listen(self._ports())
        except (LauncherError, OSError) as error:
            self._process.kill()
            self._process.communicate()
            if isinstance(error, NodeGone):
                raise
            if isinstance(error, OSError):
                raise NodeGone(f"this machine cannot be called back: {error.strerror}", where=self._where) from error
            raise NodeGone(error.what, where=self._where, lines=error.lines, next_step=error.next_step) from error

    def _work(self) -> None:
        """The thread: until srun has closed its output, and with it all of its words are read."""
        try:
            while self._streams:
                with self._lock:
                    wanted = self._wanted()
                poll = select.poll()
                for fd, events in wanted.items():
                    poll.register(fd, events)
                ready = poll.poll(1000 if self._callers else None)
                with self._lock:
                    for fd, what in ready:
                        self._attend(fd, what)
                    self._drop_slow_callers()
        except BaseException:
            # A fault of ours: with nobody to read what it says, srun would not come to its end.
            assert self._process is not None
            self._process.kill()
            raise
        finally:
            self._conclude()

    def _wanted(self) -> dict[int, int]:
        """What to poll for, {descriptor: events}."""
        wanted = dict.fromkeys([self._woken, self._listener.fileno(), *self._streams, *self._callers], select.POLLIN)
        wanted |= {fd: select.POLLIN | (select.POLLOUT if line.box else 0) for fd, line in self._lines.items()}
        if self._box:
            wanted[self._box.fd] = select.POLLOUT
        if len(self._box) < lanes.WINDOW:
            wanted |= {lane.fileno(): lane.events() for lane in self._lanes.values() if lane.events()}
        return wanted

    def _attend(self, fd: int, what: int) -> None:
        """Something is ready; a descriptor that was closed meanwhile is nobody's."""
        if fd == self._woken:
            os.read(fd, 4096)
            if self._cut:
                self._hang_up()
        elif fd == self._listener.fileno():
            self._accept()
        elif fd == self._box.fd:
            self._send(self._box, b"")
        elif fd in self._streams:
            self._streams[fd](os.read(fd, 1 << 16))
        elif fd in self._callers:
            self._attend_caller(self._callers[fd])
        elif fd in self._lines:
            self._attend_line(self._lines[fd])
        else:
            for key, lane in list(self._lanes.items()):
                if lane.fileno() == fd:
                    lane.work(what)
                    self._let_go(key)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            caller = Caller(self._listener.accept()[0], self._secret)
            self._callers[caller.sock.fileno()] = caller

    def _attend_caller(self, caller: Caller) -> None:
        fd = caller.sock.fileno()
        try:
            stands = caller.attend()
        except OSError:
            self._callers.pop(fd).sock.close()
            return
        if stands is None:
            return
        del self._callers[fd]
        (kind, number, name), rest = stands
        if kind == "task" and not self._cut:
            line = self._lines[fd] = _Line(caller.sock)
            line.task = self._welcome(int(number), name, functools.partial(self._send, line.box))
            self._tell(line.task, rest)
        elif kind == "channel" and int(number) in self._numbers:
            task = self._numbers[int(number)]
            task.arrived[int(name)] = (caller.sock, rest)
            task.changed.notify_all()
        else:
            caller.sock.close()

    def _drop_slow_callers(self) -> None:
        now = time.monotonic()
        for fd in [fd for fd, one in self._callers.items() if one.deadline < now]:
            self._callers.pop(fd).sock.close()

    def _attend_line(self, line: _Line) -> None:
        """The control connection of a task."""
        assert line.task is not None
        self._send(line.box, b"")
        try:
            piece = line.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self._tell(line.task, piece)
            return
        self._drop(line)
        self._lose(line.task, "its task ended")

    def _drop(self, line: _Line) -> None:
        del self._lines[line.sock.fileno()]
        line.box.close()
        line.sock.close()

    def _welcome(self, number: int, node: str, post: Callable[[bytes], None]) -> Task:
        task = self._tasks[node] = self._numbers[number] = Task(number, node, self._changes_of(node), post)
        if self._leaving:
            task.say("bye")
        task.changed.notify_all()
        return task

    def _changes_of(self, node: str) -> threading.Condition:
        return self._changes.setdefault(node, threading.Condition(self._lock))

    def _tell(self, task: Task, piece: bytes) -> None:
        for sentence in task.sentences.feed(piece):
            signal = task.heard(sentence)
            if signal is not None:
                self._heard(task.node, signal)
        task.changed.notify_all()

    def _lose(self, task: Task, what: str) -> None:
        if task.gone is None:
            task.gone = NodeGone(what, where=task.node, lines=self._lines_of(task.node))
        task.changed.notify_all()

    def _hear_stdout(self, piece: bytes) -> None:
        """Lines of the tasks that could not call; whatever else is printed there is passed over."""
        if not piece:
            self._close_stream("stdout")
        *whole, self._printed = (self._printed + piece).split(b"\n")
        self._printed = self._printed[-_KEPT:]
        for line in whole:
            told = lanes.parsed(line)
            if told is None:
                continue
            number, channel, kind, data = told
            if kind != lanes.CONTROL:
                if (number, channel) in self._lanes:
                    self._lanes[number, channel].take(kind, data)
                    self._let_go((number, channel))
            elif number in self._numbers:
                self._tell(self._numbers[number], data)
            elif data.startswith(b"task ") and data.endswith(b"\n"):
                self._welcome_by_lines(number, data[5:-1].decode(errors="replace"))

    def _welcome_by_lines(self, number: int, node: str) -> None:
        """A task that no address of ours answered: its control line and channels go through srun."""

        def post(channel: int, kind: bytes, data: bytes) -> None:
            self._send(self._box, lanes.lines(number, channel, kind, data))

        def lane(channel: int) -> socket.socket:
            ours, theirs = socket.socketpair()
            self._lanes[number, channel] = lanes.Lane(ours, functools.partial(post, channel))
            self._wake()
            return theirs

        self._welcome(number, node, functools.partial(post, 0, lanes.CONTROL)).lane = lane

    def _let_go(self, key: tuple[int, int]) -> None:
        if self._lanes[key].over:
            self._lanes.pop(key).close()

    def _hear_stderr(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-_KEPT:]
        if not self._cancelled and srun.is_cancelled(self._tail):
            # Tasks that were still starting could not tell.
            self._cancelled = True
            self._heard(self._order.nodes[0], "SIGTERM")
        if not piece:
            self._close_stream("stderr")

    def _close_stream(self, name: str) -> None:
        stream = getattr(self._process, name)
        del self._streams[stream.fileno()]
        stream.close()

    def _send(self, box: lanes.Outbox, data: bytes) -> None:
        """Send now what goes; the thread goes on with the rest.  Under the lock."""
        with contextlib.suppress(OSError):  # whoever is gone is missed where we listen
            box.put(data)
        if box:
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake already, or over
            os.write(self._waker, b"x")

    def _hang_up(self) -> None:
        """In the thread: no line is left, and the broadcast ends; every task then ends whatever is below it."""
        assert self._process is not None and self._process.stdin is not None
        for line in list(self._lines.values()):
            self._drop(line)
        self._box.close()
        self._process.stdin.close()

    def _conclude(self) -> None:
        """In the thread: srun is over."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        status = self._process.wait()
        failure = NodeGone("the step was ended", where=self._where)
        if not self._leaving:
            failure = srun.failure(self._order, status, self._lines_of(None))
        with self._lock:
            self._failure = failure
            for line in list(self._lines.values()):
                self._drop(line)
            for task in self._tasks.values():
                self._lose(task, f"the step ended: {failure.what}")
            for caller in self._callers.values():
                caller.sock.close()
            for lane in self._lanes.values():
                lane.close()
            self._callers.clear()
            self._lanes.clear()
            self._box.close()
            self._listener.close()
            for fd in (self._woken, self._waker):
                os.close(fd)
            self._waker = -1
            for changed in self._changes.values():
                changed.notify_all()

    def _lines_of(self, node: str | None) -> list[str]:
        """The last lines of srun's stderr, of a node those that name it (all, where none does)."""
        lines = [line for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        return ([line for line in lines if node is not None and node in line] or lines)[-6:]


def _own_addresses() -> list[str]:
    return [text for _, text in facts.addresses()]  # type: ignore[no-untyped-call]  # the agent's modules have no types


class _Line:
    """The control connection of a task that called."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.box = lanes.Outbox(sock.fileno())
        self.task: Task | None = None

"""The program of each task of a Slurm step: it calls the coordinator back, starts what is asked for, and lets nothing survive.

It stays in the foreground of its task for as long as the coordinator holds the line.  An agent's session is one of the
programs it starts; what a session leaves behind (a warden, a command) becomes its child, because it is a subreaper.
When the line ends without a word, or with a good-bye, whatever is still there is ended.  It is two processes, so that this
holds also when one of them is killed.

The order, a Python literal on the second line of stdin (one broadcast to all tasks, so nothing in it speaks of a task):

    secret     hex; whoever has it is the coordinator, or a task of this step.  It never goes over a socket.
    addresses  where the coordinator listens, numeric; port
    patience   seconds until the step's own stdin and stdout are used instead of a connection

A call, on the control connection and on one for each program: both ends prove that they know the secret before any other
byte, by a keyed hash over the other's nonce and the call's label.

    far    launcher <nonce> <label>            label: task/<number>/<node>, or channel/<number>/<channel>
    near   <nonce> <proof>
    far    <proof>                             from here on the bytes are the channel's

Sentences of the control line, near to far: `open <channel> <hex of the words, NUL between them>`, `bye`.  Far to near:
`task <node>` (over stdio, first of all), `ended <channel> <status> <hex of the last words on stderr>`, `heard <signal>`.

Runs on the nodes: standard library only, Python 3.8.
"""

import _signal as signal  # the interpreter's own parts: `signal` and `socket` would bring enum and selectors
import _socket as socket
import os
import select
import sys
import time

from launcher.agent import lanes, procs

CALL_SECONDS = 5.0
"""for the two sentences of a call"""
GOODBYE_SECONDS = 5.0
"""after a good-bye, what was started is waited for that long: a supervisor that ends its command needs a moment"""
STDERR_KEPT = 4096
_NOTED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
"""signals that Slurm sends to every process of a step: we and the agents outlive them, the command gets them as well"""
_FOR_AGENTS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""of those, the ones that our programs are started without hearing; a command is started with default dispositions"""


def main(reader):
    """Serve until the line ends.  ``reader`` is a buffered stdin, the order its next line."""
    # Held back until the stub listens: unheard they would end us, and with us the step.
    signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in _NOTED])
    order = eval(reader.readline().decode())  # noqa: S307 - from whoever sent this very text
    procs.set_name("launcher-step")
    above = fork_below()
    procs.become_subreaper()
    number, node = int(os.environ["SLURM_PROCID"]), os.environ["SLURMD_NODENAME"]
    caller = Caller(order, number)
    sock = caller.call_anywhere("task/%d/%s" % (number, node))
    rest = _read_ahead(reader)
    line = Stdio(number, node, rest) if sock is None else Dialed(caller, sock)
    os._exit(Stub(line, above).serve())


def fork_below():
    """Go on as a child, and leave a parent that ends everything should the child be killed; the other way round as well.

    Returns a descriptor whose end is the parent's.  Slurm itself may not find a task's orphans (proctrack/linuxproc does not).
    """
    procs.become_subreaper()
    above, held_by_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(held_by_parent)
        return above
    os.close(above)
    for name in _NOTED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    pid = status = 0
    while pid != child:
        pid, status = os.waitpid(-1, 0)
    if procs.descendants(os.getpid()):
        procs.end(lambda: procs.descendants(os.getpid()), procs.reap)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def proof(secret: str, nonce: bytes, label: bytes) -> bytes:
    """What only somebody with the secret can say to the nonce: BLAKE2's own keyed mode, which needs no OpenSSL."""
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b(b"%s %s" % (nonce, label), key=bytes.fromhex(secret), digest_size=32).hexdigest().encode()


def same(one: bytes, other: bytes) -> bool:
    """Compare without telling by the time it takes how much is right."""
    from _operator import _compare_digest

    return _compare_digest(one, other)


class Caller:
    """Makes calls to the coordinator."""

    def __init__(self, order, number):
        self.number = number
        self.secret = order["secret"]
        # Where srun was started is the likeliest address; a loopback one is another machine's on another machine.
        launched = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
        self.addresses = list(dict.fromkeys(([launched] if launched and order["addresses"] else []) + order["addresses"]))
        self.port = order["port"]
        self.patience = order["patience"]
        self.address = None

    def call_anywhere(self, label):
        """The first connection on which the coordinator proved itself, all addresses tried at once; None after the patience."""
        end = time.monotonic() + self.patience
        trying = {}
        poll = select.poll()
        for address in self.addresses:
            sock = self._socket(address)
            sock.setblocking(False)
            sock.connect_ex((address, self.port))
            trying[sock.fileno()] = (sock, address)
            poll.register(sock.fileno(), select.POLLOUT)
        found = None
        while trying and found is None and time.monotonic() < end:
            for fd, _ in poll.poll(max(0, end - time.monotonic()) * 1000):
                poll.unregister(fd)
                sock, address = trying.pop(fd)
                if found is None and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and self._introduce(sock, label):
                    found, self.address = sock, address
                else:
                    sock.close()
        for sock, _ in trying.values():
            sock.close()
        return found

    def call_again(self, label):
        """One more connection to where the first one got through; OSError."""
        sock = self._socket(self.address)
        sock.settimeout(CALL_SECONDS)
        sock.connect((self.address, self.port))
        if not self._introduce(sock, label):
            raise OSError(0, "the coordinator does not answer at %s port %d" % (self.address, self.port))
        return sock

    def _socket(self, address):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        tune(sock)
        return sock

    def _introduce(self, sock, label):
        """Whether the other end is our coordinator; it knows us then, too."""
        label, nonce = label.encode(), os.urandom(16).hex().encode()
        try:
            sock.settimeout(CALL_SECONDS)
            sock.sendall(b"launcher %s %s\n" % (nonce, label))
            theirs, _, shown = _sentence(sock).partition(b" ")
            if not same(shown, proof(self.secret, nonce, b"near " + label)):
                return False
            sock.sendall(proof(self.secret, theirs, b"far " + label) + b"\n")
            sock.settimeout(None)
        except OSError:
            return False
        return True


def tune(sock):
    """No waiting for full packets.  A machine that vanished says no good-bye: the kernel asks for it, and ends the connection
    within half a minute.  For both ends."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30000)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _sentence(sock):
    """A line of a call; the other end sends nothing more before we have answered."""
    text = b""
    while not text.endswith(b"\n"):
        piece = sock.recv(256)
        if not piece or len(text) > 1024:
            raise OSError(0, "no coordinator of ours")
        text += piece
    return text[:-1]


def _read_ahead(reader):
    """What the buffered reader has taken from stdin beyond the order; from now on the descriptor alone is read."""
    os.set_blocking(0, False)
    return reader.read1(1 << 20) or b""


class Dialed:
    """The control line over a connection of its own; each channel has another one."""

    def __init__(self, caller, sock):
        self._caller, self._sock = caller, sock
        self._sentences = lanes.Sentences()
        os.environ["LAUNCHER_REACHED_AT"] = sock.getsockname()[0]

    def events(self):
        return {self._sock.fileno(): select.POLLIN, 0: select.POLLIN}

    def work(self, fd, ready, obey):
        """Call ``obey`` with each sentence that came; False at the end of the line."""
        if fd == 0:
            # Nothing on the broadcast is for us, but its end is the step's.
            return _read(0) != b""
        try:
            piece = self._sock.recv(1 << 16)
        except OSError:
            piece = b""
        for sentence in self._sentences.feed(piece):
            obey(sentence)
        return bool(piece)

    def say(self, sentence):
        try:
            self._sock.sendall(sentence + b"\n")
        except OSError:
            pass  # the end of the line is noticed where it is read

    def prepare(self, channel):
        """What the child will need to reach the channel."""
        return "channel/%d/%d" % (self._caller.number, channel)

    def become(self, label):
        """In the child: the channel as a descriptor."""
        return self._caller.call_again(label).detach()

    def opened(self, channel, label):
        pass


class Stdio:
    """The control line, and all channels, over the step's stdin and stdout."""

    def __init__(self, number, node, rest):
        self._number = number
        self._sentences = lanes.Sentences()
        self._rest = rest
        self.lanes = {}
        self._out = lanes.Outbox(1)
        self.say(b"task " + node.encode())

    def events(self):
        wanted = {0: select.POLLIN, **({1: select.POLLOUT} if self._out else {})}
        for lane in self.lanes.values():
            if lane.events() and len(self._out) < lanes.WINDOW:
                wanted[lane.fileno()] = lane.events()
        return wanted

    def work(self, fd, ready, obey):
        if fd == 1:
            self._put(b"")
        elif fd == 0:
            piece = _read(0)
            self._hear(piece or b"", obey)
            return piece != b""
        for channel, lane in list(self.lanes.items()):
            if lane.fileno() == fd:
                lane.work(ready)
                self._let_go(channel)
        return True

    def _hear(self, piece, obey):
        """In the order of the lines: the first bytes of a channel may stand right behind the sentence that opens it."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        for line in whole:
            told = lanes.parsed(line)
            if told is None or told[0] != self._number:
                continue
            _, channel, kind, data = told
            if kind == lanes.CONTROL:
                for sentence in self._sentences.feed(data):
                    obey(sentence)
            elif channel in self.lanes:
                self.lanes[channel].take(kind, data)
                self._let_go(channel)

    def say(self, sentence):
        self._post(0, lanes.CONTROL, sentence + b"\n")

    def _post(self, channel, kind, data):
        self._put(lanes.lines(self._number, channel, kind, data))

    def _put(self, text):
        try:
            self._out.put(text)
        except OSError:
            pass  # srun is gone, and stdin will say so

    def _let_go(self, channel):
        if self.lanes[channel].over:
            self.lanes.pop(channel).close()

    def prepare(self, channel):
        """Two ends of a socket: for the child, and for the lane that feeds it."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def become(self, ends):
        ends[1].setblocking(True)
        return ends[1].detach()

    def opened(self, channel, ends):
        ends[1].close()
        self.lanes[channel] = lanes.Lane(ends[0], lambda kind, data: self._post(channel, kind, data))


class Program:
    """A program that was asked for: its channel, and the last words of its stderr."""

    def __init__(self, channel, stderr):
        self.channel, self.stderr, self.tail = channel, stderr, b""

    def listen(self):
        """Read what is there of its stderr."""
        while self.stderr is not None:
            piece = _read(self.stderr)
            if piece is None:
                return
            self.tail = (self.tail + piece)[-STDERR_KEPT:]
            if not piece:
                os.close(self.stderr)
                self.stderr = None


class Stub:
    """What stays in the foreground of the task."""

    def __init__(self, line, above):
        self._line = line
        self._above = above
        self._programs = {}
        self._signals = []
        self._dismissed = False
        self._wake, wake_writer = os.pipe()
        for fd in (self._wake, wake_writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for name in _NOTED:
            signal.signal(getattr(signal, name), lambda number, _: self._signals.append(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [getattr(signal, name) for name in _NOTED])

    def serve(self):
        """Until the line ends, or a good-bye; 0, or 1 when something had to be ended by force."""
        holds = True
        while holds and not self._dismissed:
            holds = self._wait()
        return self._let_nothing_survive(GOODBYE_SECONDS if self._dismissed else 0)

    def _obey(self, sentence):
        word, *rest = sentence.split(b" ")
        if word == b"bye":
            self._dismissed = True
        elif word == b"open":
            self._open(int(rest[0]), bytes.fromhex(rest[1].decode()).split(b"\0"))

    def _wait(self):
        wanted = {**self._line.events(), self._wake: select.POLLIN, self._above: select.POLLIN}
        stderrs = {one.stderr: one for one in self._programs.values() if one.stderr is not None}
        poll = select.poll()
        for fd, events in [*wanted.items(), *((fd, select.POLLIN) for fd in stderrs)]:
            poll.register(fd, events)
        holds = True
        for fd, ready in poll.poll():
            if fd == self._wake:
                _read(self._wake)
                self._reap()
                self._tell()
            elif fd == self._above:
                holds = False
            elif fd in stderrs:
                stderrs[fd].listen()
            else:
                holds = self._line.work(fd, ready, self._obey) and holds
        return holds

    def _tell(self):
        heard, self._signals = self._signals, []
        for number in dict.fromkeys(heard):
            name = next((name for name in _NOTED if getattr(signal, name) == number), "")
            self._line.say(b"heard " + name.encode())

    def _reap(self):
        for pid, status in procs.reap():
            program = self._programs.pop(pid, None)
            if program is not None:
                program.listen()
                if program.stderr is not None:
                    os.close(program.stderr)
                code = b"%d" % os.WEXITSTATUS(status) if os.WIFEXITED(status) else b"-"
                self._line.say(b"ended %d %s %s" % (program.channel, code, program.tail.hex().encode()))

    def _open(self, channel, words):
        reader, writer = os.pipe()
        prepared = self._line.prepare(channel)
        try:
            pid = os.fork()
        except OSError as error:  # no process is left for us just now; what runs below us goes on
            os.close(reader)
            os.close(writer)
            self._line.say(b"ended %d - %s" % (channel, error.strerror.encode().hex().encode()))
            return
        if pid == 0:
            try:
                self._become(prepared, writer, words)
            finally:
                os._exit(127)
        os.close(writer)
        os.set_blocking(reader, False)
        self._programs[pid] = Program(channel, reader)
        self._line.opened(channel, prepared)

    def _become(self, prepared, stderr, words):
        """In the child: the word list, in a session of its own, with the channel as its stdin and stdout."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        for name in (*_NOTED, "SIGPIPE", "SIGXFSZ", "SIGCHLD"):
            signal.signal(getattr(signal, name), signal.SIG_IGN if name in _FOR_AGENTS else signal.SIG_DFL)
        os.dup2(stderr, 2)
        try:
            channel = self._line.become(prepared)
            os.dup2(channel, 0)
            os.dup2(channel, 1)
            os.closerange(3, 1 + max(int(fd) for fd in os.listdir("/proc/self/fd")))
            home = os.path.expanduser("~")
            os.chdir(home if os.path.isdir(home) else "/")
            argv = [os.path.expanduser(word) if word.startswith(b"~") else word for word in words]
            if len(argv) == 3 and argv[1] == b"-ISuc" and is_this_python(os.fsdecode(argv[0])):
                run_here(argv[2].decode())
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(2, b"%s: %s\n" % (words[0], error.strerror.encode()))

    def _let_nothing_survive(self, seconds):
        """Wait that long for what is below us to end by itself; then it is ended."""
        end = time.monotonic() + seconds
        while True:
            self._reap()
            if not procs.descendants(os.getpid()):
                return 0
            left = end - time.monotonic()
            if left <= 0:
                procs.end(lambda: procs.descendants(os.getpid()), self._reap)
                return 1
            select.select([self._wake], [], [], min(left, 0.05))
            _read(self._wake)


def is_this_python(program):
    """Whether executing ``program`` would start the interpreter that we are."""
    if "/" in program:
        return program == sys.executable
    found = (os.path.join(directory, program) for directory in os.environ.get("PATH", os.defpath).split(os.pathsep))
    return next((path for path in found if os.access(path, os.X_OK)), None) == sys.executable


def run_here(text):
    """In the child: become `python -ISuc TEXT` without starting another interpreter, a third of what an agent's start costs.

    It never returns, so nothing of ours is let go of: the descriptors have other owners by now."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "launcher"]:
        del sys.modules[name]
    procs.set_name("python3")
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)  # as Python starts with
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode, closefd=False) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    status = 0
    try:
        exec(text, {"__name__": "__main__", "__builtins__": __builtins__})  # noqa: S102 - what was to be executed
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        if isinstance(left.code, str):
            os.write(2, b"%s\n" % left.code.encode())
    except BaseException:  # noqa: BLE001 - as an interpreter does: told, and the end
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    os._exit(status)


def _read(fd):
    """What is there; b"" at the end, None when nothing is."""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def launch():
    """Entry point: srun's stdin is ours."""
    main(sys.stdin.buffer)

"""One connection's end on a node: answers requests, follows the spool, and ends when nobody listens any more.

What it starts for a job's command leaves it (see supervise); everything else ends with it.

Runs on the nodes: standard library only, Python 3.8.
"""

# The interpreter's own parts: `signal` and `threading` would bring enum and functools, half of an agent's start.
import _signal as signal
import _thread
import errno
import os
import select
import sys
import time

from launcher.agent import lean, wire
from launcher.agent.layout import Layout

OPERATIONS = {"node": "node", "probe": "probe", "mirror": "mirror", "working": "mirror", "outputs": "outputs",
              "prepare": "prepare", "inputs": "inputs", "layer": "layers", "store": "stores",
              "environment": "environment", "preflight": "preflight"}
"""first word of an operation's name: the module of this folder whose OPS has it"""
_NEAR_STREAMS = 0x8000
"""streams from here on answer a request; those below follow the spool"""


def main(order, reader):
    """Serve one connection.  ``reader`` is a buffered stdin, which may already hold more than the order."""
    session = Session(order, reader)
    session.guard_pipe()
    _thread.start_new_thread(session.keep_alive, ())
    session.run()
    # Everything is said; what the interpreter would do before its end, nobody waits for.
    os._exit(0)


class Session:
    """What operations work with: where things lie, whose job it is, and the wire."""

    def __init__(self, order, reader):
        self.layout = Layout(order["workdir"])
        self.job = order["job"]
        self.rank = order["rank"]
        self.requeue = order.get("requeue", 0)
        self.agent_path = order["archive"]
        self.follower = None
        self.held = {}
        """what operations hold between requests, by name; it goes when the session ends"""
        self._first = order["first"]
        self._decoder = wire.Decoder()
        self._frames = self._decoder.feed(_read_ahead(reader))
        self._lock = _thread.allocate_lock()
        self._sent = self._heard = time.monotonic()
        self._unread = 0
        """bytes that had come when it was last looked, while an operation ran"""
        self.over = False
        self.starting = _thread.allocate_lock()
        """held from the claim of an attempt until its command has left the session: to leave in between would kill it"""

    def guard_pipe(self):
        """Keep fd 0 and 1 for the wire alone: nothing that prints or reads can disturb it."""
        self._in, self._out = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def run(self):
        self._answer(self._first)
        try:
            while not self.over:
                self._answer(self._next_request())
        except (EOFError, BrokenPipeError):
            self._leave()

    def send(self, frame):
        """Send a frame whole; BrokenPipeError when nobody listens any more."""
        with self._lock:
            self._write(frame)

    def _write(self, frame):
        view = memoryview(frame)
        while view:
            view = view[os.write(self._out, view) :]
        self._sent = time.monotonic()

    def note(self, **content):
        """Tell the near side something that answers no request."""
        self.send(wire.message({"note": content}))

    def send_data(self, stream, offset, chunk):
        """Send bytes that belong to the reply of the request being answered."""
        self.send(wire.data(_NEAR_STREAMS + stream, offset, chunk))

    def follow_data(self, stream, offset, chunk):
        """Send bytes of a followed file."""
        self.send(wire.data(stream, offset, chunk))

    def receive_data(self):
        """The bytes sent along with the request being answered, piece by piece."""
        while True:
            kind, payload = self._next_frame()
            if kind == wire.DATA:
                chunk = wire.split_data(payload)[2]
                if not chunk:
                    return
                yield chunk

    def keep_alive(self):
        """In a thread: send beats, and leave at once when the near side hangs up or is silent for too long."""
        poll = select.poll()
        poll.register(self._in, getattr(select, "POLLRDHUP", 0))
        while True:
            hung_up = poll.poll(wire.BEAT_SECONDS * 1000)
            try:
                self._beat()
            except OSError:
                hung_up = True
            if hung_up or self._hears_nothing():
                self._leave()

    def _beat(self):
        """Send a sign of life where there was none lately, and where it goes at once: who waits here hears of no hang-up."""
        if time.monotonic() - self._sent < wire.BEAT_SECONDS - 0.1 or not self._lock.acquire(False):
            return
        try:
            if select.select([], [self._out], [], 0)[1]:
                self._write(wire.beat())
        finally:
            self._lock.release()

    def _hears_nothing(self):
        """Nothing came for too long.  While an operation runs nobody reads what comes, but it becomes more."""
        silence = time.monotonic() - self._heard
        if silence > wire.FAR_PATIENCE / 2:
            unread = _waiting(self._in)
            if unread > self._unread:
                self._heard, silence = time.monotonic(), 0
            self._unread = unread
        return silence > wire.FAR_PATIENCE

    def _leave(self):
        self.starting.acquire()
        # The group holds the shell that started us and the tools of a running operation, nothing else of the user's:
        # sshd and the local transport both give every channel a session of its own.
        # It ends us as well; no handler can be set here, for keep_alive's thread comes by, too.
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGTERM)
        os._exit(0)

    def _answer(self, request):
        try:
            name = request["op"]
            module = __import__("launcher.agent." + OPERATIONS[name.partition("_")[0]], fromlist=["OPS"])
            reply = {"ok": module.OPS[name](self, request)}
        except OSError as error:
            reply = {"error": _os_error(error)}
        except ValueError as error:
            reply = {"error": {"kind": "refused", "message": str(error)}}
        except KeyError as error:
            reply = {"error": {"kind": "refused", "message": "KeyError: %s" % error}}
        self.send(wire.message(dict(reply, id=request["id"])))

    def _next_request(self):
        while True:
            kind, payload = self._next_frame()
            if kind == wire.MESSAGE:
                return lean.loads(payload.decode())

    def _next_frame(self):
        while not self._frames:
            self._pump_until_input()
            received = os.read(self._in, 1 << 20)
            if not received:
                raise EOFError
            self._heard, self._unread = time.monotonic(), 0
            self._frames = [frame for frame in self._decoder.feed(received) if frame[0] != wire.BEAT]
        return self._frames.pop(0)

    def _pump_until_input(self):
        """Follow the spool until there is something to read."""
        while self.follower is not None:
            more = self.follower.pump()
            wakers = [self._in] + ([] if self.follower.fileno() is None else [self.follower.fileno()])
            ready = select.select(wakers, [], [], 0 if more else self.follower.pause())[0]
            if self._in in ready:
                return


def _read_ahead(reader):
    """What the boot's buffered reader has taken from stdin beyond the order; from now on the descriptor alone is read."""
    os.set_blocking(0, False)
    try:
        return reader.read1(1 << 20) or b""
    finally:
        os.set_blocking(0, True)


def _waiting(descriptor):
    """Bytes that a pipe or socket holds for its reader (FIONREAD, 0x541b on Linux)."""
    import fcntl

    return int.from_bytes(fcntl.ioctl(descriptor, 0x541B, bytes(4)), sys.byteorder)


def _os_error(error):
    text = os.strerror(error.errno) if error.errno else str(error)
    name = os.fsdecode(error.filename) if error.filename else ""
    where = ": %s" % name if name else ""
    kind = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "os"
    return {"kind": kind, "errno": error.errno, "message": text + where, "path": name}

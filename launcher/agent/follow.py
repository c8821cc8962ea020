"""Sends a spool as it grows, from any offsets: the near side's log files become replicas of the ones here.

Runs on the nodes: standard library only, Python 3.8.
"""

import os
import time

from launcher.agent import container, procs, supervise, wire
from launcher.agent.watch import POLL_SECONDS, Watch

_DIRECTORY_SECONDS = 0.2
"""how often new log files are looked for"""
_AT_ONCE = 64
"""files that are kept open; a torchrun that restarts again and again makes any number of them"""
_LOST_SECONDS = 5.0
"""how long a claimed attempt may go without a living agent before it counts as lost"""


class Follower:
    """One attempt's spool on its way to the near side."""

    def __init__(self, session, spool, attempt, offsets, marks):
        self._session = session
        self._spool = spool
        self._attempt = attempt
        self._offsets = dict(offsets)
        self._marks = marks
        self._files, self._open = {}, {}
        self._watch = Watch()
        self._watch.add(spool.path)
        self._looked = 0.0
        self._alone_since = None
        self._over = False
        self._drained = False
        self._events = 0

    def fileno(self):
        return self._watch.fileno()

    def pause(self):
        """Seconds that nothing needs to be looked at unless a file changes."""
        return 0.01 if self._over and not self._drained else POLL_SECONDS

    def pump(self):
        """Send what is new, a chunk of each file at most; True when there is more."""
        self._watch.clear()
        self._look()
        over = self._over
        more = False
        for name in list(self._files):
            more |= self._send_some(name)
        if over and not more and not self._drained and not self._spool.agent_alive(self._attempt):
            self._drained = True
            self._session.note(drained=self._attempt, empty=self._left_nothing(), bare=self._is_bare())
        return more

    def _look(self):
        """Find new files and the outcome; both come rarely, so this is done a few times a second at most."""
        outcome = self._over or (self._told_more() and self._spool.outcome(self._attempt) is not None)
        now = time.monotonic()
        if now - self._looked >= _DIRECTORY_SECONDS or outcome != self._over:
            self._looked = now
            self._open_new()
            if not outcome:
                self._notice_lost_agent(now)
        self._over = outcome

    def _told_more(self):
        """True when events came since the last look: their file is read only then."""
        try:
            size = os.stat(self._spool.events_path).st_size
        except FileNotFoundError:
            return False
        self._events, before = size, self._events
        return size != before

    def _open_new(self):
        for name, path in sorted(self._spool.logs().items()):
            if name not in self._files:
                stream = len(self._files)
                self._files[name] = (stream, path)
                self._keep_open(name, os.open(path, os.O_RDONLY))
                self._watch.add(os.path.dirname(path))
                self._session.note(stream=stream, name=name)

    def _send_some(self, name):
        stream, path = self._files[name]
        offset = self._offsets.get(name, 0)
        fd = self._open.get(name)
        if fd is None:
            fd = _grown(path, offset)
            if fd is None:
                return False
            self._keep_open(name, fd)
        chunk = os.pread(fd, wire.CHUNK, offset)
        if chunk:
            self._keep_open(name, fd)
            self._session.follow_data(stream, offset, chunk)
            self._offsets[name] = offset + len(chunk)
        return len(chunk) == wire.CHUNK

    def _keep_open(self, name, fd):
        """The one that has not grown for the longest time makes way."""
        self._open.pop(name, None)
        self._open[name] = fd
        if len(self._open) > _AT_ONCE:
            os.close(self._open.pop(next(iter(self._open))))

    def _left_nothing(self):
        """True when no output channel has anything in it, so that nobody needs to ask for a list."""
        output = self._session.layout.output(self._session.job)
        try:
            channels = [] if os.path.islink(output) else [os.path.join(output, name) for name in os.listdir(output)]
            return bool(channels) and not any(os.path.islink(path) or os.listdir(path) for path in channels)
        except OSError:
            return False

    def _is_bare(self):
        """True when nothing lies in the working copy, so that nothing can have strayed there."""
        try:
            return not os.listdir(self._session.layout.code(self._session.job))
        except OSError:
            return False

    def _notice_lost_agent(self, now):
        """Supervisor and warden both gone without a word (both were killed, or the node restarted): speak for them."""
        if self._drained or self._spool.agent_alive(self._attempt):
            self._alone_since = None
            return
        self._alone_since = self._alone_since or now
        if now - self._alone_since >= _LOST_SECONDS:
            kind = "rebooted" if self._spool.rebooted(self._attempt) else "agent lost"
            left = container.end(self._spool, lambda: supervise.orphans(self._spool, self._marks), procs.reap)
            try:
                self._spool.append("outcome", self._attempt, kind=kind, exit_code=None, signal=None, survivors=left)
            except OSError as error:
                self._drained = True
                self._session.note(gone="%s, and its directory there cannot be written (%s)" % (kind, error.strerror))


def _grown(path, offset):
    """A descriptor of a file that has more than ``offset`` bytes, None of any other."""
    try:
        return os.open(path, os.O_RDONLY) if os.stat(path).st_size > offset else None
    except OSError:
        return None

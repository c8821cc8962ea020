"""One node's agent as the near side sees it: requests and replies, and a spool that flows into replicas.

A link is one connection to one host, with one agent session on it.  A reader thread takes what comes; whoever asks
waits for the reply with the same number.  When the connection breaks while a spool is followed, the link connects
again and goes on from the bytes it has: nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from launcher import bootstrap, transports
from launcher.agent import wire
from launcher.errors import (
    HostKeyChanged,
    HostKeyRevoked,
    HostKeyUnknown,
    LinkLost,
    LoginRefused,
    NodeError,
    NodeGone,
    NodeUnusable,
)
from launcher.model import Host, SshOptions
from launcher.record import dataclass
from launcher.replica import Replica
from launcher.reply import message_of, sentence, settled

OnData = Callable[[int, int, bytes], None]
_NEAR_STREAMS = 0x8000
_NOTES = 10_000
"""sentences that are heard of one node; no operation tells so many"""
_BYE_SECONDS, _RELEASE_SECONDS = 5.0, 600.0
"""for the answer to a good-bye, and to one that removes what a job left: a file system that hangs must not keep the job's end"""
_ODD_SESSIONS = 3
"""so many sessions in a row that sent what an agent would not, and the node is taken for lost"""


@dataclass(frozen=True)
class Address:
    """Whom to call and as whose agent."""

    backend: str
    host: Host
    rank: int
    job_id: str
    options: SshOptions | transports.Way = SshOptions()
    requeue: int = 0
    """which of the job's starts by Slurm this is"""


@dataclass
class Following:
    """An attempt whose spool flows here: where its files go, and who hears of it."""

    attempt: int
    marks: Mapping[str, str]
    replica: Replica
    tell: Callable[[dict[str, Any]], None]
    """called with {"type": ...} for `agent` events, `lost`, `found`, `gone`, `key unavailable` and `drained`"""
    op: str = "node_follow"
    """or `node_start`, which starts what was not started yet and follows either way, so that it can be sent again"""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def begun(self) -> None:
        """It was started: should its node forget that, it must not be started a second time."""
        self.op, self.arguments = "node_follow", {}

    def request(self) -> dict[str, Any]:
        """What to send, to go on from the bytes that are here."""
        return {"attempt": self.attempt, "marks": dict(self.marks), "offsets": self.replica.offsets(), **self.arguments}


class Link:
    """A connection to one node's agent."""

    def __init__(self, address: Address, heard: Callable[[str], None] = lambda text: None) -> None:
        """``heard`` gets the sentences that an operation tells while it runs."""
        self.address = address
        self._heard = heard
        self.host = address.host
        self.rank = address.rank
        self.greeting = b""
        """what the log-in shell printed before our program began, at the last connection"""
        self.transport: transports.Transport | None = None
        self._channel: transports.Channel | None = None
        self._replies: dict[int, queue.Queue[dict[str, Any] | NodeError]] = {}
        self._asked: dict[int, str] = {}
        """the operation of each request that waits for its reply"""
        self._on_data: OnData | None = None
        self._numbers = itertools.count(1)
        self._following: Following | None = None
        self._resumed = 0
        """number of the request by which a spool is followed again"""
        self._notes = 0
        self._wanted = threading.Event()
        """set when there is something to come back for, or nothing any more"""
        self.closing = threading.Event()
        """set when it is let go of"""
        self._sending = threading.Lock()
        self._dropping = threading.Lock()
        self._last_sent = time.monotonic()
        self._reader: threading.Thread | None = None

    def connect(self, **first: Any) -> dict[str, Any]:
        """Connect, bring the agent there if need be, and say hello; returns the hello's reply.  Raises NodeErrors."""
        reply = self._establish(first)
        self._reader = threading.Thread(target=self._read_for_ever, name=f"link-{self.rank}", daemon=True)
        self._reader.start()
        return reply

    def ask(
        self,
        op: str,
        timeout: float | None = None,
        on_data: OnData | None = None,
        feed: Iterable[bytes] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Send a request, after it what ``feed`` yields, and return the reply; its DATA frames go to ``on_data``.

        Raises NodeUnusable when the node refuses, LinkLost when the connection is gone or ``timeout`` seconds pass.
        """
        try:
            return self.wait(self.post(op, on_data=on_data, feed=feed, **arguments), timeout)
        finally:
            if on_data is not None:
                self._on_data = None

    def post(self, op: str, on_data: OnData | None = None, feed: Iterable[bytes] | None = None, **arguments: Any) -> int:
        """Send a request without waiting; its number is for `wait`."""
        number = next(self._numbers)
        self._replies[number], self._asked[number] = queue.Queue(), op
        if on_data is not None:
            # A request that wants none, as a wish to stop, must not take another's from it.
            self._on_data = on_data
        self._send(wire.message({"id": number, "op": op, **arguments}))
        if feed is not None:
            try:
                for chunk in feed:
                    self._send(wire.data(0, 0, chunk))
            finally:
                # Without its end the node would wait for ever, whatever broke the feed.
                self._send(wire.data(0, 0, b""))
        return number

    def wait(self, number: int, timeout: float | None = None) -> dict[str, Any]:
        """The reply to a posted request; raises as `ask`."""
        try:
            reply = self._reply_to(number, timeout)
        finally:
            del self._replies[number]
            op = self._asked.pop(number)
        if isinstance(reply, NodeError):
            raise reply
        return settled(reply, self.host, op)

    def _reply_to(self, number: int, timeout: float | None) -> dict[str, Any] | NodeError:
        """What came for a request; the node hears of us all the while, however long it is at work."""
        replies, end = self._replies[number], None if timeout is None else time.monotonic() + timeout
        while True:
            left = wire.BEAT_SECONDS if end is None else min(end - time.monotonic(), wire.BEAT_SECONDS)
            try:
                return replies.get(timeout=max(left, 0))
            except queue.Empty:
                if end is not None and time.monotonic() >= end:
                    raise LinkLost(f"no answer within {timeout:g} s", where=self.host.name) from None
                self.beat()

    def open(self, words: Sequence[str]) -> transports.Channel:
        """Start a program there on a second channel; its stream is clean from the first byte.  Raises NodeErrors."""
        if self.transport is None:
            raise LinkLost("not connected", where=self.host.name)
        channel = self.transport.open(self._python_words())
        marker = bootstrap.Marker()
        rest = bootstrap.await_marker(channel, bootstrap.boot_line() + marker.order(words=list(words)), marker, self.host)
        return _Prefixed(channel, rest)

    def follow(self, following: Following, op: str = "node_follow", **arguments: Any) -> dict[str, Any]:
        """Start (`node_start`) or go on (`node_follow`) with a spool, from the bytes the replica has already.

        LinkLost here is no more than a broken connection later: the link comes back by itself and sends the request again.
        """
        return self.followed(self.begin(following, op, **arguments))

    def begin(self, following: Following, op: str = "node_follow", **arguments: Any) -> int:
        """The first half of `follow`: the request is sent; its number is for `followed`."""
        following.op, following.arguments = op, arguments
        self._following = following
        self._wanted.set()
        return self.post(op, **following.request())

    def followed(self, number: int) -> dict[str, Any]:
        """The second half of `follow`: the reply."""
        reply = self.wait(number)
        if self._following is not None:
            self._following.begun()
        return reply

    def resume(self, following: Following) -> None:
        """Connect in the background and go on with a spool that an earlier coordinator followed."""
        self._following = following
        self._wanted.set()
        self._reader = threading.Thread(target=self._resume_for_ever, name=f"link-{self.rank}", daemon=True)
        self._reader.start()

    @property
    def connected(self) -> bool:
        """Whether a session is open now, as far as we know."""
        return self._channel is not None

    def beat(self) -> None:
        """Send a sign of life if nothing was sent for a while."""
        channel = self._channel
        if channel is None or time.monotonic() - self._last_sent < wire.BEAT_SECONDS - 0.1:
            return
        # Whoever sends just now gives one; who waited here for a node that takes nothing would give none to the others.
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(NodeError):
                    channel.send(wire.beat())
                self._last_sent = time.monotonic()
            finally:
                self._sending.release()

    def close(self, polite: bool = True, release: Mapping[str, Any] | None = None) -> None:
        """End the session and the connection; with ``polite`` wait for the agent to be gone.

        ``release`` are the arguments of a last `node_release`; when that is refused NodeUnusable is raised after the end.
        """
        try:
            if polite and self._channel is not None and not self.closing.is_set():
                self.closing.set()
                self.ask("node_bye", timeout=_RELEASE_SECONDS if release else _BYE_SECONDS, release=release)
        except LinkLost as error:
            if release and self.connected:
                raise NodeUnusable(f"what the job left there could not be removed: {error.what}", where=self.host.name) from error
        finally:
            self.closing.set()
            self._wanted.set()
            self._drop()

    def _establish(self, first: Mapping[str, Any]) -> dict[str, Any]:
        self.transport = transports.connect(self.address.backend, self.host, self.address.options)
        try:
            self._see_whether_wanted()
            channel = self.transport.open(self._python_words())
            marker = bootstrap.Marker()
            request = {"id": 0, "op": "node_hello", **first}
            order = {"agent": bootstrap.agent_name(), "workdir": self.host.workdir}
            whose = {"job": self.address.job_id, "rank": self.rank, "requeue": self.address.requeue}
            text = bootstrap.boot_line() + marker.order(**order, first=request, **whose)
            rest = bootstrap.await_marker(channel, text, marker, self.host)
            self.greeting = marker.before
            deadline = time.monotonic() + bootstrap.BOOT_SECONDS
            rest = rest or bootstrap.receive_early(channel, self.host, deadline)
            if rest[:1] == b"!":
                raise bootstrap.too_old(self.host, rest[1:].decode(errors="replace"))
            if rest[:1] == b"-":
                channel.send(bootstrap.announced(bootstrap.agent_archive()))
            reply = self._first_reply(channel, rest[1:], deadline)
            self._see_whether_wanted()
            return reply
        except BaseException:
            self._drop()
            raise

    def _see_whether_wanted(self) -> None:
        """LinkLost where it was closed meanwhile: whoever did so could not let go of what was only being made."""
        if self.closing.is_set():
            raise LinkLost("the connection was closed", where=self.host.name)

    def _first_reply(self, channel: transports.Channel, received: bytes, deadline: float) -> dict[str, Any]:
        decoder = wire.Decoder()
        try:
            frames = decoder.feed(received)
            while not any(kind == wire.MESSAGE for kind, _ in frames):
                received = bootstrap.receive_early(channel, self.host, deadline)
                frames += decoder.feed(received)
            replies = [message_of(payload) for kind, payload in frames if kind == wire.MESSAGE]
        except (wire.ProtocolError, ValueError) as error:
            raise NodeUnusable(
                f"our program there answers rubbish: {error}", where=self.host.name, lines=bootstrap.last_lines(received)
            ) from error
        reply = settled(replies[0], self.host, "node_hello")
        self._channel, self._decoder = channel, decoder
        return reply

    def _python_words(self) -> list[str]:
        host = self.host
        python = f"{host.venv}/bin/python" if host.venv else host.python or "python3"
        # -I -S: nothing of the user's Python set-up can disturb the agent, and it starts faster.
        return [python, "-ISuc", "import sys;exec(next(line for line in sys.stdin.buffer if len(line)>1))"]

    def _send(self, frame: bytes) -> None:
        channel = self._channel
        if channel is None:
            raise LinkLost("the connection is gone", where=self.host.name)
        with self._sending:
            channel.send(frame)
            self._last_sent = time.monotonic()

    def _resume_for_ever(self) -> None:
        if self._following is not None and self._come_back(self._following, pause=0.0):
            self._read_for_ever()

    def _read_for_ever(self) -> None:
        odd = 0
        while True:
            error = self._read_until_broken()
            odd = odd + 1 if isinstance(error, NodeUnusable) else 0
            self._drop(error)
            self._wanted.wait()
            following = self._following
            if self.closing.is_set() or following is None:
                return
            if odd == _ODD_SESSIONS:
                following.tell({"type": "gone", "message": error.what})
                return
            following.tell({"type": "lost", "message": ": ".join([error.what, *error.lines[-1:]])})
            if not self._come_back(following):
                return

    def _read_until_broken(self) -> NodeError:
        while True:
            channel = self._channel
            if channel is None:
                return LinkLost("closed", where=self.host.name)
            try:
                received = channel.receive(wire.CHUNK, wire.NEAR_PATIENCE)
                if not received:
                    _, stderr = channel.close()
                    return LinkLost("the agent's session ended", where=self.host.name, lines=bootstrap.last_lines(stderr))
                for kind, payload in self._decoder.feed(received):
                    self._take(kind, payload)
            except TimeoutError:
                return LinkLost(f"silent for {wire.NEAR_PATIENCE:g} s", where=self.host.name)
            except LinkLost as error:
                return error
            except (wire.ProtocolError, ValueError, TypeError, KeyError, AttributeError) as error:
                return NodeUnusable(f"the node sent something odd: {error}", where=self.host.name)
            except OSError as error:
                return LinkLost(f"its logs cannot be written on this machine: {error.strerror}", where=self.host.name)

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == wire.DATA:
            stream, offset, chunk = wire.split_data(payload)
            if stream >= _NEAR_STREAMS:
                if self._on_data is not None:
                    self._on_data(stream - _NEAR_STREAMS, offset, chunk)
            elif self._following is not None:
                self._replicate(self._following, stream, offset, chunk)
        elif kind == wire.MESSAGE:
            value = message_of(payload)
            if "note" in value:
                self._note(value["note"])
            elif replies := self._replies.get(value.get("id", 0)):
                replies.put(value)
            elif value.get("id") == self._resumed and self._following is not None:
                self._resumed_with(value, self._following)

    def _resumed_with(self, reply: Mapping[str, Any], following: Following) -> None:
        """Nobody waits for this reply; a refusal, or an attempt that never was, ends the hope for this node."""
        if "error" in reply:
            following.tell({"type": "gone", "message": sentence(reply["error"].get("message", "refused"))})
        elif reply["ok"].get("claimed") is False:
            following.tell({"type": "gone", "message": "there is no trace of the command there"})
        else:
            following.begun()

    def _replicate(self, following: Following, stream: int, offset: int, chunk: bytes) -> None:
        for event in following.replica.write(following.names.get(stream, ""), offset, chunk):
            if event.get("attempt") == following.attempt:
                following.begun()
            following.tell({**event, "from": "agent"})

    def _note(self, note: Mapping[str, Any]) -> None:
        following = self._following
        if "message" in note:
            self._notes += 1
            if self._notes <= _NOTES:
                self._heard(f"{self.host.name}: {sentence(note['message'])}")
        elif following is None:
            return
        elif "stream" in note:
            following.names[int(note["stream"])] = str(note["name"])
            # A log without a byte in it is one, too.
            following.replica.write(str(note["name"]), 0, b"")
        elif "drained" in note:
            told = {key: note.get(key) is True for key in ("empty", "bare")}
            following.tell({"type": "drained", "attempt": note["drained"], **told})
        elif "gone" in note:
            following.tell({"type": "gone", "message": sentence(note["gone"])})

    def _come_back(self, following: Following, pause: float = 0.25) -> bool:
        """Connect again and follow on; False when the link was closed meanwhile."""
        said = ""
        while not self.closing.wait(pause):
            pause = min(max(pause * 2, 0.25), 10.0)
            self._drop()
            try:
                self._establish({"attempt": following.attempt, "python": self.host.python, "venv": self.host.venv})
                following.names = {}
                self._resumed = next(self._numbers)
                self._send(wire.message({"id": self._resumed, "op": following.op, **following.request()}))
            except (LoginRefused, HostKeyUnknown, HostKeyChanged, HostKeyRevoked) as error:
                following.tell({"type": "key unavailable", "message": error.what})
                pause = 10.0
            except NodeGone as error:
                following.tell({"type": "gone", "message": error.what})
                return False
            except NodeError as error:
                following.tell({"type": "still lost", "message": error.what})
            except Exception as error:  # noqa: BLE001 - nobody would hear of it, and the job, which goes on there, would never end
                if str(error) != said:
                    said = str(error)
                    traceback.print_exc()
                following.tell({"type": "still lost", "message": f"{type(error).__name__}: {error}"})
            else:
                following.tell({"type": "found"})
                return True
        return False

    def _drop(self, error: NodeError | None = None) -> None:
        """Let go of the connection: the reader does it when the session ends, and whoever closes the link, maybe at once."""
        with self._dropping:
            channel, self._channel = self._channel, None
            transport, self.transport = self.transport, None
            for one in (channel, transport):
                # Without a thread or descriptor for a good-bye it is let go of without.
                with contextlib.suppress(OSError, RuntimeError):
                    if one is not None:
                        one.close()
        for replies in list(self._replies.values()):
            replies.put(error or LinkLost("the connection was closed", where=self.host.name))


class _Prefixed:
    """A channel whose first bytes were already read."""

    def __init__(self, channel: transports.Channel, first: bytes) -> None:
        self._channel, self._first = channel, first
        self.send, self.finish, self.close = channel.send, channel.finish, channel.close

    def receive(self, limit: int, timeout: float | None = None) -> bytes:
        if self._first:
            chunk, self._first = self._first[:limit], self._first[limit:]
            return chunk
        return self._channel.receive(limit, timeout)

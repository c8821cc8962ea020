"""The pipes of a local program, used by several threads at once."""

from __future__ import annotations

import os
import select
import threading
from typing import Any

import pytest

from launcher.errors import LinkLost
from launcher.model import Host
from launcher.transports.local import LocalChannel, LocalTransport
from tests.transports.sshd import PATIENCE


def start(*words: str) -> LocalChannel:
    return LocalTransport(Host("here", "here")).open(words)


def test_bytes_that_another_thread_took_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes a channel receives as well; a program that says no more must not hold up the other one."""
    wait, taken = LocalChannel._wait, list[bytes]()

    def too_late(self: LocalChannel, pipe: Any, what: int, end: float | None) -> bool:
        ready = wait(self, pipe, what, end)
        if ready and not taken:
            taken.append(os.read(pipe.fileno(), 100))
        return ready

    monkeypatch.setattr(LocalChannel, "_wait", too_late)
    channel = start("/bin/sh", "-c", "printf x; exec sleep 5")
    with pytest.raises(TimeoutError):
        channel.receive(100, 0.5)
    assert taken == [b"x"]
    channel.hang_up()


def test_the_input_of_a_program_is_not_closed_under_whoever_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor's number could be another file's by the time of the next write."""
    channel, closing = start("sleep", "5"), list[threading.Thread]()

    class Poll:
        """A poll before which somebody else begins to close the channel."""

        def __init__(self) -> None:
            self._poll = poll()
            self.poll = self._poll.poll

        def register(self, pipe: Any, what: int) -> None:
            if pipe is channel._stdin and not closing:
                closing.append(threading.Thread(target=channel.close))
                closing[0].start()
                closing[0].join(0.2)
            self._poll.register(pipe, what)

    poll = select.poll
    monkeypatch.setattr(select, "poll", Poll)
    with pytest.raises(LinkLost):
        channel.send(bytes(1 << 20))
    closing[0].join(PATIENCE)
    assert channel.closed

"""A link comes back whatever is in the way, for as long as it is wanted and no longer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from launcher import transports
from launcher.errors import LinkLost
from tests.agent.far import PATIENCE, Node


def test_a_link_comes_back_though_this_machine_lacked_what_it_takes(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would ever hear of the node again, and a job of one node would wait for it for ever."""
    connect = transports.connect
    troubles: list[Exception] = [RuntimeError("can't start new thread"), OSError(24, "Too many open files"), KeyError("odd")]

    def scarce(*arguments: Any) -> transports.Transport:
        if troubles:
            raise troubles.pop(0)
        return connect(*arguments)

    link = node.start(["/bin/sh", "-c", "echo on; exec sleep 1000"])
    monkeypatch.setattr(transports, "connect", scarce)
    link._channel._process.kill()  # type: ignore[union-attr]
    node.wait_for("found")
    assert [event["message"] for event in node.heard if event["type"] == "still lost"] == [
        "RuntimeError: can't start new thread", "OSError: [Errno 24] Too many open files", "KeyError: 'odd'",
    ]  # fmt: skip
    link.ask("node_stop", PATIENCE, attempt=0, grace=0, reason="cancel")
    node.wait_for("drained")


def test_a_link_that_is_closed_while_it_connects_leaves_nothing_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes it finds no connection yet to let go of."""
    connect, begun, go_on = transports.connect, threading.Event(), threading.Event()
    made: list[transports.Transport] = []

    def slow(*arguments: Any) -> transports.Transport:
        begun.set()
        go_on.wait(PATIENCE)
        made.append(connect(*arguments))
        return made[0]

    monkeypatch.setattr(transports, "connect", slow)
    link, errors = node.link(), list[LinkLost]()

    def first() -> None:
        with pytest.raises(LinkLost) as caught:
            link.connect(nonce="n", python=None, venv=None)
        errors.append(caught.value)

    connecting = threading.Thread(target=first)
    connecting.start()
    assert begun.wait(PATIENCE)
    link.close(polite=False)
    go_on.set()
    connecting.join(PATIENCE)
    assert errors and not link.connected and link.transport is None
    assert not node.job.exists() and node.survivors() == []

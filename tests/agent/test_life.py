"""Both ends give signs of life, however busy they are, and whoever hears none leaves."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import wire
from launcher.fleet import Fleet
from launcher.link import Link
from launcher.planning import Request, draft
from launcher.replica import Replica
from launcher.store import Folder
from tests.agent.far import PATIENCE, Node, alive, eventually, hurried


@contextlib.contextmanager
def _in_haste(monkeypatch: pytest.MonkeyPatch, *, beats: Callable[[], None]) -> Iterator[None]:
    """An agent that waits three seconds for a sign of life; ``beats`` is called ten times a second."""
    hurried(monkeypatch, FAR_PATIENCE=(60.0, 3.0), BEAT_SECONDS=(5.0, 0.1))
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.1)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            beats()

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()


def test_an_operation_may_take_longer_than_silence_is_borne(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing, copying and sending take minutes, in which the agent reads no beat; that they come is enough."""
    links: list[Link] = []
    with _in_haste(monkeypatch, beats=lambda: [link.beat() for link in links] and None):
        links.append(node.connect()[0])
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            told = links[0].ask("probe_connect", PATIENCE, candidates=["127.0.0.1"], port=port, nonce="x", patience=4)
    assert "timed out" in told["results"]["127.0.0.1"]["error"]


def test_whoever_waits_for_a_long_operation_gives_signs_of_life(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that links that nobody else looks after, as those of gc, need not be quick."""
    with _in_haste(monkeypatch, beats=lambda: None):
        link, _ = node.connect()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            told = link.ask("probe_connect", candidates=["127.0.0.1"], port=port, nonce="x", patience=4)
    assert "timed out" in told["results"]["127.0.0.1"]["error"]


def test_a_session_whose_words_nobody_takes_ends_itself(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a machine vanished in the midst of a stream of lines: it must not wait for ever to get rid of the next one."""
    taken, write = threading.Event(), Replica.write

    def stuck(self: Replica, name: str, offset: int, chunk: bytes) -> list[dict[str, Any]]:
        if chunk and name == "stdout.log":
            taken.wait()
        return write(self, name, offset, chunk)

    monkeypatch.setattr(Replica, "write", stuck)
    monkeypatch.setattr(Link, "_come_back", lambda *_, **__: False)
    with _in_haste(monkeypatch, beats=lambda: None):
        try:
            link = node.start(["/bin/sh", "-c", "yes | head -c 10000000; exec sleep 1000"])
            session = link._channel._process.pid  # type: ignore[union-attr]
            eventually(lambda: not alive(session), "the session's end")
        finally:
            taken.set()
        node.wait_for("lost")
        link.close()
    again, _ = node.connect()
    again.ask("node_stop", attempt=0, grace=0, reason="cancel")


def test_a_fleet_gives_signs_of_life_on_every_link(node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Checkpoints have links of their own, and nothing to say on them while what came is put where it belongs."""
    with _in_haste(monkeypatch, beats=lambda: None):
        monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
        fleet = Fleet(draft(Request(words=("true",), nodes=1), {}).plan, Folder(tmp_path / "job"), lambda event: None)
        link = fleet.another(0)
        link.connect(python=None, venv=None)
        threading.Event().wait(4.5)
        try:
            assert link.ask("probe_locate", PATIENCE, address="127.0.0.1")["own"]
        finally:
            link.close()
            fleet.close()
    assert fleet.another(0) and fleet._others != [link]

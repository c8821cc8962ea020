"""A node's answers, one by one, as no agent gives them: nothing but what was offered leaves this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from launcher.code import snapshot
from launcher.errors import NodeUnusable
from launcher.link import Address, Link
from launcher.model import Host
from launcher.outputs import fits_here
from launcher.reply import settled
from launcher.sync import Shipment, sync
from tests.data.peers import FakePeer


class Liar(FakePeer):
    """Changes what it answers to the operations in ``lies``."""

    def __init__(self, workdir: Path, **lies: dict[str, Any]) -> None:
        super().__init__(workdir)
        self.lies = lies

    def ask(self, op: str, timeout: float | None = None, on_data: Callable[[int, int, bytes], None] | None = None,
            feed: Iterable[bytes] | None = None, **arguments: Any) -> dict[str, Any]:
        return {**super().ask(op, timeout, on_data, feed, **arguments), **self.lies.get(op, {})}


def shipment_of(source: Path, name: str) -> Shipment:
    """A snapshot on its way."""
    code = source.parent / name
    return Shipment(code, snapshot(source, code, 1 << 30).manifest())


@pytest.mark.parametrize("old", [0, 1 << 30], ids=["pack", "rsync"])
@pytest.mark.parametrize(
    "need",
    [["link/key"], ["../private/key"], ["/etc/passwd"], ["link"], ["big", "a/../b"], [7], "big", {"big": 1}, [["big"]], None],
    ids=str,
)
def test_a_node_gets_no_file_that_is_not_of_the_source_folder(tmp_path: Path, need: Any, old: int) -> None:
    """By whichever way it would travel; a link in the folder leads the node nowhere."""
    source, private = tmp_path / "source", tmp_path / "private"
    source.mkdir()
    private.mkdir()
    (private / "key").write_text("secret")
    (source / "link").symlink_to(private)
    (source / "big").write_bytes(os.urandom(1000))
    liar = Liar(tmp_path / "node", mirror_diff={"need": need, "old": old})
    with pytest.raises(NodeUnusable, match="wants a file that is not of the source folder"):
        sync(liar, shipment_of(source, "job"), "proj", lambda done, total: None)
    assert not [path for path in (tmp_path / "node").rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


def test_a_file_that_a_node_asks_for_again_and_again_is_sent_once(tmp_path: Path) -> None:
    """It fills no disk here, nor a line."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big").write_bytes(os.urandom(1000))
    liar = Liar(tmp_path / "node", mirror_diff={"need": ["big"] * 1000})
    assert sync(liar, shipment_of(tmp_path / "source", "job"), "proj", lambda done, total: None).files == 1


ODD: list[Any] = [None, -1, 1 << 64, "half of a character: \ud800", "x", [[1]], {"a": {}}, [], {}, True, 0.5]
ANSWERS: list[tuple[str, str, list[Any]]] = [
    ("node_hello", "hostname", ["x"]),
    ("node_hello", "gpus", [True]),
    ("node_hello", "gpu_ids", [[]]),
    ("node_hello", "addresses", [[]]),
    ("node_hello", "logout", [{}]),
    ("node_hello", "directory_id", ["x"]),
    ("node_hello", "programs", [{}]),
    ("node_hello", "job_dir", ["x"]),
    ("mirror_begin", "same", [True]),
    ("working_copy", "code", ["x"]),
    ("probe_listen", "port", [True]),
    ("probe_connect", "results", [{}, {"a": {}}]),
    ("probe_locate", "interface", [None, "x"]),
    ("inputs_link", "path", ["x"]),
    ("outputs_hash", "hashes", [{}]),
    ("outputs_fetch", "hashes", [[]]),
    ("outputs_fetch", "unreadable", [{}]),
    ("environment_find", "programs", [{}]),
    ("environment_resolve", "paths", [{}, {"a": {}}]),
    ("node_jobs", "jobs", [{}, {"a": {}}]),
    ("store_old", "stores", [{}, {"a": {}}]),
]


@pytest.mark.parametrize(("op", "key", "right"), ANSWERS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_no_answer_is_told_as_that(op: str, key: str, right: list[Any]) -> None:
    """By its type, before anybody relies on it; the sentence names the node."""
    for value in ODD:
        if value in right:
            assert settled({"ok": {key: value}}, Host("b", "b"), op) == {key: value}
            continue
        with pytest.raises(NodeUnusable, match=f"b: our program there gives no answer to {op}") as raised:
            raise NodeUnusable(str(_refused(op, key, value)))
        assert len(str(raised.value)) < 400


def _refused(op: str, key: str, value: Any) -> NodeUnusable:
    with pytest.raises(NodeUnusable) as raised:
        settled({"ok": {key: value, "more": "y" * 10000}}, Host("b", "b"), op)
    return raised.value


def test_what_nobody_would_read_is_not_kept() -> None:
    """Sentences of megabytes, or without end; texts that are none."""
    with pytest.raises(NodeUnusable) as raised:
        settled({"error": {"message": "x" * (1 << 24)}}, Host("b", "b"), "node_hello")
    assert len(str(raised.value)) < 5000
    assert len(str(_refused("node_hello", "hostname", "x" * (1 << 20)))) < 400
    heard: list[str] = []
    link = Link(Address("ssh", Host("b", "b"), 0, "job"), heard.append)
    for _ in range(20_000):
        link._note({"message": "y" * 5000})
    assert len(heard) == 10_000 and max(map(len, heard)) < 5000


@pytest.mark.parametrize(
    "path",
    ["", "/x", "model/../x", "model//x", "model/\0", "model/" + "x" * 256, "model/" + "a/" * 200 + "x", "model/" + "x/" * 1200],
)
def test_a_path_that_cannot_be_written_or_removed_here_has_no_place(path: str) -> None:
    """Also where its node can have it: a name or path too long, folders too deep."""
    assert not fits_here(path) and fits_here("model/" + "x" * 255)

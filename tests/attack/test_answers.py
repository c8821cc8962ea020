"""A node's answers, one by one, as no agent gives them: nothing but what was offered leaves this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from launcher.code import snapshot
from launcher.errors import NodeUnusable
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

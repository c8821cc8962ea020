"""Checkpoints on their way to the place where they outlive their node."""

from __future__ import annotations

import json
import os
import queue
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from launcher.coordinator import checkpoints
from launcher.coordinator.checkpoints import Checkpoints
from launcher.errors import CollectFailed, NodeGone
from launcher.objects import Depot
from launcher.publish import CHANNEL_MANIFEST
from launcher.store import Folder
from tests.data.peers import FakePeer

if TYPE_CHECKING:
    from launcher.fleet import Fleet


class Bench:
    """One node, the place, and what is told meanwhile."""

    def __init__(self, root: Path) -> None:
        self.place, self.peer = root / "place", FakePeer(root / "node")
        self.output = Path(self.peer.session.layout.output("job-1")) / "checkpoints"
        self.output.mkdir(parents=True)
        self.folder = root / "job"
        self.folder.mkdir()
        spec = SimpleNamespace(checkpoints_path=str(self.place), checkpoint_interval=1.0)
        self.plan: Any = SimpleNamespace(spec=spec, nodes=[], job_id="job-1")
        self.told: queue.Queue[dict[str, Any]] = queue.Queue()
        self.checkpoints = Checkpoints(self.plan, Folder(self.folder), self.told.put)

    def copy(self) -> None:
        self.checkpoints.finish({0: self.peer})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_no_manifest_names_what_is_being_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads there sees a manifest with all of its files, or none."""
    for content in (b"one", b"two!"):
        for name in ("last", "optimizer"):
            (bench.output / name).write_bytes(content)
        put, seen = Depot.put, []

        def looking(depot: Depot, path: str, *words: Any, put: Any = put, seen: list[Any] = seen) -> None:
            seen.append((path, (bench.place / CHANNEL_MANIFEST).exists()))
            put(depot, path, *words)

        monkeypatch.setattr(Depot, "put", looking)
        bench.copy()
        monkeypatch.setattr(Depot, "put", put)
        assert seen == [("last", False), ("optimizer", False), (CHANNEL_MANIFEST, False)]
        told = json.loads((bench.place / CHANNEL_MANIFEST).read_text())["files"]
        assert [(file["path"], file["size"]) for file in told] == [("last", len(content)), ("optimizer", len(content))]


def test_what_this_machine_refuses_is_a_sentence(bench: Bench) -> None:
    """With the place in it; once it is mended the copy can be made."""
    (bench.output / "last").write_bytes(b"x")
    (bench.folder / ".checkpoints").write_text("in the way")
    with pytest.raises(CollectFailed, match=r"the checkpoints could not be copied: File exists: .*/\.checkpoints"):
        bench.copy()
    os.unlink(bench.folder / ".checkpoints")
    bench.copy()
    assert (bench.place / "last").read_bytes() == b"x"


def test_what_keeps_one_copy_from_being_made_keeps_no_later_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours neither, nor that the nodes of an attempt are reached by a step that has ended."""
    monkeypatch.setattr(checkpoints, "_STABLE_SECONDS", 0.01)
    bench.plan.spec.checkpoint_interval = 0.01
    (bench.output / "last").write_bytes(b"x")
    link: Any = bench.peer
    link.connect, link.close = (lambda **_: {}), (lambda: None)
    left = [RuntimeError("can't start new thread"), NodeGone("the step was ended", where="n1")]

    def ended(rank: int) -> Any:
        raise left.pop(0) if len(left) > 1 else left[0]

    bench.checkpoints.begin(cast("Fleet", SimpleNamespace(another=ended)), [0])
    said = [bench.told.get(timeout=60)["message"] for _ in range(2)]
    assert "RuntimeError: can't start new thread" in said[0] and "the step was ended" in said[1]
    bench.checkpoints.begin(cast("Fleet", SimpleNamespace(another=lambda rank: link)), [0])
    assert "copying 1 file(s)" in bench.told.get(timeout=60)["message"]
    bench.copy()
    assert (bench.place / "last").read_bytes() == b"x"


def test_what_a_link_leads_to_is_there_by_its_name(bench: Bench) -> None:
    """A training finds its newest one by it; the file is fetched once.  What leads nowhere, around or out is no checkpoint."""
    (bench.output / "deep").mkdir()
    (bench.output / "deep" / "step-1").write_bytes(b"one")
    for link, target in {
        "last": "newest", "newest": "deep/step-1", "absolute": str(bench.output / "deep" / "step-1"), "folder": "deep",
        "in-a-container": "/ml/output/checkpoints/deep/step-1", "deep/loop": "..", "nowhere": "gone", "self": "self",
        "out": "../model", "top": ".", "passwd": "/etc/passwd",
    }.items():  # fmt: skip
        os.symlink(target, bench.output / link)
    bench.copy()
    known = ["absolute", "deep/step-1", "folder/step-1", "in-a-container", "last", "newest"]
    told = json.loads((bench.place / CHANNEL_MANIFEST).read_text())["files"]
    assert [file["path"] for file in told] == known and {(bench.place / path).read_bytes() for path in known} == {b"one"}
    assert bench.peer.asked.count("outputs_fetch") == 1
    (bench.output / "deep" / "step-2").write_bytes(b"two!")
    os.unlink(bench.output / "newest")
    os.symlink("deep/step-2", bench.output / "newest")
    bench.copy()
    assert (bench.place / "last").read_bytes() == b"two!" and (bench.place / "absolute").read_bytes() == b"one"


def test_links_of_a_folder_here_are_what_they_lead_to(tmp_path: Path) -> None:
    """Those of the folder that checkpoints come from; what leads nowhere does not keep a training from its start."""
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "step-1").write_bytes(b"one")
    elsewhere.mkdir()
    (elsewhere / "big").write_bytes(b"four")
    (elsewhere / "link").symlink_to("big")
    for link, target in {
        "last": "deep/step-1", "folder": "deep", "out": str(elsewhere), "loop": ".", "deep/up": "..",
        "nowhere": "gone", "self": "self",
    }.items():  # fmt: skip
        (place / link).symlink_to(target)
    found = {path: entry.size for path, entry in Depot(str(place)).followed().items()}
    assert found == {"deep/step-1": 3, "folder/step-1": 3, "last": 3, "out/big": 4}
    assert Depot(str(tmp_path / "none")).followed() == {}

"""Collecting the outputs of several nodes, by the real operations of the agent in this process, and of hostile ones."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import CollectFailed, LinkLost, NodeUnusable
from launcher.outputs import Manifest, collect, verify
from tests.data.peers import FakePeer

CHANNELS = ("model", "tensorboard")


class Job:
    """Nodes with outputs, each on a file system of its own, and a folder to collect them to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.target = root / "here" / "output"
        self.peers: dict[int, FakePeer] = {}
        self.notes: list[str] = []

    def write(self, rank: int, path: str, content: bytes | str) -> Path:
        file = self.on_node(rank, path)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def on_node(self, rank: int, path: str) -> Path:
        self.peers.setdefault(rank, FakePeer(self.root / f"n{rank}", rank=rank))
        file = Path(self.peers[rank].session.layout.output("job-1")) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def collect(self, channels: tuple[str, ...] = CHANNELS) -> Manifest:
        return collect(self.peers, [[rank] for rank in self.peers], self.target, channels, self.notes.append)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_union_of_all_nodes_is_collected_with_a_manifest(job: Job) -> None:
    """Every file has its hash, size and node; sizes and free space are told first; nothing half-done is left."""
    job.write(0, "model/model.pt", os.urandom(700_000))
    job.write(1, "model/deep/part-1.bin", "one")
    job.write(1, "tensorboard/events", "")
    manifest = job.collect()
    assert [(file.path, file.node, file.host) for file in manifest.files] == [
        ("model/deep/part-1.bin", 1, "node1"), ("model/model.pt", 0, "node0"), ("tensorboard/events", 1, "node1")]
    assert (job.target / "model" / "deep" / "part-1.bin").read_text() == "one"
    written = json.loads((job.target / "model.json").read_text())
    assert written["schema_version"] == 1 and written["files"][0]["sha256"] == hashlib.sha256(b"one").hexdigest()
    assert sorted(os.listdir(job.target)) == ["model", "model.json", "tensorboard"]
    assert job.notes[0].startswith("collecting 3 file(s), 700.0 kB, from 2 node(s)") and "free here" in job.notes[0]
    assert verify(job.target) == []


def test_of_two_nodes_with_one_path_the_lower_rank_wins_and_the_other_is_listed(job: Job) -> None:
    """Equal content is no conflict; other content of the same or another size is, and says where it stayed."""
    for rank, same, other in ((0, "abc", "node0"), (1, "abc", "node1"), (2, "abc", "another size")):
        job.write(rank, "model/same", same)
        job.write(rank, "model/other", other)
    manifest = job.collect()
    assert [(c.path, c.node, c.others) for c in manifest.conflicts] == [("model/other", 0, (1, 2))]
    assert (job.target / "model" / "other").read_text() == "node0"
    assert [(left.node, left.path, left.size) for left in manifest.left] == [
        (1, str(job.on_node(1, "model/other")), 5), (2, str(job.on_node(2, "model/other")), 12)]
    assert str(manifest.conflicts[0]) == "model/other: node 0's was kept; other content on node 1, 2"


def test_nodes_of_one_file_system_are_asked_once(job: Job) -> None:
    """Of a group that shares its files only the lowest rank is asked."""
    job.write(0, "model/m", "x")
    job.peers[1] = FakePeer(job.root / "n0", rank=1)
    collect(job.peers, [[1, 0]], job.target, CHANNELS, job.notes.append)
    assert job.peers[1].asked == [] and (job.target / "model" / "m").read_text() == "x"


def test_what_is_not_collected_is_listed_with_host_path_and_size(job: Job) -> None:
    """Checkpoints stay where they are unless asked for; nothing is dropped silently."""
    path = job.write(1, "checkpoints/last.pt", "12345")
    job.write(0, "stray.txt", "x")
    manifest = job.collect()
    assert [(left.host, left.path, left.size, left.reason) for left in manifest.left] == [
        ("node0", str(job.on_node(0, "stray.txt")), 1, "not collected"), ("node1", str(path), 5, "not collected")]
    assert "checkpoints" not in os.listdir(job.target) and (job.target / "model").is_dir()
    assert job.collect((*CHANNELS, "checkpoints")).files[0].path == "checkpoints/last.pt"


def test_links_inside_are_kept_and_links_outside_are_listed(job: Job, tmp_path: Path) -> None:
    """A relative link within its channel is made here; an absolute one or one that climbs out is not, nor is it followed."""
    (tmp_path / "secret").write_text("secret")
    job.write(0, "model/epoch-9.pt", "nine")
    job.on_node(0, "model/sub/back").symlink_to("../epoch-9.pt")
    job.on_node(0, "model/best.pt").symlink_to("epoch-9.pt")
    for name, target in (("abs", str(tmp_path / "secret")), ("up", "../../../../secret"), ("twist", "sub/../../x")):
        job.on_node(0, f"model/{name}").symlink_to(target)
    manifest = job.collect()
    links = [(link.path, link.target) for link in manifest.links]
    assert links == [("model/best.pt", "epoch-9.pt"), ("model/sub/back", "../epoch-9.pt")]
    assert (job.target / "model" / "best.pt").read_text() == "nine" == (job.target / "model" / "sub" / "back").read_text()
    assert sorted(Path(left.path).name for left in manifest.left) == ["abs", "twist", "up"] and verify(job.target) == []


def test_a_channel_that_is_a_link_is_not_followed(job: Job, tmp_path: Path) -> None:
    """output/model -> elsewhere brings nothing from elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f").write_text("x")
    job.on_node(0, "model").symlink_to(tmp_path / "elsewhere")
    manifest = job.collect()
    assert manifest.files == () and len(manifest.left) == 1


def test_pipes_empty_directories_and_odd_names(job: Job) -> None:
    """A pipe is listed and never waited for, an empty directory is kept, a name that is not UTF-8 survives."""
    os.mkfifo(job.on_node(0, "model/pipe"))
    job.on_node(0, "model/empty/x").parent.mkdir(exist_ok=True)
    odd = os.fsencode(job.on_node(0, "model/odd").parent) + b"/\xfe\n"
    with open(odd, "w") as file:
        file.write("odd")
    manifest = job.collect()
    assert (job.target / "model" / "empty").is_dir() and os.path.exists(os.fsencode(job.target) + b"/model/\xfe\n")
    assert [left.reason for left in manifest.left] == ["a socket, pipe or device"] and verify(job.target) == []


def test_a_broken_link_is_resumed_where_it_stopped(job: Job) -> None:
    """After LinkLost there is no manifest; the next call asks only for the bytes that did not arrive."""
    content = os.urandom(1_500_000)
    job.write(0, "model/m", content)
    job.peers[0].lose_after = 3
    with pytest.raises(LinkLost):
        job.collect()
    assert verify(job.target) == [f"{job.target / 'model.json'} is not there: the outputs were not collected whole"]
    job.peers[0].lose_after = 3
    job.collect()
    assert (job.target / "model" / "m").read_bytes() == content and "786.4 kB of it here already" in job.notes[-1]


def test_too_little_room_here_is_said_with_numbers(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched when it cannot fit."""
    job.write(0, "model/m", os.urandom(100_000))
    monkeypatch.setattr("launcher.outputs.shutil.disk_usage", lambda path: type("Usage", (), {"free": 50_000})())
    with pytest.raises(CollectFailed, match=r"100\.0 kB of outputs do not fit: 50\.0 kB are free"):
        job.collect()
    assert "outputs_fetch" not in job.peers[0].asked


def test_a_second_collection_replaces_the_first(job: Job) -> None:
    """What a repeated collection no longer finds is no longer here."""
    old = job.write(0, "model/old", "x")
    job.collect()
    old.unlink()
    job.write(0, "model/new", "y")
    job.collect()
    assert os.listdir(job.target / "model") == ["new"] and verify(job.target) == []


@pytest.mark.parametrize(("harm", "problem"), [
    (lambda model: model.unlink(), "is missing"),
    (lambda model: model.write_bytes(b"12"), "has 2 bytes, 3 were collected"),
    (lambda model: model.write_bytes(b"xyz"), "its hash differs"),
])
def test_verify_names_what_is_wrong(job: Job, harm: Callable[[Path], None], problem: str) -> None:
    """A file that is gone, cut or changed since the collection is a sentence with its path."""
    job.write(0, "model/m", "abc")
    job.collect()
    harm(job.target / "model" / "m")
    assert len(verify(job.target)) == 1 and problem in verify(job.target)[0]


class Hostile(FakePeer):
    """Answers what it likes."""

    def __init__(self, root: Path, entries: list[dict[str, Any]], frames: Any, hashes: list[str]) -> None:
        super().__init__(root)
        self.entries, self.frames, self.hashes = entries, frames, hashes

    def ask(self, op: str, timeout: Any = None, on_data: Any = None, feed: Any = None, **arguments: Any) -> dict[str, Any]:
        if op == "outputs_list":
            return {"root": "/evil", "entries": self.entries}
        for frame in self.frames:
            on_data(*frame)
        return {"hashes": self.hashes}


def _tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


NASTY = st.sampled_from(["model", "..", ".", "", "a", "model.json", ".incoming", "\0", "b"])
KINDS = st.sampled_from([*({"link": target} for target in ("/etc", "..", "../..", "a", ".", "a/../..")), {"dir": True},
                         {"size": 1, "mode": 0o6777}])
PATHS = st.lists(NASTY, min_size=1, max_size=4).map("/".join)
ENTRIES = st.lists(st.builds(lambda path, kind: {"path": path, **kind}, PATHS, KINDS), max_size=8)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(ENTRIES)
def test_a_hostile_listing_writes_nothing_outside_of_its_channels(
        tmp_path_factory: pytest.TempPathFactory, entries: list[dict[str, Any]]) -> None:
    """Whatever names and links a node lists, only output/<channel> and the manifest appear, and no link leads out."""
    root = tmp_path_factory.mktemp("hostile")
    target = root / "job" / "output"
    wanted = sum("size" in entry for entry in entries)
    one = hashlib.sha256(b"x").hexdigest()
    peer = Hostile(root / "node", entries, [(stream, 0, b"x") for stream in range(wanted)], [one] * wanted)
    try:
        collect({0: peer}, [[0]], target, ("model",), lambda text: None)
    except CollectFailed:
        pass
    outside = {path for path in _tree(root) if not path.startswith(("job/output/model", "job/output/.incoming"))}
    assert outside <= {"job", "job/output", "job/output/model.json"}
    for path in target.rglob("*"):
        assert path.resolve().is_relative_to(target / "model") or ".incoming" in path.parts or path.name == "model.json"
        assert path.is_symlink() or path.is_dir() or path.name == "model.json" or not path.stat().st_mode & 0o6077


@pytest.mark.parametrize("frames", [
    [(0, 0, b"too long")], [(1, 0, b"x")], [(0, 1, b"x")], [(0, 0, b"x"), (0, 0, b"x")], [], [(0, 0, b"y")], [(-1, 0, b"x")]])
def test_bytes_that_were_not_announced_are_refused(job: Job, frames: list[tuple[int, int, bytes]]) -> None:
    """More bytes, other offsets, other streams, missing or other bytes: CollectFailed, and nothing in its place."""
    peer = Hostile(job.root / "node", [{"path": "model/m", "size": 1}], frames, [hashlib.sha256(b"x").hexdigest()])
    with pytest.raises(CollectFailed):
        collect({0: peer}, [[0]], job.target, CHANNELS, job.notes.append)
    assert not (job.target / "model.json").exists() and not (job.target / "model").exists()


def test_the_agent_opens_nothing_outside_of_the_outputs(job: Job, tmp_path: Path) -> None:
    """Asked for a path through a link, with dots, or for a pipe, it refuses."""
    (tmp_path / "secret").write_text("s")
    job.on_node(0, "model/way").symlink_to(tmp_path)
    os.mkfifo(job.on_node(0, "model/pipe"))
    for path in ("model/way/secret", "../../secret", "model/way", "model/pipe", "/etc/passwd"):
        with pytest.raises(NodeUnusable):
            job.peers[0].ask("outputs_hash", paths=[path])

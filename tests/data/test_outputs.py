"""Collecting the outputs of several nodes, by the real operations of the agent in this process, and of hostile ones."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.agent import outputs
from launcher.errors import CollectFailed, LinkLost, NodeUnusable
from launcher.manifest import Manifest, verify
from launcher.outputs import collect
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

    def collect(self, channels: tuple[str, ...] = CHANNELS, if_room: tuple[str, ...] = ()) -> Manifest:
        groups = [[rank] for rank in self.peers]
        return collect(self.peers, groups, self.target, channels, self.notes.append, if_room=if_room)


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


def test_what_a_node_cannot_read_is_named_and_the_rest_is_brought(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a directory, a disk that fails while it is read: each is listed with its reason, and nothing else is lost."""
    for path in ("model/good", "model/closed", "model/shut/in", "model/broken", "tensorboard/closed"):
        job.write(0, path, "0")
    job.write(1, "model/closed", "other")
    refuse(monkeypatch, access=("closed",), scandir=("shut",), read=("broken",))
    manifest = job.collect()
    assert [file.path for file in manifest.files] == ["model/good"] and verify(job.target)
    assert [(Path(left.path).name, left.node, left.kind, left.channel, left.reason) for left in manifest.left] == [
        ("closed", 0, "unreadable", "model", "could not be read: Permission denied"),
        ("shut", 0, "unreadable", "model", "could not be read: Permission denied"),
        ("closed", 0, "unreadable", "tensorboard", "could not be read: Permission denied"),
        ("closed", 1, "unreadable", "model", "could not be read: Permission denied"),
        ("broken", 0, "unreadable", "model", "could not be read: Input/output error"),
    ]
    assert [Path(left.path).name for left in manifest.gaps()] == ["closed", "shut", "closed", "broken"]
    assert str(manifest.gaps()[0]) == f"node0: {job.on_node(0, 'model/closed')}: could not be read: Permission denied"
    monkeypatch.undo()
    assert not job.collect().gaps() and verify(job.target) == []


def test_outputs_that_cannot_be_looked_into_are_no_empty_ones(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even output/ can be listed the model is not whole."""
    job.write(0, "model/m", "x")
    refuse(monkeypatch, scandir=("output",))
    manifest = job.collect()
    root = job.peers[0].session.layout.output("job-1")
    assert [str(left) for left in manifest.gaps()] == [f"node0: {root}: could not be read: Permission denied"]


def test_without_the_model_channel_what_cannot_be_read_is_no_gap(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missing, and named; and of a channel that nobody asked for it is not even that."""
    for path in ("model/m", "tensorboard/closed", "checkpoints/closed"):
        job.write(0, path, "x")
    refuse(monkeypatch, access=("closed",))
    manifest = job.collect()
    assert manifest.gaps() == () and [left.channel for left in manifest.missing()] == ["tensorboard"]
    assert verify(job.target) == [] and [left.kind for left in manifest.left] == ["unasked", "unreadable"]


def refuse(
    monkeypatch: pytest.MonkeyPatch, access: tuple[str, ...] = (), scandir: tuple[str, ...] = (), read: tuple[str, ...] = ()
) -> None:
    """What the system would say to somebody who is not root, of everything with these names; and a broken disk."""
    opened = outputs.open_below

    def named(path: Any) -> str:
        return os.path.basename(os.fsdecode(path))

    def no_scandir(path: Any) -> Any:
        if named(path) in scandir:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return os.scandir(path)

    def no_open(root: str, path: str) -> int:
        if named(path) in read:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return int(opened(root, path))

    stern = {"access": lambda path, mode: named(path) not in access and os.access(path, mode), "scandir": no_scandir}
    monkeypatch.setattr(outputs, "os", types.SimpleNamespace(**{**vars(os), **stern}))
    monkeypatch.setattr(outputs, "open_below", no_open)


SPARSE = 40 << 20


@pytest.mark.parametrize("where", [0, 300_000, SPARSE // 2 + 17, SPARSE - 5])
def test_holes_do_not_travel_and_stay_holes(job: Job, where: int) -> None:
    """A file of zeros around a few bytes takes a few blocks here, too, and little room is asked for."""
    file = job.on_node(0, "model/sparse")
    with open(file, "wb") as out:
        out.seek(where)
        out.write(b"data")
        out.truncate(SPARSE)
    frames: list[int] = []
    job.peers[0].seen = frames.append
    job.collect()
    copy = job.target / "model" / "sparse"
    assert copy.read_bytes() == file.read_bytes() and verify(job.target) == []
    assert sum(frames) <= 2 << 18 and copy.stat().st_blocks * 512 <= 1 << 20


def test_room_is_asked_for_the_bytes_beside_the_holes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge file with little in it fits where little is free."""
    with open(job.on_node(0, "model/sparse"), "wb") as out:
        out.write(b"data")
        out.truncate(SPARSE)
    monkeypatch.setattr("launcher.outputs.shutil.disk_usage", lambda path: type("Usage", (), {"free": 20 << 20})())
    assert job.collect().files[0].size == SPARSE


def test_a_collection_goes_on_behind_a_hole(job: Job) -> None:
    """What broke in the middle of a file with holes comes out whole."""
    content = bytearray(8 << 20)
    for start in range(0, len(content), 1 << 20):
        content[start : start + 9] = b"some data"
    job.write(0, "model/m", bytes(content))
    job.peers[0].lose_after = 3
    with pytest.raises(LinkLost):
        job.collect()
    job.peers[0].lose_after = None
    job.collect()
    assert (job.target / "model" / "m").read_bytes() == content and verify(job.target) == []


def test_a_size_that_no_file_can_have_is_a_sentence(job: Job) -> None:
    """However much of it a node calls a hole."""
    sizes = [(1 << 63) - 1, 1 << 63, 1 << 80]
    entries = [{"path": f"model/{number}", "size": size, "data": 0} for number, size in enumerate(sizes)]
    peer = Hostile(job.root / "node", entries, [], [""])
    with pytest.raises(CollectFailed, match=r"File too large|Invalid argument"):
        collect({0: peer}, [[0]], job.target, CHANNELS, job.notes.append)


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


def test_what_nobody_asked_for_stays_on_its_node_where_there_is_too_little_room(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is brought; where all of it fits, that is, too."""
    job.write(0, "model/m", "1")
    job.write(0, "checkpoints/c", os.urandom(1 << 20))
    monkeypatch.setattr("launcher.outputs.shutil.disk_usage", lambda path: type("Usage", (), {"free": (16 << 20) + 50_000})())
    manifest = job.collect(if_room=("checkpoints",), channels=("model", "checkpoints"))
    assert [file.path for file in manifest.files] == ["model/m"] and manifest.channels == ("model",)
    assert [(left.channel, left.kind) for left in manifest.left] == [("checkpoints", "unasked")]
    assert "warning: checkpoints: not enough space here, so they stay on the nodes" in job.notes
    monkeypatch.undo()
    manifest = job.collect(if_room=("checkpoints",), channels=("model", "checkpoints"))
    assert [file.path for file in manifest.files] == ["checkpoints/c", "model/m"]


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

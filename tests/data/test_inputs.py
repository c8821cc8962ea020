"""Data on its way to a node: by the agent's real operations in this process, from this machine and from servers of S3 and OSS."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from launcher import inputs
from launcher.errors import LauncherError, LinkLost, NodeUnusable, UsageError
from launcher.inputs import Cargo, Carrier, local_cargo, remote_cargo, share
from launcher.listing import look
from tests.data.oss import Oss
from tests.data.peers import FakePeer
from tests.data.s3 import S3


class Nodes:
    """A folder of data here, and nodes that want it."""

    def __init__(self, root: Path) -> None:
        self.root, self.data = root, root / "data"
        self.notes: list[str] = []
        self.data.mkdir()

    def write(self, path: str, content: bytes) -> None:
        file = self.data / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def cargo(self, source: Path | None = None) -> Cargo:
        source = source or self.data
        return local_cargo("train", str(source), look(str(source)).to_json())

    def peer(self, name: str = "n0", job: str = "job-1") -> FakePeer:
        return FakePeer(self.root / name, job)

    def bring(self, peer: FakePeer, cargo: Cargo, python: str | None = None, rank: int | None = None) -> Path:
        carrier = Carrier("train", self.notes.append)
        try:
            return Path(carrier.bring(peer, cargo, python, rank, lambda done, total: None))
        finally:
            carrier.close()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setenv("LAUNCHER_HOME", str(tmp_path / "home"))
    made = Nodes(tmp_path)
    made.write("a.bin", os.urandom(300_000))
    made.write("deep/b.txt", b"b" * 100_000)
    made.write(".hidden", b"")
    (made.data / "empty").mkdir()
    return made


def test_a_folder_arrives_whole_and_read_only_below_the_job_s_folder(nodes: Nodes) -> None:
    """Dotfiles and empty folders, too; sizes and free space are said first."""
    there = nodes.bring(nodes.peer(), nodes.cargo())
    assert there == nodes.root / "n0" / "node" / "jobs" / "job-1" / "input" / "data" / "train"
    names = sorted(str(path.relative_to(there)) for path in there.rglob("*"))
    assert names == [".hidden", "a.bin", "deep", "deep/b.txt", "empty"]
    assert (there / "a.bin").read_bytes() == (nodes.data / "a.bin").read_bytes()
    assert not any(os.stat(path).st_mode & 0o222 for path in [there, *there.rglob("*")])
    assert nodes.notes[0].startswith("input train: 3 files, 400.0 kB for node0 (") and "are free there" in nodes.notes[0]


def test_the_same_content_is_not_sent_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for another job, nor from another folder; nor are its files read again here."""
    nodes.bring(nodes.peer(), nodes.cargo())
    again = nodes.peer(job="job-2")
    assert (nodes.bring(again, nodes.cargo()) / "deep" / "b.txt").is_file()
    assert again.asked == ["inputs_begin", "inputs_place"]
    other = nodes.root / "other"
    shutil.copytree(nodes.data, other)
    third = nodes.peer(job="job-3")
    nodes.bring(third, nodes.cargo(other))
    assert "mirror_fill" not in third.asked
    os.utime(nodes.data / "a.bin", (1, 1))
    for path in nodes.data.rglob("*"):
        os.utime(path, (1, 1))
    nodes.cargo()
    monkeypatch.setattr("launcher.keep._MOMENT_NS", 0)
    nodes.cargo()
    monkeypatch.setattr(inputs, "hash_of", lambda path: pytest.fail("it was hashed before"))
    nodes.cargo()


def test_a_transfer_that_broke_goes_on_with_the_files_that_are_whole(nodes: Nodes) -> None:
    """What was damaged in the store is mended alike."""
    for number in range(4):
        nodes.write(f"f{number}", os.urandom(2 << 20))
    peer = nodes.peer()
    peer.lose_after = 14
    with pytest.raises(LinkLost):
        nodes.bring(peer, nodes.cargo())
    peer.close()
    sent: list[int] = []
    peer = nodes.peer()
    counted = peer._counted  # type: ignore[attr-defined]
    peer._counted = lambda feed: (sent.append(len(chunk)) or chunk for chunk in counted(feed))  # type: ignore
    there = nodes.bring(peer, nodes.cargo())
    assert 0 < sum(sent) < 7 << 20
    assert all((there / f"f{number}").read_bytes() == (nodes.data / f"f{number}").read_bytes() for number in range(4))
    os.chmod(there / "f0", 0o600)
    (there / "f0").write_bytes(b"spoiled")
    assert (nodes.bring(nodes.peer(job="job-2"), nodes.cargo()) / "f0").stat().st_size == 2 << 20


def test_a_single_file_keeps_its_name(nodes: Nodes) -> None:
    """The path is the file's own."""
    there = nodes.bring(nodes.peer(), nodes.cargo(nodes.data / "a.bin"))
    assert there.name == "a.bin" and there.parent.name == "train" and there.read_bytes() == (nodes.data / "a.bin").read_bytes()


def test_shares_are_every_nth_file_by_name_and_lose_none(nodes: Nodes) -> None:
    """The same each time; a node for which nothing is left is an error."""
    cargo = nodes.cargo()
    parts = [share(cargo, rank, 2) for rank in range(2)]
    assert [sorted(part.sizes) for part in parts] == [[".hidden", "deep/b.txt"], ["a.bin"]]
    peer = nodes.peer()
    there = [nodes.bring(peer, part, rank=rank) for rank, part in enumerate(parts)]
    assert [path.name for path in there] == ["node-0", "node-1"] and (there[1] / "a.bin").is_file()
    with pytest.raises(LauncherError, match="cannot be shared among 4 nodes"):
        share(cargo, 3, 4)


def test_data_that_changed_since_submit_are_named_and_never_mixed(nodes: Nodes) -> None:
    """Changed, new, gone; and a change while it is sent, which only the node can notice."""
    recorded = look(str(nodes.data)).to_json()
    nodes.write("deep/b.txt", b"other")
    nodes.write("new", b"")
    (nodes.data / "a.bin").unlink()
    with pytest.raises(LauncherError) as error:
        local_cargo("train", str(nodes.data), recorded)
    assert error.value.lines == ("a.bin is gone", "new is new", "deep/b.txt was changed")
    cargo = nodes.cargo()
    status = os.stat(nodes.data / "deep" / "b.txt")
    (nodes.data / "deep" / "b.txt").write_bytes(b"OTHER")
    os.utime(nodes.data / "deep" / "b.txt", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(LauncherError, match="changed since"):
        nodes.bring(nodes.peer(), cargo)


def test_links_are_followed_and_what_cannot_be_sent_is_listed_at_once(nodes: Nodes) -> None:
    """A link's content goes along; circles, dead links and pipes are sentences."""
    (nodes.data / "good").symlink_to(nodes.data / "a.bin")
    assert "good" in nodes.cargo().sizes
    (nodes.data / "dead").symlink_to("nowhere")
    (nodes.data / "deep" / "round").symlink_to(nodes.data)
    os.mkfifo(nodes.data / "pipe")
    with pytest.raises(UsageError) as error:
        look(str(nodes.data))
    assert sorted(error.value.problems) == [
        "dead: a link that leads nowhere",
        "deep/round: a link that leads back to a folder above it",
        "pipe: a socket, pipe or device",
    ]


def test_too_little_room_on_the_node_is_said_before_anything_is_sent(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both numbers."""
    free = os.statvfs_result((4096, 4096, 10, 10, 10, 100, 100, 100, 0, 255))
    monkeypatch.setattr("launcher.agent.mirror.os.statvfs", lambda path: free)
    peer = nodes.peer()
    with pytest.raises(NodeUnusable, match=r"No space left on device: 0\.4 MB needed, 0\.0 MB free"):
        nodes.bring(peer, nodes.cargo())
    assert "mirror_fill" not in peer.asked


@pytest.mark.parametrize("kind", ["s3", "oss"])
@pytest.mark.parametrize("python", [sys.executable, "/bin/false", None], ids=["there", "here", "here at once"])
def test_a_uri_is_fetched_there_or_here_and_once(
    nodes: Nodes, request: pytest.FixtureRequest, kind: str, python: str | None
) -> None:
    """By the node's Python where that can; whichever way, the next job needs nothing, until the store says that it changed."""
    store: S3 | Oss = request.getfixturevalue(kind)
    store.put("set/x/1.bin", b"1" * 70_000)
    store.put("set/2.bin", b"2")
    uri = f"{kind}://{store.bucket}/set"
    there = nodes.bring(nodes.peer(), remote_cargo(uri), python)
    assert (there / "x" / "1.bin").read_bytes() == b"1" * 70_000 and (there / "2.bin").read_bytes() == b"2"
    assert any("fetched here and sent" in note for note in nodes.notes) == (python == "/bin/false")
    assert not list((nodes.root / "home").rglob("*.bin"))
    again = nodes.peer(job="job-2")
    nodes.bring(again, remote_cargo(uri), python)
    assert again.asked == ["inputs_begin", "inputs_place"]
    store.put("set/2.bin", b"3")
    assert (nodes.bring(nodes.peer(job="job-3"), remote_cargo(uri), python) / "2.bin").read_bytes() == b"3"
    single = nodes.bring(nodes.peer(job="job-4"), remote_cargo(f"{uri}/x/1.bin"), python)
    assert single.name == "1.bin" and single.read_bytes() == b"1" * 70_000


def test_a_node_that_may_not_read_it_gets_it_from_here(nodes: Nodes, oss: Oss, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no credentials, and has made folders before it was told so."""
    oss.put("set/deep/1", b"1")
    monkeypatch.setattr("launcher.agent.credentials.options", lambda uri, environ: {})
    there = nodes.bring(nodes.peer(), remote_cargo(f"oss://{oss.bucket}/set"), sys.executable)
    assert (there / "deep" / "1").read_bytes() == b"1" and any("cannot fetch it itself" in note for note in nodes.notes)


def test_a_uri_with_nothing_behind_it_or_odd_names_is_refused(nodes: Nodes, s3: S3) -> None:
    """Names come from strangers."""
    with pytest.raises(LauncherError, match="there is nothing there"):
        remote_cargo(f"s3://{s3.bucket}/none")
    s3.put("evil/../../x", b"x")
    s3.put(f"long/{'x' * 300}", b"x")
    s3.put("both/a", b"x")
    s3.put("both/a/b", b"x")
    for folder, sentence in (("evil", "a name that no file can have"), ("long", "can have"), ("both", "'a/b' lies below a file")):
        with pytest.raises(LauncherError, match=sentence):
            remote_cargo(f"s3://{s3.bucket}/{folder}")


def test_what_this_machine_cannot_keep_on_the_way_is_a_sentence(nodes: Nodes, oss: Oss) -> None:
    """With the place in it."""
    oss.put("set/a", b"a")
    (nodes.root / "home").mkdir()
    (nodes.root / "home" / "cache").write_text("in the way")
    with pytest.raises(LauncherError, match=r"this machine: Not a directory: .*/home/cache"):
        nodes.bring(nodes.peer(), remote_cargo(f"oss://{oss.bucket}/set"))

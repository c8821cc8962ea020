"""One node's mirror and working copy, by the real operations of the agent in this process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.agent import mirror
from launcher.code import snapshot
from launcher.errors import LauncherError, LinkLost, NodeUnusable
from launcher.sync import Shipment, SyncReport, sync
from tests.data.peers import FakePeer


class Bench:
    """A source folder, and nodes to bring it to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "source"
        self.source.mkdir()
        self.jobs = 0

    def shipment(self) -> Shipment:
        self.jobs += 1
        code = self.root / f"job-{self.jobs}"
        return Shipment(code, snapshot(self.source, code, 1 << 30).manifest())

    def peer(self, node: str = "n0", **more: object) -> FakePeer:
        return FakePeer(self.root / node, f"job-{self.jobs}", **more)  # type: ignore[arg-type]

    def send(self, node: str = "n0", peer: FakePeer | None = None) -> SyncReport:
        """Snapshot and sync, then compare the working copy and the mirror with the source."""
        shipment = self.shipment()
        report = sync(peer or self.peer(node), shipment, "proj", lambda done, total: None)
        shipment.close()
        assert same(self.source, Path(report.code)) and same(self.source, self.mirror(node) / "tree")
        return report

    def mirror(self, node: str = "n0") -> Path:
        return self.root / node / "node" / "mirrors" / "proj"


def same(one: Path, other: Path) -> bool:
    """Contents, links and exec bits alike."""
    def listing(root: Path) -> dict[bytes, object]:
        found: dict[bytes, object] = {}
        for folder, dirs, files in os.walk(os.fsencode(root)):
            for name in files + dirs:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                content: object = os.readlink(path) if os.path.islink(path) else "dir"
                if os.path.isfile(path) and not os.path.islink(path):
                    with open(path, "rb") as file:
                        content = (file.read(), status.st_mode, status.st_mtime_ns)
                found[os.path.relpath(path, os.fsencode(root))] = content
        return found

    return listing(one) == listing(other)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    for name in ("train.py", "pkg/model.py", "pkg/data/words.txt", ".hidden"):
        file = made.source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name * 100)
    (made.source / "run.sh").write_text("#!/bin/sh\n")
    (made.source / "run.sh").chmod(0o755)
    (made.source / "empty").mkdir()
    (made.source / "link").symlink_to("pkg/model.py")
    with open(os.fsencode(made.source) + b"/\xff name", "w") as file:
        file.write("odd")
    return made


def test_the_first_sync_brings_everything(bench: Bench) -> None:
    """Files, links, exec bits, times, empty directories and odd names; and the job's other directories are there."""
    report = bench.send()
    assert (report.way, report.files) == ("pack", 6)
    job = Path(report.code).parent
    assert sorted(os.listdir(job / "output")) == ["checkpoints", "model", "tensorboard"] and (job / "input" / "config").is_dir()


def test_nothing_changed_is_two_requests(bench: Bench) -> None:
    """One to find that the mirror is right, one for the working copy."""
    bench.send()
    shipment = bench.shipment()
    peer = bench.peer()
    assert sync(peer, shipment, "proj", lambda done, total: None).way == "none"
    assert peer.asked == ["mirror_begin", "working_copy"]


def test_only_what_changed_travels(bench: Bench) -> None:
    """An edit, an addition, a removal, a new exec bit, a file that became a directory and a directory that became a link."""
    bench.send()
    (bench.source / "train.py").write_text("new")
    (bench.source / "more.py").write_text("more")
    (bench.source / "pkg" / "model.py").chmod(0o755)
    shutil.rmtree(bench.source / "pkg" / "data")
    (bench.source / "pkg" / "data").symlink_to("..")
    (bench.source / ".hidden").unlink()
    (bench.source / ".hidden").mkdir()
    (bench.source / ".hidden" / "x").write_text("x")
    assert bench.send().files == 3


def test_the_working_copy_is_the_jobs_own(bench: Bench) -> None:
    """A job that writes into its code harms neither the mirror nor another job."""
    first = bench.send()
    for path in Path(first.code).rglob("*.py"):
        path.write_text("overwritten")
    bench.send()
    assert Path(first.code, "train.py").read_text() == "overwritten"


def test_holes_stay_holes_on_the_node(bench: Bench) -> None:
    """A file of zeros with a few bytes in it takes no room there, neither in the mirror nor in the working copy."""
    with open(bench.source / "sparse", "wb") as file:
        file.seek(3 << 20)
        file.write(b"data")
        file.truncate(24 << 20)
    report = bench.send()
    for copy in (bench.mirror() / "tree" / "sparse", Path(report.code) / "sparse"):
        assert copy.stat().st_size == 24 << 20 and copy.stat().st_blocks * 512 <= 2 << 20


@pytest.mark.parametrize("damage", ["edit", "same time", "remove", "add", "directory"])
def test_a_damaged_mirror_is_mended(bench: Bench, damage: str) -> None:
    """Whatever somebody did to the mirror, even with size and time put back, the job gets the code that was submitted."""
    bench.send()
    bench.send()
    victim = bench.mirror() / "tree" / "train.py"
    before = victim.stat()
    if damage in ("edit", "same time"):
        victim.write_bytes(b"X" * before.st_size)
    if damage == "same time":
        os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    if damage == "remove":
        victim.unlink()
    if damage == "add":
        victim.with_name("sitecustomize.py").write_text("evil")
    if damage == "directory":
        (bench.mirror() / "tree" / "torch").mkdir()
    bench.send()


def test_an_interrupted_sync_leaves_no_manifest_and_is_mended(bench: Bench) -> None:
    """The link breaks midway: no manifest says that the mirror is whole, and the next sync sends only what is missing."""
    bench.send()
    for number in range(4):
        (bench.source / f"big{number}").write_bytes(os.urandom(300_000))
    shipment = bench.shipment()
    peer = bench.peer()
    peer.lose_after = 3
    with pytest.raises(LinkLost):
        sync(peer, shipment, "proj", lambda done, total: None)
    peer.close()
    assert not (bench.mirror() / "manifest.json").exists() and not Path(peer.session.layout.code("job-2")).exists()
    report = bench.send()
    assert report.files < 4


def test_large_changed_files_go_as_a_delta(bench: Bench) -> None:
    """Of a file that differs in a few bytes from its old version little more than these bytes travel, through rsync."""
    (bench.source / "big").write_bytes(os.urandom(6_000_000))
    bench.send()
    content = bytearray((bench.source / "big").read_bytes())
    content[3_000_000:3_000_004] = b"edit"
    (bench.source / "big").write_bytes(content)
    sent: list[int] = []
    shipment = bench.shipment()
    report = sync(bench.peer(), shipment, "proj", lambda done, total: sent.append(done))
    assert report.way == "rsync" and max(sent) < 100_000 and same(bench.source, Path(report.code))


@pytest.mark.parametrize("where", ["here", "there"])
def test_without_rsync_files_go_whole_and_a_note_says_so(bench: Bench, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing rsync on either side is a sentence naming the side, not a failure."""
    (bench.source / "big").write_bytes(os.urandom(6_000_000))
    bench.send()
    (bench.source / "big").write_bytes(os.urandom(6_000_000))
    if where == "here":
        monkeypatch.setattr("launcher.rsync.shutil.which", lambda name, **more: None if name == "rsync" else "/bin/" + name)
    else:
        monkeypatch.setattr("launcher.agent.mirror._which", lambda name: shutil.which(name) if name != "rsync" else None)
    report = bench.send()
    assert report.way == "pack" and len(report.notes) == 1 and "no rsync" in report.notes[0] and "sent whole" in report.notes[0]


def test_an_rsync_that_fails_is_replaced(bench: Bench, tmp_path: Path) -> None:
    """A server that breaks off midway costs a note; what it may have changed is looked at again."""
    (bench.source / "big").write_bytes(os.urandom(6_000_000))
    bench.send()
    (bench.source / "big").write_bytes(os.urandom(6_000_000))

    class Broken(FakePeer):
        def open(self, words: object) -> object:  # type: ignore[override]
            return super().open(["/bin/sh", "-c", "echo some trouble >&2; exit 3"])

    bench.jobs += 1
    peer = Broken(tmp_path / "n0", f"job-{bench.jobs}")
    bench.jobs -= 1
    report = bench.send(peer=peer)
    assert report.way == "pack" and "rsync status" in report.notes[0]


def test_two_jobs_of_one_project_wait_for_each_other(bench: Bench) -> None:
    """The second says that it waits, and both get the code they were submitted with."""
    one, first = bench.peer(), bench.shipment()
    one.session.job = "job-1"
    one.ask("mirror_begin", project="proj", digest=first.digest)
    (bench.source / "train.py").write_text("second")
    second = bench.shipment()
    other = bench.peer()
    done = threading.Event()
    waits = threading.Event()
    other.session.note = lambda message: waits.set()  # type: ignore[method-assign]

    def run() -> None:
        sync(other, second, "proj", lambda done, total: None)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert waits.wait(60) and not done.is_set()
    sync(one, first, "proj", lambda done, total: None)
    thread.join(60)
    assert Path(other.session.layout.code("job-2"), "train.py").read_text() == "second"
    assert Path(one.session.layout.code("job-1"), "train.py").read_text() == "train.py" * 100


def test_many_nodes_at_once_share_one_pack(bench: Bench) -> None:
    """Threads that read one pack at their own pace all get every byte."""
    (bench.source / "big").write_bytes(os.urandom(3_000_000))
    (bench.source / "text").write_text("compressible " * 200_000)
    shipment = bench.shipment()
    threads = [threading.Thread(target=sync, args=(bench.peer(f"n{node}"), shipment, "proj", lambda done, total: None))
               for node in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(same(bench.source, bench.mirror(f"n{node}") / "tree") for node in range(4))
    assert json.loads((bench.mirror("n3") / "manifest.json").read_text())["digest"] == shipment.digest


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 4 MB."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", mount], check=True)
    yield mount  # type: ignore[misc]
    subprocess.run(["umount", "-l", mount], check=True)


def test_a_full_disk_is_found_before_anything_is_sent(bench: Bench, small_disk: Path) -> None:
    """The error names the host, the path, what is needed and what is free; nothing was changed there."""
    (bench.source / "big").write_bytes(os.urandom(6_000_000))
    shipment = bench.shipment()
    peer = FakePeer(small_disk, "job-1")
    with pytest.raises(NodeUnusable, match=r"node0: No space left on device: [\d.]+ MB needed, [\d.]+ MB free: .*/small/"):
        sync(peer, shipment, "proj", lambda done, total: None)
    assert peer.asked[-1] == "mirror_release" and "mirror_fill" not in peer.asked


def test_a_disk_that_is_full_here_is_said_of_this_machine(bench: Bench, small_disk: Path) -> None:
    """The pack lies beside the snapshot; without room for it that ends every sync, and no mirror is spoilt."""
    bench.send("n0")
    (bench.source / "big").write_bytes(os.urandom(2_500_000))
    code = small_disk / "job"
    shipment = Shipment(code, snapshot(bench.source, code, 1 << 30).manifest())
    for node in ("n0", "n1"):
        with pytest.raises(LauncherError, match=f"No space left on device: {small_disk}") as caught:
            sync(FakePeer(bench.root / node, "job-9"), shipment, "proj", lambda done, total: None)
        assert caught.value.where == "this machine"
    shipment.close()
    bench.send("n0")


def test_a_disk_that_fills_up_meanwhile_is_named(bench: Bench, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC in the middle of a file, or in the working copy, names host and path; no manifest, no half working copy."""
    (bench.source / "big").write_bytes(os.urandom(2_500_000))
    monkeypatch.setattr("launcher.agent.mirror.check_room", lambda path, size, inodes: None)
    shipment = bench.shipment()
    with pytest.raises(NodeUnusable, match=r"node0: No space left on device: .*/jobs/job-1/code"):
        sync(FakePeer(small_disk, "job-1"), shipment, "proj", lambda done, total: None)
    assert os.listdir(small_disk / "node" / "jobs" / "job-1") != ["code"]
    (bench.source / "big").write_bytes(os.urandom(6_000_000))
    with pytest.raises(NodeUnusable, match=r"node0: No space left on device: .*/proj/tree/big"):
        sync(FakePeer(small_disk, "job-2"), bench.shipment(), "proj", lambda done, total: None)
    assert not (small_disk / "node" / "mirrors" / "proj" / "manifest.json").exists()


@pytest.mark.parametrize("edit", [
    lambda files: files.update({"../out": files["train.py"]}),
    lambda files: files.update({"/etc/x": files["train.py"]}),
    lambda files: files.update({"a/../../x": files["train.py"]}),
    lambda files: files.update({"link/x": files["train.py"]}),
    lambda files: files.update({"x": {}}),
])
def test_a_manifest_that_leads_out_of_the_tree_is_refused(bench: Bench, edit: Callable[[dict[str, object]], None]) -> None:
    """Neither a name nor a link can make the agent write or delete outside of its mirror."""
    bench.send()
    shipment = bench.shipment()
    edit(shipment.files)  # type: ignore[arg-type]
    shipment.digest = "other"
    with pytest.raises(NodeUnusable):
        sync(bench.peer(), shipment, "proj", lambda done, total: None)
    assert (bench.mirror() / "manifest.json").exists()


def test_a_mirror_that_is_a_link_farm_deletes_nothing_outside(bench: Bench, tmp_path: Path) -> None:
    """A directory of the mirror that was replaced by a link is mended; what the link led to is not touched."""
    bench.send()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "model.py").write_text("mine")
    shutil.rmtree(bench.mirror() / "tree" / "pkg")
    (bench.mirror() / "tree" / "pkg").symlink_to(tmp_path / "precious")
    bench.send()
    assert (tmp_path / "precious" / "model.py").read_text() == "mine"


def test_a_working_copy_that_is_there_is_left_alone(bench: Bench) -> None:
    """A sync that is repeated after a lost reply must not replace the code under a command that may run already."""
    bench.send()
    peer = bench.peer()
    copy = Path(peer.session.layout.code("job-1"))
    (copy / "train.py").write_text("in use")
    shipment = Shipment(bench.root / "job-1", json.loads((bench.root / "job-1.json").read_text()))
    sync(peer, shipment, "proj", lambda done, total: None)
    assert (copy / "train.py").read_text() == "in use"


def test_a_cp_without_reflink_is_made_up_for(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """busybox's cp knows no --reflink; a machine without any cp copies with Python."""
    plain = tmp_path / "cp"
    plain.write_text('#!/bin/sh\ncase "$*" in *--reflink*) echo unrecognized option >&2; exit 1;; esac\nexec /bin/cp "$@"\n')
    plain.chmod(0o755)
    monkeypatch.setattr("launcher.agent.mirror._which", lambda name: str(plain))
    bench.send()
    monkeypatch.setattr("launcher.agent.mirror._which", lambda name, **more: None)
    bench.send()


def test_what_was_found_right_once_is_told_without_its_manifest(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five thousand files' entries take longer to read than to look after; whatever differs has them read again."""
    load, read = mirror.Sync._load, []
    monkeypatch.setattr(mirror.Sync, "_load", lambda held, name: (read.append(name), load(held, name))[1])

    def loads() -> list[str]:
        read.clear()
        bench.send()
        return read[:1]

    assert loads() == loads() == ["manifest.json"]
    assert loads() == loads() == []
    (bench.mirror() / "manifest.json").touch()
    assert (loads(), loads()) == (["manifest.json"], [])
    (bench.mirror() / "manifest.scan").write_bytes(b"of another version")
    assert (loads(), loads()) == (["manifest.json"], [])
    (bench.mirror() / "tree" / "train.py").write_text("somebody else's")
    assert loads() == ["manifest.json"]
    (bench.mirror() / "manifest.json").unlink()
    assert loads() == ["manifest.json"]

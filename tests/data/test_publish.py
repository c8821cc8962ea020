"""Copies of what was collected: behind servers of S3 and OSS, and in a folder."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from launcher.errors import StorageFailed
from launcher.manifest import Manifest, OutputFile, OutputLink, hash_of, parse, save
from launcher.objects import Depot, Stopped
from launcher.publish import CHANNEL_MANIFEST, Copied, Target, of_channel, publish, verify, whole
from tests.data.s3 import S3, SECRET


class Collected:
    """An output folder of a job, as `collect` leaves it."""

    def __init__(self, folder: Path, job: str = "job-1") -> None:
        self.folder, self.job = folder, job
        self.notes: list[str] = []
        self.links: list[OutputLink] = []
        folder.mkdir()

    def write(self, path: str, content: bytes = b"x") -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def link(self, path: str, target: str) -> None:
        (self.folder / path).symlink_to(target)
        self.links.append(OutputLink(path, target, 0, "n0"))

    @property
    def manifest(self) -> Manifest:
        paths = sorted(
            path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink() and ".published" not in path.parts
        )
        names = [str(path.relative_to(self.folder)) for path in paths]
        files = tuple(
            OutputFile(name, path.stat().st_size, hash_of(path), 0, "n0")
            for name, path in zip(names, paths, strict=True)
            if name != "model.json"
        )
        made = Manifest(("model", "tensorboard"), files, tuple(self.links), made_by={"job_id": self.job})
        save(self.folder / "model.json", made)
        return made

    def publish(self, target: Target, stop: threading.Event | None = None) -> Copied:
        return publish(self.folder, target, self.notes.append, lambda done, total: None, stop)


@pytest.fixture
def job(tmp_path: Path) -> Collected:
    made = Collected(tmp_path / "output")
    made.write("model/model.pt", os.urandom(300_000))
    made.write("model/deep/empty", b"")
    made.write("tensorboard/events", b"events")
    return made


@pytest.fixture(params=["s3", "oss", "file", "path"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Somewhere to publish to: one body for every kind."""
    if request.param in ("s3", "oss"):
        return f"{request.param}://{request.getfixturevalue(request.param).bucket}/runs/a b"
    return f"{'file://' if request.param == 'file' else ''}{tmp_path}/runs/a b"


def test_all_files_are_there_and_the_manifest_was_the_last(job: Collected, place: str) -> None:
    """Each below its channel, with the hashes that the manifest says; checked by reading them back."""
    copied = job.publish(whole(place, job.manifest))
    assert (copied.files, copied.bytes, copied.kept) == (3, 300_006, 0)
    there = Depot(place).listing()
    assert sorted(there) == ["model.json", "model/deep/empty", "model/model.pt", "tensorboard/events"]
    assert verify(place, "model.json") == []
    assert parse(Depot(place).small("model.json", 1 << 20) or b"").made_by == {"job_id": "job-1"}
    assert job.notes[0].startswith(f"copying 3 file(s), 300.0 kB, to {place}")


def test_a_second_time_only_what_is_missing_is_sent(job: Collected, place: str) -> None:
    """Nothing where all is there; one file where one was lost; nobody reads the others again."""
    job.publish(whole(place, job.manifest))
    assert job.publish(whole(place, job.manifest)).bytes == 0
    Depot(place).remove("tensorboard/events")
    assert verify(place, "model.json") == [f"{place}/tensorboard/events is missing"]
    copied = job.publish(whole(place, job.manifest))
    assert (copied.bytes, copied.kept) == (6, 2) and verify(place, "model.json") == []


def test_what_breaks_half_way_goes_on_where_it_was(job: Collected, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no manifest until everything is there."""
    real = Depot.put

    def broken(self: Depot, path: str, *rest: object) -> None:
        if path == "tensorboard/events":
            raise StorageFailed("the server is gone", where=place)
        real(self, path, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Depot, "put", broken)
        with pytest.raises(StorageFailed, match="gone"):
            job.publish(whole(place, job.manifest))
    assert verify(place, "model.json") == [f"{place}/model.json is not there: the copy is not complete"]
    there = len(Depot(place).listing())
    assert job.publish(whole(place, job.manifest)).kept == there and verify(place, "model.json") == []


def test_other_content_is_never_overwritten(job: Collected, place: str) -> None:
    """A file of the same name, of the same size too, and a manifest of another job; the sentence names them."""
    Depot(place).put("model/model.pt", b"y" * 300_000)
    with pytest.raises(StorageFailed, match=r"something else is there already: model/model\.pt"):
        job.publish(whole(place, job.manifest))
    assert Depot(place).small("model/model.pt", 1 << 20) == b"y" * 300_000
    Depot(place).remove("model/model.pt")
    job.publish(whole(place, job.manifest))
    with pytest.raises(StorageFailed, match="the outputs of another job are there: job-1"):
        job.publish(whole(place, dataclasses.replace(job.manifest, made_by={"job_id": "job-2"})))


def test_a_channel_s_own_place_holds_the_newest_job_s_files(job: Collected, place: str) -> None:
    """What an earlier copy of ours left there gives way; what is nobody's does not."""
    job.write("model/old", b"old")
    job.publish(of_channel(place, job.manifest, "model", replace=True))
    (job.folder / "model" / "old").unlink()
    job.write("model/model.pt", b"newer")
    newer = dataclasses.replace(job.manifest, made_by={"job_id": "job-2"})
    job.publish(of_channel(place, newer, "model", replace=True))
    assert sorted(Depot(place).listing()) == ["deep/empty", CHANNEL_MANIFEST, "model.pt"]
    assert verify(place, CHANNEL_MANIFEST) == []
    with pytest.raises(StorageFailed, match="another job"):
        job.publish(of_channel(place, job.manifest, "model"))


def test_what_an_earlier_job_has_in_the_way_makes_way(job: Collected, tmp_path: Path) -> None:
    """A link that leads elsewhere now, a file where a folder is now, a folder where a file or link is; not what is not ours."""
    job.write("model/turned", b"file")
    job.write("model/back/to/file", b"x")
    job.write("model/back/to/link", b"x")
    job.link("model/newest", "model.pt")
    job.link("model/linked", "back")
    place = str(tmp_path / "place")
    job.publish(of_channel(place, job.manifest, "model", replace=True))
    (tmp_path / "place" / "mine").write_text("mine")
    later = Collected(tmp_path / "later", "job-2")
    for path in ("turned/a", "back", "linked/b", "deep2"):
        later.write(f"model/{path}")
    later.link("model/newest", "deep2")
    later.publish(of_channel(place, later.manifest, "model", replace=True))
    found = {str(path.relative_to(place)) for path in (tmp_path / "place").rglob("*") if not path.is_dir()}
    assert found == {"turned/a", "back", "linked/b", "deep2", "newest", "mine", CHANNEL_MANIFEST}
    assert os.readlink(f"{place}/newest") == "deep2" and verify(place, CHANNEL_MANIFEST) == []
    last = Collected(tmp_path / "last", "job-3")
    (tmp_path / "place" / "turned" / "mine").write_text("mine")
    last.write("model/turned")
    with pytest.raises(StorageFailed, match="something else is there already"):
        last.publish(of_channel(place, last.manifest, "model", replace=True))
    assert (tmp_path / "place" / "turned" / "mine").exists()


def test_nothing_is_written_or_removed_through_a_link(job: Collected, tmp_path: Path) -> None:
    """Whoever may write to the place could else have us do so anywhere."""
    place, private = tmp_path / "place", tmp_path / "private"
    private.mkdir()
    (private / "old").write_text("mine")
    job.publish(of_channel(str(place), job.manifest, "model", replace=True))
    planted = parse((place / CHANNEL_MANIFEST).read_bytes())
    (place / "way").symlink_to(private)
    save(place / CHANNEL_MANIFEST, dataclasses.replace(planted, files=(OutputFile("way/old", 4, "0" * 64, 0, "x"),)))
    later = Collected(tmp_path / "later", "job-2")
    for path in ("a", "way/new"):
        later.write(f"model/{path}")
        with pytest.raises(StorageFailed, match="a link leads out of it: way"):
            later.publish(of_channel(str(place), later.manifest, "model", replace=True))
    assert [path.name for path in private.iterdir()] == ["old"]


def test_links_are_kept_in_a_folder_and_copied_behind_a_uri(job: Collected, place: str) -> None:
    """An object store knows none."""
    job.link("model/best.pt", "model.pt")
    job.link("model/last", "deep")
    job.publish(whole(place, job.manifest))
    depot = Depot(place)
    assert depot.small("model/best.pt", 1 << 20) == (job.folder / "model/model.pt").read_bytes()
    assert verify(place, "model.json") == []
    if depot.local:
        folder = Path(place.removeprefix("file://"))
        assert os.readlink(folder / "model/best.pt") == "model.pt" and os.readlink(folder / "model/last") == "deep"
    else:
        assert "model/last/empty" in depot.listing()


def test_every_fault_of_a_copy_is_a_sentence(job: Collected, place: str) -> None:
    """Missing, cut, changed, and a manifest that is none."""
    job.publish(whole(place, job.manifest))
    depot = Depot(place)
    depot.remove("model/deep/empty")
    depot.put("model/model.pt", b"z" * 300_000)
    depot.put("tensorboard/events", b"even")
    assert verify(place, "model.json") == [
        f"{place}/model/deep/empty is missing",
        f"{place}/model/model.pt is not what was collected: its hash differs",
        f"{place}/tensorboard/events has 4 bytes, 6 were collected",
    ]
    depot.put("model.json", b'{"channels": [], "files": [{"path": "../../x", "size": 1, "sha256": "", "node": 0, "host": ""}]}')
    assert verify(place, "model.json") == [
        f"{place}/model.json is no manifest: it names a file outside of its folder: '../../x'"
    ]
    for odd in (b'{"channels": [], "left": null}', b'{"channels": [3]}'):
        depot.put("model.json", odd)
        assert verify(place, "model.json")[0].startswith(f"{place}/model.json is no manifest: it has "), odd


def test_what_was_changed_here_meanwhile_is_not_sent(job: Collected, place: str) -> None:
    """The manifest would lie about it."""
    manifest = job.manifest
    job.write("tensorboard/events", b"EVENTS")
    with pytest.raises(StorageFailed, match="is not what was collected any more"):
        job.publish(whole(place, manifest))
    assert "model.json" not in Depot(place).listing()


def test_a_wish_to_stop_is_heard_between_pieces(job: Collected, place: str) -> None:
    """No manifest is written then."""
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        job.publish(whole(place, job.manifest), stop)


def test_a_server_that_does_not_answer_is_named_with_what_helps(job: Collected, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few tries; so is a bucket that is not there, and neither shows a secret."""
    monkeypatch.setattr("launcher.objects._PAUSES", (0.0, 0.0))
    with pytest.raises(StorageFailed, match="check the URI") as missing:
        job.publish(whole("s3://no-such-bucket/x", job.manifest))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageFailed, match="once it answers") as silent:
        job.publish(whole(f"s3://{s3.bucket}/unreached", job.manifest))
    assert SECRET not in f"{missing.value}{silent.value}"

"""The snapshot of a source folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from launcher.code import load, project_name, size_text, snapshot
from launcher.errors import UsageError

LIMIT = 1 << 30


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "train_src"
    (folder / "pkg").mkdir(parents=True)
    (folder / "empty" / "deeper").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / ".env.example").write_text("A=1\n")
    (folder / "pkg" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "pkg" / "run.sh").chmod(0o755)
    (folder / "link.py").symlink_to("train.py")
    return folder


def test_a_snapshot_is_a_copy_with_a_manifest(source: Path, tmp_path: Path) -> None:
    """Contents, dotfiles, exec bits, times, links and empty directories are in the copy and in code.json."""
    taken = snapshot(source, tmp_path / "code", LIMIT)
    assert list(taken.files) == [".env.example", "empty/deeper", "link.py", "pkg/run.sh", "train.py"]
    assert taken.files["link.py"] == {"link": "train.py"} and taken.files["empty/deeper"] == {"dir": True}
    assert taken.files["train.py"]["sha256"] == hashlib.sha256(b"print(1)\n").hexdigest()
    assert subprocess.run(["diff", "-r", "--no-dereference", source, tmp_path / "code"], check=False).returncode == 0
    assert os.access(tmp_path / "code" / "pkg" / "run.sh", os.X_OK)
    assert (tmp_path / "code" / "train.py").stat().st_mtime_ns == (source / "train.py").stat().st_mtime_ns
    assert load(tmp_path / "code.json") == taken
    assert json.loads((tmp_path / "code.json").read_text())["schema_version"] == 1


def test_the_digest_tells_contents_links_and_exec_bits_not_times(source: Path, tmp_path: Path) -> None:
    """Touching a file keeps the digest; a byte, an exec bit, a link's target or an empty directory changes it."""
    digests = [snapshot(source, tmp_path / "c0", LIMIT).digest]
    os.utime(source / "train.py", (1, 1))
    assert snapshot(source, tmp_path / "c1", LIMIT).digest == digests[0]
    (source / "train.py").write_text("print(2)\n")
    digests.append(snapshot(source, tmp_path / "c2", LIMIT).digest)
    (source / "train.py").chmod(0o755)
    digests.append(snapshot(source, tmp_path / "c3", LIMIT).digest)
    (source / "link.py").unlink()
    (source / "link.py").symlink_to("pkg/run.sh")
    digests.append(snapshot(source, tmp_path / "c4", LIMIT).digest)
    (source / "empty" / "deeper").rmdir()
    digests.append(snapshot(source, tmp_path / "c5", LIMIT).digest)
    assert len(set(digests)) == 5


def test_too_large_a_folder_is_refused_before_anything_is_copied(source: Path, tmp_path: Path) -> None:
    """The error names the size, the limit, the largest files and directories, and the way out."""
    (source / "pkg" / "weights.bin").write_bytes(bytes(30_000))
    with pytest.raises(UsageError) as caught:
        snapshot(source, tmp_path / "code", 20_000)
    text = str(caught.value)
    assert "30.0 kB" in text and "20.0 kB are allowed" in text and ".launcherignore" in text
    assert caught.value.problems[0].startswith("pkg/: ") and caught.value.problems[1].startswith("pkg/weights.bin: ")
    assert not (tmp_path / "code").exists()


def test_links_out_of_the_folder(source: Path, tmp_path: Path) -> None:
    """An absolute one stays with a note, a relative one to a file becomes the file; an absolute one inside turns relative."""
    (tmp_path / "shared.py").write_text("shared")
    (source / "data").symlink_to("/mnt/no/such/data")
    (source / "shared.py").symlink_to("../shared.py")
    (source / "inside").symlink_to(source / "pkg")
    taken = snapshot(source, tmp_path / "code", LIMIT)
    assert taken.files["data"] == {"link": "/mnt/no/such/data"} and taken.files["inside"] == {"link": "pkg"}
    assert (tmp_path / "code" / "shared.py").read_text() == "shared" and not (tmp_path / "code" / "shared.py").is_symlink()
    assert [note.partition(":")[0] for note in taken.notes] == ["data", "shared.py"]


def test_a_relative_link_to_a_directory_outside_is_refused(source: Path, tmp_path: Path) -> None:
    """On the nodes it would lead nowhere, so the submit says so instead of the training."""
    (tmp_path / "common").mkdir()
    (source / "common").symlink_to("../common")
    with pytest.raises(UsageError, match=r"common: a link to ../common, outside of the source folder"):
        snapshot(source, tmp_path / "code", LIMIT)


def test_sockets_and_pipes_are_left_out_with_a_note(source: Path, tmp_path: Path) -> None:
    """Nobody waits for a pipe's writer; a sentence names what is not there."""
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(source / "sock"))
        taken = snapshot(source, tmp_path / "code", LIMIT)
    assert [note.split(":")[0] for note in taken.notes] == ["pipe", "sock"] and "pipe" not in taken.files


def test_names_that_are_not_utf8_survive(source: Path, tmp_path: Path) -> None:
    """A name of arbitrary bytes is the same bytes in the copy, and code.json can be read again."""
    raw = os.fsencode(source) + b"/caf\xe9 \n.py"
    with open(raw, "w") as file:
        file.write("x")
    taken = snapshot(source, tmp_path / "code", LIMIT)
    assert os.path.exists(os.fsencode(tmp_path / "code") + b"/caf\xe9 \n.py")
    assert load(tmp_path / "code.json") == taken


def test_what_the_launcher_keeps_does_not_travel(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With LAUNCHER_HOME in the source folder a job has neither the code of those before it nor their variables in it."""
    monkeypatch.setenv("LAUNCHER_HOME", str(source / ".lh"))
    job = source / ".lh" / "jobs" / "a-1"
    for place in (job / "output", source / ".lh" / "node" / "agents", source / "sub" / "cache"):
        place.mkdir(parents=True)
        (place / "env.json").write_text("{}")
    taken = snapshot(source, job / "code", LIMIT)
    assert not any(path.startswith(".lh") for path in taken.files) and "sub/cache/env.json" in taken.files
    assert taken.notes == (".lh/jobs, .lh/node: what the launcher keeps here, left out",)


def test_what_lies_too_deep_to_be_copied_is_told(source: Path, tmp_path: Path) -> None:
    """A path that fits where it lies, but not below the job folder, is a problem of the source folder, not a fault of ours."""
    long = tmp_path
    while len(str(long)) < 3900:
        long /= "t" * 60
    long.mkdir(parents=True)
    (source / ("d" * 200)).mkdir()
    (source / ("d" * 200) / "f.py").write_text("")
    with pytest.raises(UsageError, match=r"ddd…: its path is too long to be copied"):
        snapshot(source, long / "code", LIMIT)


def test_git_commit_and_dirtiness_are_recorded(source: Path, tmp_path: Path) -> None:
    """Clean after a commit, dirty after an edit; .git itself never travels."""
    identity = ["-c", "user.name=x", "-c", "user.email=x@y"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", source, *words], check=True)
    taken = snapshot(source, tmp_path / "c1", LIMIT)
    head = subprocess.check_output(["git", "-C", source, "rev-parse", "HEAD"], text=True).strip()
    assert (taken.commit, taken.dirty) == (head, False) and not any(path.startswith(".git/") for path in taken.files)
    (source / "train.py").write_text("print(3)\n")
    assert snapshot(source, tmp_path / "c2", LIMIT).dirty is True


def test_a_missing_source_folder_is_a_usage_error(tmp_path: Path) -> None:
    """The sentence names the folder and the option."""
    with pytest.raises(UsageError, match="no such source folder"):
        snapshot(tmp_path / "nowhere", tmp_path / "code", LIMIT)


def test_project_names(source: Path, tmp_path: Path) -> None:
    """The same folder has one name by whatever path; another folder of the same base name has another."""
    (tmp_path / "alias").symlink_to(source)
    assert project_name(source) == project_name(tmp_path / "alias") and project_name(source).startswith("train_src-")
    other = tmp_path / "o" / "train_src"
    shutil.copytree(source, other, symlinks=True)
    assert project_name(other) != project_name(source)
    assert project_name(Path("/")).startswith("code-")


@pytest.mark.parametrize(("size", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (1 << 30, "1.1 GB"),
                                            (2 * 10**12, "2.0 TB")])
def test_sizes_for_people(size: int, text: str) -> None:
    """Bytes are shown in the largest unit that leaves at least one."""
    assert size_text(size) == text


def test_a_folder_with_countless_problems_tells_some(tmp_path: Path) -> None:
    """As a whole home, or /, has them."""
    source = tmp_path / "s"
    source.mkdir()
    for number in range(30):
        (source / f"link{number:02d}").symlink_to("../elsewhere")
    with pytest.raises(UsageError) as caught:
        snapshot(source, tmp_path / "code", 1 << 30)
    assert len(caught.value.problems) == 21 and caught.value.problems[-1] == "... and 10 more"

"""Ignore rules: git is asked about the same folder, and must agree."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from launcher.code import load, snapshot

NAMES = ["a", "b", "ab", "x.py", "y.log", "build", "keep me", "ü"]
GLOBS = r"""* !* */ !*/ *.py !x.py /a a/ !a/ a/b a/* !a/b **/b a/** a/**/x.py !/a/b/ build #a \#a \!a [ab] [!a] ? a* x.py keep\ me
/* !/a/ b/x.py ** *.l?g [a-z].py ü /**/b ! / **/a/** [ []a] [^a] [[:alpha:]] [[:nope:]] a\ [b-a] x**y a/**b [a-] ***/b"""
PATTERNS = st.one_of(
    st.sampled_from([*re.split(r"(?<!\\)\s", GLOBS), "", "  ", "x.py  ", "keep me", "a/ "]),
    st.lists(st.sampled_from([*NAMES, "*", "**", "?", "[ab]*"]), min_size=1, max_size=3).map("/".join),
)
"""every construct of gitignore(5), and broken ones"""
FOLDERS = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join), min_size=1, max_size=12)


def _make(root: Path, paths: list[str], ignores: dict[str, list[str]]) -> None:
    for path in paths:
        file = root / path
        if any(parent.is_file() for parent in file.parents) or file.exists():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    for folder, patterns in ignores.items():
        if (root / folder).is_dir():
            (root / folder / ".gitignore").write_text("\n".join(patterns) + "\n")


def _git_keeps(root: Path) -> set[str]:
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    words = ["git", "-C", str(root), "-c", "core.excludesFile=", "ls-files", "-z", "--others", "--exclude-standard"]
    return set(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")) - {""}


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(FOLDERS, st.dictionaries(st.sampled_from(["", "a", "b", "a/b"]), st.lists(PATTERNS, max_size=4), max_size=3))
@example(["a/b/x.py", "a/b/y.log", "a/x.py"], {"": ["*", "!*/", "!*.py"]})
@example(["a/b/x.py", "a/y.log"], {"": ["a/*", "!a/b"], "a": ["!y.log"]})
@example(["a/b/x.py", "b/x.py"], {"": ["a/"], "a": ["!b/x.py"]})
@example(["a/x.py", "a/b/a"], {"": ["*", "!a"]})
def test_the_snapshot_has_what_git_would_not_ignore(paths: list[str], ignores: dict[str, list[str]]) -> None:
    """Whatever .gitignore files lie in whatever directories, the snapshot has exactly the files that git does not ignore."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        _make(source, paths, ignores)
        taken = snapshot(source, Path(folder) / "code", 1 << 30)
        assert {path for path, entry in taken.files.items() if "dir" not in entry} == _git_keeps(source)


def _kept(source: Path, tmp_path: Path) -> list[str]:
    return list(snapshot(source, tmp_path / "code", 1 << 30).files)


def test_launcherignore_wins_over_gitignore(tmp_path: Path) -> None:
    """.launcherignore leaves out what git keeps, and takes in what git ignores."""
    source = tmp_path / "s"
    source.mkdir()
    for name in ("data.bin", "weights.pt", "train.py"):
        (source / name).write_text(name)
    (source / ".gitignore").write_text("*.pt\n")
    (source / ".launcherignore").write_text("data.bin\n!weights.pt\n")
    assert _kept(source, tmp_path) == [".gitignore", ".launcherignore", "train.py", "weights.pt"]


def test_ignore_files_above_the_source_count_up_to_the_work_trees_root(tmp_path: Path) -> None:
    """A source folder inside a repository inherits its .gitignore, but none from above the repository."""
    source = tmp_path / "repo" / "train"
    source.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    (tmp_path / "repo" / ".gitignore").write_text("*.ckpt\n/train/out\n")
    (tmp_path / ".gitignore").write_text("*.py\n")
    for name in ("m.py", "m.ckpt", "out"):
        (source / name).write_text(name)
    assert _kept(source, tmp_path) == ["m.py"]


def test_ignore_rules_need_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a git program the rules hold all the same, and no commit is recorded."""
    source = tmp_path / "s"
    source.mkdir()
    (source / ".gitignore").write_bytes(b"\xef\xbb\xbf*.log\r\n")
    (source / "a.log").write_text("")
    (source / "a.py").write_text("")
    monkeypatch.setenv("PATH", os.devnull)
    taken = snapshot(source, tmp_path / "code", 1 << 30)
    assert list(taken.files) == [".gitignore", "a.py"] and taken.commit is None and taken.ignored == 1


def test_what_ignore_files_leave_out_is_named(tmp_path: Path) -> None:
    """What lies on top first, what no person wrote last; of the rest it is said how many they are."""
    source = tmp_path / "s"
    (source / "data").mkdir(parents=True)
    (source / "conf" / "__pycache__").mkdir(parents=True)
    (source / ".gitignore").write_text("data/\n*.yaml\n__pycache__/\n*.pyc\n")
    for name in ("train.py", "data/x", "b.yaml", "a.yaml", "conf/c.yaml", "conf/d.yaml", "conf/e.yaml", "conf/__pycache__/f.pyc"):
        (source / name).write_text("")
    taken = snapshot(source, tmp_path / "code", 1 << 30)
    assert taken.left_out == ("a.yaml", "b.yaml", "data/", "conf/c.yaml", "conf/d.yaml") and taken.ignored == 7
    assert str(taken).endswith("; ignore files leave out a.yaml, b.yaml, data/, conf/c.yaml, conf/d.yaml and 2 more")
    assert load(tmp_path / "code.json") == taken

"""What pip is given: one list of lines, from what was said or from the source folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.requirements import Requirements, masked, read


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def write(code: Path, **files: str) -> None:
    for name, text in files.items():
        path = code / name.replace("__", "/")
        path = path.with_name(path.name + ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_comments_blank_lines_and_broken_lines(code: Path) -> None:
    """As pip reads them: `#` behind a blank begins a comment, a backslash joins lines."""
    write(code, requirements="# all\n\nnumpy>=1.26  # fast\npkg @ https://x/y#egg=pkg\ntorch \\\n  ==2.4 \\\n  --hash=sha:ab\n")
    assert read(code, None).lines == ("numpy>=1.26", "pkg @ https://x/y#egg=pkg", "torch   ==2.4   --hash=sha:ab")


def test_files_that_are_referred_to_stand_in_their_place(code: Path) -> None:
    """Requirements and constraints alike, however deep, each relative to the file that names it."""
    write(code, requirements="a\n-r more/one.txt\n-c limits.txt\nz\n", limits="a<2\n", more__one="b\n--requirement=two.txt\n")
    write(code, more__two="c\n--constraint ../limits.txt\n")
    assert read(code, None) == Requirements(("a", "b", "c", "z"), ("a<2", "a<2"))


def test_what_was_said_wins_over_the_file(code: Path) -> None:
    """Nothing said leaves the file, an empty list leaves nothing."""
    write(code, requirements="a\n")
    assert read(code, ["b==1"]).lines == ("b==1",)
    assert read(code, []) == Requirements(()) and not read(code, [])
    assert not read(code.parent, None)


@pytest.mark.parametrize("text", ["", "# nothing\n", "--index-url https://x/simple\n", "-c limits.txt\n"])
def test_options_alone_ask_for_nothing(code: Path, text: str) -> None:
    """There is then no layer to build."""
    write(code, requirements=text, limits="a<2\n")
    assert not read(code, None)


@pytest.mark.parametrize(
    ("line", "local"),
    [("./mine", True), ("mine", False), ("mine/", True), ("wheels/x-1-py3-none-any.whl", True), ("x @ file:w/x.tar.gz", False),
     ("--find-links wheels", True), ("/opt/wheels/x.whl", False), ("git+https://github.com/a/b", False), ("./mine[extra]", True),
     ("./mine ; python_version > '3'", True), ("-e git+https://x/y#egg=y", False)],
)  # fmt: skip
def test_whether_it_depends_on_files_of_the_source_folder(code: Path, line: str, local: bool) -> None:
    """Then a change of the code is a change of what is installed."""
    (code / "mine").mkdir()
    (code / "wheels").mkdir()
    (code / "wheels" / "x-1-py3-none-any.whl").write_bytes(b"")
    write(code, requirements=f"a\n{line}\n")
    assert read(code, None).local is local


def test_folders_of_packages_are_found_from_where_they_are_named(code: Path) -> None:
    """pip looks relative to the file, which is not there when it runs."""
    (code / "deps" / "whe els").mkdir(parents=True)
    write(code, requirements="-r deps/all.txt\n", deps__all="--find-links 'whe els'\na\n")
    assert read(code, None).lines == ("--find-links 'deps/whe els'", "a")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a\n-r gone.txt\n", "requirements.txt:2: gone.txt cannot be read"),
        ("-r ../outside.txt\n", "requirements.txt:1: ../outside.txt is not in the source folder"),
        ("-r requirements.txt\n", "refer to each other without end"),
        ("-e .\n", "requirements.txt:1: -e .: what is installed outlives the job's copy of the code"),
        ("a\x1b[2J\n", "without control characters"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(code: Path, text: str, complaint: str) -> None:
    """Before anything is started."""
    write(code, requirements=text)
    (code.parent / "outside.txt").write_text("x\n")
    with pytest.raises(UsageError) as caught:
        read(code, None)
    assert complaint in str(caught.value)


def test_a_log_in_is_not_shown() -> None:
    """A private index is named with a password in its URL."""
    assert masked(["--index-url https://me:hush@index.example/", "a"]) == ("--index-url https://****@index.example/", "a")

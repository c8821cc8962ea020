"""What pip shall install for a job, as one list of lines: read from what was said, or from the source folder.

Files that the lines refer to (`-r`, `-c`) are put in their place, so that the list is all that is installed from, and
its hash tells whether that has changed.  The format is pip's (pip's documentation, "Requirements File Format").
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.errors import UsageError
from launcher.model import MASK, REQUIREMENTS
from launcher.record import dataclass

_NESTED = re.compile(r"(?:-r|--requirement|(?P<constraint>-c|--constraint))(?:\s+|=|(?<=-[rc]))(?P<path>\S.*)\Z")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s+|=)(?P<what>\S.*)\Z")
_FOUND_IN = re.compile(r"(?P<option>-f|--find-links)(?:\s+|=)(?P<path>\S.*)\Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_DEEPEST = 20


@dataclass(frozen=True)
class Requirements:
    """What pip is given: the lines of one requirements file, and of one constraints file."""

    lines: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    local: bool = False
    """some of them name files of the source folder, so what is installed depends on those, too"""

    def __bool__(self) -> bool:
        return bool(self.lines)


def read(code: Path, said: Sequence[str] | None) -> Requirements:
    """The requirements of a job whose snapshot is ``code``: the lines that were ``said``, else its requirements.txt.

    Raises UsageError, which names every line that cannot be used, and where it stands.
    """
    reader = _Reader(code)
    if said is not None:
        reader.take([(f"requirement {number}", line) for number, line in enumerate(said, 1)], Path(), 0)
    elif (code / REQUIREMENTS).is_file():
        reader.file(Path(REQUIREMENTS), 0, f"{REQUIREMENTS} of the source folder")
    if reader.problems:
        step = "see pip's `Requirements File Format`; `requirements: []` in a job file, or --requirement '', installs nothing"
        raise UsageError("the requirements cannot be installed", problems=reader.problems, next_step=step)
    # Options alone, such as an index, ask for nothing.
    asked = any(not line.startswith("-") or line.startswith(("-e", "--editable", "-r", "--requirement")) for line in reader.lines)
    return Requirements(tuple(reader.lines), tuple(reader.constraints), reader.local) if asked else Requirements(())


def masked(lines: Sequence[str]) -> tuple[str, ...]:
    """The lines as they may be shown: without the log-in that a URL may hold."""
    return tuple(_PASSWORD.sub(MASK, line) for line in lines)


class _Reader:
    def __init__(self, code: Path) -> None:
        self._code = code
        self.lines: list[str] = []
        self.constraints: list[str] = []
        self.problems: list[str] = []
        self.local = False

    def file(self, path: Path, depth: int, named: str, constraint: bool = False) -> None:
        """The lines of a file, a path below the source folder."""
        target = (self._code / path).resolve()
        if not target.is_relative_to(self._code.resolve()):
            self.problems.append(f"{named}: {path} is not in the source folder")
            return
        try:
            text = target.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            self.problems.append(f"{named}: {path} cannot be read: {why}")
            return
        if depth > _DEEPEST:
            self.problems.append(f"{named}: the files refer to each other without end")
            return
        self.take([(f"{path}:{number}", line) for number, line in _joined(text)], path.parent, depth, constraint)

    def take(self, lines: Sequence[tuple[str, str]], folder: Path, depth: int, constraint: bool = False) -> None:
        """Lines, each with its place, which are read in ``folder``, a path below the source folder."""
        for where, raw in lines:
            line = re.sub(r"(^|\s+)#.*$", "", raw).strip()
            if not line.isprintable():
                self.problems.append(f"{where}: {line!r}: a line without control characters is wanted")
            elif line:
                self._line(where, line, folder, depth, constraint)

    def _line(self, where: str, line: str, folder: Path, depth: int, constraint: bool) -> None:
        nested, editable, found_in = _NESTED.match(line), _EDITABLE.match(line), _FOUND_IN.match(line)
        if nested and not _URL.match(nested["path"]):
            self.file(folder / _unquoted(nested["path"]), depth + 1, where, constraint or bool(nested["constraint"]))
            return
        if editable and not re.match(r"[a-z]+\+", editable["what"]):
            self.problems.append(f"{where}: {line}: what is installed outlives the job's copy of the code; leave -e out")
        if found_in and (self._code / folder / _unquoted(found_in["path"])).exists() and not found_in["path"].startswith("/"):
            line = f"{found_in['option']} {shlex.quote(str(folder / _unquoted(found_in['path'])))}"
            self.local = True
        if not line.startswith("-") and self._is_here(line):
            self.local = True
        (self.constraints if constraint else self.lines).append(line)

    def _is_here(self, line: str) -> bool:
        """Whether a requirement is a file or folder of the source: pip looks for it in the working directory."""
        name = line.partition(" @ ")[2] or line
        path = re.split(r"[\s;\[]", name.strip().removeprefix("file:"), maxsplit=1)[0]
        looks_like_one = path.startswith(".") or "/" in path or path.endswith((".whl", ".zip", ".tar.gz"))
        return looks_like_one and not path.startswith("/") and not _URL.match(path) and (self._code / path).exists()


def _unquoted(text: str) -> str:
    try:
        return " ".join(shlex.split(text))
    except ValueError:
        return text


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, those that end in a backslash joined with the next."""
    first, kept = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        first = first if kept else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            kept += line[:-1]
            continue
        yield first, kept + line
        kept = ""
    if kept:
        yield first, kept

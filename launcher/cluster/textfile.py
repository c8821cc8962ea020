"""A file as text: there, not endless, and UTF-8."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.cluster.inventory import complain

SIZE_LIMIT = 4 << 20
"""bytes; a larger file was not written by hand"""


def read_text(path: Path, kind: str) -> str:
    """The file's text without a byte order mark; UsageError when it cannot be read or is not UTF-8."""
    what = f"the {kind} cannot be used"
    try:
        with path.open("rb") as stream:
            raw = stream.read(SIZE_LIMIT + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        complain(what, [f"{path}: {reason}"], f"give the path of a {kind} that is there")
    if len(raw) > SIZE_LIMIT:
        complain(what, [f"{path}: larger than {SIZE_LIMIT >> 20} MiB, so it is no {kind}"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        complain(what, [f"{path}:{line}:{column}: byte 0x{raw[error.start]:02x}: the file is not UTF-8; save it as UTF-8"])
        raise AssertionError("unreachable") from error


def home_expanded(text: str) -> str:
    """`~` and `~user` at the beginning, expanded where there is such a user, else left alone (where Path.expanduser raises)."""
    return os.path.expanduser(text)


def beside(folder: Path, text: str) -> str:
    """A path named in a file of ``folder``, made absolute: a relative one is relative to that folder."""
    return str(folder.absolute() / home_expanded(text))

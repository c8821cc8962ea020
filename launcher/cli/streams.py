"""stdout and stderr as every command has them: there, and told apart from all other files when they cannot be written."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputLost(Exception):
    """stdout or stderr cannot be written: its disk is full, or its reader is gone.  What is written there later is dropped."""

    def __init__(self, error: OSError, name: str) -> None:
        super().__init__(f"{name} cannot be written: {error.strerror}")
        self.unread = error.errno == errno.EPIPE
        # 128+n for SIGPIPE, of which other programs die then; else EX_IOERR of sysexits.h.
        self.exit_code = 141 if self.unread else 74


def guard_streams() -> None:
    """Where the shell closed stdin, stdout or stderr (`>&-`), /dev/null takes its place; a failed write raises OutputLost."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    sys.stdout, sys.stderr = _guarded(sys.stdout, "stdout"), _guarded(sys.stderr, "stderr")


def _guarded(stream: TextIO, name: str) -> TextIO:
    raw = _Guarded(stream.fileno(), "w", closefd=False)
    raw.known_as = name
    by_line = name == "stderr" or stream.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=by_line)


class _Guarded(io.FileIO):
    known_as = ""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # What is still buffered goes nowhere: neither the words about this nor the interpreter's end may fail by it.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            raise OutputLost(error, self.known_as) from error

"""The C library's calls, by whichever of Python's parts they are made."""

from __future__ import annotations

import os
from typing import Any

import pytest

from launcher.agent import libc


@pytest.mark.parametrize("make", [libc._own, libc._standard], ids=["own", "ctypes"])
def test_calls_take_numbers_and_bytes_and_errno_is_told(make: Any) -> None:
    """As prctl, syscall and inotify need it."""
    call, last_errno = make()
    assert call("abs", -7) == 7 and call("strlen", b"seven") == 5
    assert call("close", -1) == -1
    assert os.strerror(last_errno()) == "Bad file descriptor"
    with pytest.raises((OSError, AttributeError)):
        call("no_such_function")


def test_our_own_way_works_here() -> None:
    """Otherwise every start would take a tenth longer, and nobody would notice."""
    assert libc.call.__qualname__.startswith("_own.")

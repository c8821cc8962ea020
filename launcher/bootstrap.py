"""From a log-in shell to our program behind it: the agent's archive, the text that boots it, and a marker that says it is there.

Whatever the shell's start-up files print before the marker is skipped; what keeps our program from starting becomes a sentence.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

from launcher import transports
from launcher.agent import wire
from launcher.errors import LinkLost, NodeError, NodeUnusable
from launcher.model import Host

BOOT_SECONDS = 30.0
"""how long a log-in shell may take until our marker appears, and our program from there to its first reply"""

_AGENT = Path(wire.__file__).parent
_ECHO_SECONDS = 3.0
"""how long our marker may still take once what we sent has come back"""
_FOR_OTHERS = b"\n" * 8
"""lines that start-up files may read (`read -t 1 answer`) before our program gets its input"""


@cache
def _agent_sources() -> dict[str, bytes]:
    sources = {"launcher/__init__.py": b""}
    for entry in sorted(_AGENT.glob("*.py")):
        sources[f"launcher/agent/{entry.name}"] = entry.read_bytes()
    return sources


@cache
def agent_name() -> str:
    """The hash of the agent's sources, under which a node keeps it."""
    digest = hashlib.sha256()
    for name, text in _agent_sources().items():
        digest.update(b"%s %d\n%s" % (name.encode(), len(text), text))
    return digest.hexdigest()[:32]


@cache
def agent_archive() -> bytes:
    """The zipapp that travels to a node which lacks it; the same sources always give the same bytes."""
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in _agent_sources().items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def announced(content: bytes) -> bytes:
    """The bytes behind a line with their hash and size, as `boot` takes them."""
    return b"%s %d\n%s" % (hashlib.sha256(content).hexdigest().encode(), len(content), content)


@cache
def boot_line() -> bytes:
    """The text of `agent/boot.py`, as one line that our one-line program executes."""
    text = (_AGENT / "boot.py").read_text()
    return _FOR_OTHERS + f"exec({text!r})\n".encode()


@cache
def _seldom() -> str:
    return (_AGENT / "seldom.py").read_text()


class Marker:
    """A word nobody else prints.  It is sent in two halves, so that a shell that echoes its input cannot fake it."""

    def __init__(self) -> None:
        self._halves = (os.urandom(8).hex(), os.urandom(8).hex())
        self.text = "".join(self._halves).encode()
        self.echo = ascii(self._halves).encode()
        """how it looks where our own words come back"""
        self.before = b""
        """what was printed before it"""

    def order(self, **order: Any) -> bytes:
        return ascii({"marker": self._halves, "seldom": _seldom(), **order}).encode() + b"\n"


def await_marker(channel: transports.Channel, text: bytes, marker: Marker, host: Host) -> bytes:
    """Send what boots our program and skip whatever rc files print; the bytes behind the marker."""
    # A program that ended at once says on its output why, which is more than that it takes no input.
    with contextlib.suppress(LinkLost):
        channel.send(text)
    seen, deadline, echoed = b"", time.monotonic() + BOOT_SECONDS, False
    while marker.text not in seen:
        if not echoed and marker.echo in seen:
            echoed, deadline = True, time.monotonic() + _ECHO_SECONDS
        try:
            seen += receive_early(channel, host, deadline, seen)
        except NodeUnusable:
            if echoed:
                raise _somebody_else_reads(host, seen) from None
            raise
        if len(seen) > 16 << 20:
            raise NodeUnusable("the log-in shell prints without end", where=host.name, lines=last_lines(seen))
    marker.before, _, rest = seen.partition(marker.text)
    return rest


def _somebody_else_reads(host: Host, seen: bytes) -> NodeError:
    what = "logged in, but what we send to our program comes back: something else there reads it"
    step = "look at the start-up files of the log-in shell: they must neither replace it (`exec ...`) nor read its input"
    return NodeUnusable(what, where=host.name, lines=last_lines(seen.partition(b"exec(")[0]), next_step=step)


def receive_early(channel: transports.Channel, host: Host, deadline: float, seen: bytes = b"") -> bytes:
    """What comes next, before the monotonic ``deadline``; NodeUnusable, with the last lines of ``seen``, when nothing does."""
    try:
        received = channel.receive(wire.CHUNK, max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        raise NodeUnusable(
            f"logged in, but no answer within {BOOT_SECONDS:g} s",
            where=host.name,
            lines=last_lines(seen),
            next_step="look at what the log-in shell's start-up files wait for",
        ) from None
    if received:
        return received
    status, stderr = channel.close()
    raise _did_not_start(host, status, last_lines(seen + b"\n" + stderr))


def _did_not_start(host: Host, status: int | None, lines: list[str]) -> NodeError:
    text = "\n".join(lines).lower()
    if status == 127 or "not found" in text or ("no such file" in text and "errno" not in text):
        python = f"the environment {host.venv}" if host.venv else host.python or "python3"
        step = "install Python 3.8 or later there, or name an interpreter with `python:` in cluster.yaml"
        if host.venv:
            step = "make it there, or name one that is there with `venv:` in cluster.yaml, of that host alone if need be"
        return NodeUnusable(f"{python} was not found there", where=host.name, lines=lines, next_step=step)
    if lines and "[Errno" in lines[-1]:
        what = f"the agent could not be put there: {lines[-1].partition(']')[2].strip()}"
        return NodeUnusable(what, where=host.name, next_step="name a place with room that is yours by `workdir:` in cluster.yaml")
    step = "look at what the start-up files of the log-in shell do: they must neither end nor replace it, nor eat its input"
    what = f"logged in, but our program did not start (exit status {status})"
    return NodeUnusable(what, where=host.name, lines=lines, next_step=step)


def too_old(host: Host, version: str) -> NodeError:
    """What to say of a Python that our program does not run on."""
    step = "name a newer interpreter with `python:` in cluster.yaml"
    return NodeUnusable(f"Python {version} there is older than 3.8", where=host.name, next_step=step)


def last_lines(text: bytes) -> list[str]:
    """The last five lines that are not blank."""
    return [line for line in text[-4096:].decode(errors="replace").splitlines() if line.strip()][-5:]

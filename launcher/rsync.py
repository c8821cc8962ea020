"""Push some files with rsync through a channel that is open already.

rsync insists on starting its remote shell itself.  We give it a `sh` of two `cat`s between rsync's pipes and ours, which
first hands us the words that rsync wants to run there; those are started through the connection, and two threads pump.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from launcher.agent.wire import CHUNK
from launcher.errors import LinkLost, NodeError, NodeUnusable
from launcher.transports import Channel

START = 'exec 5<&0 6>&1 </dev/null >/dev/null; exec "$@"'
"""Starts rsync with our two pipes at descriptors that its remote shell inherits."""

BRIDGE = """shift
printf '%s\\0' "$@" '' >&6
exec 7<&0
cat <&7 >&6 5<&- 6>&- 7<&- &
exec 6>&- 7<&-
cat <&5 5<&-
kill $!
"""
"""rsync's remote shell: tells the words of the server (not the host's name), an empty one behind them, then carries bytes.

It ends when the server's output does, for rsync waits for that.  Its descriptors have one digit: dash knows no others.
"""

FAR = 'cd "$1" && shift && exec "$@"'
"""On the node: rsync's server in the mirror's tree, so that no path needs quoting."""

SENTENCES = {
    1: "this rsync does not know an option that is needed",
    2: "the two rsync versions do not understand each other",
    4: "this rsync cannot do what is asked of it",
    5: "rsync's server did not start",
    12: "rsync's stream broke off",
    13: "rsync could not report what went wrong",
    14: "rsync's pipes failed",
    127: "rsync's server could not be run",
}
"""Exit codes of rsync(1) after which the files can still be sent whole."""


class DeltaImpossible(Exception):
    """rsync cannot be used between here and there; the text is the reason, for a note."""


def push(start: Callable[[Sequence[str]], Channel], host: str, code: Path, paths: Sequence[str], there: str | None, tree: str,
         progress: Callable[[int], None]) -> None:
    """Bring the files ``paths`` of ``code`` into ``tree`` on the node ``host``, as deltas against what lies there.

    ``there`` is rsync's path on the node, None where there is none; ``start`` opens a channel to a program there;
    ``progress`` gets the bytes sent so far.  Raises DeltaImpossible, and NodeUnusable with rsync's last lines; a broken
    link is a DeltaImpossible too, which the next request will find out about.
    """
    here = shutil.which("rsync")
    if not here or not there:
        raise DeltaImpossible("no rsync here" if not here else "no rsync there")
    # -I: we know which files differ; rsync would take equal sizes and times within one second for equal files.
    with TemporaryDirectory(prefix="launcher-rsync-") as scratch:
        bridge, names = os.path.join(scratch, "bridge.sh"), os.path.join(scratch, "names")
        Path(bridge).write_text(BRIDGE)
        Path(names).write_bytes(b"\0".join(os.fsencode(path) for path in paths) + b"\0")
        shell = f"/bin/sh {shlex.quote(bridge)}"
        words = [here, "-lptI", "--from0", f"--files-from={names}", "-e", shell, "--", f"{code}/", "node:./"]
        rsync = subprocess.Popen(["/bin/sh", "-c", START, "sh", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, bufsize=0, env=dict(os.environ, LC_ALL="C"))
        try:
            lines = _carry(rsync, start, ["/bin/sh", "-c", FAR, "sh", tree, there], progress)
        finally:
            rsync.kill()
            rsync.wait()
    _judge(host, rsync.returncode, lines)


def _carry(rsync: subprocess.Popen[bytes], start: Callable[[Sequence[str]], Channel], prefix: Sequence[str],
           progress: Callable[[int], None]) -> list[str]:
    """Start the server that ``rsync`` asks for and pump until both have ended; what they said."""
    assert rsync.stdin and rsync.stdout and rsync.stderr
    with rsync.stdin as down, rsync.stdout as up, rsync.stderr as said:
        words, rest = _server_words(up)
        if not words:
            return said.read().decode(errors="replace").splitlines()
        try:
            channel = start([*prefix, *words[1:]])
        except NodeError as error:
            raise DeltaImpossible(f"no second channel ({error.what})") from error
        receiving = threading.Thread(target=_receive, args=(channel, down), daemon=True)
        sending = threading.Thread(target=_send, args=(up, rest, channel, progress), daemon=True)
        receiving.start()
        sending.start()
        here = said.read()
        rsync.wait()
        sending.join()
        receiving.join()
        there = channel.close()[1]
    return (there + here).decode(errors="replace").splitlines()


def _server_words(up: IO[bytes]) -> tuple[list[str], bytes]:
    """(what rsync wants to run on the node, the bytes that came behind it); no words when rsync ended before."""
    received = b""
    while b"\0\0" not in received:
        block = up.read(CHUNK)
        if not block:
            return [], b""
        received += block
    words, _, rest = received.partition(b"\0\0")
    return [os.fsdecode(word) for word in words.split(b"\0")], rest


def _send(up: IO[bytes], block: bytes, channel: Channel, progress: Callable[[int], None]) -> None:
    sent = 0
    try:
        while block := block or up.read(CHUNK):
            channel.send(block)
            sent += len(block)
            progress(sent)
            block = b""
        channel.finish()
    except LinkLost:
        up.close()


def _receive(channel: Channel, down: IO[bytes]) -> None:
    with contextlib.suppress(LinkLost, BrokenPipeError):
        while block := channel.receive(CHUNK):
            view = memoryview(block)
            while view:
                view = view[os.write(down.fileno(), view):]
    down.close()


def _judge(host: str, status: int, lines: list[str]) -> None:
    """Raise what rsync's exit code and words mean."""
    if status == 0:
        return
    full = [line for line in lines if "No space left" in line or "Disk quota" in line]
    if status in SENTENCES and not full:
        raise DeltaImpossible(f"{SENTENCES[status]} (rsync status {status}: {(lines or ['it said nothing'])[-1]})")
    raise NodeUnusable(full[0] if full else f"rsync failed with status {status}", where=host, lines=lines[-5:],
                       next_step="make room there" if full else "see rsync(1) for the status, then submit again")

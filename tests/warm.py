"""The launcher's command line, started warm: forked from a process that has loaded it, where a test wants its answer alone.

What a command does is the same as with ``python -m launcher``: it is a process with arguments, an environment, a directory
and streams of its own, and runs ``launcher/__main__.py`` from its first line.  It saves what Python does to load the same
modules again, a fifth of a second of a core for each of more than a thousand starts.  What a start itself promises (what it
loads, how soon it listens to a signal, closed streams) is tested with cold ones.

Run as a program, this file is the process that is forked: requests come through a socket, with the streams of a command.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
_READ_AT_THE_START = ("PYTHON", "LC_", "LANG", "TZ")
"""beginnings of names of variables that Python reads once"""
_asking = threading.Lock()


def launcher(
    words: Sequence[str | bytes],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    errors: str = "strict",
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and until nobody holds its streams any more; stdin is empty.

    ``errors``: what becomes of bytes that are no text.  After ``timeout`` seconds it is killed: subprocess.TimeoutExpired.
    """
    server, read_once = _server()
    if _read_at_the_start(env) != read_once:
        command = [sys.executable, "-m", "launcher", *words]
        return subprocess.run(
            command, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors=errors,
            timeout=timeout, check=False,
        )  # fmt: skip
    request = {"words": list(map(os.fsdecode, words)), "env": dict(env), "cwd": os.fspath(cwd or os.getcwd())}
    pipes = _ask(server, json.dumps(request).encode())
    pid = _started(pipes[-1])
    out, err, code = _read_all(pipes, time.monotonic() + timeout)
    if not code:
        os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(list(words), timeout, out, err)
    return subprocess.CompletedProcess(list(words), int(code), _text(out, errors), _text(err, errors))


@cache
def _server() -> tuple[socket.socket, dict[str, str]]:
    """A connection to the process that has loaded the command line, whose end it sees; and what that has read of variables."""
    ours, its = socket.socketpair()
    nothing = subprocess.DEVNULL
    # It belongs to no test: what is left of one is found, and ended, by the LAUNCHER_HOME of its environment.
    nobodys = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")}
    process = subprocess.Popen(
        [sys.executable, __file__, str(its.fileno())], env=nobodys,
        pass_fds=[its.fileno()], stdin=nothing, stdout=nothing, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    its.close()
    atexit.register(_dismiss, ours, process)
    return ours, _read_at_the_start(os.environ)


def _dismiss(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Nobody makes a request any more: the process sees that, and ends."""
    connection.close()
    process.wait()


def _read_at_the_start(env: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in env.items() if name.startswith(_READ_AT_THE_START)}
    # This checkout is where modules come from in any case.
    path = [part for part in found.pop("PYTHONPATH", "").split(os.pathsep) if part not in ("", str(ROOT))]
    return {**found, "PYTHONPATH": os.pathsep.join(path)}


def _ask(server: socket.socket, request: bytes) -> list[int]:
    """Send a request; returns where its stdout, its stderr, and its pid and exit code can be read."""
    pairs = [os.pipe() for _ in range(3)]
    with open(os.devnull, "rb") as nothing, _asking:
        head = len(request).to_bytes(4, "big")
        socket.send_fds(server, [head], [nothing.fileno(), *(writing for _, writing in pairs)])
        server.sendall(request)
    for _, writing in pairs:
        os.close(writing)
    return [reading for reading, _ in pairs]


def _started(told: int) -> int:
    """The command's pid, once there is one; its time begins then, however long the process that is forked has been loading."""
    digits = b""
    while not digits.endswith(b" "):
        digit = os.read(told, 1)
        if not digit:
            raise EOFError("the process that commands are forked from has ended")
        digits += digit
    return int(digits)


def _read_all(pipes: Sequence[int], deadline: float) -> list[bytes]:
    """What comes out of each, until all are closed or time is over; closes them."""
    read = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                content = os.read(key.fd, 65536)
                read[key.fd] += content
                if not content:
                    selector.unregister(key.fd)
    for pipe in pipes:
        os.close(pipe)
    return list(read.values())


def _text(content: bytes, errors: str) -> str:
    """As subprocess has it, line ends included."""
    return io.TextIOWrapper(io.BytesIO(content), errors=errors).read()


def _serve(connection: socket.socket) -> None:
    """Answer requests until nobody can make one any more."""
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that wait for commands
    while True:
        head, streams, _, _ = socket.recv_fds(connection, 4, 4)
        if not head:
            return
        request = json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        if os.fork() == 0:
            connection.close()
            _attend(request, streams)
        for stream in streams:
            os.close(stream)


def _load() -> None:
    """What most commands load."""
    for name in ("click", "pydantic", "yaml", "ClusterShell.NodeSet", "launcher.api", "launcher.following", "launcher.screen"):
        __import__(name)
    for path in (ROOT / "launcher" / "cli").glob("[a-z]*.py"):
        __import__(f"launcher.cli.{path.stem}")


def _attend(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Start the command, tell its pid, wait for it and tell its exit code, as subprocess has it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *its, told = streams
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _become(request, its)
    for stream in its:
        os.close(stream)
    os.write(told, b"%d " % pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(told, b"%d" % code)
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Go on as an interpreter that was started with ``-m launcher``; how it ends is Python's affair."""
    import runpy

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv[1:] = request["words"]
    runpy.run_module("launcher", run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    _serve(socket.socket(fileno=int(sys.argv[1])))

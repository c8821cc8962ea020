"""A node in this process: the agent's operations answer as they do behind a real link, data frames included."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.agent import inputs, mirror, outputs
from launcher.agent.layout import Layout
from launcher.errors import LinkLost, NodeUnusable
from launcher.model import Host

OPS = {**mirror.OPS, **outputs.OPS, **inputs.OPS}


class Session:
    """The far side's view of one request."""

    def __init__(self, workdir: Path, job: str, rank: int) -> None:
        self.layout = Layout(str(workdir))
        self.job = job
        self.rank = rank
        self.held: dict[str, Any] = {}
        self.notes: list[str] = []
        self.feed: Iterator[bytes] = iter(())
        self.on_data: Callable[[int, int, bytes], None] | None = None

    def note(self, message: str) -> None:
        self.notes.append(message)

    def receive_data(self) -> Iterator[bytes]:
        yield from self.feed

    def send_data(self, stream: int, offset: int, chunk: bytes) -> None:
        assert self.on_data
        self.on_data(stream, offset, chunk)


class FakePeer:
    """Speaks with a Session; `asked` tells which operations were used, `lose_after` cuts the link after so many data frames."""

    def __init__(self, workdir: Path, job: str = "job-1", rank: int = 0, environment: dict[str, str] | None = None) -> None:
        self.host = Host(f"node{rank}", f"node{rank}")
        self.rank = rank
        self.session = Session(workdir, job, rank)
        self.asked: list[str] = []
        self.lose_after: int | None = None
        self.environment = environment
        self.seen: Callable[[int], object] = lambda size: None
        """called with the size of each data frame"""

    def ask(self, op: str, timeout: float | None = None, on_data: Callable[[int, int, bytes], None] | None = None,
            feed: Iterable[bytes] | None = None, **arguments: Any) -> dict[str, Any]:
        self.asked.append(op)
        self.session.feed = self._counted(feed or ())
        self.session.on_data = None if on_data is None else self._cut(on_data)
        try:
            return OPS[op](self.session, arguments)  # type: ignore[no-any-return, no-untyped-call]
        except OSError as error:
            raise NodeUnusable(f"{error.strerror}: {_text(error.filename)}", where=self.host.name) from error
        except ValueError as error:
            raise NodeUnusable(str(error), where=self.host.name) from error

    def _counted(self, feed: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in feed:
            self._tick()
            yield chunk

    def _cut(self, on_data: Callable[[int, int, bytes], None]) -> Callable[[int, int, bytes], None]:
        def take(stream: int, offset: int, chunk: bytes) -> None:
            self._tick()
            self.seen(len(chunk))
            on_data(stream, offset, chunk)

        return take

    def _tick(self) -> None:
        if self.lose_after is not None:
            if self.lose_after == 0:
                raise LinkLost("the connection broke", where=self.host.name)
            self.lose_after -= 1

    def open(self, words: Sequence[str]) -> PipeChannel:
        return PipeChannel(words, self.environment)

    def close(self) -> None:
        self.session.held and mirror.release(self.session, {})  # type: ignore[no-untyped-call]


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


class PipeChannel:
    """A program on this machine as a Channel."""

    def __init__(self, words: Sequence[str], environment: dict[str, str] | None) -> None:
        self._program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                                         env=environment)

    def send(self, data: bytes) -> None:
        assert self._program.stdin
        try:
            view = memoryview(data)
            while view:
                view = view[self._program.stdin.write(view):]
        except BrokenPipeError as error:
            raise LinkLost("the program is gone") from error

    def receive(self, limit: int, timeout: float | None = None) -> bytes:
        assert self._program.stdout
        return self._program.stdout.read(limit)

    def finish(self) -> None:
        assert self._program.stdin
        self._program.stdin.close()

    def close(self) -> tuple[int | None, bytes]:
        assert self._program.stderr
        said = self._program.stderr.read()
        return self._program.wait(), said

"""What the fixtures that start a store's server have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from tests.data.oss import Oss
from tests.data.s3 import S3

Server = TypeVar("Server", S3, Oss)


def running(server: Server) -> Iterator[Server]:
    """The server, for as long as a fixture lasts."""
    yield server
    server.stop()


def with_a_bucket(server: Server) -> Server:
    """The server, with a bucket that is the test's own."""
    server.new_bucket()
    return server

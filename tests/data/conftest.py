"""Servers that speak S3's protocol, and OSS's, one each for all tests of a worker; each test has a bucket of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.data.oss import Oss
from tests.data.s3 import S3
from tests.data.servers import Server, running, with_a_bucket


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    yield from running(S3())


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """With what a person has set in the environment who uses it."""
    return _used(s3_server, monkeypatch)


@pytest.fixture(scope="session")
def oss_server() -> Iterator[Oss]:
    yield from running(Oss())


@pytest.fixture
def oss(oss_server: Oss, monkeypatch: pytest.MonkeyPatch) -> Oss:
    """With what a person has set in the environment who uses it."""
    return _used(oss_server, monkeypatch)


def _used(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return with_a_bucket(server)

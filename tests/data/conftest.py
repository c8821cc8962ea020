"""Servers that speak S3's protocol, and OSS's, one each for all tests of a worker; each test has a bucket of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.data.oss import Oss
from tests.data.s3 import S3


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    server = S3()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """With what a person has set in the environment who uses it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    s3_server.new_bucket()
    return s3_server


@pytest.fixture(scope="session")
def oss_server() -> Iterator[Oss]:
    server = Oss()
    yield server
    server.stop()


@pytest.fixture
def oss(oss_server: Oss, monkeypatch: pytest.MonkeyPatch) -> Oss:
    """With what a person has set in the environment who uses it."""
    for name, value in oss_server.environment.items():
        monkeypatch.setenv(name, value)
    oss_server.new_bucket()
    return oss_server

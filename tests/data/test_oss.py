"""Alibaba Cloud's OSS: where credentials are looked for, and what a server that refuses is told to have said."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from launcher.agent.credentials import options
from launcher.errors import StorageFailed
from launcher.objects import Depot, Entry, Stopped
from launcher.publish import verify
from tests.data.oss import KEY_ID, SECRET, TOKEN, Oss


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second try is not waited for."""
    monkeypatch.setattr("launcher.objects._PAUSES", (0.0, 0.0))


def told_by(uri: str) -> str:
    """The error of whoever lists what is there."""
    with pytest.raises(StorageFailed) as error:
        Depot(uri).listing()
    return str(error.value)


@pytest.mark.parametrize(
    ("environment", "saved", "wanted"),
    [
        (
            {"OSS_ACCESS_KEY_ID": "a", "OSS_ACCESS_KEY_SECRET": "b", "OSS_ENDPOINT": "e"},
            "[Credentials]\naccessKeyID=x\naccessKeySecret=y\nendpoint=f\nstsToken=t\n",
            {"key": "a", "secret": "b", "endpoint": "e"},
        ),
        (
            {"OSS_ACCESS_KEY_ID": "a", "OSS_ACCESS_KEY_SECRET": "b", "OSS_SESSION_TOKEN": "t"},
            "",
            {"key": "a", "secret": "b", "token": "t"},
        ),
        (
            {"ALIBABA_CLOUD_ACCESS_KEY_ID": "a", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "b", "ALIBABA_CLOUD_SECURITY_TOKEN": "t"},
            "[default]\nendpoint = e\n",
            {"key": "a", "secret": "b", "token": "t", "endpoint": "e"},
        ),
        (
            {"OSS_ACCESS_KEY_ID": "half"},
            "[Credentials]\nlanguage=EN\nendpoint=e%20\naccessKeyID=x\naccessKeySecret=%y\nstsToken=t\n",
            {"key": "x", "secret": "%y", "token": "t", "endpoint": "e%20"},
        ),
        ({}, "", {}),
    ],
)
def test_credentials_are_looked_for_in_the_environment_then_in_the_file_of_ossutil(
    tmp_path: Path, environment: dict[str, str], saved: str, wanted: dict[str, str]
) -> None:
    """A key without its secret is none; what does not concern OSS is asked nothing."""
    file = tmp_path / "config"
    file.write_text(saved)
    environment["OSSUTIL_CONFIG_FILE"] = str(file)
    assert options("oss://bucket/x", environment) == options("simplecache::oss://bucket/x", environment) == {"oss": wanted}
    assert options("s3://bucket/x", environment) == {}


def test_a_file_that_is_not_ossutil_s_is_named_and_not_shown(tmp_path: Path) -> None:
    """A line of it may be the secret."""
    file = tmp_path / "config"
    file.write_text(f"[Credentials]\n{SECRET}\n")
    with pytest.raises(ValueError, match="is not what `ossutil config` writes") as error:
        options("oss://b/x", {"OSSUTIL_CONFIG_FILE": str(file)})
    assert SECRET not in str(error.value)


def test_a_listing_of_many_answers_is_whole(oss: Oss) -> None:
    """In folders, with odd names, and a file that has the folder's own name; marks change with the content alone."""
    oss.page = 2
    wanted = {"a b": b"1", "deep/er/ü+&%.bin": b"22", "deep/x": b"", "z": b"333"}
    for path, content in wanted.items():
        oss.put(f"set/{path}", content)
    oss.put("set2", b"other")
    oss.put("set/folder/", b"")
    depot = Depot(f"oss://{oss.bucket}/set")
    listed = depot.listing()
    assert {path: entry.size for path, entry in listed.items()} == {path: len(content) for path, content in wanted.items()}
    assert {path: b"".join(depot.read(path)) for path in listed} == wanted
    oss.put("set/z", b"444")
    assert depot.listing()["z"] != listed["z"] and depot.listing()["a b"] == listed["a b"]
    assert Depot(f"oss://{oss.bucket}/set2").listing() == {"": Entry(5, oss.buckets[oss.bucket]["set2"].etag.strip('"'))}
    assert Depot(f"oss://{oss.bucket}/none").listing() == {} and len(Depot(f"oss://{oss.bucket}").listing()) == 5


def test_a_large_file_goes_in_parts_and_after_a_stop_goes_on(oss: Oss, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte is counted once; a wish to stop leaves nothing under its name; what is there is not sent again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("ossfs.core.SIMPLE_TRANSFER_THRESHOLD", 1 << 20)
    monkeypatch.setattr("oss2.defaults.multipart_threshold", 1 << 20)
    monkeypatch.setattr("oss2.defaults.part_size", 1 << 20)
    content = os.urandom(6_000_000)
    (tmp_path / "large").write_bytes(content)
    stop, sent = threading.Event(), list[int]()
    with pytest.raises(Stopped):
        Depot(f"oss://{oss.bucket}/m", stop).put("large", tmp_path / "large", lambda size: stop.set() if size else None)
    assert oss.objects() == {} and 0 < sum(map(len, next(iter(oss.uploads.values())).values())) < len(content)
    before = len(oss.asked)
    depot = Depot(f"oss://{oss.bucket}/m")
    depot.put("large", tmp_path / "large", sent.append)
    assert sum(sent) == len(content) and oss.get("m/large") == content and not oss.uploads
    assert sum(asked.startswith("PUT") for asked in oss.asked[before:]) < 6
    assert b"".join(depot.read("large")) == content


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"OSS_ACCESS_KEY_SECRET": "wrong"}, "SignatureDoesNotMatch: The request signature we calculated does not match"),
        ({"OSS_ACCESS_KEY_ID": "LTAIOTHER"}, "InvalidAccessKeyId: The OSS Access Key Id you provided does not exist"),
        ({"OSS_ACCESS_KEY_ID": ""}, "AccessDenied: Anonymous access is forbidden for this operation."),
    ],
)
def test_who_may_not_is_told_so_in_the_server_s_words(
    oss: Oss, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], words: str
) -> None:
    """Reading, writing and checking alike, at the first try, with what to do; nobody is told that nothing is there."""
    for name, value in {"OSSUTIL_CONFIG_FILE": "/nowhere", **environment}.items():
        monkeypatch.setenv(name, value)
    uri = f"oss://{oss.bucket}/x"
    with pytest.raises(StorageFailed) as writing:
        Depot(uri).put("a", b"a")
    with pytest.raises(StorageFailed) as checking:
        verify(uri, "model.json")
    for text in (told_by(uri), str(writing.value), str(checking.value)):
        assert words in text and "OSS_ACCESS_KEY_ID, OSS_ACCESS_KEY_SECRET" in text and uri in text and SECRET not in text
    assert oss.asked == []


def test_a_place_that_may_be_written_to_and_not_be_listed_is_not_taken_for_empty(oss: Oss) -> None:
    """Something that is there would be written over."""
    oss.put("x/a", b"a")
    oss.denied = {"LIST"}
    assert "AccessDenied: You have no right to access this object" in told_by(f"oss://{oss.bucket}/x")


def test_a_token_goes_along(oss: Oss, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has run out is told apart."""
    oss.tokens = {TOKEN}
    uri = f"oss://{oss.bucket}/x"
    assert "InvalidSecurityToken: The security token you provided is invalid." in told_by(uri)
    monkeypatch.setenv("OSS_SESSION_TOKEN", TOKEN)
    Depot(uri).put("a", b"a")
    assert list(Depot(uri).listing()) == ["a"] and oss.environment["OSS_ACCESS_KEY_ID"] == KEY_ID


@pytest.mark.usefixtures("at_once")
def test_what_helps_is_said_of_servers_buckets_and_endpoints_that_are_not_there(
    oss: Oss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a line each, with the next step."""
    uri = f"oss://{oss.bucket}/x"
    missing = told_by("oss://no-such-bucket/x")
    assert "there is no such thing: NoSuchBucket" in missing and "check the URI" in missing
    monkeypatch.setenv("OSS_ENDPOINT", "http://127.0.0.1:9")
    silent = told_by(uri)
    assert "Connection refused" in silent and "try again once it answers" in silent
    monkeypatch.setenv("OSSUTIL_CONFIG_FILE", "/nowhere")
    monkeypatch.delenv("OSS_ENDPOINT")
    unknown = told_by(uri)
    assert "the endpoint of OSS is not known" in unknown and "set OSS_ENDPOINT" in unknown

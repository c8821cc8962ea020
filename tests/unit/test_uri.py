"""What must not stand in a URI is found wherever it stands, and is shown to nobody."""

from __future__ import annotations

import pytest

from launcher import uri

SECRET = "Wq/9x+zz"


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIA:{}@bucket/path",
        "ftp://user:{}@host/x",
        "ftp://user:a?b#{}@host/x",
        "https://t-{}@host/x",
        "simplecache::s3://AKIA:{}@bucket/x",
        "filecache::https://user:{}@host/x::s3://bucket/x",
        "zip://a.txt::https://user:{}@host/x.zip",
        "https://host/x?X-Amz-Signature={}",
        "https://host/x?a=1&%73ig={}",
        "https://host/x#access_token={}",
        "https://host/x;token={}",
        "gs://bucket/x?Signature={}&Expires=1",
    ],
)
def test_a_secret_in_a_uri_is_refused_and_masked(text: str) -> None:
    """A password with slashes in it, as S3's secret keys have, one in the middle of a chain, one behind ?, # or ;."""
    secret = SECRET if not text.startswith("https://t-") else SECRET.replace("/", "")
    whole = text.format(secret)
    assert uri.secret_in(whole) is not None
    (problem,) = uri.problems(whole)
    for shown in (uri.masked(whole), problem):
        assert secret not in shown and "zz" not in shown and "****" in shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a:b@c",
        "https://host:8443/@scope/pkg@1:2",
        "az://container@account.blob/x",
        "s3://bucket/x?versionId=3",
        "https://host/keys.txt?page=2#top",
        "https://host/a;b=c/d",
        "file:///data/a@b",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    """A port, an @ in a path, a version."""
    assert uri.secret_in(text) is None and uri.masked(text) == text


def test_what_others_say_is_told_without_the_secrets_of_its_uris() -> None:
    """A server that leads on to a signed address, an endpoint with a password."""
    said = "403, url='https://h/x?X-Amz-Signature=zz', not http://u:zz@h:1/b nor s3://bucket/a: no"
    assert uri.hidden(said) == "403, url='https://h/x?****', not http://****@h:1/b nor s3://bucket/a: no"

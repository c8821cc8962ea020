"""What ossfs leaves out of OSS: listings that hide no refusal, and errors in words.

Where it may not list, ossfs says that there is nothing; so listings are asked of oss2, the client below it, whose errors
are seen as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_PAGE = 1000
"""names in one answer, the most that OSS tells at once"""


def listing(system: Any, root: str) -> Iterator[tuple[str, int, str]]:
    """(path below ``root``, bytes, ETag) of every object there; "" is the path of the one that has that very name.

    ``system``: ossfs's.  Raises oss2's errors.
    """
    import oss2

    name, _, key = root.strip("/").partition("/")
    bucket = _bucket(system, name)
    prefix = f"{key}/" if key else ""
    several = False
    for found in oss2.ObjectIterator(bucket, prefix=prefix, max_keys=_PAGE):
        several = True
        yield found.key[len(prefix) :], found.size, found.etag
    if key and not several:
        try:
            one = bucket.head_object(key)
        except oss2.exceptions.NotFound:
            return
        yield "", one.content_length, one.etag


def _bucket(system: Any, name: str) -> Any:
    """oss2's own, with the credentials that ossfs was given."""
    import oss2

    told = system.storage_options
    key, secret, token = told.get("key"), told.get("secret"), told.get("token")
    auth = oss2.StsAuth(key, secret, token) if token else oss2.Auth(key, secret) if key else oss2.AnonymousAuth()
    if not told.get("endpoint"):
        raise ValueError("endpoint is required")  # ossfs's own words
    return oss2.Bucket(auth, told["endpoint"], name, app_name="launcher")


def words(error: BaseException) -> str | None:
    """What OSS, or its client, has said, in a line; None for an error that comes from neither."""
    told = next((one for one in (error, error.__cause__) if type(one).__module__ == "oss2.exceptions"), None)
    if told is None:
        return None
    code, message = getattr(told, "code", ""), getattr(told, "message", "")
    if code or message:
        return f"{code}: {message}".strip(": ")
    status, body = getattr(told, "status", 0), str(getattr(told, "body", "") or "")
    return body.removeprefix("RequestError: ") or f"HTTP status {status}"

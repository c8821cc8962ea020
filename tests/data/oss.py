"""A server that speaks the protocol of Alibaba Cloud's OSS, on this machine and in this process; as much of it as oss2 uses.

Who asks is proved by the signature of the Authorization header (version 1), as the real one does; nothing is readable by
everybody.  Buckets are the first part of the path, as for any endpoint that is an address.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import itertools
import socket
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

KEY_ID = "LTAITESTTESTTEST"
SECRET = "0ss-s3cr3t-that-must-not-be-written-down"
"""the secret access key of everybody who uses it"""
TOKEN = "t0ken-that-must-not-be-written-down"
_NO_MORE_PARTS = "<IsTruncated>false</IsTruncated><NextPartNumberMarker>0</NextPartNumberMarker>"
_SIGNED = {"uploads", "uploadId", "partNumber", "bucketInfo", "objectMeta", "acl", "delete", "append", "position",
           "continuation-token", "security-token", "location", "stat"}  # fmt: skip
"""parameters that are part of what is signed"""


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str, **more: str) -> None:
        super().__init__(code)
        self.status = status
        told = {"Code": code, "Message": message, "RequestId": "5F00", "HostId": "127.0.0.1", **more}
        self.body = _xml("Error", "".join(f"<{name}>{escape(text)}</{name}>" for name, text in told.items()))


class Oss:
    """One server and the bucket that a test has for itself."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.asked: list[str] = []
        """`PUT bucket/key` and the like, of every request that was let in"""
        self.tokens: set[str] = set()
        """where there are some, a key alone does not do"""
        self.denied: set[str] = set()
        """methods that nobody has a right to; LIST is one"""
        self.page = 1000
        """so many names of a listing at most are told at once"""
        self.bucket = ""
        self._server = _Server(("127.0.0.1", 0), type("Answers", (_Answers,), {"oss": self}))
        threading.Thread(target=self._server.serve_forever, name="oss", daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> Mapping[str, str]:
        """What a person has set who uses it."""
        return {"OSS_ACCESS_KEY_ID": KEY_ID, "OSS_ACCESS_KEY_SECRET": SECRET, "OSS_ENDPOINT": self.endpoint}

    def new_bucket(self) -> str:
        """The name of an empty bucket; whatever a test has changed before is as it was."""
        self.tokens, self.denied, self.page = set(), set(), 1000
        self.asked.clear()
        self.bucket = f"bucket-{next(self._numbers)}"
        self.buckets[self.bucket] = {}
        return self.bucket

    def put(self, key: str, content: bytes) -> None:
        self.buckets[self.bucket][key] = Stored(content)

    def objects(self, prefix: str = "") -> dict[str, int]:
        """{key: size} of what is in the bucket."""
        return {key: len(one.content) for key, one in sorted(self.buckets[self.bucket].items()) if key.startswith(prefix)}

    def get(self, key: str) -> bytes:
        """An object's bytes."""
        return self.buckets[self.bucket][key].content

    def stop(self) -> None:
        """No more answers; its buckets are gone."""
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()


class _Server(ThreadingHTTPServer):
    """One that can end the connections, too, that somebody keeps for later."""

    def __init__(self, *given: Any) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(*given)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Stored:
    """One object; a new one for every time that it is written."""

    _clock = itertools.count(1_700_000_000)

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.etag = f'"{hashlib.md5(content).hexdigest().upper()}"'
        self.time = next(self._clock)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    oss: Oss

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *said: object) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            split = urlsplit(self.path)
            query = dict(parse_qsl(split.query, keep_blank_values=True))
            bucket, _, key = unquote(split.path).lstrip("/").partition("/")
            _check_signature(self.oss, self.command, bucket, key, query, self.headers)
            method = "LIST" if self.command == "GET" and bucket and not key and "bucketInfo" not in query else self.command
            if method in self.oss.denied:
                raise Refused(403, "AccessDenied", "You have no right to access this object because of bucket acl.")
            if bucket not in self.oss.buckets:
                raise Refused(404, "NoSuchBucket", "The specified bucket does not exist.", BucketName=bucket)
            self.oss.asked.append(f"{method} {bucket}/{key}")
            status, headers, answer = getattr(self, f"_{method.lower()}")(self.oss.buckets[bucket], key, query, body)
        except Refused as refused:
            status, headers, answer = refused.status, {"Content-Type": "application/xml"}, refused.body
        self.send_response(status)
        for name, value in {"x-oss-request-id": "5F00", "Content-Length": str(len(answer)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    def _list(self, bucket: dict[str, Stored], key: str, query: dict[str, str], body: bytes) -> Any:
        """Both versions; names are told as URLs have them."""
        second = query.get("list-type") == "2"
        after = query.get("continuation-token" if second else "marker") or query.get("start-after", "")
        limit = min(int(query.get("max-keys") or 100), self.oss.page)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        names = [name for name in _grouped(sorted(bucket), prefix, delimiter) if name > after]
        shown, more = names[:limit], len(names) > limit
        assert query.get("encoding-type") == "url"
        told = [("EncodingType", "url"), ("Prefix", quote(prefix)), ("MaxKeys", str(limit)), ("IsTruncated", str(more).lower())]
        told += [("NextContinuationToken" if second else "NextMarker", quote(shown[-1]))] if more else []
        text = "".join(f"<{name}>{value}</{name}>" for name, value in told)
        for name in shown:
            one = bucket.get(name)
            if one is None or (delimiter and name.endswith(delimiter) and name != prefix):
                text += f"<CommonPrefixes><Prefix>{quote(name)}</Prefix></CommonPrefixes>"
                continue
            fields = {"Key": quote(name), "LastModified": _iso(one.time), "ETag": one.etag, "Type": "Normal",
                      "Size": str(len(one.content)), "StorageClass": "Standard"}  # fmt: skip
            text += "<Contents>" + "".join(f"<{tag}>{escape(value)}</{tag}>" for tag, value in fields.items()) + "</Contents>"
        return 200, {"Content-Type": "application/xml"}, _xml("ListBucketResult", text)

    def _get(self, bucket: dict[str, Stored], key: str, query: dict[str, str], body: bytes) -> Any:
        if "bucketInfo" in query:
            return 200, {}, _xml("BucketInfo", f"<Bucket><Name>x</Name><CreationDate>{_iso(0)}</CreationDate></Bucket>")
        if "uploadId" in query:
            parts = self.oss.uploads.get(query["uploadId"])
            if parts is None:
                raise Refused(404, "NoSuchUpload", "The specified upload does not exist.", UploadId=query["uploadId"])
            return 200, {}, _xml("ListPartsResult", "".join([_NO_MORE_PARTS, *map(_part, parts.items())]))
        status, headers, found = self._head(bucket, key, query, body)
        wanted = self.headers.get("Range")
        if wanted is None:
            return status, headers, found
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(found)), len(found) - 1)
        if start >= len(found):
            # Where nobody asks for the standard's behaviour all of it is sent.
            if self.headers.get("x-oss-range-behavior") == "standard":
                raise Refused(416, "InvalidRange", "The requested range cannot be satisfied")
            return status, headers, found
        return 206, {**headers, "Content-Range": f"bytes {start}-{end}/{len(found)}"}, found[start : end + 1]

    def _head(self, bucket: dict[str, Stored], key: str, query: dict[str, str], body: bytes) -> Any:
        if key not in bucket:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.", Key=key)
        one = bucket[key]
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted.strip('"') != one.etag.strip('"'):
            raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
        headers = {"ETag": one.etag, "Last-Modified": formatdate(one.time, usegmt=True), "x-oss-object-type": "Normal"}
        return 200, {"Content-Type": "application/octet-stream", **headers}, one.content

    def _put(self, bucket: dict[str, Stored], key: str, query: dict[str, str], body: bytes) -> Any:
        if "uploadId" in query:
            self.oss.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, {"ETag": Stored(body).etag}, b""
        source = self.headers.get("x-oss-copy-source")
        if source is not None:
            other, _, name = unquote(source).lstrip("/").partition("/")
            body = self.oss.buckets[other][name].content
        bucket[key] = Stored(body)
        copied = _xml("CopyObjectResult", f"<ETag>{escape(bucket[key].etag)}</ETag>") if source is not None else b""
        return 200, {"ETag": bucket[key].etag}, copied

    def _post(self, bucket: dict[str, Stored], key: str, query: dict[str, str], body: bytes) -> Any:
        if "uploads" in query:
            upload = f"upload-{len(self.oss.uploads)}"
            self.oss.uploads[upload] = {}
            return 200, {}, _xml("InitiateMultipartUploadResult", f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId>")
        parts = self.oss.uploads.pop(query["uploadId"])
        numbers = [int(node.text or "") for node in ET.fromstring(body).iter("PartNumber")]
        bucket[key] = Stored(b"".join(parts[number] for number in numbers))
        return 200, {"ETag": bucket[key].etag}, _xml("CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key>")

    def _delete(self, bucket: dict[str, Stored], key: str, query: dict[str, str], body: bytes) -> Any:
        if "uploadId" in query:
            self.oss.uploads.pop(query["uploadId"], None)
        else:
            bucket.pop(key, None)
        return 204, {}, b""


def _check_signature(oss: Oss, method: str, bucket: str, key: str, query: Mapping[str, str], headers: Any) -> None:
    """Raises Refused unless whoever asks has the secret, and a token where one is wanted."""
    scheme, _, told = (headers.get("Authorization") or "").partition(" ")
    key_id, _, signature = told.partition(":")
    if scheme != "OSS":
        raise Refused(403, "AccessDenied", "Anonymous access is forbidden for this operation.")
    if key_id != KEY_ID:
        raise Refused(403, "InvalidAccessKeyId", "The OSS Access Key Id you provided does not exist in our records.",
                      OSSAccessKeyId=key_id)
    if oss.tokens and headers.get("x-oss-security-token") not in oss.tokens:
        raise Refused(403, "InvalidSecurityToken", "The security token you provided is invalid.")
    own = sorted((name.lower(), value) for name, value in headers.items() if name.lower().startswith("x-oss-"))
    signed = "&".join(f"{name}={value}" if value else name for name, value in sorted(query.items()) if name in _SIGNED)
    resource = (f"/{bucket}/{key}" if bucket else "/") + (f"?{signed}" if signed else "")
    lines = [method, *(headers.get(name) or "" for name in ("Content-MD5", "Content-Type", "Date"))]
    text = "\n".join([*lines, "".join(f"{name}:{value}\n" for name, value in own) + resource])
    wanted = base64.b64encode(hmac.new(SECRET.encode(), text.encode(), hashlib.sha1).digest()).decode()
    if not hmac.compare_digest(wanted, signature):
        message = "The request signature we calculated does not match the signature you provided."
        told = {"OSSAccessKeyId": key_id, "SignatureProvided": signature, "StringToSign": text}
        raise Refused(403, "SignatureDoesNotMatch", message, **told)
    parsedate_to_datetime(headers.get("Date"))


def _grouped(keys: list[str], prefix: str, delimiter: str) -> Iterator[str]:
    """The keys below a prefix; of those with the delimiter after it what comes before, once."""
    last = None
    for key in keys:
        if not key.startswith(prefix):
            continue
        head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        name = prefix + head + found if found else key
        if name != last:
            last = name
            yield name


def _part(numbered: tuple[int, bytes]) -> str:
    number, content = numbered
    fields = {"PartNumber": str(number), "LastModified": _iso(0), "ETag": Stored(content).etag, "Size": str(len(content))}
    return "<Part>" + "".join(f"<{tag}>{escape(value)}</{tag}>" for tag, value in fields.items()) + "</Part>"


def _iso(seconds: int) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _xml(root: str, inside: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}>{inside}</{root}>'.encode()

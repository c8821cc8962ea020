"""URIs as fsspec takes them (s3://bucket/key, oss://…, https://…, file:///…): what they mean, and what must not stand in them.

Pure but for `nearest`, which looks at this machine's folders, and `missing_package`, which looks whether a package is installed
and imports none but fsspec's list of protocols.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*://")
_LOCAL = ("file", "local")
OBJECT_STORES = ("s3", "s3a", "oss", "gs", "gcs", "abfs", "abfss", "az", "adl")
"""protocols whose files appear whole or not at all; elsewhere a file is written under another name and renamed"""
READ_ONLY = ("http", "https", "data", "zip", "tar", "git", "github")
_IN_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_END, _BETWEEN = re.compile(r"[?#;]"), re.compile(r"[?#;&]")
_SECRET = re.compile(r"token|secret|passw|credential|signature|access.?key|api.?key|\A(?:sig|key|auth)\Z", re.IGNORECASE)
_MASK = "****"


def said(value: object) -> str | None:
    """The path or URI that a value is, or stands for; None where it is neither (a path of bytes is none)."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        return None
    return text if isinstance(text, str) else None


def odd(text: str) -> str | None:
    """Why no path, variable or word of a command can be this text, as the end of a sentence; None where one can."""
    if "\0" in text:
        return "has a NUL in it"
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "has half a character in it (a lone surrogate)"
    return None


def is_uri(text: str) -> bool:
    """Whether it begins with a protocol."""
    return _URI.match(text) is not None


def protocol(uri: str) -> str:
    """`s3` of s3://bucket/key, in small letters."""
    return uri.partition("://")[0].rpartition("::")[2].lower()


def is_web(uri: str) -> bool:
    """Whether a web server is asked, which knows files and pages, no folders."""
    return "::" not in uri and is_uri(uri) and protocol(uri) in ("http", "https")


def local_path(text: str) -> str | None:
    """The path on this machine that a text names: a path as it is, that of file:///…; None for any other URI."""
    if not is_uri(text):
        return text
    return unquote(text.partition("://")[2]) if "::" not in text and protocol(text) in _LOCAL else None


def nearest(path: Path) -> Path:
    """The path itself, or the last folder above it that exists, as far as this user may see; a name too long is none."""
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def join(uri: str, path: str) -> str:
    """The URI of ``path`` below a folder's."""
    return f"{uri.rstrip('/')}/{path}" if path else uri


def name_of(uri: str) -> str:
    """The last part of a URI's path, as a file's name."""
    path = uri.partition("://")[2].split("?")[0].split("#")[0]
    return unquote(path.rstrip("/").rpartition("/")[2]) or "data"


def secret_in(uri: str) -> str | None:
    """What of a URI, or of one that is chained to it by `::`, must not be written down, in a few words; None: nothing."""
    return next((found for piece in uri.split("::") if (found := _secret_of(piece))), None)


def _secret_of(piece: str) -> str | None:
    scheme, user, _, more = _taken_apart(piece)
    if ":" in user:
        return "a password"
    if user and scheme.lower() in ("http", "https"):
        return "a user or token before the @"
    names = [unquote(word.partition("=")[0]) for word in _BETWEEN.split(more)]
    odd = [name for name in names if _SECRET.search(name)]
    return f"a secret ({odd[0]}=…)" if odd else None


def _taken_apart(piece: str) -> tuple[str, str, str, str]:
    """(protocol, what stands before the @, what comes then and is before any ?, # or ;, the rest)."""
    scheme, colon, rest = piece.partition("://")
    scheme, rest = (scheme, rest) if colon else ("", piece)
    user = _user_of(rest)
    end = _END.search(rest, len(user))
    return scheme, user, rest[len(user) : end.start()] if end else rest[len(user) :], rest[end.start() :] if end else ""


def _user_of(rest: str) -> str:
    """What stands before the @; what follows a colon there may be a port, or a password, which may have any letter in it."""
    first = re.split("[/?#;]", rest, maxsplit=1)[0]
    if "@" in first:
        return first.rpartition("@")[0]
    _, colon, port = first.partition(":")
    return rest.rpartition("@")[0] if colon and not port.isdigit() else ""


def masked(uri: str) -> str:
    """The URI without what must not be shown."""
    return "::".join(_masked(piece) for piece in uri.split("::"))


def hidden(text: str) -> str:
    """What somebody else said, with every URI in it masked: a server may have led on to one that lets anybody in."""
    return _IN_WORDS.sub(lambda found: masked(found[0]), text)


def _masked(piece: str) -> str:
    if _secret_of(piece) is None:
        return piece
    scheme, user, place, more = _taken_apart(piece)
    return f"{scheme}://{_MASK if user else ''}{place}{more[0] + _MASK if more else ''}"


def missing_package(uri: str) -> str | None:
    """Why this machine's Python cannot read such a URI, with the package to install; None where it can."""
    from importlib.util import find_spec

    from fsspec.registry import get_filesystem_class, known_implementations, registry

    for one in uri.partition("://")[0].lower().split("::"):
        if one in registry:
            continue
        known = known_implementations.get(one)
        if known is None:
            usual = ", ".join(name for name in ("s3", "oss", "gs", "https", "file") if name in known_implementations)
            return f"no such protocol: {one} (there are {usual} and others, see the documentation of fsspec)"
        package = known["class"].partition(".")[0]
        if package == "fsspec":
            # It brings the class, which may need more.
            try:
                get_filesystem_class(one)
            except ImportError as error:
                return f"{one}:// cannot be read: {error}"
        elif find_spec(package) is None:
            return f"{one}:// needs the package {package}: pip install {package}"
    return None


def problems(uri: str, writing: bool = False) -> list[str]:
    """What is wrong with a URI that a job reads or (``writing``) writes, a sentence each; none of them shows a secret."""
    shown = masked(uri)
    secret = secret_in(uri)
    if secret:
        step = "leave it out: credentials are taken from the environment, ~/.aws and the like"
        return [f"{shown}: {secret} must not stand in a URI, which is written down; {step}"]
    if local_path(uri) is not None:
        path = local_path(uri) or ""
        return [] if path.startswith("/") and "\0" not in path else [f"{shown}: write file:///absolute/path"]
    if protocol(uri) == "memory":
        return [f"{shown}: what is in memory:// is seen by one process alone, and gone with it"]
    if writing and protocol(uri) in READ_ONLY:
        return [f"{shown}: nothing can be written to {protocol(uri)}://"]
    if not uri.partition("://")[2].strip("/"):
        return [f"{shown}: it names no bucket or path"]
    missing = missing_package(uri)
    return [f"{shown}: {missing}"] if missing else []

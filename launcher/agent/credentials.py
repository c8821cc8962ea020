"""Credentials that a store's own package does not look for: ossfs wants those of OSS handed over, others know the usual places.

They are read where the data are read or written: here by the machine that submits, on a node by the node.

Runs on the nodes: standard library only, Python 3.8.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

OSS_CONFIGS = ("~/.ossutilconfig",)
_OSS_VARIABLES = (
    ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_SESSION_TOKEN"),
    ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN"),
)
"""key, secret and token; the first names are those of oss2 and ossutil, the others those of all of Alibaba Cloud's programs"""


def options(uri: str, environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What fsspec is to be called with for a URI, by protocol: {"oss": {key, secret, token, endpoint}}, of them what is known.

    The environment comes first, then the file that `ossutil config` writes.  ValueError for a file that is none.
    """
    if not any(piece.partition("://")[0].lower() == "oss" for piece in uri.split("::")):
        return {}
    saved = _of_ossutil(environ.get("OSSUTIL_CONFIG_FILE") or OSS_CONFIGS[0])
    found = {}
    for key, secret, token in _OSS_VARIABLES:
        if environ.get(key) and environ.get(secret):
            found = {"key": environ[key], "secret": environ[secret], "token": environ.get(token)}
            break
    else:
        if saved.get("accesskeyid") and saved.get("accesskeysecret"):
            found = {"key": saved["accesskeyid"], "secret": saved["accesskeysecret"], "token": saved.get("ststoken")}
    found["endpoint"] = environ.get("OSS_ENDPOINT") or saved.get("endpoint")
    return {"oss": {name: value for name, value in found.items() if value}}


def _of_ossutil(path):
    """{name in small letters: value} of the section that the first or second version of ossutil writes."""
    import configparser

    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        return {}
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        # Its words would show the line, which may have the secret.
        raise ValueError("%s is not what `ossutil config` writes" % path) from None
    section = next((name for name in ("Credentials", "default") if parser.has_section(name)), None)
    return dict(parser.items(section)) if section else {}

"""JSON without importing `json`, whose `re` and `enum` would be a quarter of the CPU time of an agent's start.

The interpreter's own C parts do the work (Modules/_json.c, the same arguments from 3.8 on); where they are missing or
differ, `json` itself is used.  Runs on the nodes: standard library only, Python 3.8.
"""

from __future__ import annotations


class _Reader:
    """What json.JSONDecoder is to the C scanner."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(word: str) -> object:
        raise ValueError("%s is no JSON" % word)


def _refuse(value: object) -> object:
    raise TypeError("%s has no JSON form" % type(value).__name__)


def _own() -> tuple:  # type: ignore[type-arg]
    """(dumps, loads) from the C parts."""
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    scan = make_scanner(_Reader)
    encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)

    def dumps(value: object) -> str:
        return "".join(encode(value, 0))

    def loads(text: str) -> object:
        text = text.strip()
        try:
            value, end = scan(text, 0)
        except StopIteration:
            raise ValueError("no JSON: %r" % text[:60]) from None
        if end != len(text):
            raise ValueError("more than one JSON value: %r" % text[end : end + 60])
        return value

    if loads(dumps({"a": [1, 2.5, None, True, "\u00fc\ud800"]})) != {"a": [1, 2.5, None, True, "\u00fc\ud800"]}:
        raise ImportError
    return dumps, loads


def _standard() -> tuple:  # type: ignore[type-arg]
    import json

    return (lambda value: json.dumps(value, separators=(",", ":"))), json.loads


try:
    dumps, loads = _own()
except (ImportError, TypeError, AttributeError):
    dumps, loads = _standard()

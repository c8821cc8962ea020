"""The words of the wire between the near side and an agent: length-prefixed frames, both ways, after a marker.

Runs on the nodes: standard library only, Python 3.8.  The near side imports it from here, so that both ends agree.

A frame is a 4-byte big-endian payload length, one byte of kind, and the payload:

    MESSAGE   a JSON object: a request {"id", "op", ...}, its reply {"id", "ok": ...} or {"id", "error": {...}},
              or a note {"note": ...} that answers nothing
    DATA      2 bytes of stream number, 8 bytes of offset, then the bytes that stand at that offset
    BEAT      empty; sent when nothing else was for BEAT_SECONDS, so that silence means a dead peer
"""

from __future__ import annotations

import _struct as struct  # the interpreter's own part: `struct` would be looked for among files

from launcher.agent import lean

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Never imported on a node: it would take a tenth of the agent's start.
    from typing import Any, List, Tuple

MESSAGE, DATA, BEAT = 1, 2, 3
BEAT_SECONDS = 5.0
NEAR_PATIENCE = 20.0
"""seconds of silence after which the near side takes the connection for dead"""
FAR_PATIENCE = 60.0
"""seconds of silence after which an agent's session ends itself (what it started goes on)"""
CHUNK = 256 * 1024
MAX_PAYLOAD = 64 << 20

_HEADER = struct.Struct(">IB")
_DATA = struct.Struct(">HQ")


class ProtocolError(Exception):
    """The peer sent something that is no frame of ours."""


def message(value: Any) -> bytes:
    """The frame that carries a JSON object."""
    payload = lean.dumps(value).encode()
    return _HEADER.pack(len(payload), MESSAGE) + payload


def data(stream: int, offset: int, chunk: bytes) -> bytes:
    """The frame that carries the bytes of a stream from an offset on."""
    return _HEADER.pack(len(chunk) + _DATA.size, DATA) + _DATA.pack(stream, offset) + chunk


def beat() -> bytes:
    """The frame that says: still here."""
    return _HEADER.pack(0, BEAT)


def split_data(payload: bytes) -> Tuple[int, int, bytes]:
    """(stream number, offset, bytes) of a DATA frame's payload; ProtocolError when it is too short."""
    if len(payload) < _DATA.size:
        raise ProtocolError("a data frame of %d bytes" % len(payload))
    stream, offset = _DATA.unpack_from(payload)
    return stream, offset, payload[_DATA.size :]


def raw(word):
    """The bytes of a word that came as JSON: UTF-8, lone surrogates for the bytes that are none."""
    return word.encode("utf-8", "surrogateescape")


def text(word):
    """The word that JSON carries for these bytes."""
    return word.decode("utf-8", "surrogateescape")


class Decoder:
    """Cuts a byte stream into frames, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> List[Tuple[int, bytes]]:
        """The list of (kind, payload) that ``received`` completes; ProtocolError when it is no frame of ours."""
        self._buffer += received
        frames: List[Tuple[int, bytes]] = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._buffer, start)
            if kind not in (MESSAGE, DATA, BEAT) or length > MAX_PAYLOAD:
                raise ProtocolError("a frame of kind %d and %d bytes" % (kind, length))
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append((kind, bytes(self._buffer[start + _HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames

"""A node that lies: it stands in for python3 on the far side, runs the real agent, and changes what that sends.

    hostile.py MODE REAL_PYTHON WORDS...
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from typing import Any

HEADER = struct.Struct(">IB")


def frame(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind) + payload


def altered(mode: str, value: dict[str, Any]) -> dict[str, Any] | bytes:
    """The message that goes out in the place of the agent's."""
    told = value.get("ok")
    if mode == "names" and "name" in value.get("note", {}):
        return {"note": {**value["note"], "name": "../../../stolen"}}
    if mode == "notes" and "note" in value:
        return {"note": [1]}
    if mode == "deep" and "note" in value:
        return b"[" * 100000 + b"]" * 100000
    if mode == "hello" and isinstance(told, dict) and "hostname" in told:
        return {"id": value["id"], "ok": {"hostname": "x"}}
    if mode == "no object" and isinstance(told, dict):
        return {"id": value["id"], "ok": "yes"}
    if mode == "listing" and isinstance(told, dict) and "entries" in told:
        names = ["/abs", "../up", "model/../../up", "model//x", "model/\0", "model/.."]
        entries = [{"path": name, "size": 4, "mtime": 0, "mode": 0o600} for name in names]
        links = [{"path": f"model/{name}", "link": to} for name, to in (("out", "/etc"), ("up", "../../.."), ("file/x", "y"))]
        return {"id": value["id"], "ok": {**told, "entries": entries + links}}
    if mode == "types" and isinstance(told, dict) and "entries" in told:
        return {"id": value["id"], "ok": {**told, "entries": [{"path": 7, "size": "x"}, {"path": "model/a", "size": -1}, 3]}}
    if mode == "free" and isinstance(told, dict) and "free" in told:
        return {"id": value["id"], "ok": {"same": "no", "free": {"x": 1}}}
    if mode == "needs" and isinstance(told, dict) and "need" in told:
        return {"id": value["id"], "ok": {**told, "need": ["../../../../etc/passwd", "a"]}}
    if mode == "no need" and isinstance(told, dict) and "need" in told:
        return {"id": value["id"], "ok": {**told, "need": 7}}
    if mode == "placed" and isinstance(told, dict) and list(told) == ["path"]:
        return {"id": value["id"], "ok": {"path": ["x"]}}
    if mode == "checkpoints" and isinstance(told, dict) and "entries" in told:
        names = ["checkpoints/../../../up", "checkpoints//x", "checkpoints/\0", "checkpoints/..", "/abs", "../up"]
        entries = [{"path": name, "size": 4, "mtime": 0, "mode": 0o600} for name in names]
        odd = [{"path": "checkpoints/s", "size": "x"}, {"path": "checkpoints/n", "size": -1, "mtime": [1]}]
        return {"id": value["id"], "ok": {**told, "entries": [*told["entries"], *entries, *odd]}}
    if mode == "endless" and isinstance(told, dict) and "entries" in told:
        return {"id": value["id"], "ok": {**told, "entries": [{"path": "checkpoints/big", "size": 1 << 60, "mtime": 0}]}}
    return value


def changed(mode: str, kind: int, payload: bytes) -> bytes:
    if kind != 1:
        return frame(kind, payload)
    value = altered(mode, json.loads(payload))
    return frame(1, value if isinstance(value, bytes) else json.dumps(value).encode())


def pump(mode: str, source: Any) -> None:
    """Pass on what precedes the frames (the marker and a sign), then frame by frame what `changed` makes of them."""
    out = sys.stdout.buffer
    start = source.read(33)
    if mode == "garbage":
        start += os.urandom(65536)
    if mode == "huge":
        start += HEADER.pack(0xFFFFFFFF, 1)
    out.write(start)
    out.flush()
    while header := source.read(HEADER.size):
        length, kind = HEADER.unpack(header)
        out.write(changed(mode, kind, source.read(length)))
        out.flush()


def main() -> None:
    mode, real, *words = sys.argv[1:]
    agent = subprocess.Popen([real, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None

    def feed() -> None:
        while data := os.read(0, 65536):
            os.write(agent.stdin.fileno(), data)
        agent.stdin.close()

    threading.Thread(target=feed, daemon=True).start()
    pump(mode, agent.stdout)
    sys.exit(agent.wait())


if __name__ == "__main__":
    main()

"""What a node's messages hold, as far as they can be believed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launcher.errors import NodeUnusable
from launcher.model import Host


class Told(dict[str, Any]):
    """What a node answered; a key that it left out is its fault, not ours."""

    where = ""

    def __missing__(self, key: str) -> Any:
        raise NodeUnusable(f"our program there answers without {key!r}", where=self.where)


def message_of(payload: bytes) -> dict[str, Any]:
    """The JSON object in a MESSAGE frame's payload; ValueError when it is none."""
    try:
        value = json.loads(payload)
    except RecursionError:
        raise ValueError("JSON nested without end") from None
    if not isinstance(value, dict):
        raise ValueError(f"a message that is no object: {payload[:80]!r}")
    return value


def settled(reply: Mapping[str, Any], host: Host) -> Told:
    """What a reply answers; NodeUnusable when it says that the node refuses, or says nothing."""
    told, error = reply.get("ok"), reply.get("error")
    if isinstance(told, dict):
        answer = Told(told)
        answer.where = host.name
        return answer
    error = error if isinstance(error, dict) else {}
    step = "free some space there, or name another `workdir:` in cluster.yaml" if error.get("kind") == "full" else ""
    raise NodeUnusable(str(error.get("message", "refused")), where=host.name, next_step=step)

"""What a node's messages hold, as far as they can be believed: which answers there are, and of what type.

No more is promised here than somebody on this side relies on; what an answer means is judged by whoever asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from launcher.errors import NodeUnusable
from launcher.model import Host


class Told(dict[str, Any]):
    """What a node answered; a key that it left out is its fault, not ours."""

    where = ""

    def __missing__(self, key: str) -> Any:
        raise NodeUnusable(f"our program there answers without {key!r}", where=self.where)


_READ, _SHOWN = 4000, 200
"""characters of a sentence, and of an answer that is none"""
Fits = Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 63


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


LONGEST = 1 << 17
"""characters of a text; what a node has to say is shorter"""


def is_text(value: Any) -> bool:
    """Of characters, and bytes that are none; JSON has halves of characters as well, which no file's name can hold."""
    if not isinstance(value, str) or len(value) > LONGEST:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _maybe(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _list(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _map(fits: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and all(map(is_text, value)) and all(map(fits, value.values()))


def _object(**keys: Fits) -> Fits:
    """An object, of which these keys, if they are there, fit."""
    return lambda value: isinstance(value, dict) and all(key not in value or fits(value[key]) for key, fits in keys.items())


def _pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_text, value))


_ANSWERS: Mapping[str, Fits] = {
    "node_hello": _object(
        hostname=is_text, user=is_text, uid=_count, boot_id=_maybe(is_text), python_version=is_text, time=_number, cpus=_count,
        gpus=_count, gpu_ids=_list(is_text), free_bytes=_number, free_inodes=_number, rsync=_maybe(is_text), job_dir=is_text,
        addresses=_list(_pair), reached_at=_list(is_text), logout=_map(_truth), directory_id=is_text, bin=_maybe(is_text),
        python=_maybe(is_text), programs=_map(_maybe(is_text)), claimed=_truth, slurm=_map(is_text), sees=_maybe(_truth),
    ),
    "preflight_clock": _object(time=_number),
    "node_start": _object(fresh=_truth, said=is_text),
    "node_follow": _object(claimed=_truth),
    "node_jobs": _object(jobs=_map(_object(alive=_truth))),
    "node_sweep": _object(ended=_list(_count), left=_list(_count)),
    "store_old": _object(stores=_map(_map(_count))),
    "store_drop": _object(removed=_truth),
    "mirror_begin": _object(same=_truth, rsync=_maybe(is_text), tree=is_text),
    "working_copy": _object(code=is_text),
    "probe_listen": _object(port=lambda value: _count(value) and 0 < value < 1 << 16),
    "probe_connect": _object(results=_map(_object(local=is_text, interface=_maybe(is_text), error=is_text))),
    "probe_locate": _object(own=_truth, interface=_maybe(is_text), address=is_text, resolved=_list(is_text), error=is_text),
    "inputs_link": _object(path=is_text),
    "outputs_list": _object(root=is_text),
    "outputs_strayed": _object(code=is_text, count=_count, files=_list(is_text)),
    "outputs_hash": _object(hashes=_map(is_text)),
    "outputs_fetch": _object(hashes=_list(_maybe(is_text)), unreadable=_map(is_text)),
    "environment_find": _object(
        python=_maybe(is_text), bin=_maybe(is_text), programs=_map(_maybe(is_text)), logs=is_text, prefix=is_text, name=is_text,
        shell=_maybe(is_text), program=is_text, id=is_text, image=is_text, rootless=_truth, uid=_count, gid=_count,
        groups=_list(_count), user=is_text, nvidia=_truth, amd=_truth, devices=_list(is_text),
        absent=is_text,
    ),
    "environment_run": _object(status=_maybe(_number), stdout=is_text, stderr=is_text),
    "environment_resolve": _object(paths=_map(_object(real=is_text, file=_truth, more=_list(is_text)))),
    "layer_build": _object(status=_maybe(_number)),
}  # fmt: skip
"""{operation: whether that is an answer to it}"""


def message_of(payload: bytes) -> dict[str, Any]:
    """The JSON object in a MESSAGE frame's payload; ValueError when it is none."""
    try:
        value = json.loads(payload)
    except RecursionError:
        raise ValueError("JSON nested without end") from None
    if not isinstance(value, dict):
        raise ValueError(f"a message that is no object: {payload[:80]!r}")
    return value


def settled(reply: Mapping[str, Any], host: Host, op: str) -> Told:
    """What a reply answers to ``op``; NodeUnusable when it says that the node refuses, nothing, or what is no answer to that."""
    told, error = reply.get("ok"), reply.get("error")
    if isinstance(told, dict):
        if not _ANSWERS.get(op, _object())(told):
            raise NodeUnusable(f"our program there gives no answer to {op}: {_cut(json.dumps(told), _SHOWN)}", where=host.name)
        answer = Told(told)
        answer.where = host.name
        return answer
    error = error if isinstance(error, dict) else {}
    step = "free some space there, or name another `workdir:` in cluster.yaml" if error.get("kind") == "full" else ""
    raise NodeUnusable(sentence(error.get("message", "refused")), where=host.name, next_step=step)


def sentence(said: object) -> str:
    """What a node says to people, as much of it as anybody reads."""
    return _cut(str(said), _READ)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"

"""How Slurm writes GPUs: what was asked for, what a node was given, and what a step sees.

asked for      4   a100:4   a100:2,v100:2                           --gpus, --gpus-per-node, --gpus-per-task
               gpu:4   gpu:a100:4   gpu                             --gres
given          gpu:2(IDX:0-1)   gpu:a100:2(IDX:0,3)   gpu:0         GRES= of `scontrol show job -d`
seen           0-3,7   0,1   MIG-<uuid>,GPU-<uuid>   (IDX:0-1)      SLURM_STEP_GPUS, CUDA_VISIBLE_DEVICES
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.record import dataclass

_COUNT = re.compile(r"(?:(?P<type>[A-Za-z_][\w.-]*):)?(?P<count>\d+)(?:\([^)]*\))?\Z", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z", re.ASCII)
_DEVICE = re.compile(r"[A-Za-z0-9_.:/-]+\Z", re.ASCII)
_SURROUNDED = re.compile(r"\((?:IDX:)?([^()]*)\)\Z")
_BETWEEN = re.compile(r",(?![^(]*\))")
"""a comma that does not stand inside of `(IDX:0,3)`"""
_MOST = 1024
"""GPUs of one node; more is a slip of the finger"""


@dataclass(frozen=True)
class Gpus:
    """A number of GPUs, and their type where all are of one."""

    count: int
    type: str | None


def asked(text: str) -> Gpus:
    """What --gpus and its like ask for: `4`, `a100:4`, several with commas between them.

    ValueError, with a sentence, for anything else.
    """
    matches = [_COUNT.match(part) for part in text.split(",")]
    if not all(matches):
        raise ValueError(f"{text!r} is no number of GPUs, such as 4 or a100:4")
    return _sum([Gpus(int(match["count"]), match["type"]) for match in matches if match])


def gres(text: str) -> Gpus:
    """The GPUs of a list of generic resources, as --gres takes it and as `scontrol show job -d` prints it.

    Other resources than `gpu` do not count; `gpu` alone is one.  ValueError for a gpu entry that cannot be read.
    """
    found = []
    for part in _BETWEEN.split(text):
        name, _, rest = part.removeprefix("gres:").removeprefix("gres/").replace("=", ":").partition(":")
        if name.partition("(")[0] != "gpu":
            continue
        plain = re.match(r"[A-Za-z_][\w.-]*\Z", rest)
        match = _COUNT.match(f"{rest}:1" if plain else rest or "1")
        if match is None:
            raise ValueError(f"{part!r} is no number of GPUs, such as gpu:4 or gpu:a100:4")
        found.append(Gpus(int(match["count"]), match["type"]))
    return _sum(found)


def _sum(parts: list[Gpus]) -> Gpus:
    types = {part.type for part in parts if part.count}
    return Gpus(sum(part.count for part in parts), types.pop() if len(types) == 1 else None)


def devices(text: str) -> list[str]:
    """The single devices of a list that a step sees: `0-3,7` and `(IDX:0-1)` as numbers, GPU and MIG names as they are.

    ValueError for a list that cannot be read; the empty list, and CUDA's `NoDevFiles`, are no devices.
    """
    match = _SURROUNDED.match(text)
    inner = match.group(1) if match else text
    if inner in ("", "NoDevFiles", "none", "void", "-1"):
        return []
    found: list[str] = []
    for item in inner.split(","):
        numbers = _RANGE.match(item)
        if numbers:
            low, high = int(numbers[1]), int(numbers[2] or numbers[1])
            if not low <= high < low + _MOST:
                raise ValueError(f"{text!r} is no list of GPUs: {item} does not count upwards")
            found += map(str, range(low, high + 1))
        elif _DEVICE.match(item):
            found.append(item)
        else:
            raise ValueError(f"{text!r} is no list of GPUs, such as 0-3,7")
    return found


def on_node(environ: Mapping[str, str]) -> int | None:
    """How many GPUs a task has on its node, from SLURM_GPUS_ON_NODE, SLURM_STEP_GPUS and CUDA_VISIBLE_DEVICES.

    None where Slurm speaks of no GPUs.  ValueError when one cannot be read, or when two of them disagree: a task that
    sees fewer GPUs than Slurm says it has would start processes that share one, or none.
    """
    told: dict[str, int] = {}
    count = environ.get("SLURM_GPUS_ON_NODE")
    if count is not None:
        told[f"SLURM_GPUS_ON_NODE={count}"] = asked(count).count
    for name in ("SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"):
        value = environ.get(name)
        # Outside of what Slurm gave, CUDA_VISIBLE_DEVICES is the user's own and says nothing of the step.
        if value is not None and (name != "CUDA_VISIBLE_DEVICES" or told):
            told[f"{name}={value}"] = len(devices(value))
    if len(set(told.values())) > 1:
        raise ValueError("Slurm's words about this node's GPUs disagree: " + ", ".join(told))
    return next(iter(told.values()), None)

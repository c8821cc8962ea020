"""A module of somebody's own: it goes to the nodes with its functions."""

from __future__ import annotations

import os
from typing import Any

FACTOR = 3


def place() -> tuple[int, int, str, str]:
    """Where one is."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["NODE_RANK"], os.environ["LOCAL_RANK"]


def scaled(value: Any, *, by: int = FACTOR) -> Any:
    """What needs the module around it."""
    return [value * by, int(os.environ["RANK"])]


def fails(rank: int, kind: str) -> int:
    """Raises on one rank, while the others wait."""
    import time

    if int(os.environ["RANK"]) != rank:
        time.sleep(300)
    if kind == "own":
        raise Odd("no text is like this")
    if kind == "kill":
        os.kill(os.getpid(), 9)
    if kind == "no file":
        os.stat("nowhere/at/all")
    if kind == "exit":
        raise SystemExit(0)
    if kind == "unknown":
        return object()  # type: ignore[return-value]
    raise KeyError("the key")


def forked(raises: bool) -> str:
    """Only a child comes back out of it."""
    if os.fork():
        os.wait()
        os._exit(0)
    if raises:
        raise ValueError("the child's")
    return "the child's"


def all_reduced() -> Any:
    """What torch.distributed makes of every rank's tensor."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    value = torch.full((2, 3), float(distributed.get_rank()), dtype=torch.bfloat16)
    distributed.all_reduce(value)
    distributed.destroy_process_group()
    return {"sum": value, "empty": torch.empty(0, 4), "model": torch.nn.Linear(2, 1).state_dict()}


class Odd(Exception):
    """An exception of nobody else's."""

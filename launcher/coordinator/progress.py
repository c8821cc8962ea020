"""How far the nodes are with a step, added up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_PROGRESS_SECONDS = 0.5
"""between two reports"""


class Progress:
    """Adds up what the nodes' threads report, and tells it now and then: at first, at the end, and twice a second."""

    def __init__(self, tell: Callable[[int, int], None], nodes: int) -> None:
        self._tell, self._count = tell, nodes
        self._nodes: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._last = 0.0

    def update(self, rank: int, done: int, total: int) -> None:
        with self._lock:
            self._nodes[rank] = (done, total)
            now = time.monotonic()
            over = len(self._nodes) == self._count and all(done == total for done, total in self._nodes.values())
            if now - self._last < _PROGRESS_SECONDS and not over:
                return
            self._last = now
            done, total = (sum(column) for column in zip(*self._nodes.values(), strict=True))
            self._tell(done, total)

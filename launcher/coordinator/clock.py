"""The time of a job's events, for people as well as for deadlines: wall clock at the start, steady from there on."""

from __future__ import annotations

import time


class Clock:
    """Seconds since the epoch that never jump: somebody who sets the machine's clock ends no job before its time.

    The next coordinator of the job begins with the clock as it is then.
    """

    def __init__(self) -> None:
        self._offset = time.time() - _steady()

    def now(self) -> float:
        """Seconds since the epoch, as the machine's clock would have it had nobody set it since."""
        return self._offset + _steady()


def _steady() -> float:
    # A laptop's sleep counts where the system can tell (Linux); CLOCK_MONOTONIC stands still meanwhile.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

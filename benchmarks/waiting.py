"""How long after the end of a job `launcher wait` returns."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks import measure
from benchmarks.measure import BenchFailed, Sample
from benchmarks.place import LAUNCHER, Place, events, first

WITHOUT_INOTIFY = (
    *(sys.executable, "-c"),
    "from launcher.agent import watch; watch._NONBLOCK_CLOEXEC = -1; from launcher.__main__ import main; main()",
)
"""the launcher as it is where another machine writes: the kernel tells it of no change"""


def late(place: Place, *options: str, program: Sequence[str] = LAUNCHER) -> Sample:
    """Seconds from the time in the end event until the process of `launcher wait` is gone."""
    place.unmeasured("submit", "--detach", *options, "--command", "sleep 2")
    folder = place.newest()
    with place.popen([*program, "wait", folder.name]) as process:
        process.communicate()
        returned = time.time()
    if process.returncode != 0:
        raise BenchFailed(f"launcher wait ended with {process.returncode}")
    measure.reap()
    return Sample(returned - first(events(folder), "end")["time"], 0.0)

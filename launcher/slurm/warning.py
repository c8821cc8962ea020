"""The signal by which Slurm says that a job's end is near: `--signal=B:USR2@90`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.model import SlurmOptions

DEFAULT = "B:USR2@90"
"""to the batch step alone, which passes it on, a minute and a half before the time limit"""
_CANCEL = {1: "SIGUSR1", 2: "SIGINT"}
_FALLBACK = "SIGUSR2"
_SECONDS = 60
"""sbatch's own, where the option names none"""


def of(options: SlurmOptions) -> tuple[int, float]:
    """(number, seconds before the time limit) of the signal that a job of these options is warned by."""
    return parse(str(options.sbatch.get("signal", DEFAULT)))


def parse(text: str) -> tuple[int, float]:
    """``text`` as after `--signal`.  ValueError for a signal that does not exist, or that already means an end."""
    name, _, seconds = text.rpartition(":")[2].partition("@")
    try:
        number = int(name) if name.isdigit() else int(signal.Signals[f"SIG{name.removeprefix('SIG')}"])
        known = signal.Signals(number).name
    except (KeyError, ValueError):
        raise ValueError(f"there is no signal {name}") from None
    if known in ("SIGTERM", "SIGINT", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGCHLD"):
        raise ValueError(f"{known} means something else already; take USR1 or USR2")
    return number, float(seconds or _SECONDS)


def cancel_signals(options: SlurmOptions) -> dict[int, str]:
    """By which signal the batch step hears at once that it is to stop: 1 with grace, 2 now.

    inotify does not cross machines, and some file systems hide a new file for a while.
    """
    taken = signal.Signals(of(options)[0]).name
    return {level: _FALLBACK if name == taken else name for level, name in _CANCEL.items()}


def may_come(options: SlurmOptions) -> list[str]:
    """Names, without SIG, of what may be sent to a batch step that does not listen yet, and must not end it.

    With a time limit shorter than the warning it comes at once.  No training runs then; a wish to stop is in the folder, too.
    """
    names = {signal.Signals(of(options)[0]).name, *_CANCEL.values(), _FALLBACK}
    return sorted(name.removeprefix("SIG") for name in names)

"""Looking after a job in Slurm's queue from any machine that sees its folder; nobody here runs for it.

`look` only reads.  `attend` and `cancel` act, in the one way that is open to us: scancel, and, once Slurm has said that
nothing of the job runs any more, the end that its batch step could not write.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from launcher import owner
from launcher.backends import batch, making
from launcher.backends.standing import Evidence, Standing, standing
from launcher.errors import SlurmSilent
from launcher.policy import View, fold
from launcher.slurm import ask
from launcher.store import Folder, read_json

Answer = ask.Report | ask.NoSuchJob | ask.NoAnswer
_ASK_SECONDS = (2.0, 15.0)
"""between two questions of all that attend to a job: at first, and once it has waited for long"""
_BEAT_SECONDS = 12.0
"""two heartbeats and some"""
_CANCEL_SECONDS = 5.0
"""so long is waited for Slurm to have taken a job out of its queue"""
_LAST_LINES = 12


def look(folder: Folder) -> tuple[View, Standing]:
    """What the folder tells, and where the job stands; Slurm is asked unless the end is written."""
    seen = fold(folder.read_events())
    if seen.end is not None:
        return seen, standing(seen, None, Evidence())
    answer = _answer(folder, haste=True)
    # Read after the question: a job that Slurm calls over has written all it ever will.
    seen = fold(folder.read_events())
    return seen, standing(seen, answer, _evidence(folder))


def attend(folder: Folder) -> str | None:
    """What whoever waits for a job does now and then: ask Slurm, unless the batch step shows that it lives or somebody just
    asked; and write the end, or carry out a wish to cancel, where the batch step cannot.

    Returns a sentence about a job that waits for Slurm, or of which Slurm says nothing.
    """
    if _beats(folder) or not _due(folder) or fold(folder.read_events()).end is not None:
        return None
    found = _act(folder)
    return found.reason_message if found.coordinator in ("queued", "unknown") else None


def _beats(folder: Folder) -> bool:
    """Whether the batch step has shown lately that it lives; a question to Slurm too many does no harm."""
    record = read_json(folder.owner)
    return owner.is_alive(record) and time.time() - float(record.get("heartbeat", 0)) < _BEAT_SECONDS


def cancel(folder: Folder, level: int) -> None:
    """Carry out the wish that stands in the folder.  SlurmSilent when Slurm cannot be told; the wish holds all the same."""
    number = batch.number_of(folder)
    report = _answer(folder, haste=True)
    seen = fold(folder.read_events())
    # On its way back into the queue, out of which whoever waits for its end takes it.
    leaves = seen.requeues > 0 and seen.coordinator is None
    if number is not None and isinstance(report, ask.Report) and _runs(report) and not leaves:
        hears = owner.is_alive(read_json(folder.owner)) or seen.coordinator is None
        if hears or level < 2:
            _scancel(folder, lambda: batch.tell(folder, number, level))
        else:
            _scancel(folder, lambda: batch.dequeue(folder, number))
        return
    if not isinstance(report, ask.NoAnswer):
        _act(folder)
    elif seen.end is None and not _beats(folder):
        step = "the job is stopped when it starts; `launcher cancel` again when Slurm answers takes it out of the queue"
        raise SlurmSilent("Slurm does not answer; the wish is written down", lines=report.words, next_step=step)
    # else its batch step lives, or did: it finds the wish in the folder.


def _act(folder: Folder) -> Standing:
    number, answer = batch.number_of(folder), _answer(folder)
    waits = isinstance(answer, ask.Report) and not answer.state.ended and not _runs(answer)
    if number is not None and waits and folder.cancel_level():
        _scancel(folder, lambda: batch.dequeue(folder, number))
        answer = _once_ended(folder)
    return _conclude(folder, answer)


def _scancel(folder: Folder, act: Callable[[], None]) -> None:
    """Have Slurm do it; a job that has ended since it was asked, as by the wish in its folder, needs nobody to tell it."""
    try:
        act()
    except SlurmSilent:
        answer = _answer(folder)
        if isinstance(answer, ask.NoAnswer) or (isinstance(answer, ask.Report) and not _over(answer)):
            raise


def _over(report: ask.Report) -> bool:
    return report.state.ended or report.state.reason_code == "Completing"


def _once_ended(folder: Folder) -> Answer | None:
    deadline = time.monotonic() + _CANCEL_SECONDS
    while True:
        answer = _answer(folder)
        if not isinstance(answer, ask.Report) or answer.state.ended or time.monotonic() > deadline:
            return answer
        # Nobody tells of it.
        time.sleep(0.1)


def _runs(report: ask.Report) -> bool:
    return report.state.reason_code in ("Running", "Completing")


def _conclude(folder: Folder, answer: Answer | None) -> Standing:
    """Where the job stands; the end is written if nobody else can write it any more."""
    with making.alone(folder) as alone:
        seen = fold(folder.read_events())
        found = standing(seen, answer, _evidence(folder))
        if alone and found.coordinator == "queued" and seen.coordinator is not None and not found.over:
            # Its batch step had no time to say so, as with a node that failed.
            folder.append({"n": seen.count, "time": time.time(), **batch.requeued(seen, seen.requeues + 1)}, durable=True)
        if not alone or not found.over:
            return found
        end: dict[str, Any] = {
            "type": "end",
            "status": found.status.value,
            "reason_code": found.reason_code,
            "reason_message": found.reason_message,
            "exit_code": found.exit_code,
            "model": seen.model,
        }
        folder.environment.unlink(missing_ok=True)
        folder.append({"n": seen.count, "time": time.time(), **end}, durable=True)
        return found


def _answer(folder: Folder, haste: bool = False) -> Answer | None:
    number = batch.number_of(folder)
    if number is None:
        return None
    record = read_json(folder.slurm) or {}
    answer = ask.job_state(number, record.get("submitted_at"), name=folder.job_id, haste=haste)
    if isinstance(answer, ask.NoSuchJob) and record.get("cluster"):
        return _of_another_cluster(record["cluster"]) or answer
    return answer


def _of_another_cluster(ours: str) -> ask.NoAnswer | None:
    """Homes are shared by clusters, too: the Slurm of another one says nothing about our job."""
    try:
        asked = ask.config("ClusterName")
    except SlurmSilent as error:
        return ask.NoAnswer(error.lines or (error.what,))
    return None if asked == ours else ask.NoAnswer((f"this machine belongs to the cluster {asked}, the job to {ours}",))


def _evidence(folder: Folder) -> Evidence:
    submitted = (read_json(folder.slurm) or {}).get("submitted_at") or 0.0
    return Evidence(folder.cancel_level() > 0, time.time() - submitted, _log(folder), _beats(folder))


def _log(folder: Folder) -> tuple[str, ...] | None:
    """The last lines of what the batch step printed before it became a coordinator, or as one."""
    found = sorted(folder.batch.glob("*_log.out"))
    if not found:
        return None
    texts = [path.read_bytes().decode(errors="replace") for path in (*found, folder.coordinator_log) if path.exists()]
    return tuple("\n".join(texts).strip().splitlines()[-_LAST_LINES:])


def _due(folder: Folder) -> bool:
    """Whether it is time for somebody to ask; all that attend to the job share one mark in its folder."""
    mark = folder.batch / "asked"
    now = time.time()
    age = now - float((read_json(folder.slurm) or {}).get("submitted_at") or now)
    pause = min(max(age / 20, _ASK_SECONDS[0]), _ASK_SECONDS[1])
    try:
        if 0 <= now - mark.stat().st_mtime < pause:
            return False
    except FileNotFoundError:
        pass
    if folder.batch.is_dir():
        mark.touch()
    return True

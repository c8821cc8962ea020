"""One job, as code sees it: PAI's TrainingJob over a job folder.

Everything is read anew at every look, so a reason is never that of an earlier status; another process, or another person
with the folder, sees the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from launcher import api, arguments, channels
from launcher.arguments import warn, warn_once
from launcher.errors import CollectFailed, UnexpectedStatusException, WrongArguments
from launcher.model import Failure, from_json
from launcher.screen import Screen, ending, is_empty, print_table, strayed, when
from launcher.status import Status

if TYPE_CHECKING:
    from launcher.feed import Feed
    from launcher.planning import Request
    from launcher.store import Folder

class TrainingJob:
    """A job that was submitted, by whichever program.  ``TrainingJob.get(id)`` finds one, `list` all."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._feed: Feed | None = None
        self._reading = threading.RLock()

    @classmethod
    def get(cls, training_job_id: str) -> TrainingJob:
        """The job of that id, of that beginning of an id, or the `latest`; raises JobNotFound."""
        if not isinstance(training_job_id, str):
            wanted = "a job's id, the beginning of one, or `latest` is wanted"
            problem = f"training_job_id: {wanted}, not {arguments.kind(training_job_id)}"
            raise WrongArguments("no job can be looked for", problems=[problem], next_step="TrainingJob.list() has all there are")
        return cls(api.find(training_job_id))

    @property
    def training_job_id(self) -> str:
        """`<base name>-<YYYYMMDD>-<HHMMSS>-<4 letters>`."""
        return self._folder.job_id

    @property
    def training_job_name(self) -> str:
        """The name, made unique: it is the id, too."""
        return self._folder.job_id

    @property
    def status(self) -> str:
        """One of PAI's words: Creating … Succeed, Failed, Terminated."""
        return str(self.describe()["status"])

    @property
    def reason_code(self) -> str | None:
        """Why it ended, or waits, in a word."""
        told: str | None = self.describe()["reason_code"]
        return told

    @property
    def reason_message(self) -> str | None:
        """The same in a sentence, whole."""
        told: str | None = self.describe()["reason_message"]
        return told

    @property
    def failure(self) -> Failure | None:
        """What went wrong first: node, host, rank, traceback, log, hint; None while nothing has."""
        told = self.describe()["failure"]
        return None if told is None else from_json(Failure, told)

    @property
    def metrics(self) -> Sequence[dict[str, Any]]:
        """The numbers that its `metric_definitions` found in the logs so far, as `launcher metrics` shows them."""
        return api.metrics(self._folder)

    @property
    def console_uri(self) -> str:
        """Where to look at the job: its folder, as a file:// URI."""
        return self._folder.root.as_uri()

    def describe(self) -> dict[str, Any]:
        """All that is known, the document of `launcher status -o json`."""
        return api.describe(self._folder)

    def is_completed(self) -> bool:
        """True for the five statuses that no job leaves."""
        return Status(self.status).ended

    def is_succeeded(self) -> bool:
        """True once the command succeeded everywhere and its outputs are here."""
        return self.status == Status.SUCCEED.value

    def output_path(self, channel_name: str = "model") -> str:
        """Where the files of an output channel come to lie, a path here or a URI; nothing is looked at.

        Raises UsageError, which lists the channels there are, where the job has no such one.
        """
        return api.output_place(self._folder, channel_name)

    def wait(self, interval: float = 5, show_logs: bool = True) -> None:
        """Show what the job prints until it ends, from where the last `wait` of this object stopped.

        ``interval``: seconds between looks whether somebody still coordinates the job; what it prints is seen as it comes.
        Of several threads that wait by this object one shows it, and the others go on from there once it stops.
        Raises UnexpectedStatusException unless it succeeded.  Ctrl-C ends the waiting alone.
        """
        check_waiting(interval=interval, show_logs=show_logs)
        screen = Screen()
        try:
            with self._reading:
                self._follow(screen, interval, show_logs)
        except KeyboardInterrupt:
            screen.rest()
            name = self.training_job_id
            screen.note(f"the job goes on\n  next: launcher attach {name}; launcher cancel {name}")
            raise
        screen.rest()
        self.check()

    def _follow(self, screen: Screen, interval: float, show_logs: bool) -> None:
        from launcher import following
        from launcher.feed import Feed

        self._feed = self._feed or Feed(self._folder)
        try:
            # Whoever comes back to a job may be the first to notice that nobody coordinates it.
            news = api.ensure_coordinator(self._folder)
            if news:
                screen.note(news)
            following.follow(self._folder, screen, self._feed, quiet=not show_logs, every=interval)
        finally:
            self._feed.close()

    def check(self) -> None:
        """Raise UnexpectedStatusException where the job has ended, and not well."""
        if self.is_completed() and not self.is_succeeded():
            raise ended_otherwise(self._folder)

    def stop(self, now: bool = False) -> None:
        """Stop it on all nodes, with grace unless ``now``, and wait until it has ended; one that has ended stays as it is."""
        from launcher.following import until_end

        api.cancel(self._folder, 2 if now else 1)
        until_end(self._folder)

    def data(self, channel: str) -> str:
        """`output_path`, with a warning where the job has not succeeded or the channel is empty.

        Raises CollectFailed where the job succeeded and what was collected is not whole any more.
        """
        from launcher.manifest import MODEL, verify

        where = self.output_path(channel)
        told = self.status
        if told != Status.SUCCEED.value:
            warn(f"{self.training_job_id} has not succeeded: {told}; {where} may be missing or incomplete")
            return where
        problems = verify(self._folder.output)
        if problems:
            what = "what was collected is not whole any more"
            raise CollectFailed(what, where=str(self._folder.output), lines=problems, next_step="restore it, or train again")
        here = self._folder.output / channel
        # Checkpoints that are kept elsewhere are not brought here.
        if is_empty(here) and (here.is_dir() or str(here) == where):
            name = channels.variable(channels.OUTPUT, channel)
            elsewhere = strayed(api.view(self._folder)) if channel == MODEL else []
            what = f"{where} is empty: the command wrote nothing to ${name}, or it was not collected"
            warn("\n".join([what, *elsewhere]))
        return where

    def __repr__(self) -> str:
        return f"TrainingJob({self.training_job_id!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._folder,)

    def __eq__(self, other: object) -> bool:
        return self._folder.root == other._folder.root if isinstance(other, TrainingJob) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._folder.root)

    # Last, since in the body of the class it hides the built-in one.
    @classmethod
    def list(cls, status: str | None = None) -> Sequence[TrainingJob]:
        """All jobs, oldest first; with ``status`` those alone that are there now.  Raises WrongArguments for no such status."""
        known = [one.value for one in Status]
        if status is not None and not (isinstance(status, str) and status in known):
            problem = f"status: {status!r}: one of {', '.join(known)}"
            raise WrongArguments("no job can have this status", problems=[problem], next_step="use one of these")
        return [cls(api.find(job["job_id"])) for job in api.jobs() if status in (None, job["status"])]


def submit(request: Request, began: Callable[[TrainingJob], None] = lambda job: None) -> TrainingJob:
    """Plan the request, say where the job can be watched, and start it; raises UsageError before anything is left behind.

    ``began`` gets the job when from now on something may run: an interrupt later must not lose sight of it.
    """
    prepared = api.prepare(request)
    try:
        drafted = api.plan(request)
        for text in drafted.warnings:
            warn_once(text)
        screen, made = Screen(), drafted.plan
        job = TrainingJob(api.folder_of(made))
        notes: list[str] = []

        def announce() -> None:
            began(job)
            screen.begin(job._folder, made)
            screen.note(f"  launcher attach {made.job_id} shows it elsewhere, launcher cancel {made.job_id} stops it")

        api.submit(drafted, notes.append, announce, prepared)
        for text in notes:
            screen.note(text)
    except BaseException:
        if prepared is not None:
            prepared.dismiss()
        raise
    return job


def check_waiting(**said: Any) -> None:
    """Raise WrongArguments where what waiting was told cannot be."""
    checks = {"interval": arguments.interval, "show_logs": arguments.flag, "all_jobs": arguments.flag}
    arguments.complain("waiting cannot be told this", checks, said, manual="launcher.TrainingJob.wait")


def ended_otherwise(folder: Folder) -> UnexpectedStatusException:
    """The exception for a job that did not succeed, with all that is known of why."""
    told = api.describe(folder)
    failure = None if told["failure"] is None else from_json(Failure, told["failure"])
    known = {key: told[key] for key in ("job_id", "reason_code", "reason_message", "exit_code")}
    why = f"{folder.job_id}: {ending(folder, api.view(folder))}"
    return UnexpectedStatusException(why, told["status"], failure=failure, **known)


def wait_for_all(jobs: Sequence[TrainingJob], interval: float = 5) -> None:
    """Wait until all have ended, and print a table of them; raises UnexpectedStatusException for the first that failed."""
    from launcher.following import until_end

    for job in jobs:
        until_end(job._folder, every=interval)
    told = [job.describe() for job in jobs]
    rows: list[tuple[str, ...]] = [("JOB", "STATUS", "NODES", "STARTED", "ENDED", "REASON")]
    for one in told:
        times = (when(one["started_at"]), when(one["ended_at"]))
        rows.append((one["job_id"], one["status"], str(len(one["nodes"])), *times, one["reason_code"] or "-"))
    print_table(rows)
    for job in jobs:
        job.check()

"""Slurm's job states: one table from its words, long and short, to what we say of them."""

from __future__ import annotations

from launcher.record import dataclass


@dataclass(frozen=True)
class JobState:
    """One state of a job."""

    word: str
    """as squeue's %T, sacct's State and scontrol's JobState print it"""
    short: str
    """squeue's %t; empty for a flag that it does not show"""
    reason_code: str
    """our word, as in `reason_code` of a job that ended so"""
    ended: bool
    """no process of the job runs any more, and none will under this number unless it is requeued"""
    sentence: str


STATES = (
    JobState("PENDING", "PD", "Pending", False, "the job waits in Slurm's queue"),
    JobState("EXPEDITING", "", "Pending", False, "the job waits at the head of Slurm's queue"),
    JobState("CONFIGURING", "CF", "Configuring", False, "Slurm has given the job its nodes and makes them ready"),
    JobState("POWER_UP_NODE", "PO", "Configuring", False, "Slurm powers up the job's nodes"),
    JobState("RUNNING", "R", "Running", False, "the job has its nodes"),
    JobState("COMPLETING", "CG", "Completing", False, "the job is over, and Slurm ends what is left of it on its nodes"),
    JobState("STAGE_OUT", "SO", "Completing", False, "the job is over, and Slurm stages its burst buffer out"),
    JobState("UPDATE_DB", "UD", "Completing", False, "the job is over, and Slurm tells its database so"),
    JobState("SIGNALING", "SI", "Running", False, "Slurm sends the job a signal"),
    JobState("SUSPENDED", "S", "Suspended", False, "the job was suspended; its processes are stopped and its nodes given away"),
    JobState("STOPPED", "ST", "Suspended", False, "the job was stopped by SIGSTOP and holds its nodes"),
    JobState("RESIZING", "RS", "Running", False, "the job's nodes are being changed"),
    JobState("REQUEUED", "RQ", "Requeued", False, "Slurm puts the job back into its queue"),
    JobState("REQUEUE_HOLD", "RH", "Held", False, "the job was put back and is held; `scontrol release` lets it go"),
    JobState("REQUEUE_FED", "RF", "Requeued", False, "a federation of clusters puts the job back into its queue"),
    JobState(
        "LAUNCH_FAILED", "", "Requeued", False, "Slurm could not start the job on its node, and puts it back into its queue"
    ),
    JobState("RECONFIG_FAIL", "", "Requeued", False, "Slurm could not configure the job's node, and puts it back into its queue"),
    JobState("RESV_DEL_HOLD", "RD", "Held", False, "the job is held because its reservation was deleted"),
    JobState("SPECIAL_EXIT", "SE", "Held", False, "the job was put back with a special exit state and is held"),
    JobState("COMPLETED", "CD", "Completed", True, "the job ended with exit code 0"),
    JobState("FAILED", "F", "Failed", True, "the job ended with another exit code than 0"),
    JobState("CANCELLED", "CA", "Cancelled", True, "the job was cancelled by its user or an administrator"),
    JobState("TIMEOUT", "TO", "Timeout", True, "the job's time limit was over"),
    JobState("PREEMPTED", "PR", "Preempted", True, "a job of higher priority took the nodes"),
    JobState("NODE_FAIL", "NF", "NodeFail", True, "a node of the job failed"),
    JobState("OUT_OF_MEMORY", "OOM", "OutOfMemory", True, "a process of the job was killed for using too much memory"),
    JobState("DEADLINE", "DL", "Deadline", True, "the job could not end before its deadline"),
    JobState("BOOT_FAIL", "BF", "BootFail", True, "a node of the job did not boot"),
    JobState("REVOKED", "RV", "Revoked", True, "another cluster of the federation took the job over"),
)
"""every state that Slurm has words for, from its queue to its ends"""

_OFTEN_FOR_EVER = "it will not start unless what it asks for, under `slurm:` of the cluster file, or the site's rules change"
WAITING = {
    "Resources": "it is its turn as soon as enough is free",
    "Priority": "others have their turn before it",
    "JobHeldUser": "its user holds it; `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "Dependency": "a job that it depends on is not over",
    "DependencyNeverSatisfied": "the job that it depends on did not end as it had to: it will never start",
    "BeginTime": "its time to begin has not come",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionConfig": f"it asks for more than its partition has: {_OFTEN_FOR_EVER}",
    "PartitionNodeLimit": f"it asks for more nodes than its partition allows, or some are down: {_OFTEN_FOR_EVER}",
    "PartitionTimeLimit": f"it asks for more time than its partition allows: {_OFTEN_FOR_EVER}",
    "BadConstraints": f"no node is as its constraints say: {_OFTEN_FOR_EVER}",
    "AccountNotAllowed": f"its account may not use the partition: {_OFTEN_FOR_EVER}",
    "QOSNotAllowed": f"its quality of service may not use the partition: {_OFTEN_FOR_EVER}",
    "InvalidAccount": f"there is no such account: {_OFTEN_FOR_EVER}",
    "InvalidQOS": f"there is no such quality of service: {_OFTEN_FOR_EVER}",
}
"""what the reasons mean for which squeue (1) lets a job wait; the many limits of accounts and services speak for themselves"""

EXIT_CODES = {"Cancelled": 130, "Timeout": 143, "Preempted": 143, "Deadline": 143, "OutOfMemory": 137}
"""exit codes of jobs that Slurm ended, as a shell would give them, by reason code; 69 for all others"""
UNKNOWN = "Unknown"
"""the reason code of a word that this table does not have"""


def waits_for(reason: str) -> str:
    """Slurm's own word for why a job waits, and what it means where that is known."""
    return f"{reason} ({WAITING[word]})" if (word := reason.partition(",")[0]) in WAITING else reason


def sentence(reason_code: str) -> str | None:
    """What the reason code of an end means; None for one that is not Slurm's."""
    return next((each.sentence for each in STATES if each.reason_code == reason_code), None)


def state(text: str) -> JobState:
    """The state that one of Slurm's commands names.

    ``text`` may be long or short, `CANCELLED by 1000`, cut short by a column (`CANCELLED+`), or several words with
    commas between them, of which the one that is no end holds.  A word from elsewhere is Unknown and no end.
    """
    found = [_one(word) for word in text.split(",")]
    return next((each for each in found if not each.ended), found[0])


def _one(text: str) -> JobState:
    word = text.split(maxsplit=1)[0].upper() if text.split() else ""
    for each in STATES:
        if word and word in (each.word, each.short):
            return each
    if word.endswith("+"):
        likely = [each for each in STATES if each.word.startswith(word[:-1])]
        if len(likely) == 1:
            return likely[0]
    return JobState(text, text, UNKNOWN, False, f"Slurm calls the job's state {text!r}, which this version does not know")

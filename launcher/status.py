"""PAI's words for where a job is; apart from the other nouns, so that `list` and `status` load nothing else."""

from __future__ import annotations

import enum


class Status(str, enum.Enum):
    """PAI's words for where a job is."""

    CREATING = "Creating"
    """the snapshot is being taken"""
    CREATED = "Created"
    """the folder is complete; no coordinator has begun"""
    SUBMITTED = "Submitted"
    """queued: waiting for hosts or for Slurm"""
    INITIALIZING = "Initializing"
    """reaching nodes, sending code, probing the master's address"""
    RUNNING = "Running"
    """the command runs, or its outputs are being collected"""
    SUCCEED = "Succeed"
    """the command succeeded everywhere and its outputs are here, checked"""
    FAILED = "Failed"
    """the command, a node, or the collection failed"""
    TERMINATED = "Terminated"
    """stopped by the user"""
    CREATE_FAILED = "CreateFailed"
    """the job could not be written or its coordinator not started"""
    INITIALIZE_FAILED = "InitializeFailed"
    """some node could not be reached or made ready; nothing was started"""

    @property
    def ended(self) -> bool:
        """True for the five states that no job leaves."""
        return self in _ENDED


_ENDED = {Status.SUCCEED, Status.FAILED, Status.TERMINATED, Status.CREATE_FAILED, Status.INITIALIZE_FAILED}

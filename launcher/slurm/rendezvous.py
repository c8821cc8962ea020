"""Where the processes of a bare step meet: a port that every task works out alone, from what Slurm told it.

`launcher exec` is the one place where a port is not chosen by node 0's agent: its tasks know nothing of each other but
the step they belong to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from launcher.errors import UsageError

LOWEST, COUNT = 20_000, 10_000
"""the ports that are worked out lie below the usual ephemeral range, which begins at 32768"""


def port(environ: Mapping[str, str]) -> int:
    """The port of the step that ``environ`` belongs to.

    The first of SLURM_STEP_RESV_PORTS, which slurmctld keeps for the step where the site has MpiParams=ports; else a
    number that follows from cluster, job, step and restart, so that two steps on one node seldom get the same, and a
    requeued job does not meet its own past.  UsageError when the reserved ports cannot be read.
    """
    reserved = environ.get("SLURM_STEP_RESV_PORTS", "")
    if not reserved:
        return LOWEST + int(_digest(environ, "port")[:8], 16) % COUNT
    first = reserved.partition(",")[0].partition("-")[0]
    if not (first.isascii() and first.isdigit() and 0 < int(first) < 65_536):
        raise UsageError(f"SLURM_STEP_RESV_PORTS={reserved} cannot be read as ports such as 12000-12003")
    return int(first)


def nonce(environ: Mapping[str, str]) -> str:
    """What node 0 of this step, and of no other, answers at the port until its command starts."""
    return _digest(environ, "nonce")


def _digest(environ: Mapping[str, str], purpose: str) -> str:
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    # An unset restart count and 0 are one: Slurm sets it from the first restart on.
    values = [environ.get(name) or "0" for name in names]
    return hashlib.sha256("\n".join([*values, purpose]).encode()).hexdigest()

"""What `launcher check` needs of a node beside what a start asks: its clock, and that nothing of the look stays there.

Runs on the nodes: standard library only, Python 3.8.
"""

import os
import time

from launcher.agent import node


def clock(session, request):
    """The time here."""
    return {"time": time.time()}


def leave_nothing(session):
    """Have the job's directory removed when this session ends, whatever ends it."""
    job = session.layout.job(session.job)
    own = os.path.join(job, "here-%d" % session.rank)
    for folder in (job, own):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    reader, writer = os.pipe()
    # Held by this process alone, so its end is seen at the other one.
    session.held["preflight"] = writer
    if os.fork() == 0:
        from launcher.agent import supervise

        supervise.never_return(lambda: _remove_after(reader, job, own))
    os.close(reader)


def _remove_after(session, job, own):
    """Wait for the end of the session that holds the pipe; the last one on this file system removes the directory."""
    os.setsid()
    for name in os.listdir("/proc/self/fd"):
        if int(name) != session:
            try:
                os.close(int(name))
            except OSError:
                continue  # the listing's own
    null = os.open(os.devnull, os.O_RDWR)
    for number in {0, 1, 2} - {session, null}:
        os.dup2(null, number)
    os.read(session, 1)
    try:
        os.rmdir(own)
    except OSError:
        pass  # all of it is gone already
    if not any(name.startswith("here-") for name in node.entries(job)):
        node.remove(job)


OPS = {"preflight_clock": clock}

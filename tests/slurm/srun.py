#!/usr/bin/env python3
"""A program that does what the launcher needs of srun, on this machine alone: a stand-in where there is no Slurm.

One process per node of --nodelist, each with the variables that Slurm gives a task; stdin goes to all of them; their
stdout is passed on in pieces of at most 1,024 bytes, cut at lines where there are any, as srun does it.
"""

import os
import selectors
import subprocess
import sys

PIECE = 1024


def main() -> int:
    """Run the tasks; exit as the worst of them."""
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    words = sys.argv[1 + len(options) :]
    given = dict(option[2:].partition("=")[::2] for option in options)
    nodes = given["nodelist"].split(",")
    tasks = [start(words, number, node, given) for number, node in enumerate(nodes)]
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    for task in tasks:
        selector.register(task.stdout, selectors.EVENT_READ, bytearray())
    while len(selector.get_map()) > (0 in selector.get_map()):
        for key, _ in selector.select():
            if key.fd == 0:
                broadcast(selector, tasks)
            else:
                pass_on(selector, key)
    return max(task.wait() for task in tasks)


def start(words, number, node, given):
    told = {"SLURM_PROCID": str(number), "SLURM_NODEID": str(number), "SLURMD_NODENAME": node, "SLURM_JOB_ID": given["jobid"]}
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, **told, "SLURM_STEP_ID": "0"},
        start_new_session=True,
    )


def broadcast(selector, tasks) -> None:
    piece = os.read(0, 1 << 16)
    if not piece:
        selector.unregister(0)
    for task in tasks:
        try:
            task.stdin.write(piece) if piece else task.stdin.close()
        except OSError:
            pass


def pass_on(selector, key) -> None:
    piece = os.read(key.fd, PIECE)
    key.data.extend(piece)
    end = len(key.data) if not piece or len(key.data) > PIECE else key.data.rfind(b"\n") + 1
    os.write(1, key.data[:end])
    del key.data[:end]
    if not piece:
        selector.unregister(key.fileobj)


if __name__ == "__main__":
    sys.exit(main())

"""The program that travels to the nodes: standard library only, Python 3.8, imports nothing of ours from outside this folder.

    boot        the first lines that run there: fetch the agent from the cache, or from the near side
    session     one connection's end: answers requests and follows the spool
    supervise   what leaves the connection: warden and supervisor of one command
    spool       what they write and the follower reads
    wire, layout, watch, procs, facts, probe, mirror, outputs: one concern each
"""

"""The inventory and the job file: what a person wrote, checked in one go, as frozen values.

    load_cluster(path)        cluster.yaml   -> Cluster
    load_hostfile(path)       a hostfile     -> Cluster
    local_cluster()           no file at all -> Cluster
    parse_hosts(text)         --hosts        -> hosts
    select_hosts(cluster, …)  --hosts and --exclude, applied
    load_job(path)            job.yaml       -> JobFile

Each raises one UsageError whose ``problems`` are all that is wrong, each `file:line:column: key.path: value: what is
allowed`.  YAML and pydantic are loaded with the first file, not with this package.
"""

from __future__ import annotations

from pathlib import Path

from launcher.cluster.hostfile import read_hostfile as load_hostfile
from launcher.cluster.inventory import Cluster, local_cluster, parse_hosts, select_hosts
from launcher.cluster.jobfile import JobFile
from launcher.cluster.jobfile import read_job_file as load_job
from launcher.cluster.scalars import parse_duration, parse_label, parse_name, parse_size

__all__ = [
    "Cluster",
    "JobFile",
    "load_cluster",
    "load_hostfile",
    "load_job",
    "local_cluster",
    "parse_duration",
    "parse_hosts",
    "parse_label",
    "parse_name",
    "parse_size",
    "select_hosts",
]


def load_cluster(path: str | Path) -> Cluster:
    """The inventory in a cluster.yaml; UsageError lists everything wrong in the file at once.

    One that was right when it was last read, and has not changed since, is not parsed again: that takes 150 ms.
    """
    from launcher.cluster.known import recall_cluster

    known = recall_cluster(path)
    if known is not None:
        return known
    from launcher.cluster.clusterfile import read_cluster_file
    from launcher.cluster.known import keep_cluster

    cluster = read_cluster_file(path)
    keep_cluster(path, cluster)
    return cluster

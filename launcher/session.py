"""Where jobs of this program go when nobody says otherwise: PAI's session, which here names a cluster of yours.

    from launcher.session import get_default_session, setup_default_session

    get_default_session().workspace_name       # the cluster that `launcher submit` would take
    setup_default_session(cluster="lab")       # another one, for the rest of this program

A session holds what was said, nothing else: what was not said is looked for as the command line does, when a job is submitted.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.keep import home

if TYPE_CHECKING:
    from launcher.cluster import Cluster
    from launcher.planning import Request

CLOUD_ONLY = (
    "access_key_id", "access_key_secret", "security_token", "credential_config", "region_id", "workspace_id",
    "oss_bucket_name", "oss_endpoint", "network", "runtime",
)  # fmt: skip
"""arguments of PAI's sessions that have no meaning on machines of your own"""

_lock = threading.Lock()
_default: list[Session] = []


class Session:
    """The cluster, and the backend, that jobs go to; None: what the command line would take."""

    def __init__(self, cluster: str | os.PathLike[str] | None = None, backend: str | None = None, **cloud: Any) -> None:
        """``cluster``: a name of the user's config, `local`, or the path of a cluster file; ``backend``: local, ssh or slurm.

        PAI's other arguments are accepted, and warned about once; any other, and what cannot be, is a UsageError.
        """
        from launcher import arguments

        checks = {"cluster": arguments.path, "backend": arguments.backend}
        said = {"cluster": cluster, "backend": backend}
        arguments.complain("a session cannot be of these", checks, said, _unknown(cloud), manual="launcher.session.Session")
        _warn_of(cloud)
        self.cluster = None if cluster is None else os.fspath(cluster)
        self.backend = backend

    @property
    def request(self) -> Request:
        """What a job of this session asks for before it says anything else."""
        from launcher.planning import Request

        return Request(cluster=self.cluster, backend=self.backend)

    @property
    def inventory(self) -> Cluster:
        """The machines, read now; raises UsageError."""
        from launcher import planning

        return planning.inventory(self.request)

    @property
    def workspace_name(self) -> str:
        """The cluster's name; `local` where no inventory is to be found."""
        return self.inventory.name

    @property
    def workspace_id(self) -> str:
        """The cluster's name, too: there are no numbers for clusters."""
        return self.workspace_name

    @property
    def jobs_path(self) -> Path:
        """The folder that has a folder for each job."""
        return home() / "jobs"

    @property
    def config_path(self) -> Path | None:
        """The user's config file, which need not be there; None where LAUNCHER_CONFIG says that there is none."""
        from launcher.cluster.userfile import config_path

        return config_path(os.environ)

    def __repr__(self) -> str:
        return f"Session(cluster={self.cluster!r}, backend={self.backend!r})"


def get_default_session() -> Session:
    """The session that `setup_default_session` made, else one that says nothing."""
    with _lock:
        if not _default:
            _default.append(Session())
        return _default[0]


def setup_default_session(cluster: str | os.PathLike[str] | None = None, backend: str | None = None, **cloud: Any) -> Session:
    """Make and keep the session that jobs of this program take; raises UsageError where there is no such cluster."""
    made = Session(cluster, backend, **cloud)
    if cluster is not None or backend is not None:
        _ = made.inventory
    with _lock:
        _default[:] = [made]
    return made


def odd_session(value: Any) -> str | None:
    """Why this is no session, as a check of `launcher.arguments` says it; None where it is one."""
    from launcher.arguments import kind

    return None if isinstance(value, Session) else f"a launcher.session.Session is wanted, not {kind(value)}"


def _unknown(cloud: dict[str, Any]) -> list[str]:
    return [f"{name}: a session has none; it has cluster and backend" for name in sorted(set(cloud) - set(CLOUD_ONLY))]


def _warn_of(cloud: dict[str, Any]) -> None:
    said = sorted(name for name, value in cloud.items() if value is not None)
    if said:
        from launcher.arguments import warn

        warn(f"{', '.join(said)}: without meaning on machines of your own, ignored")

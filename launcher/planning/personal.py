"""What holds where neither a flag nor a job file says anything: variables of this shell, then the user's own config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.cluster import Cluster, load_cluster, local_cluster
from launcher.cluster.userfile import (
    LOCAL,
    NO_FILE,
    SETTINGS,
    UserConfig,
    config_path,
    is_path,
    load_user_config,
    said_by_variables,
)
from launcher.errors import UsageError


class Personal:
    """The submitting person's settings, read when the first of them is asked for."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    @cached_property
    def config(self) -> UserConfig:
        """The user's config; raises UsageError."""
        return load_user_config(self.environment)

    @cached_property
    def _said(self) -> dict[str, Any]:
        return said_by_variables(self.environment)

    def find(self, name: str) -> tuple[Any, str] | None:
        """(value, origin) of a job's setting, or None."""
        if name in self._said:
            return self._said[name], f"LAUNCHER_{name.upper()}"
        if name in self.config.job:
            return self.config.job[name], self.config.where(f"job.{name}")
        return None

    def is_weak(self, origin: str) -> bool:
        """Whether what came from there gives way to a cluster file: built in, or of the user's config."""
        return origin == "built-in" or origin.startswith(f"{self.config.path}:")

    def cluster(self, text: str, origin: str, *, beside: bool = True) -> tuple[Cluster, str]:
        """The cluster that ``text`` calls, and the origin with which of the two it was.

        A path is meant where there is a slash in it or a file of that name here (not ``beside``: elsewhere, so a name is
        meant); else it is a name of the config, or `local`.  UsageError lists the names where it is neither.
        """
        if "/" in text or (beside and os.path.isfile(text)):
            passed_by = f", the file here, not the name of {self._where(text)}" if text in self.config.clusters else ""
            return load_cluster(text), origin + passed_by
        if text == LOCAL:
            return local_cluster(), origin
        if text in self.config.clusters:
            return self._named(text), f"{origin}, a name of {self._where(text)}"
        if is_path(text):
            return load_cluster(text), origin
        raise unknown_cluster(text, self.config, origin)

    def _named(self, name: str) -> Cluster:
        import dataclasses

        try:
            return dataclasses.replace(load_cluster(self.config.clusters[name]), name=name)
        except UsageError as error:
            where = f"{self._where(name)}: clusters.{name}"
            raise UsageError(error.what, problems=error.problems, where=where, next_step=error.next_step) from error

    def _where(self, name: str) -> str:
        return self.config.where(f"clusters.{name}")


def unknown_cluster(text: str, config: UserConfig, origin: str) -> UsageError:
    """The error that lists the names there are."""
    from launcher.cluster.inventory import did_you_mean

    known = {**config.clusters, LOCAL: "this machine"}
    problems = [f"{name}: {file}" for name, file in known.items()]
    what = f"no cluster is called {text!r}, and no file here{did_you_mean(text, known)}; there are"
    step = f"`launcher config` makes one known; {'they stand in' if config.exists else 'there is no'} {config.path}"
    if config.path == NO_FILE:
        step = f"LAUNCHER_CONFIG={NO_FILE} says that no names are known here: unset it, or name a file"
    return UsageError(what, where=origin, problems=problems, next_step=step)


def personal_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """The document of `config show -o json`: every setting with its value here and where it comes from, secrets masked."""
    from launcher import environ
    from launcher.keep import home
    from launcher.planning.places import find_cluster
    from launcher.planning.request import Request, Settings

    mine = Personal(environment)
    config = mine.config
    settings = Settings(Request(), None, mine)
    try:
        cluster: str | None = find_cluster(settings).name
    except UsageError as error:
        cluster = None
        settings.origins["cluster"] = f"{settings.origins.get('cluster', 'built-in')}: {error.what}"
    told = [
        ("home", str(home()), "LAUNCHER_HOME" if environment.get("LAUNCHER_HOME") else "built-in"),
        ("cluster", cluster, settings.origins["cluster"]),
        ("default", config.default, config.where("default") if config.default else "built-in"),
    ]
    told += [(f"clusters.{name}", file, config.where(f"clusters.{name}")) for name, file in config.clusters.items()]
    for name in SETTINGS:
        value, origin = mine.find(name) or (None, "built-in")
        told.append((f"job.{name}", value, origin))
    for name, value in environ.masked(config.job.get("env", {})).items():
        told.append((f"job.env.{name}", value, config.where("job.env")))
    path = config_path(environment)
    return {
        "path": None if path is None else str(path),
        "exists": config.exists,
        "readable_by_others": config.exists and bool(Path(config.path).stat().st_mode & 0o077),
        "settings": [{"name": name, "value": value, "origin": origin} for name, value, origin in told],
    }

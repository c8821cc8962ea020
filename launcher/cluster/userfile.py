"""The user's config.yaml: clusters by name, the one that is meant when none is named, and what jobs say that say nothing.

    default: lab
    clusters:
      lab: ~/lab/cluster.yaml
    job:
      grace: 60s

$LAUNCHER_CONFIG names it (`none`: there is none); else it lies where the system keeps such files, on Linux
$XDG_CONFIG_HOME/launcher/config.yaml.  Written by `launcher config` alone, or by hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher.errors import UsageError
from launcher.keep import at_home, keep, recall
from launcher.record import dataclass

KIND = "user config"
LOCAL = "local"
"""the name that always means this machine"""
NO_FILE = "none"
SETTINGS = (
    "nproc_per_node", "forward_env", "max_run_time", "grace", "collect", "requeue", "max_requeues", "keep", "max_code_size",
)  # fmt: skip
"""keys of `job:` that are options of submit; $LAUNCHER_<KEY> says each for one shell"""
LISTS = {"forward_env", "collect"}


@dataclass(frozen=True)
class UserConfig:
    """What the file says; without one, nothing."""

    path: str
    exists: bool = False
    lines: Mapping[str, int] = field(default_factory=dict)
    """for each key, as `default`, `clusters.lab` or `job.grace`, its line"""
    default: str | None = None
    """a name of ``clusters``, `local`, or the absolute path of a file"""
    clusters: Mapping[str, str] = field(default_factory=dict)
    """name -> absolute path of a cluster file"""
    job: Mapping[str, Any] = field(default_factory=dict)
    """values of SETTINGS, and `env`"""

    def where(self, key: str) -> str:
        """`file:line` of a key."""
        return f"{self.path}:{self.lines.get(key, 1)}"


def config_path(environment: Mapping[str, str]) -> Path | None:
    """Where the user's config lies, or would; None: LAUNCHER_CONFIG says that there is none.  UsageError: see `at_home`."""
    named = environment.get("LAUNCHER_CONFIG")
    if named == NO_FILE:
        return None
    if named:
        return at_home(named, "LAUNCHER_CONFIG")
    import platformdirs

    return platformdirs.user_config_path("launcher", appauthor=False) / "config.yaml"


def load_user_config(environment: Mapping[str, str]) -> UserConfig:
    """The user's config; UsageError lists everything wrong in it at once, and says so where LAUNCHER_CONFIG names no file."""
    path = config_path(environment)
    if path is None:
        return UserConfig(NO_FILE)
    if not path.is_file():
        if environment.get("LAUNCHER_CONFIG"):
            step = "`launcher config` makes one; unset LAUNCHER_CONFIG to do without"
            raise UsageError("LAUNCHER_CONFIG names a file that is not there", where=str(path), next_step=step)
        return UserConfig(str(path))
    question = ["user config", str(path), os.environ.get("HOME", ""), str(SETTINGS)]
    known = recall(question)
    if known is not None:
        return UserConfig(**known)
    read = read_user_file(path)
    from launcher.environ import masked

    if masked(read.job.get("env", {})) == read.job.get("env", {}):
        from launcher.model import to_json

        keep(question, to_json(read), [path, __file__])
    return read


def read_user_file(path: Path) -> UserConfig:
    """The file as it says; UsageError as `load_user_config`."""
    from launcher.cluster.inventory import complain, did_you_mean, in_order
    from launcher.cluster.models import UserYaml
    from launcher.cluster.problems import validated
    from launcher.cluster.textfile import beside
    from launcher.cluster.yamlfile import read_document

    document = read_document(path, KIND)
    model, problems, _ = validated(UserYaml, document, KIND)
    named = document.data.get("clusters")
    names = [*named, LOCAL] if isinstance(named, dict) else [LOCAL]
    default = document.data.get("default")
    if isinstance(default, str) and default not in names and not is_path(default):
        listed = ", ".join(names)
        problems.append(
            f"{document.where(('default',))}: default: {default}: "
            f"no cluster of that name; there are {listed}{did_you_mean(default, names)}"
        )
    complain("the user config cannot be used", in_order(document.path, [*document.problems, *problems]))
    assert model is not None
    said = model.job.model_dump(exclude_unset=True)
    return UserConfig(
        path=str(path),
        exists=True,
        lines=_lines(document.root),
        default=beside(path.parent, model.default) if model.default and is_path(model.default) else model.default,
        clusters={name: beside(path.parent, file) for name, file in model.clusters.items()},
        job={key: value for key, value in said.items() if value is not None},
    )


def is_path(text: str) -> bool:
    """Whether a cluster that is called so is a file by the look of it, not a name."""
    return "/" in text or text.endswith((".yaml", ".yml"))


def _lines(root: Any) -> dict[str, int]:
    """{key: line} for the keys of both levels."""
    found: dict[str, int] = {}
    for key, place in root.children.items():
        found[str(key)] = (place.key or (place.line, 0))[0]
        for inner, below in place.children.items():
            found[f"{key}.{inner}"] = (below.key or (below.line, 0))[0]
    return found


def said_by_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """{setting: value} of the LAUNCHER_* variables that stand for one; UsageError lists all that cannot be."""
    said = {name: environment.get(f"LAUNCHER_{name.upper()}", "") for name in SETTINGS}
    texts = {name: text for name, text in said.items() if text}
    if not texts:
        return {}
    from pydantic import ValidationError

    from launcher.cluster.inventory import complain
    from launcher.cluster.models import UserJob
    from launcher.cluster.problems import allowed_of
    from launcher.cluster.yamlfile import scalar_of

    values = {name: text.split(",") if name in LISTS else scalar_of(text) for name, text in texts.items()}
    try:
        checked = UserJob.model_validate(values)
    except ValidationError as error:
        problems = [
            f"LAUNCHER_{str(one['loc'][0]).upper()}={texts[str(one['loc'][0])]}: {allowed_of(one)}"
            for one in error.errors(include_url=False)
        ]
        complain("variables of this shell cannot be used", list(dict.fromkeys(problems)), "correct or unset them")
        raise AssertionError("unreachable") from error
    return {name: getattr(checked, name) for name in texts}

"""Where the code comes from: a folder here, or a folder of a git repository."""

from __future__ import annotations

import os
from pathlib import Path

from launcher import git_source
from launcher import uri as uris
from launcher.code import no_folder
from launcher.errors import UsageError
from launcher.model import GitSource
from launcher.planning.request import Settings


def git_of(settings: Settings) -> GitSource | None:
    """The repository, with what is secret in its address; raises UsageError."""
    said = settings.get("git")
    return None if said is None else git_source.check(said, settings.origins["git"])


def source_of(settings: Settings, git: GitSource | None) -> str | None:
    """The source folder: absolute, or relative to the repository's top; raises UsageError where it cannot be."""
    said = settings.get("source_dir")
    if git is not None:
        return git_source.check_folder(said, settings.origins["source_dir"])
    if said is None:
        return None
    if uris.is_uri(said) and uris.local_path(said) is None:
        what = f"{uris.masked(said)}: a source folder is one of this machine"
        raise UsageError(what, next_step="download it and name the folder; code of a git repository is named by --git")
    folder: str = os.path.abspath(os.path.expanduser(uris.local_path(said) or said))
    if not os.path.isdir(folder):
        raise no_folder(folder)
    return folder


def project_of(folder: str | None, git: GitSource | None) -> str:
    """The name of the code's mirror on the nodes."""
    from launcher.code import project_name

    if git is not None:
        return project_name(Path(f"/{git_source.address(git)}") / (folder or ""))
    return project_name(Path(folder)) if folder else "none"

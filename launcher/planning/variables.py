"""The variables that a person sets for the command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import environ
from launcher import uri as uris
from launcher.errors import UsageError
from launcher.planning.request import Request, Settings

if TYPE_CHECKING:
    from launcher.cluster.jobfile import JobFile


def user_environment(
    request: Request, job: JobFile | None, settings: Settings, environment: Mapping[str, str]
) -> dict[str, str]:
    """Flags over files over the job file over what is forwarded."""
    patterns = settings.get("forward_env", ())
    files = settings.get("env_file", ())
    if "" in patterns:
        raise UsageError("--forward-env is empty", next_step="give a variable's name, * and ? allowed, or leave it out")
    merged = environ.forwarded(environment, patterns)
    settings.origins.update({f"env.{name}": "this shell" for name in merged})
    layers: list[tuple[str, Mapping[str, str]]] = [("job file", (job.env or {}) if job else {})]
    layers += [(str(path), read_env_file(Path(path))) for path in files]
    layers.append(("--env", request.env))
    for origin, layer in layers:
        merged.update(layer)
        settings.origins.update({f"env.{name}": origin for name in layer})
    check_variables(merged, "the environment")
    return merged


def check_variables(environment: Mapping[str, str], where: str) -> None:
    """Nothing that a person sets is ignored: what only the launcher may set is refused, and a port that is none."""
    fixed = sorted(name for name in environment if environ.is_ours(name))
    if fixed:
        step = "leave them out; --nodes and --nproc-per-node set the numbers, and outputs go where $PAI_OUTPUT_* say"
        raise UsageError("these variables are the launcher's own", where=where, problems=fixed, next_step=step)
    odd = [f"{name} {why}" for name, value in environment.items() if (why := uris.odd(name) or uris.odd(value))]
    if odd:
        raise UsageError("no program can be given these variables", where=where, problems=odd)
    port = environment.get("MASTER_PORT", "1")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        step = "leave it out, and a free one is picked on node 0"
        raise UsageError(f"MASTER_PORT={port} is no port number (1 to 65535)", where=where, next_step=step)


def read_env_file(path: Path) -> dict[str, str]:
    """KEY=VALUE lines (`export`, quotes as in a shell, comments); UsageError lists every line that is none of these."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        undecoded = isinstance(error, UnicodeDecodeError)
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8: {error}" if undecoded else str(error)
        raise UsageError(f"the env file cannot be read: {reason}", where=str(path), next_step="check --env-file") from error
    values: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}: {line.strip()}")
            continue
        words = words[1:] if words[:1] == ["export"] else words
        name, equals, value = words[0].partition("=") if words else ("", "", "")
        if words and (len(words) > 1 or not equals or not name.isidentifier()):
            problems.append(f"{path}:{number}: not KEY=VALUE (quote a value with spaces): {line.strip()}")
        elif words:
            values[name] = value
    if problems:
        raise UsageError("the env file has lines that cannot be understood", problems=problems)
    return values

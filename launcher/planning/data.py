"""What the job reads and where its outputs go: input channels, output channels, output_path, checkpoints_path.

Everything that can be known here is said here, all of it at once: paths that are not there, names of channels that cannot
be, protocols without their package, secrets in a URI.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher import channels, keep
from launcher import uri as uris
from launcher.cluster.inventory import did_you_mean
from launcher.errors import UsageError
from launcher.model import Input, JobSpec
from launcher.planning.request import Settings

_FORMS = "a path, a URI, or {source: PATH, shard: true}"


def data_of(settings: Settings, backend: str, nodes: int, collect: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a JobSpec that say what goes in and what comes out; UsageError lists all that cannot be."""
    wrong: list[str] = []
    inputs = _inputs(settings.merged("inputs", "--input"), backend, nodes, wrong)
    outputs = _outputs(settings.merged("outputs", "--output-channel"), wrong)
    output_path = _place("output_path", settings.get("output_path"), wrong)
    said = settings.get("checkpoints_path")
    earlier = _of_an_earlier_job(said)
    checkpoints_path = None if earlier else _place("checkpoints_path", said, wrong)
    interval = settings.get("checkpoint_interval", JobSpec.checkpoint_interval)
    if settings.origins["checkpoint_interval"] != "built-in" and checkpoints_path is None:
        nowhere = "an earlier job's checkpoints stay as they are" if earlier else "there is no checkpoints_path"
        wrong.append(f"checkpoint_interval: {nowhere}{': nothing is copied there' if earlier else ' to copy checkpoints to'}")
    if outputs.get("checkpoints") and checkpoints_path:
        wrong.append("outputs.checkpoints: checkpoints_path says already where the checkpoints go")
    wrong += _shared({**{f"outputs.{name}": place for name, place in outputs.items()}, "checkpoints_path": checkpoints_path})
    wrong += _uncollectable(settings, collect, outputs)
    if wrong:
        raise UsageError("inputs or outputs cannot be used", problems=wrong, next_step="mend all of these")
    # What is published must be brought here first; checkpoints with a place of their own are not.
    brought = not checkpoints_path and bool(output_path or earlier or settings.brings_checkpoints)
    asked = [*collect, *outputs, *(["checkpoints"] if brought else [])]
    places = {"output_path": output_path, "checkpoints_path": checkpoints_path, "checkpoint_interval": interval}
    places["checkpoints_from"] = earlier
    unasked = brought and not output_path and "checkpoints" not in (*collect, *outputs)
    places["collect_if_room"] = ("checkpoints",) if unasked else ()
    return {"inputs": inputs, "outputs": outputs, "collect": tuple(dict.fromkeys(asked)), **places}


def _shared(places: Mapping[str, str | None]) -> list[str]:
    """Places that are named more than once: what is copied there last would replace the rest, as a later job's would."""
    users: dict[str, list[str]] = {}
    for key, place in places.items():
        if place is not None:
            users.setdefault(os.path.realpath(place) if os.path.isabs(place) else place, []).append(key)
    return [f"{' and '.join(keys)}: {place} is one place; each needs its own" for place, keys in users.items() if len(keys) > 1]


def _uncollectable(settings: Settings, collect: tuple[str, ...], outputs: Mapping[str, str | None]) -> list[str]:
    """Channels that are asked for and that the job has not; a person's own config, which is for every job, may name them."""
    mine = settings.personal.find("collect")
    if mine is not None and settings.origins.get("collect") == mine[1]:
        return []
    known = [*channels.CHANNELS, *outputs]
    step = f"there are {', '.join(known)}; an output channel of your own makes another"
    return [f"collect: {name!r}: no such channel{did_you_mean(name, known)}: {step}" for name in collect if name not in known]


def _inputs(said: Mapping[str, Any], backend: str, nodes: int, wrong: list[str]) -> tuple[Input, ...]:
    wrong += [f"inputs: {problem}" for problem in channels.problems(channels.INPUT, said)]
    found = []
    for name, value in said.items():
        source, shard = (value.get("source"), value.get("shard", False)) if isinstance(value, Mapping) else (value, False)
        odd = isinstance(value, Mapping) and (set(value) - {"source", "shard"} or not isinstance(shard, bool))
        text = uris.said(source)
        if odd or not text:
            wrong.append(f"inputs.{name}: {_FORMS} is wanted")
            continue
        settled, problem = _source(text, backend)
        if problem is None and shard:
            problem = _unfit_to_share(settled, nodes)
        wrong += [f"inputs.{name}: {problem}"] if problem else []
        found.append(Input(str(name), settled, shard))
    return tuple(found)


def _source(said: str, backend: str) -> tuple[str, str | None]:
    """(the source as the plan has it, what is wrong with it): a path that is not here may be one on the nodes."""
    if why := uris.odd(said):
        return said, f"{said!r} {why}"
    if said.startswith(channels.NODE):
        path = said[len(channels.NODE) :]
        if not path.startswith("/"):
            return said, f"{said}: an absolute path on the nodes is wanted after {channels.NODE}"
        return said, _missing(path) if backend == "local" else None
    if uris.is_uri(said) and uris.local_path(said) is None:
        return said, next(iter(uris.problems(said)), None)
    path = os.path.expanduser(uris.local_path(said) or said)
    absolute = os.path.abspath(path)
    if os.path.exists(absolute):
        return absolute, None if os.access(absolute, os.R_OK) else f"{absolute}: cannot be read"
    if backend == "local" or not os.path.isabs(said):
        return absolute, _missing(absolute)
    return channels.NODE + absolute, None


def _missing(path: str) -> str | None:
    if os.path.exists(path):
        return None
    above = uris.nearest(Path(path).parent)
    return f"there is no {path} ({above} is the last folder of it that exists)"


def _unfit_to_share(source: str, nodes: int) -> str | None:
    if uris.is_uri(source) or source.startswith(channels.NODE):
        return None
    if not os.path.isdir(source):
        return f"{source}: shard shares the files of a folder among the nodes, and this is one file"
    count = sum(len(files) for _, _, files in os.walk(source, followlinks=True))
    return f"{source}: shard shares {count} file(s) among {nodes} nodes, and some would have none" if count < nodes else None


def _outputs(said: Mapping[str, Any], wrong: list[str]) -> dict[str, str | None]:
    wrong += [f"outputs: {problem}" for problem in channels.problems(channels.OUTPUT, said)]
    return {str(name): None if where is None else _place(f"outputs.{name}", where, wrong) for name, where in said.items()}


def _place(key: str, said: Any, wrong: list[str]) -> str | None:
    """A folder here (absolute), or a URI, that something is written to."""
    if said is None:
        return None
    text = uris.said(said)
    if text is None or not text.strip() or uris.odd(text):
        why = text and uris.odd(text)
        wrong.append(f"{key}: a folder or a URI is wanted{f', and {text!r} {why}' if why else ''}")
        return None
    path = uris.local_path(text)
    if path is None or not uris.is_uri(text):
        if path is None:
            wrong += [f"{key}: {problem}" for problem in uris.problems(text, writing=True)]
            return text.rstrip("/")
        if nobodys := keep.nobodys(path):
            wrong.append(f"{key}: {nobodys}")
            return None
        path = os.path.abspath(os.path.expanduser(path))
    odd = [f"{key}: {problem}" for problem in uris.problems(text, writing=True) if uris.is_uri(text)]
    wrong += odd or _not_writable(key, path)
    return path


def _of_an_earlier_job(said: Any) -> str | None:
    """The folder, absolute, where that lies in the outputs of a job: what is there was written down, and is only read."""
    text = uris.said(said)
    path = None if text is None or not text.strip() or uris.odd(text) else uris.local_path(text)
    if path is None or keep.nobodys(path):
        return None
    path = os.path.abspath(os.path.expanduser(path))
    return path if keep.in_outputs(path) else None


def _not_writable(key: str, path: str) -> list[str]:
    """Before a training that would end without its outputs."""
    above = uris.nearest(Path(path))
    if not above.is_dir():
        return [f"{key}: {above} is a file, and a folder is wanted"]
    if why := keep.unfit(path):
        return [f"{key}: {why}"]
    return [] if os.access(above, os.W_OK | os.X_OK) else [f"{key}: {above} cannot be written to"]

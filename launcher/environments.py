"""What an image stands for, and how a command is wrapped so that it runs inside: one small adapter for each kind.

All of it is pure: words and variables in, words and variables out.  What differs from node to node (which interpreter,
which program runs containers, which GPUs) was found there before, by `launcher.agent.environment`.
"""

from __future__ import annotations

import fnmatch
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from launcher.record import dataclass

NODES_OWN = "node:"
"""the image that is none: what the nodes have"""
_FORMS = {
    "venv": "venv:/path",
    "conda": "conda:NAME-OR-PREFIX",
    "module": "module:NAME/VERSION",
    "docker": "docker://IMAGE",
    "podman": "podman://IMAGE",
    "apptainer": "apptainer:///path/to/image.sif",
    "pyxis": "pyxis://IMAGE",
}
FORMS = ", ".join(_FORMS.values())
"""how an image's URI is written, for people"""
_CONTAINERS = ("docker", "podman", "apptainer")
_WORD = re.compile(r"[^\s\0-\x1f\x7f]+\Z")

USERCODE, CONFIG, DATA, OUTPUT, LOGS = "/ml/usercode", "/ml/input/config", "/ml/input/data", "/ml/output", "/ml/logs"
"""where a job's directories are inside a container: PAI's paths, and one for the logs of torchrun's ranks"""

_CLIENTS = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LD_*", "XDG_*", "DOCKER_*", "BUILDAH_*", "CONTAINER*", "APPTAINER*",
            "SINGULARITY*", "STORAGE_*", "DBUS_*", "GODEBUG")  # fmt: skip
"""variables that the program which starts a container would take for its own"""
_PRIVATE = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")
"""names of what no process table may show; a client that takes such a variable for its own, too, goes no wrong way by it"""
_INHERITED = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""what a container takes over from the node where it is set there"""


@dataclass(frozen=True)
class Environment:
    """An image's URI, taken apart."""

    kind: str
    """venv, conda, module, docker, podman, apptainer or pyxis"""
    name: str
    """a path, a conda environment, modules, or an image as its runtime calls it"""

    @property
    def contained(self) -> bool:
        """True where the command sees a file system of its own, and no variable but those that it is given."""
        return self.kind in _CONTAINERS


@dataclass(frozen=True)
class Place:
    """What is known of one node of a job when a command is wrapped for it."""

    job_id: str
    rank: int
    attempt: int
    job_dir: str
    """the job's directory there"""
    told: Mapping[str, Any]
    """what `environment_find` answered"""
    mounts: tuple[str, ...] = ()
    """further directories there that a container sees under the same path"""
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """{channel: what `environment_resolve` told of its data, and its ``path``}"""
    purpose: str | None = None
    """what is done before the command starts, a word; None: the command itself"""

    @property
    def container(self) -> str:
        """The container's name: nothing else is removed."""
        return f"launcher-{self.job_id}-node{self.rank}-{self.purpose or f'attempt{self.attempt}'}"


@dataclass(frozen=True)
class Wrapped:
    """A command as its node starts it."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stop: tuple[str, ...] | None = None
    """what ends and removes all that the command is not the parent of; None: nothing"""


def is_uri(text: str) -> bool:
    """Whether a text names an environment by itself; any other is a name from the cluster file's `images:`."""
    scheme, colon, _ = text.partition(":")
    return bool(colon) and (scheme in _FORMS or text == NODES_OWN)


def parse(uri: str) -> Environment | None:
    """The environment that a URI names, None for the nodes' own; ValueError with a sentence for any other text."""
    if uri == NODES_OWN:
        return None
    kind, _, rest = uri.partition(":")
    if kind not in _FORMS:
        raise ValueError(f"no image: {FORMS}")
    slashes = "://" in _FORMS[kind]
    name = rest.removeprefix("//") if slashes else rest
    wrong = (slashes and not rest.startswith("//")) or not name
    words = name.replace(",", " ").split() if kind == "module" else [name]
    if wrong or not words or not all(_WORD.match(word) and not word.startswith("-") for word in words):
        raise ValueError(f"written as {_FORMS[kind]}")
    if kind == "venv" and not name.startswith(("/", "~/")):
        raise ValueError("a path on the node: absolute, or beginning with ~/")
    return Environment(kind, " ".join(words))


def wrap(environment: Environment | None, argv: Sequence[str], env: Mapping[str, str], place: Place) -> Wrapped:
    """A command and its variables, wrapped so that it runs inside ``environment`` on its node.

    The variables speak of the node's own paths; inside a container they speak of what is there.
    """
    if environment is None:
        return Wrapped(tuple(argv), env)
    return _WRAPPERS[environment.kind](environment, tuple(argv), env, place)


# --- What runs as the node's own ---------------------------------------------------------------------------------------------


def _as_it_is(environment: Environment, argv: tuple[str, ...], env: Mapping[str, str], place: Place) -> Wrapped:
    """venv and pyxis: the interpreter's directory is first in PATH; and all of pyxis' step is inside."""
    return Wrapped(argv, env)


def _conda(environment: Environment, argv: tuple[str, ...], env: Mapping[str, str], place: Place) -> Wrapped:
    """What `conda activate` does, without conda: variables, and the scripts of packages that have some to set."""
    told = place.told
    words = (told["shell"], "-c", _ACTIVATE, "sh") if told["shell"] else ()
    variables = {"CONDA_PREFIX": told["prefix"], "CONDA_DEFAULT_ENV": told["name"], "CONDA_SHLVL": "1"}
    return Wrapped((*words, *argv), {**variables, **env})


# Where `conda env config vars` keeps what it sets, only the environment's own Python need be able to read.
_ACTIVATE = """\
exec 3>&1 1>&2
state=$CONDA_PREFIX/conda-meta/state
[ ! -e "$state" ] || eval "$("$CONDA_PREFIX/bin/python" -ISc '
import json, os, shlex, sys
for name, value in json.load(open(sys.argv[1])).get("env_vars", {}).items():
    if name.isidentifier() and name not in os.environ:
        print("export %s=%s" % (name, shlex.quote(str(value))))' "$state")"
for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do [ ! -e "$script" ] || . "$script"; done
exec "$@" 1>&3 3>&-
"""


def _module(environment: Environment, argv: tuple[str, ...], env: Mapping[str, str], place: Place) -> Wrapped:
    """In a log-in shell, which alone knows the command; what it prints meanwhile goes to stderr."""
    return Wrapped(("/bin/sh", "-c", _LOGIN, "sh", environment.name, *argv), env)


_LOGIN = """exec 3>&1 1>&2; exec bash -lc '
modules=$1; shift
module load $modules || exit 125
cd -- "$PAI_WORKING_DIR" && exec "$@" 1>&3 3>&-' bash "$@"
"""


# --- Containers ----------------------------------------------------------------------------------------------------------


def _docker(environment: Environment, argv: tuple[str, ...], env: Mapping[str, str], place: Place) -> Wrapped:
    told, name = place.told, place.container
    words = [
        *(told["program"], "run", "--rm", "--init", "--name", name),
        *("--label", f"launcher.job={place.job_id}", "--label", f"launcher.rank={place.rank}"),
        *("--network", "host", "--ipc", "host", "--security-opt", "label=disable"),
        # RDMA and NCCL pin memory; elsewhere the engine's own limit is enough, and it may not be allowed to lift it.
        *(["--ulimit", "memlock=-1"] if told["nvidia"] or told["devices"] else []),
        # The client hands on what the command prints; the engine need not keep it, too.
        *("--log-driver", "none"),
        *_user_of_docker(told),
        *(["--gpus", "all"] if told["nvidia"] else []),
        *_devices(told),
    ]
    return _contained(words, environment, argv, _named(env, told), place, (told["program"], "rm", "--force", name))


def _podman(environment: Environment, argv: tuple[str, ...], env: Mapping[str, str], place: Place) -> Wrapped:
    told, name = place.told, place.container
    words = [
        *(told["program"], "run", "--rm", "--init", "--name", name),
        *("--label", f"launcher.job={place.job_id}", "--label", f"launcher.rank={place.rank}"),
        *("--network", "host", "--ipc", "host", "--ulimit", "host", "--security-opt", "label=disable"),
        # Whoever removes it has waited for as long as there was to wait.
        *("--log-driver", "none", "--stop-timeout", "0"),
        *(["--userns", "keep-id"] if told["uid"] else []),
        *("--user", f"{told['uid']}:{told['gid']}"),
        *(["--device", "nvidia.com/gpu=all"] if told["nvidia"] else []),
        *_devices(told),
    ]
    return _contained(words, environment, argv, _named(env, told), place, (told["program"], "rm", "--force", "--ignore", name))


def _user_of_docker(told: Mapping[str, Any]) -> list[str]:
    """The node's, whatever the image says, so that what the command writes is theirs; in a rootless engine root is that user."""
    if told["rootless"] or not told["uid"]:
        return ["--user", "0:0"]
    groups = [word for group in told["groups"] if group != told["gid"] for word in ("--group-add", str(group))]
    return ["--user", f"{told['uid']}:{told['gid']}", *groups]


def _named(env: Mapping[str, str], told: Mapping[str, Any]) -> dict[str, str]:
    """With what an image knows nothing of: a user who has no entry in its /etc/passwd, and so no home."""
    if not told["uid"] or told["rootless"]:
        return dict(env)
    return {"HOME": "/tmp", "USER": told["user"], "LOGNAME": told["user"], **env}


def _devices(told: Mapping[str, Any]) -> list[str]:
    """What no engine hands on by itself: AMD's GPUs, and InfiniBand."""
    return [word for device in told["devices"] for word in ("--device", device)]


def _contained(
    words: list[str], environment: Environment, argv: tuple[str, ...], env: Mapping[str, str], place: Place, stop: tuple[str, ...]
) -> Wrapped:
    """The rest of a command line that docker and podman share: directories, variables, the image and its command."""
    mounts, inside = _inside(env, place)
    for mount in mounts:
        words += ["--mount", _mount(*mount)]
    words += ["--workdir", USERCODE]
    # A name without a value stands for the client's own variable: no value is seen in the process table.
    outer = {name: value for name, value in inside.items() if not _is_clients(name)}
    for name in sorted({*outer, *_INHERITED}):
        words += ["--env", name]
    for name in sorted(inside.keys() - outer.keys()):
        words += ["--env", f"{name}={inside[name]}"]
    return Wrapped((*words, "--entrypoint", argv[0], environment.name, *argv[1:]), outer, stop)


def _mount(source: str, target: str, read_only: bool) -> str:
    """The value of --mount, which is a line of CSV."""
    import csv  # few jobs have a container

    line = io.StringIO()
    fields = ["type=bind", f"source={source}", f"target={target}", *(["readonly"] if read_only else [])]
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _apptainer(environment: Environment, argv: tuple[str, ...], env: Mapping[str, str], place: Place) -> Wrapped:
    """Its processes are children of ours, so that nothing else ends them."""
    told = place.told
    mounts, inside = _inside({"PYTHONNOUSERSITE": "1", **env}, place)
    words = [told["program"], "exec", "--cleanenv"]
    words += ["--nv"] if told["nvidia"] else ["--rocm"] if told["amd"] else []
    for source, target, read_only in mounts:
        words += ["--bind", f"{source}:{target}{':ro' if read_only else ''}"]
    words += ["--pwd", USERCODE, told["image"], *argv]
    brand = "SINGULARITY" if told["program"].endswith("singularity") else "APPTAINER"
    outer = {name: value for name, value in inside.items() if not _is_clients(name)}
    handed = {f"{brand}ENV_{name}": value for name, value in inside.items() if name != "HOME"}
    # Without this a value with $ or ` in it would be evaluated by a shell inside.
    return Wrapped(tuple(words), {**outer, **handed, f"{brand}_NO_EVAL": "1"})


def _is_clients(name: str) -> bool:
    return not _PRIVATE.search(name.upper()) and any(fnmatch.fnmatchcase(name, pattern) for pattern in _CLIENTS)


def _inside(env: Mapping[str, str], place: Place) -> tuple[list[tuple[str, str, bool]], dict[str, str]]:
    """([(directory there, path inside, whether it is only read)], the variables as they are right inside)."""
    job, logs = place.job_dir, str(place.told["logs"])
    mounts = [
        (f"{job}/code", USERCODE, False),
        (f"{job}/input/config", CONFIG, True),
        (f"{job}/output", OUTPUT, False),
        *([(logs, LOGS, False)] if place.purpose is None else []),
        *((path, path, False) for path in place.mounts),
    ]
    moved = {source: target for source, target, _ in mounts if source != target}
    for channel, told in place.inputs.items():
        path = str(told["path"])
        moved[path] = f"{DATA}/{channel}{'/' + path.rpartition('/')[2] if told['file'] else ''}"
        mounts.append((str(told["real"]), moved[path], True))
    # Links in the data lead where they lead on the node.
    mounts += [(str(path), str(path), True) for told in place.inputs.values() for path in told["more"]]
    # An engine takes a path but once.
    mounts = list({target: (source, target, read_only) for source, target, read_only in mounts}.values())
    # torchrun's logs are read on the node, where they are written through the mount.
    variables = {**({"PET_LOG_DIR": f"{logs}/attempt_{place.attempt}"} if place.purpose is None else {}), **env}
    return mounts, {
        name: _moved(value, moved) if name.startswith("PAI_") or name == "PET_LOG_DIR" else value
        for name, value in variables.items()
    }


def _moved(value: str, moved: Mapping[str, str]) -> str:
    """A path inside for one outside."""
    for source, target in moved.items():
        if value == source or value.startswith(source + "/"):
            return target + value[len(source) :]
    return value


_WRAPPERS: Mapping[str, Callable[[Environment, tuple[str, ...], Mapping[str, str], Place], Wrapped]] = {
    "venv": _as_it_is,
    "pyxis": _as_it_is,
    "conda": _conda,
    "module": _module,
    "docker": _docker,
    "podman": _podman,
    "apptainer": _apptainer,
}

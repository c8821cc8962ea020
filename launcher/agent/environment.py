"""Finds on a node what an image stands for, and runs there what looks into it.

`environment_find` answers what the near side must know to wrap a command, or refuses with a sentence that says what is
missing.  An image that is not there is pulled, which may take long, and is told meanwhile.  `environment_run` runs a
wrapped command to its end.
Runs on the nodes: standard library only, Python 3.8.
"""

import os
import time

from launcher.agent import facts, lean
from launcher.agent.layout import part_of
from launcher.agent.spool import Spool

_SECONDS = 60
"""how long a question to an engine, a conda or a log-in shell may take"""
_TOLD_EVERY = 10.0
"""seconds between two sentences about an image that is being pulled"""
_MANY_LINKS = 20
"""so many directories are given to a container one by one; of more of them the one above all"""
_KEPT = 64 << 10
"""characters of a program's output that travel, the last ones"""
_MARK = "launcher-found:"
"""what our lines of a log-in shell's output begin with"""
_CONDA_ROOTS = (
    "miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "opt/miniconda3", "opt/anaconda3", "opt/conda",
)  # fmt: skip
"""where installers of conda put it, in the home directory and at the top"""


def find(session, request):
    """What there is of the environment ``kind`` ``name``; ValueError says what is missing.

    Where it is none of a container's: {"python", "bin", "programs": {name: path or None}}, found inside.  Without ``pull``
    (unset: with) of an image that is not there {"absent": why it cannot be pulled, or ""}.
    """
    finder = {"venv": _venv, "conda": _conda, "module": _module, "docker": _engine, "podman": _engine, "apptainer": _apptainer}
    how = {} if request.get("pull", True) else {"pull": False}
    found = finder[request["kind"]](session, request["kind"], request["name"], request["programs"], **how)
    logs = Spool(session.layout.spool(session.job, session.rank, session.requeue)).ranks
    return dict({"bin": None, "logs": logs}, **found)


def _venv(session, kind, name, programs, **how):
    path = os.path.abspath(os.path.expanduser(name))
    return _below(path, programs, "no virtual environment at %s: there is no %s" % (path, os.path.join(path, "bin", "python")))


def _below(prefix, programs, complaint):
    """What an environment's bin/ has, and for what is not there the node's PATH."""
    binaries = os.path.join(prefix, "bin")
    python = os.path.join(binaries, "python")
    if not os.access(python, os.X_OK):
        raise ValueError(complaint)
    path = binaries + os.pathsep + os.environ.get("PATH", os.defpath)
    return {"python": python, "bin": binaries, "programs": {name: facts.which(name, path=path) for name in programs}}


# --- conda ---------------------------------------------------------------------------------------------------------------------


def _conda(session, kind, name, programs, **how):
    prefix = os.path.abspath(os.path.expanduser(name)) if os.sep in name else _named_prefix(name)
    found = _below(prefix, programs, "%s is no conda environment with a Python: there is no bin/python" % prefix)
    scripts = any(entry.endswith(".sh") for entry in _entries(os.path.join(prefix, "etc", "conda", "activate.d")))
    variables = os.path.exists(os.path.join(prefix, "conda-meta", "state"))
    shell = (facts.which("bash") or "/bin/sh") if scripts or variables else None
    return dict(found, prefix=prefix, name=name, shell=shell)


def _named_prefix(name):
    """The directory of a conda environment; ValueError lists those that there are."""
    program, roots, known = _conda_here()
    found = [path for label, path in known if label == name]
    if not found and program:
        status, out, _ = _ask([program, "info", "--json"])
        try:
            told = lean.loads(out) if status == 0 else {}
        except ValueError:
            told = {}
        roots = [*roots, told["root_prefix"]] if told.get("root_prefix") else roots
        known = known + [(_label(path, roots), path) for path in told.get("envs", [])]
        found = [path for label, path in known if label == name]
    if found:
        return found[0]
    if not known:
        raise ValueError("no conda there: no program `conda` in PATH, no environment in ~/.conda/environments.txt")
    raise ValueError("no conda environment %r; there are: %s" % (name, ", ".join(sorted({label for label, _ in known}))))


def _conda_here():
    """(the program or None, installations, [(name, directory)] of the environments that are known without asking it)."""
    program = os.environ.get("CONDA_EXE") or facts.which("conda")
    places = [os.path.join(os.path.expanduser("~"), root) for root in _CONDA_ROOTS] + ["/" + root for root in _CONDA_ROOTS]
    places += [os.environ[key] for key in ("CONDA_ROOT", "MAMBA_ROOT_PREFIX") if key in os.environ]
    if program:
        # <root>/bin/conda or <root>/condabin/conda
        places.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(program))))
    roots = [place for place in places if os.path.isdir(os.path.join(place, "conda-meta")) or os.path.isdir(place + "/envs")]
    paths = [root for root in roots if os.path.isdir(os.path.join(root, "conda-meta"))]
    paths += [os.path.join(root, "envs", entry) for root in roots for entry in _entries(os.path.join(root, "envs"))]
    try:
        with open(os.path.expanduser("~/.conda/environments.txt")) as file:
            paths += [line.strip() for line in file if line.strip()]
    except OSError:
        pass
    return program, roots, [(_label(path, roots), path) for path in paths if os.path.isdir(path)]


def _label(path, roots):
    return "base" if path in roots else os.path.basename(path)


def _entries(directory):
    try:
        return sorted(entry for entry in os.listdir(directory) if not entry.startswith("."))
    except OSError:
        return []


# --- modules -------------------------------------------------------------------------------------------------------------------

_LOOK = """\
exec 3>&1 1>&2
modules=$1; shift
type module >/dev/null 2>&1 || { echo "MARKno module" >&3; exit 0; }
said=$(module load $modules 2>&1) || { echo "$said"; echo "MARKfailed" >&3; exit 0; }
case $said in *ERROR*|*"Unable to locate"*|*"unknown module"*) echo "$said"; echo "MARKfailed" >&3; exit 0;; esac
module load $modules
for program; do echo "MARK$program=$(command -v "$program")" >&3; done
""".replace("MARK", _MARK)


def _module(session, kind, name, programs, **how):
    if not facts.which("bash"):
        raise ValueError("no bash there, whose log-in shell knows the command `module`")
    wanted = ["python3", "python", *programs]
    status, out, err = _ask(["bash", "-lc", _LOOK, "bash", name, *wanted])
    lines = [line[len(_MARK) :] for line in out.splitlines() if line.startswith(_MARK)]
    if "no module" in lines:
        raise ValueError("no command `module` in a log-in shell there")
    if "failed" in lines or not lines:
        raise ValueError("`module load %s` fails there: %s" % (name, _last(err) or "exit status %s" % status))
    paths = {key: path or None for key, _, path in (line.partition("=") for line in lines)}
    return {"python": paths["python3"] or paths["python"], "programs": {word: paths.get(word) for word in programs}}


# --- containers ----------------------------------------------------------------------------------------------------------------


def _engine(session, kind, image, programs, pull=True):
    """docker and podman: is it there, does it answer, has it the image."""
    program = facts.which(kind)
    if program is None:
        raise ValueError("there is no %s there" % kind)
    question, key = ("version", "{{.Server.Version}}") if kind == "docker" else ("info", "{{.Version.Version}}")
    status, _, err = _ask([program, question, "--format", key])
    if status != 0:
        raise ValueError("%s there cannot be used: %s" % (kind, _last(err)))
    about = [program, "image", "inspect", "--format", "{{.Id}}", image]
    status, out, _ = _ask(about)
    if status != 0 and not pull:
        # Asks the registry, and fetches nothing.
        status, _, err = _ask([program, "manifest", "inspect", image])
        return {"absent": "" if status == 0 else _last(err) or "no answer"}
    if status != 0:
        _pull(session, [program, "pull", image], image)
        status, out, err = _ask(about)
        if status != 0:
            raise ValueError("%s has no image %s: %s" % (kind, image, _last(err)))
    return dict(_machine(kind), program=program, id=out.strip(), rootless=kind == "docker" and _rootless(program))


def _rootless(program):
    """True where docker's root is this very user."""
    status, out, _ = _ask([program, "info", "--format", "{{json .SecurityOptions}}"])
    return status == 0 and "rootless" in out


def _apptainer(session, kind, name, programs, pull=True):
    program = facts.which("apptainer") or facts.which("singularity")
    if program is None:
        raise ValueError("there is neither apptainer nor singularity there")
    if set(":,") & set(session.layout.job(session.job)):
        raise ValueError("%s cannot be given %s, for the : or , in it" % (program, session.layout.job(session.job)))
    if name.startswith(("/", "~")):
        image = os.path.abspath(os.path.expanduser(name))
        if not os.path.exists(image):
            raise ValueError("there is no image %s there" % image)
        return dict(_machine(kind), program=program, image=image)
    source = name if "://" in name else "docker://" + name
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in source)
    image = os.path.join(session.layout.root, "images", plain + ".sif")
    if not os.path.exists(image) and not pull:
        return {"absent": ""}
    if not os.path.exists(image):
        os.makedirs(os.path.dirname(image), exist_ok=True)
        part = part_of(image)
        _pull(session, [program, "pull", part, source], source)
        os.replace(part, image)
    return dict(_machine(kind), program=program, image=image)


def _machine(kind):
    """What of the node a container needs: its user, GPUs and InfiniBand."""
    nvidia = os.path.exists("/dev/nvidiactl")
    amd = not nvidia and os.path.exists("/dev/kfd")
    devices = ["/dev/kfd", "/dev/dri"] if amd else []
    devices += ["/dev/infiniband"] if os.path.isdir("/dev/infiniband") else []
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": sorted(os.getgroups()),
        "user": facts.user(),
        "nvidia": nvidia,
        "amd": amd,
        "devices": devices,
    }


def _pull(session, words, image):
    """Pull an image, saying so; ValueError with the last words of whoever could not."""
    import subprocess

    session.note(message="pulls the image %s" % image)
    began = told = time.monotonic()
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise ValueError("%s: %s" % (words[0], error.strerror)) from None
    layers, done, last = set(), set(), []
    for line in process.stdout:
        text = line.decode("utf-8", "replace").strip()
        last = [*last, text][-5:] if text else last
        layer, colon, state = text.partition(": ")
        if colon and state.startswith(("Pulling fs layer", "Waiting", "Already exists", "Download", "Pull complete")):
            layers.add(layer)
        if colon and state.startswith(("Already exists", "Pull complete")):
            done.add(layer)
        if time.monotonic() - told >= _TOLD_EVERY:
            told = time.monotonic()
            so_far = ", %d of %d layers" % (len(done), len(layers)) if layers else ""
            session.note(message="pulls the image %s: %d s%s" % (image, told - began, so_far))
    if process.wait() != 0:
        raise ValueError("the image %s is not there and cannot be pulled: %s" % (image, last[-1] if last else words[0]))
    session.note(message="has the image %s after %d s" % (image, time.monotonic() - began))


def run(session, request):
    """A wrapped command to its end: {"status", "stdout", "stderr"}; None is the status of one that had to be cut short.

    ``seconds`` is how long it may take; ``stop``, if there is one, ends what is not below it.
    """
    environment = dict(os.environ, **request["env"])
    status, out, err = _ask(request["argv"], request["seconds"], environment)
    if request.get("stop"):
        _ask(request["stop"])
    return {"status": status, "stdout": out[-_KEPT:], "stderr": err[-_KEPT:]}


def resolve(session, request):
    """{path: {"real", "file", "more"}} of each of ``paths``: where it is, and directories that links in it lead to.

    What a container is given of them, links do not lead out of.
    """
    return {"paths": {path: _resolved(path) for path in request["paths"]}}


def _resolved(path):
    real = os.path.realpath(path)
    outside = set()
    for folder, folders, files in os.walk(real):
        for entry in folders + files:
            full = os.path.join(folder, entry)
            if os.path.islink(full):
                target = os.path.realpath(full)
                outside.add(target if os.path.isdir(target) else os.path.dirname(target))
        if len(outside) > _MANY_LINKS:
            break
    more = [one for one in sorted(outside) if not (one + os.sep).startswith(real + os.sep)]
    if len(more) > _MANY_LINKS:
        more = [os.path.commonpath(more)]
    more = [one for one in more if not any(one.startswith(other + os.sep) for other in more)]
    return {"real": real, "file": not os.path.isdir(real), "more": [one for one in more if one != os.sep]}


def _ask(words, seconds=_SECONDS, environment=None):
    """(exit status or None, stdout, stderr) of a program that is given so many seconds."""
    import subprocess

    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds,
                              env=environment)
    except subprocess.TimeoutExpired:
        return None, "", "`%s` does not answer within %d s" % (" ".join(words[:3]), seconds)
    except OSError as error:
        return None, "", "%s: %s" % (words[0], error.strerror)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def _last(said):
    """The last sentence of a program's stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else ""


OPS = {"environment_find": find, "environment_run": run, "environment_resolve": resolve}

"""Operations about the node itself and the command on it: hello, start, follow, stop, sweep, bye.

Runs on the nodes: standard library only, Python 3.8.
"""

import _signal as signal  # the interpreter's own part: `signal` would bring enum
import os
import sys

from launcher.agent import facts, lean, procs
from launcher.agent.follow import Follower
from launcher.agent.spool import Spool, family, wish_warning
from launcher.agent.wire import text

_STEP_TELLS = ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "SLURM_STEP_ID", "SLURMD_NODENAME")
"""what Slurm says to a task about its part of the allocation"""


def hello(session, request):
    """Tell everything the plan for this node depends on; with a `nonce`, make the job's directory and mark it.

    With `no_code` the working copy is an empty one, and made at once; `channels` are outputs of the job's own.  With
    `passing` the directory goes with this session.
    """
    if request.get("passing"):
        from launcher.agent import preflight

        preflight.leave_nothing(session)
    marked = _mark(session.layout.job(session.job), request["nonce"]) if request.get("nonce") else ""
    if request.get("no_code") or request.get("channels"):
        session.layout.make_outputs(session.job, request.get("channels", ()))
    if request.get("no_code"):
        os.makedirs(session.layout.code(session.job), exist_ok=True)
    binaries, python = _interpreter(request.get("python"), request.get("venv"))
    path = os.pathsep.join(([binaries] if binaries else []) + [os.environ.get("PATH", os.defpath)])
    return {
        **facts.machine(session.layout.root),
        "job_dir": session.layout.job(session.job),
        "directory_id": marked,
        "bin": binaries,
        "python": python or facts.which("python3", path=path),
        "programs": {name: facts.which(name, path=path) for name in request.get("programs", [])},
        "claimed": _spool(session).claimed(request.get("attempt", 0)),
        "slurm": {name: value for name, value in os.environ.items() if name in _STEP_TELLS},
        "sees": os.path.isdir(request["sees"]) if request.get("sees") else None,
    }


def _mark(directory, nonce):
    """Random text that all nodes find whose directory this very one is, and so share a file system: the first one's.

    However many they are, each makes one call and reads one name.
    """
    own, mark = os.urandom(16).hex(), os.path.join(directory, "mark-%s" % nonce)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    try:
        os.symlink(own, mark)  # it appears with its text, or not at all, on NFS too
    except FileExistsError:
        pass
    except OSError:
        return _mark_by_folder(own, mark)
    return os.readlink(mark)


def _mark_by_folder(own, mark):
    """The same where the file system knows no symbolic links: no folder is renamed to one that holds something."""
    part = "%s.%s" % (mark, own)
    os.makedirs(os.path.join(part, own))
    try:
        os.rename(part, mark)
    except OSError:
        remove(part)
    return os.listdir(mark)[0]


def _interpreter(python, venv):
    """(directory to put first in PATH, absolute interpreter) of the inventory's python: or venv:."""
    if venv:
        python = os.path.join(os.path.expanduser(venv), "bin", "python")
    if not python:
        return None, None
    python = os.path.expanduser(python)
    if os.sep not in python:
        return None, facts.which(python)
    if not os.access(python, os.X_OK):
        raise ValueError("no interpreter at %s" % python)
    return os.path.dirname(os.path.abspath(python)), os.path.abspath(python)


def start(session, request):
    """Start the command unless this attempt was started before, and follow its spool either way."""
    spool, attempt = _spool(session), request["attempt"]
    said = ""
    session.held.pop("port", lambda: None)()
    with session.starting:
        fresh = spool.claim(attempt)
        if fresh:
            said = _leave_behind(session, _order(session, spool, request))
    session.follower = Follower(session, spool, attempt, request.get("offsets", {}), request["marks"])
    return {"fresh": fresh, "said": said}


def _order(session, spool, request):
    environment = environment_of(request)
    environment["PET_LOG_DIR"] = environment.get("PET_LOG_DIR") or spool.rank_logs(request["attempt"])
    return {
        "spool": spool.path,
        "attempt": request["attempt"],
        "argv": request["argv"],
        "cwd": session.layout.code(session.job),
        "env": environment,
        "marks": request["marks"],
        "umask": _umask(),
        "grace": request.get("grace", 0),
        "stop": request.get("stop"),
    }


def environment_of(request):
    """What a command finds: our own variables less `drop`, over `defaults`, below `env`, with `bin` first in PATH."""
    inherited = {text(key): text(value) for key, value in os.environb.items()}
    environment = {key: value for key, value in inherited.items() if not _dropped(key, request["drop"])}
    for name, value in request.get("defaults", {}).items():
        environment.setdefault(name, value)
    environment.update(request["env"])
    if request.get("bin"):
        environment["PATH"] = request["bin"] + os.pathsep + environment.get("PATH", os.defpath)
    return environment


def _dropped(name, patterns):
    return any(name.startswith(p[:-1]) if p.endswith("*") else name == p for p in patterns)


def _umask():
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _leave_behind(session, order):
    """Fork what outlives us; returns what it says of the start: `+<pid>` or `-<sentence>`."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        from launcher.agent import supervise

        os.close(reader)
        supervise.never_return(lambda: _become_warden(session, order, writer))
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.readline().strip()
    return said or "-the agent ended before it could start the command; see %s/agent.log" % order["spool"]


def _become_warden(session, order, report):
    from launcher.agent import supervise

    if facts.lingering():
        _move_into_scope(session, order, report)
    supervise.launch(order, report)


def _move_into_scope(session, order, report):
    """Become `systemd-run --user --scope ...`, so that a log-out ends neither us nor what we start."""
    order_reader, order_writer = os.pipe()
    if os.fork() == 0:
        os.close(order_reader)
        with os.fdopen(order_writer, "w") as pipe:
            pipe.write(lean.dumps(order))
        os._exit(0)
    os.close(order_writer)
    os.dup2(order_reader, 0)
    os.dup2(report, 1)
    code = "import sys;sys.path.insert(0,sys.argv[1]);from launcher.agent.node import in_scope;in_scope()"
    scope = ["systemd-run", "--user", "--scope", "--quiet", "--collect"]
    os.execvp(scope[0], [*scope, "--", sys.executable, "-ISu", "-c", code, session.agent_path])


def in_scope():
    """Entry point below systemd-run: the order comes on stdin, the report goes to stdout."""
    from launcher.agent import supervise

    order, report = lean.loads(sys.stdin.read()), os.dup(1)
    if os.fork():
        os._exit(0)
    supervise.launch(order, report)


def follow(session, request):
    """Follow an attempt that was started earlier; `claimed` False when it never was."""
    spool, attempt = _spool(session), request["attempt"]
    if not spool.claimed(attempt):
        return {"claimed": False}
    session.follower = Follower(session, spool, attempt, request.get("offsets", {}), request["marks"])
    return {"claimed": True}


def stop(session, request):
    """Wish the command stopped: TERM now and KILL after ``grace`` seconds; 0 is KILL now.

    ``told``: Slurm has sent TERM to every process already, and a second one would cut short what the first one began.
    """
    spool = _spool(session)
    spool.wish_stop(request["attempt"], request["grace"], request["reason"], bool(request.get("told")))
    # Somebody may have stopped the agent itself, with all that it had started.
    procs.send([pid for pid in spool.agents(request["attempt"]) if procs.stopped(pid)], signal.SIGCONT)
    return {}


def warn(session, request):
    """Wish a signal sent to the training processes; the same ``number`` twice is one wish."""
    wish_warning(_spool(session), request["attempt"], request["number"], request["signal"], request["ranks"])
    return {}


def sweep(session, request):
    """End every process that carries the job's marks or was below its agent, and remove the job's directory when asked to."""
    from launcher.agent import container

    marks, job = request["marks"], session.layout.job(session.job)
    ranks = [os.path.join(job, entry) for entry in entries(job) if entry.startswith("rank-")]
    spools = [Spool(os.path.join(rank, entry)) for rank in ranks for entry in entries(rank) if entry.startswith("spool")]

    def ours():
        return sorted(set(procs.marked(marks)).union(*(family(spool) for spool in spools)) - {os.getpid()})

    victims = ours()
    left = procs.end(ours, lambda: None) if victims else []
    removed = [spool for spool in spools if container.remove(spool)]
    if removed:
        left = procs.end(ours, lambda: None)
    if request.get("remove"):
        remove(job)
    return {"ended": victims, "left": left}


def entries(directory):
    """The names in a directory, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def jobs(session, request):
    """Names of the job directories here with their size in bytes and whether processes of theirs live."""
    names = entries(session.layout.jobs())
    living = {procs.environment(pid).get(b"LAUNCHER_JOB_ID", b"").decode("utf-8", "replace") for pid in procs.everybody()}
    found = {name: {"alive": name in living} for name in names}
    for name in living - set(names) - {""}:
        found[name] = {"alive": True}
    return {"jobs": found}


def release(session, request):
    """Remove what the job left here: working copy (not with `code`), spool, and outputs but for the channels in `keep`."""
    session.follower = None
    job, output = session.layout.job(session.job), session.layout.output(session.job)
    keep, code = set(request.get("keep", [])), request.get("code")
    # What the command put in the place of our directories may lead anywhere: only the link itself is ours.
    if not (keep or code) or os.path.islink(job) or os.path.islink(output):
        remove(job)
        return {}
    stays = [output] if not code else [output, session.layout.code(session.job)]
    for entry in os.listdir(job):
        if os.path.join(job, entry) not in stays:
            remove(os.path.join(job, entry))
    for channel in os.listdir(output):
        if channel not in keep:
            remove(os.path.join(output, channel))
    return {}


def remove(path):
    """Remove whatever is there; its name is free at once."""
    trash = "%s.%d.gone" % (path, os.getpid())
    try:
        os.rename(path, trash)
    except FileNotFoundError:
        return

    if not os.path.isdir(trash) or os.path.islink(trash):
        os.unlink(trash)
        return

    try:
        _unlink_tree(trash)
    except OSError:
        # A read-only directory that the job made, or paths longer than the system takes, must not keep the rest.
        import subprocess

        for words in (["chmod", "-R", "u+rwX", "--", trash], ["rm", "-rf", "--", trash]):
            subprocess.call(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if os.path.lexists(trash):
            raise


def _unlink_tree(path):
    """As deep as it goes, without recursion."""
    todo = [path]
    while todo:
        with os.scandir(todo[-1]) as entries:
            found = list(entries)
        folders = [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
        for entry in found:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
        if folders:
            todo += folders
        else:
            os.rmdir(todo.pop())


def bye(session, request):
    """The last request, with `release` as its last work: the session ends once the reply is out."""
    session.over = True
    if request.get("release") is not None:
        release(session, request["release"])
    return {}


def _spool(session):
    return Spool(session.layout.spool(session.job, session.rank, session.requeue))


OPS = {
    "node_hello": hello,
    "node_start": start,
    "node_follow": follow,
    "node_stop": stop,
    "node_warn": warn,
    "node_sweep": sweep,
    "node_jobs": jobs,
    "node_release": release,
    "node_bye": bye,
}

"""Operation that has a job's requirements installed on this node: runs `layer.py` in the command's interpreter.

Its output flows to the near side while it runs.  A guard in a session of its own holds it: when our session ends, for
whatever reason, the guard ends everything that the installation has started.

Runs on the nodes: standard library only, Python 3.8.
"""

import _signal as signal  # the interpreter's own part: `signal` would bring enum
import os
import select

from launcher.agent import lean, node, procs

_GRACE = 5.0
"""seconds between TERM and KILL"""
_STOP_SECONDS = 20
"""how long what ends a container may take"""
_BLIND_SECONDS = 0.2
"""how long an end may stay unseen where nothing tells of it"""


def build(session, request):
    """{layer: what layer.py found or made, or {"error", "step"}; status: its exit status}; what it prints comes as data.

    ``script`` is layer.py, ``order`` its order; ``argv`` runs it, wrapped for where it is to run; ``stop``, if there is
    one, ends what is not below us.
    """
    layers = os.path.join(session.layout.root, "layers")
    folder = os.path.join(layers, "asked", "%s-%d" % (session.job, session.rank))
    os.makedirs(layers, 0o700, exist_ok=True)
    _remove(folder)
    os.makedirs(folder, 0o700)
    try:
        _write(os.path.join(folder, "build.py"), request["script"])
        _write(os.path.join(folder, "order.json"), lean.dumps(dict(request["order"], layers=layers)))
        cwd = session.layout.code(session.job) if request["order"]["local"] else folder
        status = _guarded(session, request, (folder, cwd))
        return {"layer": _result(os.path.join(folder, "result.json")), "status": status}
    finally:
        _remove(folder)


def _write(path, content):
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(content)


def _result(path):
    try:
        with open(path, encoding="utf-8") as file:
            return lean.loads(file.read())
    except FileNotFoundError:
        return None


def _remove(path):
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def _guarded(session, request, places):
    """Run it below a guard and pass on what it prints; its exit status as a shell would give it."""
    output, printed = os.pipe()
    ours, guards = _socketpair()
    pid = os.fork()
    if pid == 0:
        from launcher.agent import supervise

        supervise.never_return(lambda: _guard(request, _environment(session, request), places, guards, printed))
    os.close(printed)
    os.close(guards)
    offset = 0
    try:
        while True:
            chunk = os.read(output, 1 << 16)
            if not chunk:
                break
            session.send_data(0, offset, chunk)
            offset += len(chunk)
        said = os.read(ours, 16)
        return int(said) if said else 70
    finally:
        os.close(output)
        os.close(ours)
        os.waitpid(pid, 0)


def _socketpair():
    import socket

    one, other = socket.socketpair()
    return one.detach(), other.detach()


def _environment(session, request):
    # By its id whoever cleans up after a job finds it.
    return dict(node.environment_of(request), LAUNCHER_JOB_ID=session.job)


def _guard(request, environment, places, line, printed):
    """The guard's whole life: start it, wait for its end or for the end of the session, and leave nothing behind."""
    folder, cwd = places
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, null), (1, printed), (2, printed)):
        os.dup2(source, target)
    procs.close_others(line)
    procs.become_subreaper()
    procs.set_name("launcher-guard")
    child = _start(request["argv"], environment, cwd)
    status, alone = _until_end(child, line)
    if request.get("stop"):
        _stop(request["stop"], environment)
    procs.end(lambda: procs.descendants(os.getpid()), procs.reap)
    if alone:
        _remove(folder)
        return
    os.close(1)
    os.close(2)
    os.write(line, b"%d" % status)


def _start(argv, environment, cwd):
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.chdir(cwd)
            os.execvpe(argv[0], argv, environment)
        except OSError as error:
            os.write(2, ("%s: %s\n" % (argv[0], error.strerror)).encode())
        os._exit(127)
    try:
        # Whoever is first: it may have to be ended before it has come that far.
        os.setpgid(child, child)
    except OSError:
        pass  # it is another program already, and was first
    return child


def _until_end(child, line):
    """(its exit status, whether the session ended before): then it is told to end, and killed after a grace."""
    import time

    ended, deadline = procs.open_pidfd(child), None
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            return code, deadline is not None
        wakers = ([] if ended is None else [ended]) + ([line] if deadline is None else [])
        # A kernel without pidfds (before 5.3) does not tell.
        patience = _BLIND_SECONDS if ended is None else None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select(wakers, [], [], patience)[0]
        if deadline is None and line in ready:
            deadline = time.monotonic() + _GRACE
            os.killpg(child, signal.SIGTERM)
        elif deadline is not None and time.monotonic() >= deadline:
            os.killpg(child, signal.SIGKILL)


def _stop(words, environment):
    import subprocess

    try:
        null = subprocess.DEVNULL
        subprocess.call(words, stdin=null, stdout=null, stderr=null, env=environment, timeout=_STOP_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        pass


OPS = {"layer_build": build}

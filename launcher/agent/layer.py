"""Installs a job's requirements as a layer over an interpreter's own environment; a program of its own.

It is not part of the agent: it runs in the interpreter that the command will run in, which may be one of a container.

    python build.py         build.py, order.json in the same folder; result.json is written there

A layer is a virtual environment that sees everything of that interpreter, and adds what was asked for.

    <layers>/<key>/lock              held (flock) while it is built
    <layers>/<key>/venv-<random>/    the environment
    <layers>/<key>/layer.json        which of them is whole: written last
    <layers>/<key>/used              its time tells when a job asked for it last

The key is a hash of what is installed, of the interpreter, and of what that has installed.  Whatever is not named by a
layer.json is a remainder of a build that was killed, and removed by the next one.  Where file locks do not work two may
build at once, each in a folder of its own; who is first wins.

Standard library only, Python 3.8.
"""


def main():
    import json
    import os
    import signal
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "order.json")) as file:
        order = json.load(file)
    # A folder that is half built is removed on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        result = Layer(order, here).get()
    except Failed as error:
        result = {"error": error.what, "step": error.step}
    except OSError as error:
        result = {"error": "%s: %s" % (error.strerror, error.filename), "step": ""}
    part = os.path.join(here, "result.part")
    with open(part, "w") as file:
        json.dump(result, file)
    os.replace(part, os.path.join(here, "result.json"))


class Failed(Exception):
    """The layer cannot be built: a sentence, and what to do."""

    def __init__(self, what, step=""):
        self.what, self.step = what, step


class Layer:
    """One layer: found, or built."""

    def __init__(self, order, here):
        import os

        self._order, self._here = order, here
        self._folder = os.path.join(order["layers"], self._key())

    def _key(self):
        """Of what is installed, over what: a change of either is another layer."""
        import hashlib
        import json
        import os
        import sys

        base = []
        for path in _site_folders():
            try:
                base.append([path, os.stat(path).st_mtime_ns])
            except OSError:
                pass
        interpreter = [sys.version, sys.executable, os.path.realpath(sys.executable), sys.prefix, sys.base_prefix, base]
        content = [self._order["lines"], self._order["constraints"], self._order["code"], self._order["image"], interpreter]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def get(self):
        """What the command must know; {} where it is not built, and not to be built now."""
        import os
        import time

        began = time.time()
        found = self._whole()
        if found is None and not self._order["build"]:
            return {}
        fresh = found is None
        if found is None:
            lock = self._lock()
            found = self._whole() or self._build(locked=lock is not None)
        with open(os.path.join(self._folder, "used"), "w"):
            pass
        path = found["bin"] + os.pathsep + os.environ.get("PATH", os.defpath)
        return dict(found, built=fresh, seconds=round(time.time() - began, 1), programs=self._programs(path))

    def _programs(self, path):
        import shutil

        return {name: shutil.which(name, path=path) for name in self._order["programs"]}

    def _whole(self):
        import json
        import os

        try:
            with open(os.path.join(self._folder, "layer.json")) as file:
                found = json.load(file)
            return found if os.access(found["python"], os.X_OK) else None
        except (OSError, ValueError, KeyError):
            return None

    def _lock(self):
        """Wait until nobody else builds this layer; None where there are no locks."""
        import errno
        import fcntl
        import os

        path = os.path.join(self._folder, "lock")
        while True:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say("another job installs the same requirements; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
                os.close(lock)
                return None
            try:
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    return lock
            except FileNotFoundError:
                pass  # whoever had it has removed it all, and the lock with it
            os.close(lock)

    def _build(self, locked):
        import json
        import os
        import shutil
        import sys
        import time
        import uuid

        if locked:
            self._remove_remainders()
        venv = os.path.join(self._folder, "venv-" + uuid.uuid4().hex[:8])
        _say("building %s with %s" % (venv, sys.executable))
        try:
            python = _make(venv)
            _install(python, self._order, self._here)
            site = _site_of(python)
            found = {"python": python, "bin": os.path.dirname(python), "site": site, "made": time.time()}
            part = os.path.join(venv, "layer.part")
            with open(part, "w") as file:
                json.dump(found, file)
            other = self._whole()
            if other is not None:
                shutil.rmtree(venv, ignore_errors=True)
                return other
            os.replace(part, os.path.join(self._folder, "layer.json"))
        except BaseException:
            # Told to end in the very moment in which it became the layer, it stays: others may have begun with it.
            whole = self._whole()
            if whole is None or os.path.dirname(whole["bin"]) != venv:
                shutil.rmtree(venv, ignore_errors=True)
            raise
        _say("done")
        return found

    def _remove_remainders(self):
        """All that a build left which was killed; a layer that is named, but has lost its interpreter, too."""
        import os
        import shutil

        for entry in os.listdir(self._folder):
            if entry.startswith("venv-"):
                shutil.rmtree(os.path.join(self._folder, entry), ignore_errors=True)


def _make(venv):
    """A virtual environment without pip that sees all of this interpreter's; the path of its interpreter."""
    import os
    import subprocess
    import sys

    words = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", venv]
    if subprocess.call(words, cwd=os.path.dirname(venv)) != 0:
        step = "install it there (Debian: apt install python3-venv), or name another interpreter"
        raise Failed("%s cannot make virtual environments" % sys.executable, step)
    python = os.path.join(venv, "bin", "python")
    # An interpreter that is itself one of a virtual environment shares only its base's packages with another one.
    lines = ["import site; site.addsitedir(%r)" % path for path in _site_folders()]
    with open(os.path.join(_site_of(python), "_launcher_base.pth"), "w") as file:
        file.write("\n".join(lines) + "\n")
    return python


def _site_folders():
    """Where this interpreter's own packages are."""
    import os
    import site
    import sysconfig

    paths = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
    paths += site.getsitepackages() if hasattr(site, "getsitepackages") else []
    if getattr(site, "ENABLE_USER_SITE", False):
        paths.append(site.getusersitepackages())
    return [path for path in dict.fromkeys(paths) if os.path.isdir(path)]


def _site_of(python):
    import subprocess

    question = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    return subprocess.check_output([python, "-I", "-c", question], text=True).strip()


def _install(python, order, here):
    import os
    import subprocess
    import sys

    if subprocess.call([python, "-c", "import pip"], stderr=subprocess.DEVNULL, cwd=here) != 0:
        _say("%s has no pip; taking the one that comes with Python" % sys.executable)
        if subprocess.call([python, "-m", "ensurepip"], cwd=here) != 0:
            step = "install it there (Debian: apt install python3-pip, else %s -m ensurepip)" % sys.executable
            raise Failed("%s has no pip" % sys.executable, step)
    words = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    for option, name in (("-r", "lines"), ("-c", "constraints")):
        if order[name]:
            path = os.path.join(here, name + ".txt")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write("\n".join(order[name]) + "\n")
            words += [option, path]
    status = subprocess.call(words, env=dict(os.environ, PIP_REQUIRE_VIRTUALENV="0"))
    if status != 0:
        raise Failed("pip could not install the requirements (exit status %d)" % status)


def _say(text):
    print("launcher: " + text, flush=True)


if __name__ == "__main__":
    main()

"""The container engine: find it, start it where nobody did, and have the images in it.

Nothing here assumes a registry.  Where ``debian:bookworm-slim`` cannot be pulled it is made with debootstrap and
imported under that name, so the Dockerfile is the same in both worlds.  All of it is shared by every checkout on this
machine: a lock file keeps two of them from building at once, and a record tells whether the running dockerd is ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

IMAGE_DIR = Path(__file__).parent / "image"
SLURM_IMAGE_DIR = Path(__file__).parent / "slurm" / "image"
SUITES = ("bookworm", "bullseye")
SOCKET = Path("/var/run/docker.sock")
START_SECONDS = 180.0
"""dockerd needs one or two; a cold disk needs more"""


class ClusterError(Exception):
    """The fake cluster cannot be had; the message says why and what to do."""


def cache_dir() -> Path:
    """Where things shared by all checkouts lie: the lock, dockerd's record and log, the trees debootstrap makes."""
    default = "/var/cache/launcher-tests" if os.geteuid() == 0 else str(Path.home() / ".cache" / "launcher-tests")
    path = Path(os.environ.get("LAUNCHER_TESTS_CACHE", default))
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel lets go of it when the process dies."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run(argv: list[str], **options: object) -> str:
    """Run a command and return its stdout; ClusterError with the command and its last lines when it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ClusterError(f"`{' '.join(argv[:8])}` exited {done.returncode}:\n{tail}")
    return str(done.stdout)


def client() -> str:
    """Path of the docker client: the first that the engine understands: one made much later than the engine may refuse it."""
    for client in _clients():
        if _answers(client):
            return client
    raise ClusterError("no container engine answers")


def docker(*argv: str) -> str:
    """Run the docker client that speaks to the engine here."""
    return run([client(), *argv])


def pause(container: str) -> None:
    """Freeze every process of a container.

    One that forks in that very moment may keep its cgroup (version 1) from freezing.  runc then lets go of all of them, says
    `unable to freeze`, and is to be asked again.
    """
    for _ in range(20):
        try:
            docker("pause", container)
            return
        except ClusterError as error:
            if "unable to freeze" not in str(error):
                raise
            refused = error
    raise refused


def have_engine() -> bool:
    """True when a docker client is here and an engine answers it."""
    return any(_answers(client) for client in _clients())


def why_no_engine() -> str | None:
    """None when an engine answers or can be started by us, else the reason and what to do."""
    if have_engine():
        return None
    if not _clients():
        return "no docker client here (on Debian: apt-get install docker.io iptables docker-compose debootstrap)"
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        return "no container engine answers, and starting one takes root and an installed dockerd"
    return None


def ensure_engine() -> None:
    """Start dockerd when no engine answers and we may; remember that it was us."""
    reason = why_no_engine()
    if reason is not None:
        raise ClusterError(reason)
    if have_engine():
        return
    with locked(cache_dir() / "engine.lock"):
        if not have_engine():
            _start_dockerd()


def release_engine() -> bool:
    """Stop the dockerd that we started, unless a container still runs in it; True when it was stopped."""
    record = cache_dir() / "dockerd.json"
    with locked(cache_dir() / "engine.lock"):
        if not record.exists() or not have_engine():
            return False
        ours = json.loads(record.read_text())
        if _started_at(ours["pid"]) != ours["started_at"] or docker("ps", "--quiet").strip():
            return False
        os.kill(ours["pid"], signal.SIGTERM)
        _wait_gone(ours["pid"])
        record.unlink()
    return True


def ensure_images(suites: Sequence[str] = SUITES) -> dict[str, str]:
    """Build what is missing and return suite -> image name, which carries a hash of the image's sources."""
    names = {suite: f"launcher-cluster:{suite}-{_sources_hash(IMAGE_DIR)}" for suite in suites}
    if all(_has_image(name) for name in names.values()):
        return names
    with locked(cache_dir() / "images.lock"), ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(_ensure_image, names.keys(), names.values()))
    return names


def ensure_all_images() -> None:
    """Build what is missing for any cluster, with an engine that is started where nobody did."""
    ensure_engine()
    ensure_images()
    ensure_slurm_image()


def ensure_slurm_image() -> str:
    """The image of the machines of a fake Slurm cluster, which is made on top of a node's; built where it is missing."""
    name = f"launcher-cluster:slurm-{_sources_hash(IMAGE_DIR, SLURM_IMAGE_DIR)}"
    if _has_image(name):
        return name
    base = ensure_images(["bookworm"])["bookworm"]
    with locked(cache_dir() / "images.lock"):
        if not _has_image(name):
            _build(base, name, SLURM_IMAGE_DIR)
    return name


def _clients() -> list[str]:
    found = [shutil.which("docker"), "/usr/bin/docker"]
    return [path for path in dict.fromkeys(found) if path and os.access(path, os.X_OK)]


_understood: set[str] = set()


def _answers(client: str) -> bool:
    if client in _understood and SOCKET.exists():
        return True
    argv = [client, "version", "--format", "{{.Server.Version}}"]
    ok = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    if ok:
        _understood.add(client)
    else:
        _understood.discard(client)
    return ok


def _start_dockerd() -> None:
    log = cache_dir() / "dockerd.log"
    if not Path("/sys/fs/cgroup").is_mount() and shutil.which("cgroupfs-mount"):
        run(["cgroupfs-mount"])
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["dockerd"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/"
        )
    deadline = time.monotonic() + START_SECONDS
    while not have_engine():
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ClusterError(f"dockerd did not come up; the end of {log}:\n{tail}")
        time.sleep(0.1)
    record = {"pid": process.pid, "started_at": _started_at(process.pid)}
    (cache_dir() / "dockerd.json").write_text(json.dumps(record))


def _started_at(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while _started_at(pid) is not None:
        if time.monotonic() > deadline:
            raise ClusterError(f"dockerd (pid {pid}) did not end within 30 s of SIGTERM")
        time.sleep(0.1)


def _has_image(name: str) -> bool:
    return bool(docker("images", "--quiet", name).strip())


def _sources_hash(*directories: Path) -> str:
    digest = hashlib.sha256()
    for path in (path for directory in directories for path in sorted(directory.iterdir())):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _ensure_image(suite: str, name: str) -> None:
    if not _has_image(name):
        _ensure_base(suite)
        _build(f"debian:{suite}-slim", name, IMAGE_DIR)


def _ensure_base(suite: str) -> None:
    """Have ``debian:<suite>-slim``: pulled where a registry answers, else debootstrapped and imported."""
    base = f"debian:{suite}-slim"
    if _has_image(base):
        return
    try:
        run([client(), "pull", "--quiet", base], timeout=300)
    except (ClusterError, subprocess.TimeoutExpired):
        _bootstrap(suite, base)


def _bootstrap(suite: str, base: str) -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise ClusterError(f"{base} cannot be pulled, and only root with debootstrap installed can make it here")
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=f"{suite}-") as tree:
        _debootstrap(suite, Path(tree))
        tar = subprocess.Popen(["tar", "-C", tree, "-c", "."], stdout=subprocess.PIPE)
        imported = subprocess.run([client(), "import", "-", base], stdin=tar.stdout, capture_output=True, check=False)
        if tar.wait() or imported.returncode:
            raise ClusterError(f"importing {base} failed: {imported.stderr.decode(errors='replace')}")


def _debootstrap(suite: str, tree: Path) -> None:
    """Try the mirror that apt uses, then the archive where Debian puts releases it no longer serves."""
    failures = []
    for mirror in (_apt_mirror(), "http://archive.debian.org/debian"):
        try:
            run(["debootstrap", "--variant=minbase", suite, str(tree), mirror])
            return
        except ClusterError as failure:
            failures.append(str(failure))
            for left in tree.iterdir():
                shutil.rmtree(left, ignore_errors=True)
    raise ClusterError("\n".join(failures))


def _apt_mirror() -> str:
    sources = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in sources:
        if path.is_file():
            found = re.search(r"^(?:deb|URIs:)\s.*?(https?://[^\s\]]+/debian)/?(?:\s|$)", path.read_text(errors="replace"), re.M)
            if found:
                return found.group(1)
    return "http://deb.debian.org/debian"


def _build(base: str, name: str, sources: Path) -> None:
    buildx = subprocess.run([client(), "buildx", "version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    # Without the buildx plugin a new client refuses to build unless it is told to take the engine's own builder.
    environment = os.environ | ({} if buildx.returncode == 0 else {"DOCKER_BUILDKIT": "0"})
    argv = [client(), "build", "--quiet", "--build-arg", f"BASE={base}", "--tag", name, str(sources)]
    run(argv, env=environment)

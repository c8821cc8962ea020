"""A project's mirror on a node, and the working copy that a job gets of it.

    <mirror>/tree/           the files of the last snapshot that was sent
    <mirror>/manifest.json   what tree/ holds: the snapshot's entries, and each file's stat as we left it.  It is there only
                             while tree/ is whole: a sync takes it away before it changes anything and writes it at its end.
    <mirror>/manifest.old    the manifest of before, while a sync is under way or after one was interrupted: it vouches for
                             each file whose stat is still the recorded one, so that only the others are read again
    <mirror>/manifest.scan   what the tree and the manifest looked like when they last agreed: where they still do, the manifest
                             need not be read
    <mirror>/lock            held (flock) from a sync's start until the working copy is made

A sync is `mirror_begin` (often the only one), `mirror_diff`, then `mirror_fill`, or rsync and `mirror_commit`; at its end
comes `working_copy`.  Names are bytes here and UTF-8 with surrogateescape on the wire, whatever the node's locale says.

Runs on the nodes: standard library only, Python 3.8.
"""

import errno
import fcntl
import os
import stat

from launcher.agent import lean
from launcher.agent.facts import which
from launcher.agent.scan import arranged, scan, stamp_of
from launcher.agent.wire import raw

FICLONE = 0x40049409
"""the ioctl of linux/fs.h by which btrfs, xfs and others copy a file without copying its blocks"""
BLOCK = 1 << 20
_ZEROS = bytes(BLOCK)
LARGE = 256 << 10
"""bytes from which on the difference to an old version may be worth computing"""


def begin(session, request):
    """{project, digest}: lock the mirror and tell whether it holds that snapshot: {same, rsync}."""
    release(session, {})
    sync = session.held["mirror"] = Sync(session.layout.mirror(request["project"]))
    sync.lock(getattr(session, "note", None))
    return {"same": sync.holds(request["digest"]), "rsync": _which("rsync"), "tree": sync.tree}


def diff(session, request):
    """The manifest as data: remove what is not in it; {need: paths to send, in this order, old: bytes of
    the large ones' old versions}.

    Without anything to send the mirror is whole again when this returns.
    """
    import zlib

    received = b"".join(session.receive_data())
    sync = current(session)
    if sync.manifest is not None or not sync.recorded:
        sync.look()  # a way of sending that failed may have written some files
    sync.manifest = check_manifest(lean.loads(zlib.decompress(received).decode()))
    need = sync.compare()
    sync.check_room(need, session.layout.root)
    sync.clear()
    if not need:
        sync.commit()
    files = sync.manifest["files"]
    old = [sync.found[path] for path in need if path in sync.found]
    return {"need": need, "bytes": sum(files[path]["size"] for path in need),
            "old": sum(stamp[0] for stamp in old if stat.S_ISREG(stamp[3]) and stamp[0] >= LARGE)}


def fill(session, request):
    """{coding}: the needed files' bytes, one after the other, come as data; the mirror is whole when this returns."""
    sync = current(session)
    frames = session.receive_data()
    try:
        source = Source(_inflated(frames) if request["coding"] == "zlib" else frames)
        for path in sync.need:
            sync.write(path, source)
        source.expect_end()
    finally:
        for _ in frames:
            pass
    sync.commit()
    return {"files": len(sync.need)}


def commit(session, request):
    """After rsync wrote the needed files: read them, and make the mirror whole."""
    sync = current(session)
    for path in sync.need:
        sync.verify(path)
    sync.commit()
    return {"files": len(sync.need)}


def working_copy(session, request):
    """Make jobs/<id>/code from the locked mirror, and the job's other directories."""
    layout, job = session.layout, session.job
    code = layout.code(job)
    os.makedirs(layout.job(job), 0o700, exist_ok=True)
    layout.make_outputs(job)
    made = not os.path.isdir(code)
    if made:
        copy_tree(current(session).tree, code)
    release(session, {})
    return {"code": code, "made": made}


def release(session, request):
    """Let go of the mirror's lock; harmless when it is not held."""
    held = session.held.pop("mirror", None)
    if held is not None:
        held.close()
    return {}


def copy_tree(tree, target):
    """Copy ``tree`` as ``target``, which must not exist: complete under its name or not there at all.

    `cp` does it in a fifth of the time Python needs; a cp without --reflink (busybox) or none at all is made up for.
    """
    import shutil

    unfinished = f"{target}.{os.getpid()}.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        if not any(_cp(options, tree, unfinished) for options in (["-a", "--reflink=auto"], ["-a"])):
            shutil.copytree(tree, unfinished, symlinks=True)
        os.rename(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _cp(options, tree, target):
    import shutil
    import subprocess

    program = _which("cp")
    if not program:
        return False
    environment = dict(os.environ, LC_ALL="C")
    done = subprocess.run([program, *options, tree, target], check=False, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode == 0:
        return True
    said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {done.returncode}"]
    for number in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(number) in said[0]:
            raise OSError(number, os.strerror(number), target)
    shutil.rmtree(target, ignore_errors=True)
    return False


class Sync:
    """One sync of one mirror, from the lock to the working copy."""

    def __init__(self, mirror):
        self.mirror = mirror
        self.tree = os.path.join(mirror, "tree")
        self.root = os.fsencode(self.tree)
        self.manifest = None
        self.recorded = None
        self.intact = False
        self.found = {}
        self.need = []
        self.copied = True
        """a working copy will be made of it, which takes room"""
        self._known = {}
        self._dirs = set()
        self._lock = self._open()

    def _open(self):
        while True:
            try:
                os.makedirs(self.tree, 0o700, exist_ok=True)
                return os.open(os.path.join(self.mirror, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # it was removed as a whole in between

    def lock(self, note):
        """Wait until no other sync has this mirror; says so by a note first."""
        self._wait_for_lock(note)
        # Whoever had it may have removed it all, and the lock with it.
        while not self._is_there():
            os.close(self._lock)
            self._lock = self._open()
            self._wait_for_lock(note)

    def _is_there(self):
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(os.path.join(self.mirror, "lock")))
        except FileNotFoundError:
            return False

    def _wait_for_lock(self, note):
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if note:
                note(message="waiting for another job of this project, which is using its mirror")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise
            if note:
                note(message=f"{self.mirror} has no file locks: do not submit two jobs of one project at once")

    def close(self):
        os.close(self._lock)

    def holds(self, digest):
        """True when the tree is whole and every file of it as the manifest of this snapshot left it."""
        import marshal

        scanned, agreed = scan(self.root), os.path.join(self.mirror, "manifest.scan")
        try:
            manifest = stamp_of(os.stat(os.path.join(self.mirror, "manifest.json")))
        except FileNotFoundError:
            manifest = None
        # Version 2: the same values have the same bytes, whoever else refers to them.
        now = marshal.dumps([digest, manifest, scanned], 2)
        if manifest is not None and _content(agreed) == now:
            return True
        self.look(scanned)
        same = self.intact and self.recorded["digest"] == digest
        if same:
            _keep(agreed, now)
        return same

    def look(self, scanned=None):
        """Read the manifest and the tree (or a scan of it); `intact` says that every file is as the manifest left it."""
        self.found, self._dirs = arranged(scanned or scan(self.root))
        whole = self._load("manifest.json")
        self.recorded = whole or self._load("manifest.old") or {"digest": "", "files": {}, "stamps": {}, "dirs": []}
        self.intact = (whole is not None and self.found == self.recorded["stamps"]
                       and self._dirs == set(self.recorded["dirs"]))

    def entries(self):
        """The files of the snapshot, as it was sent or as it is here."""
        return (self.manifest or self._load("manifest.json"))["files"]

    def _load(self, name):
        try:
            with open(os.path.join(self.mirror, name), encoding="ascii") as file:
                loaded = lean.loads(file.read())
        except (FileNotFoundError, ValueError):
            return None
        return loaded if isinstance(loaded, dict) and loaded.keys() >= {"digest", "files", "stamps", "dirs"} else None

    def compare(self):
        """The paths of the manifest's files that the tree does not hold as they should be, sorted."""
        files = self.manifest["files"]
        for path in self.found.keys() & files.keys():
            self._known[path] = self._identity(path, files[path])
        self.need = sorted(path for path, entry in files.items()
                           if "sha256" in entry and self._known.get(path) != entry["sha256"])
        return self.need

    def _identity(self, path, wanted):
        """The hash or link target of what lies at ``path``; None where it cannot be what is wanted."""
        stamp = self.found[path]
        if "link" in wanted:
            return os.readlink(self.at(path)).decode("utf-8", "surrogateescape") if stat.S_ISLNK(stamp[3]) else None
        if not stat.S_ISREG(stamp[3]) or "sha256" not in wanted or stamp[0] != wanted["size"]:
            return None
        if self.recorded["stamps"].get(path) == stamp:
            return self.recorded["files"][path].get("sha256")
        return hash_file(self.at(path))

    def check_room(self, need, node):
        """ENOSPC before anything was changed, when the files and then the working copy cannot fit."""
        files = self.manifest["files"]
        incoming = sum(files[path]["size"] for path in need)
        total = sum(entry.get("size", 0) for entry in files.values())
        held = sum(stamp[0] for path, stamp in self.found.items())
        growth = max(incoming, total - held) if held else incoming
        check_room(self.mirror, growth + (total if self.copied and not _reflinks(self.mirror) else 0), len(need) + len(files))

    def clear(self):
        """Take the manifest away, then everything that must not be there; links and exec bits are set at the commit."""
        try:
            os.replace(os.path.join(self.mirror, "manifest.json"), os.path.join(self.mirror, "manifest.old"))
        except FileNotFoundError:
            pass
        files = self.manifest["files"]
        for path, stamp in self.found.items():
            entry = files.get(path)
            keeps = entry and (("sha256" in entry and stat.S_ISREG(stamp[3]))
                               or ("link" in entry and self._known.get(path) == entry["link"]))
            if not keeps:
                os.unlink(self.at(path))
        wanted = directories(files)
        for path in sorted(self._dirs - wanted, key=len, reverse=True):
            os.rmdir(self.at(path))
        for path in sorted(wanted - self._dirs, key=len):
            os.mkdir(self.at(path))
        self._dirs = wanted

    def write(self, path, source):
        """Write one file from the bytes that come next, checking its hash."""
        entry, target = self.manifest["files"][path], self.at(path)
        if path in self.found:
            os.unlink(target)
        import hashlib

        digest = hashlib.sha256()
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for block in source.take(entry["size"]):
                digest.update(block)
                if not block[0] and block == _ZEROS[:len(block)]:
                    # A hole, which takes no room.
                    os.ftruncate(file, os.lseek(file, len(block), os.SEEK_CUR))
                    continue
                view = memoryview(block)
                while view:
                    view = view[os.write(file, view):]
            os.fchmod(file, entry["mode"])
            os.utime(file, ns=(entry["mtime"], entry["mtime"]))
        except OSError as error:
            error.filename = error.filename or target
            raise
        finally:
            os.close(file)
        if digest.hexdigest() != entry["sha256"]:
            raise ValueError(f"{os.fsdecode(target)} arrived with other bytes than were sent")

    def verify(self, path):
        """ValueError unless the file that rsync wrote has the manifest's hash; then its mode and time are made right."""
        entry, target = self.manifest["files"][path], self.at(path)
        if not stat.S_ISREG(os.lstat(target).st_mode) or hash_file(target) != entry["sha256"]:
            raise ValueError(f"{os.fsdecode(target)} arrived with other bytes than were sent")
        os.chmod(target, entry["mode"])
        os.utime(target, ns=(entry["mtime"], entry["mtime"]))

    def commit(self):
        """Set links and exec bits, then write the manifest: from here on the tree is whole.

        No fsync: after a crash of the node the recorded sizes and times tell which files did not reach the disk.
        """
        files, stamps, changed = self.manifest["files"], {}, set(self.need)
        for path, entry in files.items():
            if "dir" in entry:
                continue
            target, old = self.at(path), self.found.get(path)
            if "link" in entry and self._known.get(path) != entry["link"]:
                os.symlink(raw(entry["link"]), target)
            elif "sha256" in entry and path not in changed and (old[3] & 0o777) != entry["mode"]:
                os.chmod(target, entry["mode"])
            elif path not in changed:
                stamps[path] = old
                continue
            stamps[path] = stamp_of(os.lstat(target))
        record = {"digest": self.manifest["digest"], "files": files, "stamps": stamps, "dirs": sorted(self._dirs)}
        unfinished = os.path.join(self.mirror, "manifest.tmp")
        with open(unfinished, "w", encoding="ascii") as file:
            file.write(lean.dumps(record))
        os.replace(unfinished, os.path.join(self.mirror, "manifest.json"))

    def at(self, path):
        """The bytes path of a manifest's path."""
        return os.path.join(self.root, raw(path))


class Source:
    """The bytes of many files, one after the other, cut where each begins."""

    def __init__(self, blocks):
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def take(self, size):
        """Yield exactly ``size`` bytes in pieces; ValueError when the stream ends before."""
        while size:
            if not self._rest:
                block = next(self._blocks, None)
                if block is None:
                    raise ValueError(f"the files' bytes ended {size} bytes early")
                self._rest = memoryview(block)
            piece = self._rest[:size]
            self._rest = self._rest[len(piece):]
            size -= len(piece)
            yield piece

    def expect_end(self):
        if self._rest or any(self._blocks):
            raise ValueError("more bytes came than the files have")


def _inflated(frames):
    import zlib

    inflate = zlib.decompressobj()
    for frame in frames:
        data = inflate.decompress(frame, BLOCK)
        while data:
            yield data
            data = inflate.decompress(inflate.unconsumed_tail, BLOCK)
    rest = inflate.flush()
    if rest:
        yield rest


def _content(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _keep(path, content):
    """Write a file that may as well be missing."""
    try:
        with open(path + ".tmp", "wb") as file:
            file.write(content)
        os.replace(path + ".tmp", path)
    except OSError:
        pass


def directories(files):
    """The directories that a manifest's paths need."""
    wanted = set()
    for path, entry in files.items():
        if "dir" in entry:
            wanted.add(path)
        parent = path.rpartition("/")[0]
        while parent and parent not in wanted:
            wanted.add(parent)
            parent = parent.rpartition("/")[0]
    return wanted


def check_manifest(manifest):
    """The manifest as it came; ValueError when one of its paths could lead out of the tree, by its name or through a link."""
    files = manifest["files"]
    for path, entry in files.items():
        parts = path.split("/")
        if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"not a path inside the source folder: {path!r}")
        if len(entry.keys() & {"sha256", "link", "dir"}) != 1:
            raise ValueError(f"neither a file nor a link nor a directory: {path!r}")
    for path in directories(files):
        if "dir" not in files.get(path, {"dir": True}):
            raise ValueError(f"a file or link that has files below it: {path!r}")
    return manifest


def check_room(path, size, inodes):
    """OSError(ENOSPC) naming the numbers, when the file system of ``path`` has not that many bytes or inodes free."""
    there = os.statvfs(path)
    free = there.f_bavail * there.f_frsize
    if size > free:
        raise OSError(errno.ENOSPC, f"No space left on device: {size / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free", path)
    if there.f_files and inodes > there.f_favail:
        raise OSError(errno.ENOSPC, f"No space left on device: {inodes} inodes needed, {there.f_favail} free", path)


def _reflinks(directory):
    """True where a file can be cloned without using space, found out by trying."""
    source, clone = (os.path.join(directory, name) for name in ("clone.from", "clone.to"))
    try:
        with open(source, "wb") as one, open(clone, "wb") as other:
            one.write(b"x" * 4096)
            one.flush()
            fcntl.ioctl(other.fileno(), FICLONE, one.fileno())
        return True
    except OSError:
        return False
    finally:
        for path in (source, clone):
            if os.path.exists(path):
                os.unlink(path)


def hash_file(path):
    """The SHA-256 of a file in hex."""
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        for block in iter(lambda: file.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def _which(program):
    usual = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/bin", "/usr/bin", "/bin"))
    return which(program, usual)


def current(session):
    """The sync that this session has begun."""
    if "mirror" not in session.held:
        raise ValueError("no sync is under way: mirror_begin comes first")
    return session.held["mirror"]


OPS = {"mirror_begin": begin, "mirror_diff": diff, "mirror_fill": fill, "mirror_commit": commit,
       "mirror_release": release, "working_copy": working_copy}

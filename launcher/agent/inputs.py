"""Data that a job reads: kept in a store by its content, and linked from there into the job's folder, read-only.

    <node>/inputs/<digest>/tree/ manifest.json lock      as a mirror's; there are as many as there are contents
    <node>/jobs/<job id>/input/data/<channel>            a link into the store, or to a path of the node's own;
                                                         for shares a directory of links, node-<rank> each
    <node>/jobs/<job id>/input/shares/<channel>/node-<rank>/…   links to this node's files of a path of its own

`inputs_begin` locks an entry of the store; `mirror_diff` and `mirror_fill` then bring its files, or `inputs_fetch` has the
node's own Python get them from a URI; `inputs_place` makes it read-only and links it.

Runs on the nodes: standard library only, Python 3.8.
"""

import errno
import os
import stat

from launcher.agent import credentials, lean, mirror, node, stores
from launcher.agent.layout import part_of
from launcher.agent.wire import raw

_FETCH = r"""
import json, os, sys
order = json.load(sys.stdin)
try:
    import fsspec
    system, root = fsspec.core.url_to_fs(order["uri"], **order["options"])
    root = str(root).rstrip("/")
    for path, size in order["files"].items():
        target = os.path.join(order["tree"], path)
        if os.path.isfile(target) and os.path.getsize(target) == size:
            continue
        part, got = target + ".part", 0
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with system.open(root + "/" + path if not order["single"] else root, "rb") as source, open(part, "wb") as file:
            while True:
                block = source.read(4 << 20)
                if not block:
                    break
                got += len(block)
                if got > size:
                    raise ValueError("%s became larger meanwhile" % path)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        if got != size:
            raise ValueError("%s became shorter meanwhile" % path)
        os.replace(part, target)
except BaseException as error:
    print("-%s: %s" % (type(error).__name__, " ".join(str(error).split())[:500]))
else:
    print("+")
"""


def begin(session, request):
    """{digest}: lock that content's place in the store and tell whether it is there: {same, free: bytes}."""
    mirror.release(session, {})
    held = session.held["mirror"] = mirror.Sync(session.layout.input(request["digest"]))
    held.copied = False
    held.lock(getattr(session, "note", None))
    same = held.holds(request["digest"])
    if not same:
        _set_mode(held, 0o700)
    there = os.statvfs(held.mirror)
    return {"same": same, "free": there.f_bavail * there.f_frsize}


def fetch(session, request):
    """{python, uri, single, files: {path: size}}: have that Python get them; {fetched, why: text where it could not}."""
    import subprocess

    held = session.held["mirror"]
    files = request["files"]
    mirror.check_manifest({"files": {path: {"sha256": "", "size": size} for path, size in files.items()}})
    here = sum(stamp[0] for stamp in held.found.values())
    mirror.check_room(held.mirror, max(sum(files.values()) - here, 0), len(files))
    # On stdin: nobody sees it there.
    known = credentials.options(request["uri"], os.environ)
    order = {"uri": request["uri"], "options": known, "single": request["single"], "tree": held.tree, "files": files}
    child = subprocess.Popen([request["python"], "-c", _FETCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, cwd="/")
    try:
        said = child.communicate(lean.dumps(order).encode())[0].decode("utf-8", "replace").strip().splitlines()[-1:]
    finally:
        child.kill()
        child.wait()
    if said != ["+"]:
        held.look()  # what it has made or fetched until then is there
        return {"fetched": False, "why": said[0][1:] if said else "its Python ended with status %s" % child.returncode}
    _enter(held, files, request["digest"])
    return {"fetched": True}


def _enter(held, files, digest):
    """Write the manifest of files that were fetched; what else lies in the tree is removed."""
    held.look()
    for path in held.found:
        if path not in files:
            os.unlink(held.at(path))
    entries = {}
    for path, size in files.items():
        status = os.lstat(held.at(path))
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise ValueError("%s did not arrive as it is" % path)
        os.chmod(held.at(path), 0o400)
        entries[path] = {"size": size, "mode": 0o400, "sha256": mirror.hash_file(held.at(path)), "mtime": status.st_mtime_ns}
    held.look()
    held.manifest = {"digest": digest, "files": entries}
    held.need = list(entries)
    held.commit()


def place(session, request):
    """{channel, single: name or None, share: rank or None}: link the locked content into the job's folder: {path}."""
    held = mirror.current(session)
    _set_mode(held, 0o500)
    stores.want(held.mirror)
    path = _link(session, request, held.tree)
    mirror.release(session, {})
    return {"path": os.path.join(path, request["single"]) if request.get("single") else path}


def restore(session, request):
    """Move the locked content into the job's checkpoints, where the command may change it."""
    held = mirror.current(session)
    target = os.path.join(session.layout.output(session.job), "checkpoints")
    os.makedirs(target, exist_ok=True)
    for path in sorted(held.entries()):
        at = os.path.join(os.fsencode(target), raw(path))
        os.makedirs(os.path.dirname(at), exist_ok=True)
        if not os.path.lexists(at):
            os.chmod(held.at(path), 0o600)
            os.rename(held.at(path), at)
    _set_mode(held, 0o700)
    # Under its lock, and its name first: another job may wait for this very content.
    node.remove(held.mirror)
    mirror.release(session, {})
    return {}


def link(session, request):
    """{channel, source, share: [rank, nodes] or None}: use a path of this node's own: {path}."""
    source = request["source"]
    if not os.path.isabs(source) or not os.path.exists(source):
        raise ValueError("there is no %s there" % source)
    if not os.access(source, os.R_OK | (os.X_OK if os.path.isdir(source) else 0)):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), source)
    if request.get("share"):
        source = _share(session, request["channel"], source, *request["share"])
        request = dict(request, share=request["share"][0])
    if os.path.isdir(source):
        return {"path": _link(session, request, source)}
    # A single file keeps its name, so that a command that goes by its ending finds it.
    folder = session.layout.input_data(session.job, request["channel"])
    _real_directory(folder)
    at = os.path.join(folder, os.path.basename(source))
    _point(at, source)
    return {"path": at}


def _share(session, channel, source, rank, nodes):
    """A directory of links to this node's files of a path of its own: every ``nodes``-th by name."""
    if not os.path.isdir(source):
        raise ValueError("%s is one file, and there is nothing to share" % source)
    paths = []
    for directory, folders, files in os.walk(source, followlinks=True):
        folders.sort()
        paths += [os.path.relpath(os.path.join(directory, name), source) for name in files]
    if len(paths) < nodes:
        raise ValueError("%s has %d file(s) for %d nodes, and some would have none" % (source, len(paths), nodes))
    target = os.path.join(session.layout.job(session.job), "input", "shares", channel, "node-%d" % rank)
    for path in sorted(paths, key=os.fsencode)[rank::nodes]:
        at = os.path.join(target, path)
        os.makedirs(os.path.dirname(at), exist_ok=True)
        _point(at, os.path.join(source, path))
    return target


def _link(session, request, target):
    """The channel's link in the job's folder; of a share one beside those of the other nodes."""
    at = session.layout.input_data(session.job, request["channel"])
    if request.get("share") is not None:
        _real_directory(at)
        at = os.path.join(at, "node-%d" % request["share"])
    os.makedirs(os.path.dirname(at), exist_ok=True)
    _point(at, target)
    return at


def _real_directory(path):
    if os.path.islink(path):
        os.unlink(path)
    os.makedirs(path, exist_ok=True)


def _point(at, target):
    unfinished = part_of(at)
    os.symlink(target, unfinished)
    os.replace(unfinished, at)


def _set_mode(held, mode):
    """Of the store's directories; its files are read-only from the first."""
    for directory, _, _ in os.walk(held.root):
        os.chmod(directory, mode)


OPS = {"inputs_begin": begin, "inputs_fetch": fetch, "inputs_place": place, "inputs_link": link,
       "inputs_restore": restore}

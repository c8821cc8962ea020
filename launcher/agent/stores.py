"""Operations of `launcher gc` on what a node keeps for later jobs: which of it nobody has wanted for long, and its removal.

    layers/<key>      installed requirements: in use while a process has it in its environment
    inputs/<digest>   data of input channels: in use while a job's folder has links into it
    agents/<hash>.*   agents, as they came and as byte code: in use is the version that asks

A file `used` in a layer or input tells by its time when a job wanted it last.  Runs on the nodes: standard library only,
Python 3.8.
"""

import os
import time

from launcher.agent import node, procs

_DAY = 86400.0


def old(session, request):
    """{stores: {store: {key: days}}} of what nobody has wanted for so many ``days``; ``agent``: the version that asks."""
    root = session.layout.root
    inputs, agents = _linked(session.layout), [request["agent"]]
    found = {}
    for store, in_use in (("layers", _in_an_environment), ("inputs", inputs.__contains__), ("agents", agents.__contains__)):
        ages = {key: (time.time() - _wanted(os.path.join(root, store), key)) / _DAY for key in _keys(root, store)}
        found[store] = {key: int(age) for key, age in ages.items() if age >= request["days"] and not in_use(key)}
    return {"stores": found}


def drop(session, request):
    """Remove ``key`` from its ``store``; {removed: False where somebody is at work there, or has wanted it within ``days``}."""
    root, store, key = session.layout.root, request["store"], request["key"]
    if store not in ("layers", "inputs", "agents") or key not in _keys(root, store):
        return {"removed": False}
    top = os.path.join(root, store)
    if store == "agents":
        for name in node.entries(top):
            if name.partition(".")[0] == key:
                os.unlink(os.path.join(top, name))
        return {"removed": True}
    lock = _lock(os.path.join(top, key, "lock"))
    if lock is None:
        return {"removed": False}
    # A person was asked since `old` was, and a job may have begun meanwhile.
    in_use = _in_an_environment(key) if store == "layers" else key in _linked(session.layout)
    removed = not in_use and (time.time() - _wanted(top, key)) / _DAY >= request["days"]
    if removed:
        node.remove(os.path.join(top, key))
    os.close(lock)
    return {"removed": removed}


def want(path):
    """Note that a job wants what is kept in that directory."""
    with open(os.path.join(path, "used"), "w"):
        pass


def _keys(root, store):
    names = node.entries(os.path.join(root, store))
    if store == "agents":
        return sorted({name.partition(".")[0] for name in names if name.endswith(".pyz")})
    # `asked` holds what the builds that go on have been asked for.
    return [name for name in names if name != "asked" and not name.endswith(".gone")]


def _wanted(top, key):
    """Seconds since the epoch; of what nobody has noted anything, when it came."""
    for path in (os.path.join(top, key, "used"), os.path.join(top, key + ".pyz"), os.path.join(top, key)):
        try:
            return os.stat(path).st_mtime
        except OSError:
            continue
    return time.time()


def _in_an_environment(key):
    return any(key.encode() in value for pid in procs.everybody() for value in procs.environment(pid).values())


def _linked(layout):
    """The inputs that a job's folder has links to."""
    store = os.path.realpath(os.path.join(layout.root, "inputs")) + os.sep
    found = set()
    for job in node.entries(layout.jobs()):
        data = os.path.join(layout.job(job), "input", "data") if job[:1].isalnum() else ""
        for directory, folders, files in os.walk(data):
            for name in folders + files:
                path = os.path.join(directory, name)
                target = os.path.realpath(path) if os.path.islink(path) else ""
                if target.startswith(store):
                    found.add(target[len(store) :].split(os.sep)[0])
    return found


def _lock(path):
    """A descriptor that holds the lock of what is kept; None while somebody else does."""
    import fcntl

    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        # No locks on this file system: whoever builds or brings something there looks again when it is gone.
        pass
    return lock


OPS = {"store_old": old, "store_drop": drop}

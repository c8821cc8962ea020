"""Which address and port of node 0 every other node can reach: a listener there that answers a nonce, connections here.

Runs on the nodes: standard library only, Python 3.8.
"""

# The interpreter's own parts: `socket`, which only node 0 needs, and `threading` would bring enum, selectors and functools.
import _socket
import _thread
import errno
import os
import select

from launcher.agent import facts, procs

_LOWEST, _HIGHEST = 20000, 32767
"""where a free port is looked for; below the usual ephemeral range, which begins at 32768"""
_TRIES = 200
_LET_GO = 5.0
"""seconds that a thread may take to let go of a port"""


def listen(session, request):
    """Take the asked port, or a free one outside the ephemeral range, and answer the nonce there until the command is started.

    With ``any`` it is one that the kernel picks.
    """
    sock = bind(0) if request.get("any") else bind(request["port"]) if request.get("port") else _bind_free()
    sock.listen(256)
    session.held.pop("port", lambda: None)()
    over = _thread.allocate_lock()
    over.acquire()
    session.held["port"] = lambda: _unlisten(sock, over)
    _thread.start_new_thread(_serve, (sock, request["nonce"].encode(), over))
    return {"port": sock.getsockname()[1]}


def bind(port: int):
    """A socket that listens at the port on all addresses; ValueError, with the holder's name, when it cannot be had."""
    import socket

    # One socket for IPv4 and IPv6, as torch's TCPStore has it; without SO_REUSEADDR a listener of anybody is in the way.
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", port))
        sock.listen(1)
    except OSError as error:
        sock.close()
        if error.errno == errno.EACCES:
            raise ValueError("port %d is root's on this node, as those below 1024 usually are" % port) from None
        raise ValueError("port %d is taken on this node%s" % (port, _holder(port))) from None
    return sock


def _bind_free():
    low, high = _ephemeral()
    candidates = [port for port in range(_LOWEST, _HIGHEST + 1) if not low <= port <= high]
    for _ in range(_TRIES):
        try:
            return bind(candidates[int.from_bytes(os.urandom(4), "big") % len(candidates)])
        except ValueError:
            continue
    raise ValueError("no free port between %d and %d after %d tries" % (_LOWEST, _HIGHEST, _TRIES))


def _ephemeral():
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = (int(word) for word in file.read().split())
        return low, high
    except (OSError, ValueError):
        return 32768, 60999


def _serve(sock, nonce, over):
    """Tell everybody who comes until the socket is shut down; the lock is then released."""
    peers = {}
    try:
        _tell(sock, nonce, peers)
    finally:
        for peer in peers.values():
            peer.close()
        over.release()


def _tell(sock, nonce, peers):
    """Each at once: hundreds of nodes come, and none waits until another one has read it."""
    poll = select.poll()
    sock.setblocking(False)
    poll.register(sock, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in peers:
                # The client closes first, so that no TIME_WAIT is left on the port we are about to give away.
                poll.unregister(fd)
                peers.pop(fd).close()
                continue
            try:
                peer, _ = sock.accept()
            except BlockingIOError:
                continue  # it has left already
            except OSError:
                return
            peer.setblocking(False)
            try:
                peer.send(nonce)
            except OSError:
                peer.close()
                continue
            peers[peer.fileno()] = peer
            poll.register(peer, select.POLLIN)


def _unlisten(sock, over):
    """Give the port free for the command."""
    try:
        # Wakes the thread, which a mere close would not.
        sock.shutdown(_socket.SHUT_RDWR)
    except OSError:
        pass
    # As long as it waits for the socket the kernel keeps the port.
    over.acquire(True, _LET_GO)
    sock.close()


def connect(session, request):
    """{candidate: how it went} for each candidate address of node 0, all tried at once."""
    results, under_way = {}, []

    def attempt(address, over):
        try:
            results[address] = _read_nonce(address, request["port"], request["nonce"].encode(), request["patience"])
        finally:
            over.release()

    for address in request["candidates"]:
        over = _thread.allocate_lock()
        over.acquire()
        under_way.append(over)
        _thread.start_new_thread(attempt, (address, over))
    for over in under_way:
        over.acquire()
    return {"results": results}


def _read_nonce(address, port, nonce, timeout):
    try:
        sock = _dial(address, port, timeout)
        try:
            received = b""
            while len(received) < len(nonce):
                chunk = sock.recv(len(nonce) - len(received))
                if not chunk:
                    break
                received += chunk
            local = sock.getsockname()[0]
        finally:
            sock.close()
    except _socket.timeout:
        return {"error": "timed out after %g s (a firewall drops it?)" % timeout}
    except (OSError, ValueError) as error:
        # ValueError: a name that is none (an empty label, a NUL).
        return {"error": (getattr(error, "strerror", None) or str(error)).lower()}
    if received != nonce:
        return {"error": "something else answers there"}
    local = local[7:] if local.startswith("::ffff:") else local
    return {"local": local, "interface": interface_of(local)}


def _dial(address, port, timeout):
    """A connection to the first of a name's addresses that takes one; the last one's error when none does."""
    problem = OSError("the name has no address")
    for family, kind, protocol, _, where in _socket.getaddrinfo(_plain(address), port, 0, _socket.SOCK_STREAM):
        sock = _socket.socket(family, kind, protocol)
        sock.settimeout(timeout)
        try:
            sock.connect(where)
            return sock
        except OSError as error:
            sock.close()
            problem = error
    raise problem


def _plain(name):
    """A name as the resolver takes it: text goes through IDNA first, whose tables take as long to load as all of an agent."""
    return name.encode() if name.isascii() else name


def interface_of(address: str):
    """Name of the interface that has this address, or None."""
    return next((name for name, text in facts.addresses() if text == address), "lo" if address.startswith("127.") else None)


def locate(session, request):
    """Which interface has the address, after names are resolved; `own` False when it is none of ours."""
    try:
        texts = {info[4][0] for info in _socket.getaddrinfo(_plain(request["address"]), None)}
    except OSError as error:
        return {"own": False, "error": str(error)}
    for text in sorted(texts):
        interface = interface_of(text)
        if interface:
            return {"own": True, "interface": interface, "address": text}
    return {"own": any(text == "::1" or text.startswith("127.") for text in texts), "interface": "lo", "resolved": sorted(texts)}


def _holder(port):
    """` (held by pid 12, user, command)` for a listening port, as far as this user may see it."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        inodes.update(row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port)
    import glob

    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(path)[8:-1] in inodes:
                pid = int(path.split("/")[2])
                job = procs.environment(pid).get(b"LAUNCHER_JOB_ID", b"").decode()
                return " (held by pid %d, %s%s)" % (pid, procs.name(pid), ", of job %s" % job if job else "")
        except OSError:
            continue
    return " (held by another user's process)" if inodes else ""


OPS = {"probe_listen": listen, "probe_connect": connect, "probe_locate": locate}

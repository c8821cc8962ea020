"""Where the tasks of a bare step meet: an address and a port that each works out alone, and node 0's word that they hold.

`launcher exec` is the one place where a port is not chosen by node 0's agent: its tasks know nothing of each other but
the step they belong to.  So node 0 takes the port before anybody's command starts and says a nonce there that only
this step knows; the others begin once all have heard it.  A port that somebody else has ends in a sentence, not in
torchrun's half an hour of silence.

    task                            node 0
    connects           ->
                       <-           nonce
    its rank           ->
                       <-           `go` once every rank is there, else a sentence
    closes first (so that no TIME_WAIT is left on the port), and both start their commands
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from launcher.agent import probe
from launcher.errors import NodeError, NodeUnusable, SlurmSilent, UsageError
from launcher.slurm import ask

LOWEST, COUNT = 20_000, 10_000
"""the ports that are worked out lie below the usual ephemeral range, which begins at 32768"""
PATIENCE = 60.0
"""seconds that tasks wait for each other"""
_AGAIN = 0.1
"""seconds between two tries to connect: nothing tells when node 0 begins to listen"""
_FAREWELL = 5.0
"""seconds that one task may keep another waiting once they speak"""
_LOOPBACK = "127.0.0.1"
_GO = b"go\n"
_SEE_NODE_0 = "the output of node 0's task says why"


def port(environ: Mapping[str, str]) -> int:
    """The port of the step that ``environ`` belongs to.

    The first of SLURM_STEP_RESV_PORTS, which slurmctld keeps for the step where the site has MpiParams=ports; else a
    number that follows from cluster, job, step and restart, so that two steps on one node seldom get the same, and a
    requeued job does not meet its own past.  UsageError when the reserved ports cannot be read.
    """
    reserved = environ.get("SLURM_STEP_RESV_PORTS", "")
    if reserved in ("", "(null)"):
        return LOWEST + int(_digest(environ, "port")[:8], 16) % COUNT
    first = reserved.partition(",")[0].partition("-")[0]
    if not (first.isascii() and first.isdigit() and 0 < int(first) < 65_536):
        raise UsageError(f"SLURM_STEP_RESV_PORTS={reserved} cannot be read as ports such as 12000-12003")
    return int(first)


def nonce(environ: Mapping[str, str]) -> str:
    """What node 0 of this step, and of no other, says at the port until its command starts."""
    return _digest(environ, "nonce")


def _digest(environ: Mapping[str, str], purpose: str) -> str:
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    # An unset restart count and 0 are one: Slurm sets it from the first restart on.
    values = [environ.get(name) or "0" for name in names]
    return hashlib.sha256("\n".join([*values, purpose]).encode()).hexdigest()


def addresses(name: str) -> list[str]:
    """The addresses of a node of Slurm's, by its NodeAddr; where there is no scontrol (in a container), by its name.

    A name alone is no proof: node 0 answers with the step's nonce there, or the step ends.  NodeUnusable, with Slurm's
    and the resolver's words, when there is none.
    """
    words: list[str] = []
    try:
        name_or_address = ask.node_address(name)
    except SlurmSilent as error:
        words = [error.what, *error.lines]
        name_or_address = name
    try:
        found = socket.getaddrinfo(name_or_address, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NodeUnusable(
            f"its address cannot be found: {name_or_address}: {error.strerror or error}", where=name, lines=words
        ) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def lead(names: Sequence[str], number: int, word: str) -> str:
    """On node 0: hold port ``number`` until every other of the step's nodes is there.  The address by which they came.

    For a step of one node its own address, or a loopback one where it has no other.  NodeUnusable when the port is
    taken, and says by whom; NodeError, also to those that wait, when somebody did not come in time.
    """
    try:
        listener = probe.bind(number)
    except ValueError as error:
        next_step = "end what holds it, or start the step again: another step has another port"
        raise NodeUnusable(str(error), where=names[0], next_step=next_step) from None
    with listener, contextlib.ExitStack() as open_ones:
        if len(names) == 1:
            return _own(names[0])
        listener.listen(1024)
        arrived: dict[int, socket.socket] = {}
        for guest, rank in _arrivals(listener, word, open_ones):
            if 0 < rank < len(names):
                arrived[rank] = guest
            if len(arrived) == len(names) - 1:
                return _release(list(arrived.values()))
        missing = ", ".join(f"{rank} ({names[rank]})" for rank in range(1, len(names)) if rank not in arrived)
        sentence = f"within {PATIENCE:g} s these did not come to port {number} of node 0: rank {missing}"
        _tell(arrived.values(), f"{sentence}\n".encode())
        raise NodeError(sentence, where=names[0], next_step="the output of those tasks says why")


def _own(name: str) -> str:
    try:
        found = addresses(name)
    except NodeUnusable:  # nobody else has to find us
        return _LOOPBACK
    return next((address for address in found if not address.startswith("127.") and address != "::1"), _LOOPBACK)


def _arrivals(listener: socket.socket, word: str, open_ones: contextlib.ExitStack) -> Iterator[tuple[socket.socket, int]]:
    """(connection, the rank it says) for all that connect, until the time is over.  Strangers say none and do not count."""
    deadline = time.monotonic() + PATIENCE
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    silent: dict[int, socket.socket] = {}
    while (left := deadline - time.monotonic()) > 0:
        for number, _ in waiting.poll(left * 1000):
            if number == listener.fileno():
                guest = open_ones.enter_context(listener.accept()[0])
                guest.settimeout(_FAREWELL)
                _tell([guest], word.encode())
                silent[guest.fileno()] = guest
                waiting.register(guest, select.POLLIN)
                continue
            waiting.unregister(number)
            # ValueError: what came is no number.
            with contextlib.suppress(OSError, ValueError):
                yield silent[number], int(silent[number].recv(16))


def _tell(guests: Iterable[socket.socket], text: bytes) -> None:
    for guest in guests:
        # Who is gone in the meantime is missed by srun, not by us.
        with contextlib.suppress(OSError):
            guest.sendall(text)


def _release(guests: Sequence[socket.socket]) -> str:
    """Let all begin, and wait until each has hung up.  Our address as the first of them has it."""
    address = str(guests[0].getsockname()[0])
    _tell(guests, _GO)
    for guest in guests:
        with contextlib.suppress(OSError):
            guest.recv(1)
    return address.removeprefix("::ffff:")


def follow(names: Sequence[str], rank: int, number: int, word: str) -> tuple[str, str]:
    """On another node than 0: (node 0's address, our own on the way there), once node 0 has let all begin.

    NodeUnusable when node 0 did not answer in time, or something else answers there; NodeError when node 0 gave up.
    """
    deadline = time.monotonic() + PATIENCE
    candidates = addresses(names[0])
    last = "no answer"
    while True:
        for address in candidates:
            left = max(deadline - time.monotonic(), _AGAIN)
            try:
                with socket.create_connection((address, number), timeout=left) as connection:
                    heard = _hear(connection, len(word))
                    if heard == word.encode():
                        _await_release(connection, rank, names[0])
                        return address, str(connection.getsockname()[0])
            except OSError as error:
                last = f"{address}: {error.strerror or error}"
                continue
            last = f"{address}: it closed the connection"
            if heard:
                raise _foreign(names[0], address, number)
        if time.monotonic() >= deadline:  # after a try at least, so that something can be said
            break
        time.sleep(_AGAIN)
    raise NodeUnusable(
        f"node 0 did not answer at port {number} within {PATIENCE:g} s", where=names[0], lines=[last], next_step=_SEE_NODE_0
    )


def _foreign(name: str, address: str, number: int) -> NodeUnusable:
    what = f"something else than node 0 of this step answers at {address}, port {number}"
    return NodeUnusable(what, where=name, next_step=_SEE_NODE_0)


def _hear(connection: socket.socket, length: int) -> bytes:
    heard = b""
    while len(heard) < length and (chunk := connection.recv(length - len(heard))):
        heard += chunk
    return heard


def _await_release(connection: socket.socket, rank: int, name: str) -> None:
    connection.settimeout(PATIENCE + _FAREWELL)
    connection.sendall(b"%d\n" % rank)
    said = b""
    try:
        while not said.endswith(b"\n") and (chunk := connection.recv(1024)):
            said += chunk
    except OSError as error:
        said = str(error).encode()
    if said != _GO:
        reason = said.decode(errors="replace").strip() or "node 0 ended before all nodes were there"
        raise NodeError(reason, where=name, next_step=_SEE_NODE_0)

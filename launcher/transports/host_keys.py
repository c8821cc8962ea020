"""Is this the machine it claims to be?  A tolerant reader of known_hosts files, with OpenSSH's judgement.

paramiko's own loader fails on a @cert-authority line and on anything it cannot parse; this one passes over what it
does not understand, as ssh does.  The format is that of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.

StrictHostKeyChecking is obeyed as ssh obeys it, with nobody there to ask: `ask` and `yes` refuse an unknown key;
`accept-new` and `no` record it in the first user file and go on; `no` also goes on with a changed key.  A key marked
@revoked is always refused.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import functools
import hashlib
import hmac
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from launcher.errors import HostKeyChanged, HostKeyRevoked, HostKeyUnknown, NodeError
from launcher.keep import State, state
from launcher.transports.ssh_config import SshSettings

NEGOTIABLE = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
"""key type as known_hosts writes it -> the signature algorithms under which the key exchange asks for it"""


class Entry(NamedTuple):
    """One line of a known_hosts file."""

    marker: str
    """"", "@revoked" or "@cert-authority\""""
    names: str
    kind: str
    blob: bytes
    path: str
    line: int

    def matches(self, name: str) -> bool:
        """Whether the line speaks of ``name`` (lower case, with [..]:port for another port than 22)."""
        if self.names.startswith("|1|"):
            return _hashed(self.names, name)
        patterns = self.names.lower().split(",")
        if any(_like(pattern[1:], name) for pattern in patterns if pattern.startswith("!")):
            return False
        return any(_like(pattern, name) for pattern in patterns if not pattern.startswith("!"))

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind} {fingerprint(self.blob)}"


class Presented(NamedTuple):
    """The key a server has shown and proved to hold."""

    kind: str
    blob: bytes


def fingerprint(blob: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read(path: str, *names: str) -> list[Entry]:
    """The lines of a file that speak of one of ``names``; a file that is not there or not readable has none.

    Whoever connects to hundreds of hosts has files of thousands of lines: each file is parsed once while it stays as it is.
    """
    plain, others = _read(path, state(path))
    found = {entry.line: entry for name in names for entry in plain.get(name, ())}
    found.update((entry.line, entry) for entry in others if any(map(entry.matches, names)))
    return [found[line] for line in sorted(found)]


@functools.lru_cache(maxsize=8)
def _read(path: str, _: State) -> tuple[dict[str, list[Entry]], list[Entry]]:
    """Every line that can be understood: those of plain names by each name, and those that must be asked one by one."""
    plain: dict[str, list[Entry]] = {}
    others: list[Entry] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            parsed = [_parse(text, path, number) for number, text in enumerate(file, 1)]
    except OSError:
        return plain, others
    for entry in filter(None, parsed):
        if any(special in entry.names for special in "|*?!"):
            others.append(entry)
        else:
            for name in entry.names.lower().split(","):
                plain.setdefault(name, []).append(entry)
    return plain, others


class KnownHosts:
    """What all known_hosts files say about one machine."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        name = settings.host_key_name
        plain = name if settings.host_key_alias else settings.hostname.lower()
        self._own: list[Entry] = []
        self._portless: list[Entry] = []
        for path in dict.fromkeys((*settings.user_known_hosts, *settings.global_known_hosts)):
            for entry in read(path, name, plain):
                (self._own if entry.matches(name) else self._portless).append(entry)

    def algorithms(self) -> list[str]:
        """What to ask the server for first: the types we know of it, so that a host known by its RSA key is not
        taken for a changed one because it also has an Ed25519 key."""
        known = [entry.kind for entry in (*self._own, *self._portless) if not entry.marker]
        return [algorithm for kind in dict.fromkeys(known) for algorithm in NEGOTIABLE.get(kind, ())]

    def knows(self, key: Presented) -> bool:
        """Whether a file vouches for this very key.  As in ssh, a line without the port is good enough if it fits."""
        return any(not entry.marker and entry.blob == key.blob for entry in (*self._own, *self._portless))

    def judge(self, key: Presented) -> None:
        """Return if the key is to be trusted; HostKeyRevoked, HostKeyChanged or HostKeyUnknown if not."""
        self.refuse_bad(key)
        if self.knows(key) or self._changed(key):
            return
        if self._settings.strict in ("no", "accept-new"):
            append(self._settings, [line_for(self._settings, key)])
            return
        raise self._unknown(key)

    def refuse_bad(self, key: Presented) -> None:
        """Raise for a key that is revoked, or another than the recorded one (unless StrictHostKeyChecking is `no`)."""
        where = self._settings.where
        for entry in (*self._own, *self._portless):
            if entry.marker == "@revoked" and entry.blob == key.blob:
                raise HostKeyRevoked(f"its host key {fingerprint(key.blob)} ({key.kind}) is marked @revoked", where=where,
                                     lines=[str(entry)], next_step="do not connect; ask whoever runs the host for its new key")
        changed = self._changed(key)
        if changed and not self.knows(key) and self._settings.strict != "no":
            name = self._settings.host_key_name
            raise HostKeyChanged(
                f"its host key changed: it shows {fingerprint(key.blob)} ({key.kind}); somebody may be listening in", where=where,
                lines=[str(entry) for entry in changed],
                next_step=f"if the host was reinstalled: ssh-keygen -f {changed[0].path} -R '{name}', "
                          f"then launcher trust {self._settings.name}")

    def _changed(self, key: Presented) -> list[Entry]:
        return [entry for entry in self._own if not entry.marker and entry.kind == key.kind and entry.blob != key.blob]

    def _unknown(self, key: Presented) -> HostKeyUnknown:
        lines = [f"{key.kind} {fingerprint(key.blob)}"]
        others = [entry for entry in self._own if not entry.marker]
        if others:
            lines += ["known only by a key of another type:", *map(str, others)]
        if any(entry.marker == "@cert-authority" for entry in (*self._own, *self._portless)):
            lines.append("known_hosts trusts an authority for it (@cert-authority); host certificates cannot be checked here")
        return HostKeyUnknown("nobody has vouched for its host key yet", where=self._settings.where, lines=lines,
                              next_step=f"compare the fingerprint, then: launcher trust {self._settings.name}")


def line_for(settings: SshSettings, key: Presented) -> str:
    """The line to record for this machine, its name hashed if HashKnownHosts says so."""
    name = settings.host_key_name
    if settings.hash_known_hosts:
        salt = os.urandom(20)
        digest = hmac.new(salt, name.encode(), "sha1").digest()
        name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    return f"{name} {key.kind} {base64.b64encode(key.blob).decode()}"


def append(settings: SshSettings, lines: Sequence[str]) -> str | None:
    """Add the lines to the first user file, leaving out keys it has already; its path, or None where there is none.

    A file lock keeps threads and processes that record at once from writing a key twice.
    """
    if not settings.user_known_hosts:
        return None
    path = settings.user_known_hosts[0]
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            there = file.read() or b""
            known = {entry.blob for entry in read(path, settings.host_key_name) if not entry.marker}
            new = [line for line in lines if (entry := _parse(line, path, 0)) and entry.blob not in known]
            start = "\n" if there and not there.endswith(b"\n") else ""
            file.write((start + "".join(line + "\n" for line in new)).encode() if new else b"")
    except OSError as error:
        raise NodeError(f"its host key cannot be recorded in {path}: {error.strerror}", where=settings.where,
                        next_step="make the file writable, or set UserKnownHostsFile") from None
    return path


def _parse(text: str, path: str, number: int) -> Entry | None:
    fields = text.split()
    marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
    if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked", "@cert-authority"):
        return None
    try:
        return Entry(marker, fields[0], fields[1], base64.b64decode(fields[2], validate=True), path, number)
    except (binascii.Error, ValueError):
        return None


def _hashed(field: str, name: str) -> bool:
    """Whether `|1|salt|HMAC-SHA1(salt, name)` hides ``name``."""
    try:
        _, _, salt, digest = field.split("|")
        return hmac.compare_digest(hmac.digest(base64.b64decode(salt), name.encode(), "sha1"), base64.b64decode(digest))
    except (binascii.Error, ValueError):
        return False


def _like(pattern: str, name: str) -> bool:
    """Only * and ? are special (brackets surround names with a port)."""
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None

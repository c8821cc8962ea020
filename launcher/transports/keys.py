"""The keys that open a host: which ones there are, which cannot be used and why, and trying them in ssh's order.

ssh's order (sshconnect2.c, pubkey_prepare): keys of the agent that IdentityFile names, the agent's other keys (not with
IdentitiesOnly), then keys that lie only in files.  Nobody is ever asked for a password or a passphrase.
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
import socket
import stat
from collections.abc import Iterator, Sequence

import paramiko
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PKey, UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType, PasswordRequiredException, SSHException

from launcher.errors import HostUnreachable, LoginRefused
from launcher.keep import State, state
from launcher.record import dataclass
from launcher.transports.dial import Deadline
from launcher.transports.host_keys import fingerprint
from launcher.transports.ssh_config import SshSettings

_MAGIC = b"openssh-key-v1\0"
_PUBLIC = (b"ssh-", b"ecdsa-", b"sk-")

METHODS = {
    "publickey": "the server takes keys, but none of these: is the public key in ~/.ssh/authorized_keys there (ssh-copy-id)?",
    "password": "a password would be asked for, and nobody is there to type it: put a key there (ssh-copy-id)",
    "keyboard-interactive": "a password or a second factor would be asked for, and nobody is there to type it",
    "gssapi-with-mic": "Kerberos (GSSAPI) is offered, which cannot be used here",
    "hostbased": "host-based log-in is offered, which cannot be used here",
}
"""what a log-in method in the server's offer means for us"""


@dataclass(frozen=True)
class Identity:
    """An identity file, as far as it can be known without a passphrase."""

    path: str
    kind: str = ""
    blob: bytes | None = None
    """the public key; None where neither the file nor its .pub tells"""
    private: bool = False
    problem: str | None = None
    """why the private key in it cannot be used"""


@dataclass(frozen=True)
class Candidate:
    """A key to try, and how messages call it."""

    key: PKey
    label: str


class KeyRing:
    """An auth strategy of paramiko's: tries the keys that ssh would try, and remembers in words what became of each."""

    def __init__(self, settings: SshSettings, deadline: Deadline) -> None:
        self._settings = settings
        self._deadline = deadline
        self._told: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in; LoginRefused with every key and the server's offer, HostUnreachable when it stops answering."""
        agent = _Agent(self._settings.identity_agent, self._deadline)
        if agent.problem:
            self._told.append(agent.problem)
        try:
            for candidate in self._candidates(agent):
                if self._try(transport, candidate):
                    return
                if not transport.is_active():
                    break
            offered = self._offered(transport)
        finally:
            agent.close()
        if not offered and transport.is_authenticated():
            return  # a server that wants no key at all
        raise self._refused(transport, offered)

    def _candidates(self, agent: _Agent) -> Iterator[Candidate]:
        identities = [identify(path, named) for path, named in self._settings.identities]
        named = {identity.blob for identity in identities if identity.blob}
        for key in sorted(agent.get_keys(), key=lambda key: key.blob not in named):
            if key.blob in named or not self._settings.identities_only:
                yield Candidate(key, f"{key.get_name()} {fingerprint(key.blob)} {key.comment} (agent)")
        in_agent = {key.blob for key in agent.get_keys()}
        for identity in identities:
            if identity.blob in in_agent and identity.blob is not None:
                continue
            if identity.problem:
                self._told.append(f"{identity.path}: {identity.problem}")
            elif identity.private:
                yield from self._loaded(identity)

    def _loaded(self, identity: Identity) -> Iterator[Candidate]:
        """The private key of a file, with its certificate first where it has one."""
        label = f"{identity.kind} {fingerprint(identity.blob) if identity.blob else ''} {identity.path}".lstrip()
        try:
            key = _loaded_key(identity, state(identity.path))
            for path in (identity.path + "-cert.pub", *self._settings.certificate_files):
                if os.path.exists(path) and _certifies(path, key):
                    certified = _load(identity)
                    certified.load_certificate(path)
                    yield Candidate(certified, f"{label} with {path}")
            yield Candidate(key, label)
        except PasswordRequiredException:
            self._told.append(f"{identity.path}: encrypted, and not in the agent; load it: ssh-add {identity.path}")
        except (SSHException, UnknownKeyType, ValueError, TypeError, IndexError, OSError) as error:
            self._told.append(f"{identity.path}: not a private key that can be read here ({error})")

    def _try(self, transport: paramiko.Transport, candidate: Candidate) -> bool:
        """Whether this key completed the log-in."""
        transport.auth_timeout = self._deadline.left
        try:
            missing = transport.auth_publickey(self._settings.user, candidate.key)
        except BadAuthenticationType:
            self._told.append(f"{candidate.label}: the server takes no keys")
            return False
        except AuthenticationException:
            if self._deadline.passed:
                raise self._silent() from None
            self._told.append(f"{candidate.label}: refused")
            return False
        except (SSHException, EOFError, OSError, ValueError) as error:
            self._told.append(f"{candidate.label}: {error or 'could not be used'}")
            return False
        if missing:
            self._told.append(f"{candidate.label}: accepted, but the server wants more: {', '.join(missing)}")
        return not missing

    def _offered(self, transport: paramiko.Transport) -> list[str]:
        """The log-in methods the server offers; asked for only when all keys have failed."""
        transport.auth_timeout = self._deadline.left
        try:
            transport.auth_none(self._settings.user)
        except BadAuthenticationType as error:
            return list(error.allowed_types)
        except (SSHException, EOFError, OSError):
            if self._deadline.passed:
                raise self._silent() from None
        return []

    def _refused(self, transport: paramiko.Transport, offered: Sequence[str]) -> LoginRefused:
        lines = list(self._told) or ["there is no key to try: no agent with keys, no identity file"]
        banner = transport.get_banner()
        if banner:
            lines += banner.decode(errors="replace").splitlines()[-3:]
        if offered:
            lines.append(f"the server offers: {', '.join(offered)}")
            lines += [METHODS[method] for method in offered if method in METHODS and (method != "publickey" or len(offered) == 1)]
        elif not transport.is_active():
            lines.append("the server hung up after these (too many keys tried? Name one: identity_file in the inventory)")
        lines += self._settings.beyond
        return LoginRefused(f"the log-in as {self._settings.user} was refused", where=self._settings.where, lines=lines,
                            next_step=f"try by hand: {self._settings.by_hand}")

    def _silent(self) -> HostUnreachable:
        return HostUnreachable(f"no answer to the log-in in {self._deadline.seconds:g} s", where=self._settings.where,
                               lines=self._told, next_step=f"try by hand: {self._settings.by_hand}")


class _Agent(AgentSSH):
    """The ssh-agent at one socket (paramiko.Agent knows only $SSH_AUTH_SOCK's); without one, an agent without keys."""

    def __init__(self, path: str | None, deadline: Deadline) -> None:
        super().__init__()
        self.problem: str | None = None
        if path is None:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(deadline.left)
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except (OSError, SSHException) as error:
            connection.close()
            self.problem = f"the agent at {path} does not answer: {getattr(error, 'strerror', None) or error}"

    def get_keys(self) -> tuple[AgentKey, ...]:
        return tuple(super().get_keys())

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def identify(path: str, named: bool = True) -> Identity:
    """What an identity file holds.  ``named``: somebody asked for it, so that its absence is worth a word.

    Many hosts are opened with the same few files: each is looked into once while it stays as it is.
    """
    return _identified(path, named, state(path), state(path + ".pub"))


@functools.lru_cache(maxsize=64)
def _identified(path: str, named: bool, *_: State) -> Identity:
    kind, blob = _public(_bytes(path + ".pub") or b"") or ("", None)
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode) if os.stat(path).st_uid == os.getuid() else 0o600
    except OSError as error:
        return Identity(path, kind, blob, problem=error.strerror if named else None)
    content = _bytes(path)
    if content is None:
        return Identity(path, kind, blob, problem="you may not read it")
    if public := _public(content):
        return Identity(path, *public, problem="only a public key, and no agent has its private half")
    if mode & 0o077:  # of a file of our own; ssh asks the same
        return Identity(path, kind, blob, problem=f"others may read it (mode {mode:04o}), so it is not used: chmod 600 {path}")
    said_kind, said_blob, encrypted = _private(content)
    kind, blob = (said_kind, said_blob) if said_blob else (kind, blob)
    if encrypted:
        return Identity(path, kind, blob, problem=f"encrypted, and not in the agent; load it: ssh-add {path}")
    if kind.startswith("sk-"):
        return Identity(path, kind, blob, problem=f"a FIDO key, which works only through an agent here; load it: ssh-add {path}")
    return Identity(path, kind, blob, private=True)


def _bytes(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def _public(content: bytes) -> tuple[str, bytes] | None:
    """(type, key) of a one-line public key."""
    fields = content.split(None, 2)
    if len(fields) < 2 or not fields[0].startswith(_PUBLIC):
        return None
    try:
        return fields[0].decode(), base64.b64decode(fields[1])
    except (binascii.Error, ValueError):
        return None


def _private(content: bytes) -> tuple[str, bytes | None, bool]:
    """(type, public key, encrypted) of a private key file.  OpenSSH's own format tells all three in clear
    (PROTOCOL.key): magic, cipher, kdf, its options, the number of keys, the public key; PEM only the last."""
    if b"BEGIN OPENSSH PRIVATE KEY" not in content:
        return "", None, b"ENCRYPTED" in content
    try:
        body = base64.b64decode(b"".join(line for line in content.splitlines() if b"-----" not in line))
        if not body.startswith(_MAGIC):
            return "", None, False
        cipher, rest = _string(body[len(_MAGIC):])
        rest = _string(_string(rest)[1])[1]
        blob = _string(rest[4:])[0]
        return _string(blob)[0].decode(), blob, cipher != b"none"
    except (binascii.Error, ValueError):
        return "", None, False


def _string(data: bytes) -> tuple[bytes, bytes]:
    """A length-prefixed string and what follows it."""
    end = 4 + int.from_bytes(data[:4], "big")
    return data[4:end], data[end:]


@functools.lru_cache(maxsize=64)
def _loaded_key(identity: Identity, _: State) -> PKey:
    """As `_load`; one key for all hosts, which nobody changes (adding a certificate would)."""
    return _load(identity)


def _load(identity: Identity) -> PKey:
    """The private key of a file.

    An RSA key is taken without the test that its numbers are primes: that costs 180 ms of CPU for each host, and the
    file is the user's own, which nobody else can read.
    """
    content = _bytes(identity.path) or b""
    if identity.kind not in ("", "ssh-rsa"):
        return PKey.from_path(identity.path)
    load = load_ssh_private_key if b"BEGIN OPENSSH" in content else load_pem_private_key
    loaded = load(content, None, unsafe_skip_rsa_key_validation=True)
    return paramiko.RSAKey(key=loaded) if isinstance(loaded, RSAPrivateKey) else PKey.from_path(identity.path)


def _certifies(path: str, key: PKey) -> bool:
    """Whether a certificate file is of this key's type and holds its public numbers."""
    public = _public(_bytes(path) or b"")
    if not public or not public[0].startswith(key.get_name()):
        return False
    # A certificate is: its type, a nonce, the key's own numbers, and more (PROTOCOL.certkeys).
    numbers = _string(_string(public[1])[1])[1]
    return numbers.startswith(_string(key.asbytes())[1])

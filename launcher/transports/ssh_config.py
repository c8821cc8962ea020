"""What `ssh HOST` would do, asked of ssh itself: `ssh -G` once for the host and once for each of its jump hosts.

What the inventory says goes to `ssh -G` as options and wins; what it does not say is never passed.  `ssh -G` leaves
most % tokens and ${variables} unexpanded (OpenSSH 9.2: all of IdentityFile's), so they are expanded here as
ssh_config(5) tells.

Sources: ssh_config(5) for keywords and tokens; ssh.c for the meaning of `ProxyJump a,b` (the way to b is `-J a`, which
replaces b's own ProxyJump, while a is reached as its own configuration says).
"""

from __future__ import annotations

import functools
import hashlib
import os
import pwd
import re
import shlex
import socket
from collections.abc import Mapping, Sequence

from launcher.errors import NodeError
from launcher.model import Host, SshOptions
from launcher.record import dataclass
from launcher.transports.ssh_answers import ask

MAX_JUMPS = 16
"""a longer chain is taken for a circle"""

_DEFAULT_IDENTITY = re.compile(r"id_(rsa|dsa|xmss|ecdsa|ecdsa_sk|ed25519|ed25519_sk|mldsa\S*)\Z")
_STRICT = {"true": "yes", "false": "no", "off": "no"}
_FAMILY = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_BEYOND = {
    "pkcs11provider": "a PKCS#11 token ({}): load it into an ssh-agent (`ssh-add -s`), which is used",
    "securitykeyprovider": "a FIDO key through {}: load it into an ssh-agent, which is used",
    "knownhostscommand": "host keys from `{}`: only known_hosts files are read",
}
"""what ssh can use and paramiko cannot, by keyword; told when a log-in fails"""


@dataclass(frozen=True)
class SshSettings:
    """Everything needed to reach one machine, settled.  All paths are absolute, all tokens expanded."""

    name: str
    """the inventory's name of the host we are on the way to"""
    where: str
    """how messages call this machine: the host's name, or `NAME (jump host X)`"""
    hostname: str
    port: int
    user: str
    by_hand: str
    """the same connection as a command for a terminal"""
    connect_timeout: float
    """seconds for the whole way"""
    jumps: tuple[SshSettings, ...] = ()
    """jump hosts, in the order in which they are contacted"""
    proxy_command: str | None = None
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    """path of the agent's socket"""
    certificate_files: tuple[str, ...] = ()
    host_key_alias: str | None = None
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    strict: str = "ask"
    """StrictHostKeyChecking: yes, no, ask (here the same as yes) or accept-new"""
    hash_known_hosts: bool = False
    trust_localhost: bool = False
    """NoHostAuthenticationForLocalhost"""
    family: int = socket.AF_UNSPEC
    bind_address: str | None = None
    ciphers: tuple[str, ...] = ()
    macs: tuple[str, ...] = ()
    kex: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    """sentences about configured ways to log in that only ssh itself can go"""

    @property
    def host_key_name(self) -> str:
        """Under which name known_hosts files keep this machine's keys."""
        if self.host_key_alias:
            return self.host_key_alias.lower()
        return self.hostname.lower() if self.port == 22 else f"[{self.hostname.lower()}]:{self.port}"

    @property
    def identities(self) -> tuple[tuple[str, bool], ...]:
        """(path, whether somebody named it) of each identity file; the unnamed ones are ssh's defaults."""
        home = os.path.join(_account().pw_dir, ".ssh")
        return tuple(
            (path, not (os.path.dirname(path) == home and bool(_DEFAULT_IDENTITY.match(os.path.basename(path)))))
            for path in self.identity_files
        )


def resolve(host: Host, options: SshOptions) -> SshSettings:
    """The settings for a host of the inventory; NodeError when ssh is missing or refuses its configuration."""
    arguments: list[str] = []
    if host.user is not None:
        arguments += ["-l", host.user]
    if host.port is not None:
        arguments += ["-p", str(host.port)]
    if host.identity_file is not None:
        # IdentitiesOnly: an agent full of other keys must not use up the server's patience before this one is tried.
        arguments += ["-o", f"IdentityFile={_quoted(host.identity_file)}", "-o", "IdentitiesOnly=yes"]
    return _Question(host.name, options).machine(host.address, tuple(arguments), host.name, ())


@dataclass(frozen=True)
class _Question:
    """What stays the same for all machines on the way to one host."""

    name: str
    options: SshOptions

    def machine(self, address: str, arguments: tuple[str, ...], where: str, before: tuple[str, ...]) -> SshSettings:
        """The settings of one machine; ``before`` names the machines for which this one is a jump host."""
        if len(before) > MAX_JUMPS:
            raise NodeError(f"its jump hosts go in a circle: {' <- '.join(before[:4])} ...", where=self.name,
                            next_step="give the jump hosts a Host block with `ProxyJump none`")
        command = ["ssh", *(["-F", os.path.expanduser(self.options.config)] if self.options.config else []), *arguments]
        answers = ask(command, address, where, self.options.connect_timeout, _account().pw_dir)
        return self._settings(address, arguments, where, before, answers, shlex.join([*command, address]))

    def _settings(self, address: str, arguments: tuple[str, ...], where: str, before: tuple[str, ...],
                  answers: Mapping[str, Sequence[str]], by_hand: str) -> SshSettings:
        one = _Answers(answers, where)
        tokens = _tokens(address, one)
        jump = one.first("proxyjump")
        jumps = self._jumps(_expanded(jump, tokens, where), (*before, address)) if jump else ()
        limit = one.first("connecttimeout")
        proxy = None if jumps else one.first("proxycommand")
        return SshSettings(
            name=self.name, where=where, by_hand=by_hand, jumps=jumps,
            hostname=one.first("hostname") or address, port=int(one.first("port") or 22), user=one.first("user") or "",
            connect_timeout=min(self.options.connect_timeout, float(limit)) if limit else self.options.connect_timeout,
            proxy_command=_expanded(proxy, tokens, where) if proxy else None,
            identity_files=one.paths(one.all("identityfile"), tokens),
            certificate_files=one.paths(one.all("certificatefile"), tokens),
            identities_only=one.yes("identitiesonly"), identity_agent=_agent(one, tokens),
            host_key_alias=one.first("hostkeyalias"), strict=_strict(one.first("stricthostkeychecking") or "ask"),
            user_known_hosts=one.paths(_split_paths(one.first("userknownhostsfile") or ""), tokens),
            global_known_hosts=one.paths(_split_paths(one.first("globalknownhostsfile") or ""), tokens),
            hash_known_hosts=one.yes("hashknownhosts"), trust_localhost=one.yes("nohostauthenticationforlocalhost"),
            family=_FAMILY.get(one.first("addressfamily") or "", socket.AF_UNSPEC), bind_address=one.first("bindaddress"),
            ciphers=one.words("ciphers"), macs=one.words("macs"), kex=one.words("kexalgorithms"),
            beyond=tuple(text.format(value) for key, text in _BEYOND.items() if (value := one.first(key)) and value != "internal")
        )

    def _jumps(self, text: str, before: tuple[str, ...]) -> tuple[SshSettings, ...]:
        """The whole way for `ProxyJump a,b`: a's own way, a, then b (reached only through a)."""
        hops = [hop.strip() for hop in text.split(",") if hop.strip()]
        target, arguments = _hop(hops[-1], self.name)
        if len(hops) > 1:
            arguments += ["-J", ",".join(hops[:-1])]
        last = self.machine(target, tuple(arguments), f"{self.name} (jump host {target})", before)
        return (*last.jumps, last)


@dataclass(frozen=True)
class _Answers:
    """`ssh -G`'s lines by keyword."""

    lines: Mapping[str, Sequence[str]]
    where: str

    def all(self, key: str) -> Sequence[str]:
        return self.lines.get(key, ())

    def first(self, key: str) -> str | None:
        values = self.all(key)
        return values[0] if values and values[0] not in ("", "none") else None

    def yes(self, key: str) -> bool:
        return self.first(key) in ("yes", "true")

    def words(self, key: str) -> tuple[str, ...]:
        return tuple((self.first(key) or "").replace(",", " ").split())

    def paths(self, values: Sequence[str], tokens: Mapping[str, str]) -> tuple[str, ...]:
        """The files named, each once, in order; `none` names no file."""
        expanded = [_expanded(value, tokens, self.where, variables=True) for value in values if value != "none"]
        return tuple(dict.fromkeys(os.path.abspath(_home(path)) for path in expanded))


def _tokens(address: str, one: _Answers) -> dict[str, str]:
    """Every token of ssh_config(5) that can stand in the keywords we read."""
    account, local = _account(), socket.gethostname()
    hostname, port, user = one.first("hostname") or address, one.first("port") or "22", one.first("user") or ""
    jump = one.first("proxyjump") or ""
    return {
        "%": "%", "n": address, "h": hostname, "p": port, "r": user, "u": account.pw_name, "d": account.pw_dir,
        "i": str(os.getuid()), "k": one.first("hostkeyalias") or address, "l": local, "L": local.partition(".")[0], "j": jump,
        "C": hashlib.sha1((local + hostname + port + user + jump).encode()).hexdigest(),
    }


def _expanded(text: str, tokens: Mapping[str, str], where: str, variables: bool = False) -> str:
    """``text`` with its tokens, and ${variables} where ssh_config(5) allows them; an unknown token stays as it is."""
    text = re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)
    if not variables:
        return text

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise NodeError(f"ssh's configuration uses ${{{match[1]}}}, which is not set here: {text}", where=where,
                            next_step=f"export {match[1]}, or change ~/.ssh/config")
        return os.environ[match[1]]

    return re.sub(r"\$\{(\w+)\}", variable, text)


def _agent(one: _Answers, tokens: Mapping[str, str]) -> str | None:
    """The agent's socket: IdentityAgent is `none`, `SSH_AUTH_SOCK`, `$VARIABLE` or a path; unset, SSH_AUTH_SOCK."""
    values = one.all("identityagent")
    value = values[0] if values else "SSH_AUTH_SOCK"
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if re.fullmatch(r"\$\w+", value):
        return os.environ.get(value[1:]) or None
    return _home(_expanded(value, tokens, one.where, variables=True))


def _strict(value: str) -> str:
    return _STRICT.get(value, value)


def _split_paths(value: str) -> list[str]:
    """The files of a UserKnownHostsFile line.  `ssh -G` prints them unquoted, so a piece that does not begin like a
    path belongs to the name before it."""
    paths: list[str] = []
    for piece in value.split(" "):
        if paths and not piece.startswith(("/", "~", "%", "$")):
            paths[-1] += " " + piece
        elif piece:
            paths.append(piece)
    return paths


def _hop(text: str, name: str) -> tuple[str, list[str]]:
    """(address, options for ssh) of one ProxyJump entry: `[user@]host[:port]` or an ssh:// URI."""
    match = re.fullmatch(r"(?:ssh://)?(?:(.+)@)?(?:\[([^]]+)\]|([^:/]+|[^/]*:[^/]*:[^/]*))(?::(\d+))?/?", text)
    if not match:
        raise NodeError(f"ProxyJump names {text!r}, which is no [user@]host[:port]", where=name,
                        next_step="correct ~/.ssh/config")
    user, bracketed, plain, port = match.groups()
    return bracketed or plain, [*(["-l", user] if user else []), *(["-p", port] if port else [])]


def _quoted(path: str) -> str:
    """A path as one argument of an ssh_config line."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"' if re.search(r'[\s"\'\\#]', path) else path


def _home(path: str) -> str:
    """``path`` with a leading ~ expanded as ssh does: from the account, not from HOME."""
    if path == "~" or path.startswith("~/"):
        return _account().pw_dir + path[1:]
    return os.path.expanduser(path) if path.startswith("~") else path


@functools.lru_cache(maxsize=1)
def _account() -> pwd.struct_passwd:
    return pwd.getpwuid(os.getuid())

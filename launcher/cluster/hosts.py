"""What a text in the place of a host means: `node1`, `train@10.0.0.2:2222`, `[fd00::2]:22`, `node[03-16]`."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from launcher.cluster.ranges import expand

HOST_ALLOWED = "an alias of ~/.ssh/config, a DNS name, an address, user@host:port, or a range such as node[03-16]"

# What OpenSSH itself refuses in a user or a host (shell metacharacters, a leading dash) is refused here, with a place.
_WORD = re.compile(r"\w[\w.+-]*\Z")
_USER = re.compile(r"[^\s\x00-\x1f\x7f'\"`$;&<>|(){}@:,/\[\]-][^\s\x00-\x1f\x7f'\"`$;&<>|(){}@:,/\[\]]*\Z")
_DOTTED_NUMBERS = re.compile(r"\d+(\.\d+)+\Z", re.ASCII)


class Endpoint(NamedTuple):
    """One host's text, taken apart."""

    name: str
    """the text without `user@`: how people call the host"""
    address: str
    """IPv6 without brackets"""
    user: str | None
    port: int | None


def endpoints(text: str) -> list[Endpoint]:
    """The hosts that ``text`` stands for, ranges expanded.  ValueError, with a sentence, when it is none."""
    return [endpoint(name) for name in expand(text)]


def endpoint(text: str) -> Endpoint:
    """One host's text, without ranges, taken apart.  ValueError, with a sentence, when it is none."""
    user, at, name = text.rpartition("@")
    if at and not _USER.match(user):
        raise ValueError(f"{user!r} is no user name" if user else "no user name stands before @")
    host, port = _split_port(name)
    return Endpoint(name, checked_address(host), user if at else None, checked_port(port) if port is not None else None)


def checked_address(text: str) -> str:
    """``text`` without the brackets of an IPv6 address; ValueError, with a sentence, when it is no name and no address."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in bare:
        return _checked_ipv6(bare)
    if not bare:
        raise ValueError("the host is empty")
    if _DOTTED_NUMBERS.match(text):
        _checked_ipv4(text)
    elif not _WORD.match(text):
        raise ValueError(f"{text!r} is no host: {HOST_ALLOWED}")
    return text


def checked_port(text: str) -> int:
    """A port number; ValueError, with a sentence, when it is none."""
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 1 <= int(text) <= 65535:
        raise ValueError(f"{text!r} is no port: a number from 1 to 65535")
    return int(text)


def checked_user(text: str) -> str:
    """A log-in name; ValueError, with a sentence, when it is none."""
    if not _USER.match(text):
        raise ValueError("a log-in name")
    return text


def same_endpoint_key(address: str, port: int | None, user: str | None) -> tuple[str, int | None, str | None]:
    """Equal for two hosts exactly when both would be the same log-in at the same door."""
    try:
        address = ipaddress.ip_address(address).compressed
    except ValueError:
        address = address.lower()
    return address, port, user


def _split_port(name: str) -> tuple[str, str | None]:
    """(host, port text): a port stands after the only colon, or after the closing bracket of an IPv6 address."""
    if name.startswith("["):
        host, closed, rest = name.partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError("after an address in brackets only :port may follow, as in [fd00::2]:22")
        return host + closed, rest[1:] if rest else None
    if name.count(":") == 1:
        host, _, port = name.partition(":")
        return host, port
    return name, None


def _checked_ipv6(text: str) -> str:
    if "%" in text:
        raise ValueError(
            "an address with a scope (%interface) holds on one machine only, and torchrun cannot read it; "
            "give the host's global or unique local address, or a name"
        )
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IPv6 address; with a port write [address]:port") from None
    if address.is_link_local:
        raise ValueError("a link-local address means another machine on every link; give the host's global address, or a name")
    return text


def _checked_ipv4(text: str) -> None:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 address: four numbers from 0 to 255") from None

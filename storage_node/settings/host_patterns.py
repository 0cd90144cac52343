"""Host patterns: an operator's list of servers, by name or by address.

    data.example.org, *.example.org     names; `*` stands for any characters
    minio.lan:9000, minio.lan:*         without a port, that of the scheme: 443, or 80 for http
    http://minio.lan:9000               for this scheme alone
    10.0.0.0/8, [fd00::1]:9000          addresses

An address that is not public, such as one of this machine or of a private network, is meant only by a pattern of
addresses: whoever owns a name decides to which addresses it leads.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import urlsplit

ANY = "any"
"""Setting for all hosts, and all addresses: for a node whose clients are its operators."""
_PORTS = {"http": 80, "https": 443}
_PATTERN = re.compile(r"(?:(https?)://)?(\[[0-9a-f:.]+\]|[0-9a-z_.*-]+)(/[0-9]{1,3})?(?::([0-9]{1,5}|\*))?", re.I)
_HOST = re.compile(r"[0-9a-z_.-]+|[0-9a-f:.]+")
_CLOUDS = re.compile(
    r"s3(-[a-z0-9-]+)?(\.dualstack)?(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?|storage\.googleapis\.com"
    r"|[a-z0-9]+\.blob\.core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)"
)
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""Addresses of IPv6 that stand for those of IPv4."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class UrlOrigin(NamedTuple):
    """Scheme, host and port of a URL of HTTP."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        """Raises ValueError for another scheme, and for a host that can be read in several ways."""
        parts = urlsplit(url)
        if parts.scheme not in _PORTS:
            raise ValueError(f"{url!r}: need a URL of http:// or https://")
        host = (parts.hostname or "").rstrip(".")
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is not the name or address of a host")
        return cls(parts.scheme, host, parts.port or _PORTS[parts.scheme])

    @property
    def is_cloud(self) -> bool:
        """Whether this is a host of Amazon's, Google's or Microsoft's object storage."""
        return self.scheme == "https" and self.port == 443 and _CLOUDS.fullmatch(self.host) is not None


class _Pattern(NamedTuple):
    scheme: str
    name: re.Pattern[str] | None
    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None
    port: str


@dataclass(frozen=True)
class HostPatterns:
    """List of host patterns. Raises ValueError."""

    texts: tuple[str, ...]
    scheme: str = ""
    """Scheme of patterns without one; "" for both."""

    def __post_init__(self) -> None:
        for text in self.texts:
            _parsed(text)

    def has(self, origin: UrlOrigin) -> bool:
        """Whether the list has this server."""
        return any(one.name is not None and one.name.match(origin.host) for one in self._of(origin)) or (
            _is_address(origin.host) and self._has_address(origin, origin.host)
        )

    def admits(self, origin: UrlOrigin, address: str) -> bool:
        """Whether the server may be reached at this address."""
        inner = _inner(ipaddress.ip_address(address.partition("%")[0]))
        return (inner.is_global and not inner.is_multicast) or self._has_address(origin, str(inner))

    def _has_address(self, origin: UrlOrigin, address: str) -> bool:
        return any(one.network and ipaddress.ip_address(address) in one.network for one in self._of(origin))

    def _of(self, origin: UrlOrigin) -> Iterator[_Pattern]:
        """Yield the patterns for the scheme and port of a server."""
        for pattern in map(_parsed, self.texts):
            has_port = pattern.port == "*" or origin.port == int(pattern.port or _PORTS[origin.scheme])
            if has_port and (pattern.scheme or self.scheme or origin.scheme) == origin.scheme:
                yield pattern


def check_host_patterns(name: str, texts: tuple[str, ...]) -> None:
    """Check the value of a setting. Raises ValueError."""
    try:
        HostPatterns(texts if texts != (ANY,) else ())
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@functools.cache
def _parsed(text: str) -> _Pattern:
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: need HOST, HOST:PORT or NETWORK/BITS, as in *.example.org or 10.0.0.0/8")
    scheme, host, bits, port = (one or "" for one in found.groups())
    try:
        return _Pattern(scheme.lower(), None, ipaddress.ip_network(host.strip("[]") + bits), port)
    except ValueError as error:
        if bits or host.startswith("["):
            raise ValueError(f"{text!r}: {error}") from None
    return _Pattern(scheme.lower(), re.compile(fnmatch.translate(host.lower())), None, port)


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def _inner(address: Address) -> Address:
    """Return the address of IPv4 for which one of IPv6 stands, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address

"""Options of a gateway: how it serves, whichever store it serves, and what clients may take of its process."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from storage_node.limits.pace import PaceLimits

LOOKS = 8
"""How often a client is looked at within `idle_s`."""


@dataclass(frozen=True, slots=True)
class Limits(PaceLimits):
    """Limits on what a client may take of the gateway, and on its pace.

    `idle_s` also bounds a handshake, and all headers of a request.
    """

    requests: int = 64
    """Requests that are answered at once. Others wait. One client has at most seven eighths of them."""
    large_bodies: int = 16
    """Requests among them whose bodies are in files, each of which takes some MiB while it is stored."""
    batches: int = 6
    """Requests among them that are answered with many objects, each of which takes up to 12 MiB meanwhile."""
    connections: int = 1024
    """Connections. Beyond, an idle one of the address that has most gives way, or else the new one is closed."""
    wait_s: float = 10.0
    """How long a request waits to be answered, before the client is told to slow down."""
    still_s: float = 5.0
    """A client that takes less than 64 KiB of its answer in this time is disconnected if another request waits for its
    slot."""
    bodies_bytes: int = 16 << 20
    """Memory for bodies that have arrived. Further ones are kept in files."""
    pending_bytes: int = 8 << 20
    """Memory for what arrives of bodies, beyond which it is decoded in smaller steps."""
    headers: int = 128
    """Number of headers."""
    headers_bytes: int = 64 << 10
    """Size of all headers together."""
    line_bytes: int = 16 << 10
    """Size of the request line, and of a header."""
    grace_s: float = 5.0
    """How long running requests may take at the end of the gateway."""
    end_s: float = 4.0
    """How long its process may take beyond that, for calls of the store that do not return. Then it ends as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How a gateway serves. Can be pickled."""

    domains: tuple[str, ...] = ()
    """Names below which a bucket is a host, as in virtual-host style."""
    proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Addresses of proxies that say with `X-Forwarded-Proto` whether the client uses TLS. Others are not believed."""
    with_members: bool = False
    """Serve members of archives as `shard.tar/member`."""
    spool: str | None = None
    """Folder of temporary files with the bodies of requests; None for that of the system."""
    access_log: Path | None = None
    """File to which a line is appended for each request."""
    page_token: str = field(default="", repr=False)
    """Random part of the address of the store's page; "": it is not served."""
    limits: Limits = field(default_factory=Limits)

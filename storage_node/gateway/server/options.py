"""Options of a gateway: how it serves, whichever store it serves."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from storage_node.gateway.server.limits import Limits


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

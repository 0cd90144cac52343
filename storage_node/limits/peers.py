"""Peers: how clients are counted by their addresses."""

from __future__ import annotations

import ipaddress


def peer_of_address(text: str) -> str:
    """Return the address by which a remote client is counted: an IPv4 address, or the /64 network of an IPv6 one."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if address.version == 4 or address.ipv4_mapped is not None:
        return str(address.ipv4_mapped if address.version == 6 else address)
    return str(ipaddress.ip_network((address, 64), strict=False))

"""Requests of websites to a gateway that anybody may use: they are refused.

Any page that somebody on this machine visits can have the browser send requests to loopback. With keys, such requests
lack a signature. Without, what tells them apart is the header `Origin`, which browsers add to whatever changes
something; and a page whose own name leads to this machine has that name as its `Host`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from .request import S3Error
from .router import host_name


def refuse_websites(headers: Mapping[str, str], domains: tuple[str, ...], *, is_loopback: bool) -> None:
    """Raise S3Error for a request that may come from a page of a website.

    Args:
        headers: By names in lower case.
        domains: Names of the gateway.
        is_loopback: It is reached on this machine only, so that it has no other names.
    """
    if "origin" in headers:
        raise S3Error("AccessDenied", "without keys, the gateway answers no website: the request has the header Origin")
    name = host_name(headers.get("host", "")).lower()
    if is_loopback and name and not _is_known(name, domains):
        raise S3Error(
            "AccessDenied",
            f"Host {name[:80]!r}: without keys, the gateway answers to localhost, to addresses, and to names given by "
            "--domain",
        )


def _is_known(name: str, domains: tuple[str, ...]) -> bool:
    if f".{name}".endswith((".localhost", *(f".{domain.lower()}" for domain in domains))):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True

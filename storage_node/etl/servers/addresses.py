"""Addresses of transforms' servers, checked against the operator's list. Pure functions.

A node sends objects and tokens to the address in a client's transform. Therefore it connects only to origins (scheme,
host and port) that its operator has listed, follows no redirects, and uses no proxy.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from ais_loader.errors import TransformRefused
from ais_loader.wire.generated import ais_etl_pb2 as pb

_PORTS = {"http": 80, "https": 443, "grpc": None}


def require_allowed(server: pb.TransformServer, allowed: Iterable[str]) -> str:
    """Return the address without a trailing slash. "*" allows any address. Raises TransformRefused."""
    address = server.address
    scheme, host, port = _origin(address)
    wanted = ("grpc",) if server.communication == pb.TransformServer.GRPC else ("http", "https")
    if scheme not in wanted:
        communication = pb.TransformServer.Communication.Name(server.communication).lower()
        raise TransformRefused(f"{address}: {communication} needs an address that begins with {wanted[0]}://")
    allowed = list(allowed)
    if "*" not in allowed and (scheme, host, port) not in {_origin(other) for other in allowed}:
        raise TransformRefused(
            f"{address} is not among the servers that the operator allows: see the setting etl_servers"
        )
    return address.rstrip("/")


def _origin(address: str) -> tuple[str, str, int]:
    try:
        parts: SplitResult = urlsplit(address)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise TransformRefused(f"{address}: {error}") from error
    if not parts.hostname or not port or parts.username is not None or parts.query or parts.fragment:
        raise TransformRefused(
            f"{address}: need http://HOST:PORT or grpc://HOST:PORT, with a path at most, as http://127.0.0.1:9000"
        )
    if parts.scheme not in _PORTS or (parts.scheme == "grpc" and parts.path not in ("", "/")):
        raise TransformRefused(f"{address}: need http://HOST:PORT or grpc://HOST:PORT")
    return parts.scheme, parts.hostname, port

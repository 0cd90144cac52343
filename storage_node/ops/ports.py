"""Port choice for a node: a port that it keeps across restarts, and that no other program gets by chance.

Linux assigns ports from 32768 up to outgoing connections, and Ray assigns 10002 to 19999 to its workers. A node that
needs its port again after a restart avoids both ranges.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Iterator

_RAY_DASHBOARD = 8265


def usable_ports() -> Iterator[int]:
    yield from (port for port in range(7480, 10_000) if port != _RAY_DASHBOARD)
    yield from range(20_000, 32_768)


def usable_peer_ports() -> Iterator[int]:
    """Yield ports outside of the first range of client ports, so that those stay consecutive."""
    yield from range(8480, 10_000)
    yield from range(20_000, 32_768)


def is_free(host: str, port: int) -> bool:
    """Whether a node could listen there now. A name that is no address of this machine counts as taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family):
            return True
    except OSError:
        return False


def free_port(host: str, avoid: Collection[int] = (), among: Iterable[int] | None = None) -> int:
    """Return the first free port. Raises OSError if there is none."""
    for port in usable_ports() if among is None else among:
        if port not in avoid and is_free(host, port):
            return port
    raise OSError(f"no port of {host} is free for a node")

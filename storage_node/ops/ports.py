"""Port choice for a node: a port that it keeps across restarts, and that nothing else takes by chance.

Linux hands out ports from 32768 up to outgoing connections, Ray 10002 to 19999 to its workers: a node that wants to
find its port free again after a restart stays out of both.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Iterator

_RAY_DASHBOARD = 8265


def usable_ports() -> Iterator[int]:
    yield from (port for port in range(7480, 10_000) if port != _RAY_DASHBOARD)
    yield from range(20_000, 32_768)


def usable_peer_ports() -> Iterator[int]:
    """Apart from those that nodes begin with for clients, so that these are counted through."""
    yield from range(8480, 10_000)
    yield from range(20_000, 32_768)


def is_free(host: str, port: int) -> bool:
    """Whether a node could listen there now; a name that is no address of this machine counts as taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family):
            return True
    except OSError:
        return False


def free_port(host: str, avoid: Collection[int] = (), among: Iterable[int] | None = None) -> int:
    """The first free one. Raises OSError when there is none."""
    for port in usable_ports() if among is None else among:
        if port not in avoid and is_free(host, port):
            return port
    raise OSError(f"no port of {host} is free for a node")

"""A gateway on the event loop of its process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable

from .app import Gateway
from .server.bounded_server import BACKLOG
from .server.certificate import Certificate
from .server.options import Limits


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)


async def serve_until(
    gateway: Gateway,
    listener: socket.socket,
    stopping: asyncio.Event,
    ready: Callable[[], None],
    certificate: Certificate | None = None,
) -> None:
    """Serve until an event. `ready` is called when connections are accepted. Raises OSError."""
    renewing = asyncio.create_task(certificate.follow()) if certificate is not None else None
    try:
        await gateway.start(listener, certificate.context if certificate is not None else None)
        ready()
        await stopping.wait()
    finally:
        if renewing is not None:
            renewing.cancel()
        await gateway.stop()


def stopper(stopping: asyncio.Event, limits: Limits) -> Callable[[], None]:
    """Return a function that stops the gateway of this process, and the process in any case a while later.

    SIGTERM and SIGINT call it, too.
    """

    def stop() -> None:
        stopping.set()
        # A thread that waits for a node, which may be frozen, would be waited for at the end of the interpreter.
        ending = threading.Timer(limits.grace_s + limits.end_s, os._exit, (0,))
        ending.daemon = True
        ending.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return stop

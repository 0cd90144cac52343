"""A gateway on the event loop of its process, and one on a thread for tests and notebooks."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from .app import Gateway
from .clients import Clients
from .keys import Account
from .server.bounded_server import BACKLOG
from .server.certificate import Certificate
from .server.options import GatewayOptions, Limits


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
    """Return a function that stops the gateway of this process, and the process in any case a while later."""

    def stop() -> None:
        stopping.set()
        # A thread that waits for a node, which may be frozen, would be waited for at the end of the interpreter.
        ending = threading.Timer(limits.grace_s + limits.end_s, os._exit, (0,))
        ending.daemon = True
        ending.start()

    return stop


class GatewayThread:
    """A gateway on a thread of this process, on loopback. As a context manager, it stops at the end."""

    def __init__(
        self,
        clients: Clients,
        keys: Mapping[str, Account] | None,
        *,
        certificate: Certificate | None = None,
        **options: Any,
    ) -> None:
        """`options` are fields of `GatewayOptions`. Raises what starting it raises."""
        self._certificate = certificate
        self.port = 0
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, args=(clients, keys, options), daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _serve(self, clients: Clients, keys: Mapping[str, Account] | None, options: Mapping[str, Any]) -> None:
        certificate = self._certificate

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self.gateway = Gateway(clients, keys, GatewayOptions(**options))
            listener = listen("127.0.0.1", 0)
            self.port = int(listener.getsockname()[1])
            await serve_until(self.gateway, listener, self._stopping, self._ready.set, certificate)

        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._error = error
            self._ready.set()

    @property
    def url(self) -> str:
        return f"http{'s' if self._certificate is not None else ''}://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop, and wait for the end of the thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def __enter__(self) -> GatewayThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

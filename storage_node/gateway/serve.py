"""Main function of a gateway's process, and a gateway on a thread for tests and notebooks."""

from __future__ import annotations

import asyncio
import signal
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any

from storage_node.gateway.app import Gateway
from storage_node.gateway.clients import Clients
from storage_node.gateway.keys import Account


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """Return the context of a server with this certificate. Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    return context


def run_gateway(
    clients: Clients,
    keys: Mapping[str, Account] | None,
    host: str,
    port: int,
    announce: Callable[[int], None],
    *,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> None:
    """Serve until SIGTERM or SIGINT. `announce` is called with the port; `options` are those of `Gateway`.

    Must run on the main thread. Raises OSError if it cannot listen.
    """

    async def serve() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        gateway = Gateway(clients, keys, **options)
        try:
            announce(await gateway.start(host, port, tls))
            await stopping.wait()
        finally:
            await gateway.stop()

    asyncio.run(serve())


class GatewayThread:
    """A gateway on a thread of this process, on loopback. As a context manager, it stops at the end."""

    def __init__(self, clients: Clients, keys: Mapping[str, Account] | None, **options: Any) -> None:
        """`options` are those of `Gateway`. Raises what starting it raises."""
        self.port = 0
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, args=(clients, keys, options), daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _serve(self, clients: Clients, keys: Mapping[str, Account] | None, options: Mapping[str, Any]) -> None:
        async def serve() -> None:
            gateway = Gateway(clients, keys, **options)
            try:
                self.port = await gateway.start("127.0.0.1", 0)
                self._ready.set()
                await self._stopping.wait()
            finally:
                await gateway.stop()

        try:
            self._loop.run_until_complete(serve())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._error = error
            self._ready.set()
        finally:
            self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop, and wait for the end of the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def __enter__(self) -> GatewayThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

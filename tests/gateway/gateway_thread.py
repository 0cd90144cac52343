"""A gateway on a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ais_loader.integrations.gateway.app import Gateway
from ais_loader.integrations.gateway.clients import Account, Clients
from ais_loader.integrations.gateway.serve import listen, serve_until
from ais_loader.integrations.gateway.server.certificate import Certificate
from ais_loader.integrations.gateway.server.options import GatewayOptions


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

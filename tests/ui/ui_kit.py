"""The page of a store for tests: served from a thread of this process, asked by a plain HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from ais_loader.objects.client import Client
from ais_loader.ui.server import serve

TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Answer:
    """What came for a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    """A page by its address."""

    address: str

    def ask(
        self, path: str = "", *, method: str = "GET", headers: Mapping[str, str] | None = None, **query: str
    ) -> Answer:
        """A request below the page's address."""
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            target = f"{parts.path}{path}?{urlencode(query)}" if not path.startswith("/") else path
            connection.request(method, target, headers=dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()


@contextmanager
def served(client: Client) -> Iterator[Served]:
    """The page of this client's store; ends, with its thread, at the end of the block."""
    address: list[str] = []
    ready = threading.Event()
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        until = asyncio.Event()
        ends.append((asyncio.get_running_loop(), until))
        await serve(client, 0, tell, until)

    def tell(said: str) -> None:
        address.append(said)
        ready.set()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(TIMEOUT_S)
        yield Served(address[0])
    finally:
        loop, until = ends[0]
        loop.call_soon_threadsafe(until.set)
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()

"""A session's call over gRPC: messages are queued for the thread by which grpcio sends."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any


class GrpcCall:
    """A `Call`. `stub`: the multi-callable of the session's method, for bytes."""

    def __init__(self, stub: Any) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = stub(iter(self._outgoing.get, None))

    def send(self, message: bytes) -> None:
        self._outgoing.put(message)

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._call
        finally:
            self._outgoing.put(None)

    def cancel(self) -> None:
        self._call.cancel()
        self._outgoing.put(None)

"""Channel to a transform's server: the interface of all protocols, their errors, and the receiver of the output.

A small output stays in memory. A larger one goes to an unnamed file of the spool, so that nothing is left behind, even
if the node is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ais_loader.errors import TransformFailed
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content, Origin
from storage_node.etl.webserver.protocol import TransformRequest
from storage_node.limits.tasks import settled
from storage_node.store.checksum import crc32c


class OutputReceiver:
    """One output: `take` its chunks, then call `content` or `discard`."""

    def __init__(self, max_bytes: int, reason: str, new_file: Callable[[], int]) -> None:
        """Create an empty receiver.

        Args:
            max_bytes: Maximum size; a larger output fails.
            reason: Name of that limit, for the message.
            new_file: Creates an unnamed file of the spool and returns its descriptor.
        """
        self._max_bytes, self._reason, self._new_file = max_bytes, reason, new_file
        self._parts: list[bytes] = []
        self._file: Content | None = None
        self.size_bytes = self.checksum = 0

    async def take(self, chunk: bytes) -> None:
        """Add a chunk. Raises TransformFailed if the output is too large or the spool fails."""
        size_bytes = self.size_bytes + len(chunk)
        if size_bytes > self._max_bytes:
            raise TransformFailed(f"it makes more than {self._max_bytes:,} bytes, {self._reason}")
        self.size_bytes, self.checksum = size_bytes, crc32c(chunk, self.checksum)
        self._parts.append(chunk)
        if self._file is None and size_bytes <= MAX_IN_MEMORY_BYTES:
            return
        try:
            await settled(asyncio.ensure_future(asyncio.to_thread(self._spool)))  # `discard` may follow
        except OSError as error:
            raise TransformFailed(f"its output could not be spooled: {error}") from error

    def _spool(self) -> None:
        if self._file is None:
            self._file = Content(0, 0, fd=self._new_file())
        parts, self._parts = self._parts, []
        for part in parts:
            self._file.append(memoryview(part))

    def content(self) -> Content:
        """Return the output, which becomes the caller's."""
        file, self._file = self._file, None
        if file is not None:
            file.size_bytes, file.checksum = self.size_bytes, self.checksum
            return file
        return Content(self.size_bytes, self.checksum, memoryview(b"".join(self._parts)))

    def discard(self) -> None:
        """Release the output. May be called again."""
        self._parts = []
        self.content().close()


CONNECT_S = 5.0
"""Time limit for establishing a connection."""


class ServerFailed(Exception):
    """The server reported that it made no output for the object; the message is the server's."""


class PutFailed(Exception):
    """The server made the output but could not put it to its destination."""


class Unanswered(Exception):
    """It is unknown whether the object was transformed; it may be sent again."""

    def __init__(self, message: str, *, connected: bool) -> None:
        super().__init__(message)
        self.connected = connected
        """Whether there was a connection, which broke. Otherwise the server is not running, or not ready yet."""


class Channel(Protocol):
    """Connections to one server, on the node's event loop: opened on demand, reused, closed when broken."""

    async def ask(self, request: TransformRequest, origin: Origin, content: Content, receiver: OutputReceiver) -> str:
        """Pass one object through. The output goes to `receiver`; if the request has it put elsewhere, return the
        receipt.

        If cancelled, no connection remains with a request in progress.

        Raises ServerFailed, PutFailed, Unanswered, and what `receiver` raises.
        """

    async def close(self) -> None:
        """Close all connections. Never raises."""

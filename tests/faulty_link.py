"""Faulty link: a TCP hop between a client and a node, whose faults a test controls: silence, latency, low bandwidth,
cuts.

The link does not read or change the bytes.
"""

from __future__ import annotations

import asyncio
import socket

from tests.loop_listener import AcceptedConnection, LoopListener

_CHUNK_BYTES = 256 << 10
_QUEUED_CHUNKS = 64


class FaultyLink(LoopListener):
    """A link that listens on loopback at `url` and forwards to `target` (grpc://host:port).

    It is thread-safe, and a context manager.
    """

    def __init__(self, target: str) -> None:
        self.lead_to(target)
        self.latency_s = 0.0
        """The latency added in each direction. May be set at any time."""
        self.bytes_per_s: float | None = None
        """The bandwidth of each connection in each direction. None means unlimited. May be set at any time."""
        self.bytes_to_client = self.bytes_to_node = 0
        """The bytes delivered so far, over all connections."""
        self._cut_at: int | None = None
        self._cut_every: int | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        super().__init__("ais-loader link")

    @property
    def url(self) -> str:
        """The URL that a client connects to instead of the node's."""
        return f"grpc://127.0.0.1:{self.port}"

    def lead_to(self, target: str) -> None:
        """Forward new connections to `target`, for a node that must know its link before it has a port itself."""
        host, _, port = target.removeprefix("grpc://").rpartition(":")
        self._target = (host, int(port))

    # -- faults

    def cut_after(self, bytes_to_client: int) -> None:
        """Reset every connection once that many more bytes have come from the node, even in the middle of a message."""

        def plan() -> None:
            self._cut_at = self.bytes_to_client + bytes_to_client

        self._command(plan)

    def cut_every(self, bytes_to_client: int | None) -> None:
        """Like `cut_after`, but repeatedly. None ends this."""

        def plan() -> None:
            self._cut_every = bytes_to_client
            self._cut_at = None if bytes_to_client is None else self.bytes_to_client + bytes_to_client

        self._command(plan)

    def stall(self) -> None:
        """Hold back all data. Connections stay open, and new ones are accepted."""
        self._command(self._flowing.clear)

    def flow(self) -> None:
        """End a stall, and deliver the data that was held back."""
        self._command(self._flowing.set)

    # -- on the loop

    def _cut(self) -> None:
        self._cut_at = None if self._cut_every is None else self.bytes_to_client + self._cut_every
        super()._cut()

    async def _serve(self, sock: socket.socket, connection: AcceptedConnection) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=sock)
            connection.add(writer)
            node_reader, node_writer = await self._connect(self._target, connection)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(connection, reader, node_writer, to_client=False))
                tasks.create_task(self._forward(connection, node_reader, writer, to_client=True))
        except (OSError, ExceptionGroup):
            connection.reset()  # one side has closed: close the other one
        except asyncio.CancelledError:
            connection.reset()  # by `_run`, at the end: a cancelled task of a connection would be printed as an error
        finally:
            self._forget(connection)

    async def _forward(
        self,
        connection: AcceptedConnection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        to_client: bool,
    ) -> None:
        queued: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED_CHUNKS)

        async def deliver() -> None:
            while True:
                due, chunk = await queued.get()
                await asyncio.sleep(due - self._loop.time())
                await self._flowing.wait()
                if not chunk:
                    writer.write_eof()
                    return
                if to_client:
                    chunk = self._before_the_cut(chunk)
                writer.write(chunk)
                await writer.drain()
                if not to_client:
                    self.bytes_to_node += len(chunk)
                else:
                    self.bytes_to_client += len(chunk)
                    if self._cut_at is not None and self.bytes_to_client >= self._cut_at:
                        self._cut()
                if self.bytes_per_s is not None:
                    await asyncio.sleep(len(chunk) / self.bytes_per_s)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deliver())
            while chunk := await reader.read(_CHUNK_BYTES):
                await queued.put((self._loop.time() + self.latency_s, chunk))
            await queued.put((self._loop.time() + self.latency_s, b""))

    def _before_the_cut(self, chunk: bytes) -> bytes:
        if self._cut_at is None:
            return chunk
        return chunk[: max(0, self._cut_at - self.bytes_to_client)]

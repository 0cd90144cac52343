"""Faulty link: a TCP hop between a client and a node, whose faults a test controls: silence, latency, low bandwidth,
cuts.

The link does not read or change the bytes. One thread with an event loop serves all connections, so that after a fork
only an idle object remains in the child.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
_CHUNK_BYTES = 256 << 10
_QUEUED_CHUNKS = 64
_CONTROL_TIMEOUT_S = 10.0
# With a linger time of zero, closing sends a reset and throws away what has not been delivered.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultyLink:
    """A link that listens on loopback at `url` and forwards to `target` (grpc://host:port).

    It is thread-safe, and a context manager.
    """

    def __init__(self, target: str) -> None:
        self.lead_to(target)
        self.latency_s = 0.0
        """The latency added in each direction. May be set at any time."""
        self.bytes_per_s: float | None = None
        """The bandwidth of each connection in each direction. None means unlimited. May be set at any time."""
        self.connections_made = 0
        self.bytes_to_client = self.bytes_to_node = 0
        """The bytes delivered so far, over all connections."""
        self._cut_at: int | None = None
        self._cut_every: int | None = None
        self._refusing = False
        self._connections: set[_Connection] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, args=(listener,), name="ais-loader link", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL that a client connects to instead of the node's."""
        return f"grpc://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def lead_to(self, target: str) -> None:
        """Forward new connections to `target`, for a node that must know its link before it has a port itself."""
        host, _, port = target.removeprefix("grpc://").rpartition(":")
        self._target = (host, int(port))

    # -- faults

    def cut(self) -> None:
        """Reset every connection now. New ones are still accepted."""
        self._command(self._cut)

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

    def refuse(self) -> None:
        """Reset every connection, and each new one immediately."""

        def refuse() -> None:
            self._refusing = True
            self._cut()

        self._command(refuse)

    def accept(self) -> None:
        """End a refusal."""
        self._refusing = False

    def close(self) -> None:
        """Cut all connections and stop listening. May be called again."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CONTROL_TIMEOUT_S)

    def __enter__(self) -> FaultyLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- on the loop

    def _command(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_CONTROL_TIMEOUT_S)

    def _cut(self) -> None:
        self._cut_at = None if self._cut_every is None else self.bytes_to_client + self._cut_every
        for connection in list(self._connections):
            connection.reset()

    def _run(self, listener: socket.socket) -> None:
        asyncio.set_event_loop(self._loop)
        listener.setblocking(False)
        # Not asyncio's server, which leaves connections open that it has accepted but not handed over when the loop
        # ends.
        self._loop.add_reader(listener, self._accept, listener)
        try:
            self._loop.run_forever()
        finally:
            self._loop.remove_reader(listener)
            listener.close()
            # Runs after the start of every accepted connection, so that all sockets are registered.
            self._loop.run_until_complete(self._end())
            self._loop.close()

    async def _end(self) -> None:
        self._cut()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0)  # a transport closes its socket one step after `close`

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self.connections_made += 1
        if self._refusing:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            sock.close()
            return
        connection = _Connection()
        self._connections.add(connection)
        task = self._loop.create_task(self._serve(sock, connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, sock: socket.socket, connection: _Connection) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=sock)
            connection.add(writer)
            # Shielded: a cancelled open_connection leaves its socket to the garbage collector.
            connecting = asyncio.ensure_future(asyncio.open_connection(*self._target))
            try:
                await asyncio.shield(connecting)
            finally:
                node_reader, node_writer = await connecting
                connection.add(node_writer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(connection, reader, node_writer, to_client=False))
                tasks.create_task(self._forward(connection, node_reader, writer, to_client=True))
        except (OSError, ExceptionGroup):
            connection.reset()  # one side has closed: close the other one
        except asyncio.CancelledError:
            connection.reset()  # by `_run`, at the end: a cancelled task of a connection would be printed as an error
        finally:
            self._connections.discard(connection)
            for end in connection.writers:
                end.close()

    async def _forward(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_client: bool
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


class _Connection:
    """Both sockets of one client's connection."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self._is_reset = False

    def add(self, writer: asyncio.StreamWriter) -> None:
        """Add a socket. Raises ConnectionResetError if the connection was already reset."""
        self.writers.append(writer)
        if self._is_reset:
            raise ConnectionResetError("reset while it was being made")

    def reset(self) -> None:
        self._is_reset = True
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()

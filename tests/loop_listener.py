"""Loop listener: a server on loopback, whose connections one thread with an event loop serves.

After a fork, only an idle object remains in the child.
"""

from __future__ import annotations

import abc
import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

from ais_loader.wire.closing import Closing

T = TypeVar("T")
_CONTROL_TIMEOUT_S = 180.0
# With a linger time of zero, closing sends a reset and throws away what has not been delivered.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class LoopListener(Closing, abc.ABC):
    """A server that listens on loopback. Its subclass serves each connection with `_serve`.

    It is thread-safe, and a context manager.
    """

    def __init__(self, name: str) -> None:
        self.connections_made = 0
        self._refusing = False
        self._connections: set[AcceptedConnection] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, args=(listener,), name=name, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def cut(self) -> None:
        """Reset every connection now. New ones are still accepted."""
        self._command(self._cut)

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

    # -- on the loop

    def _command(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_CONTROL_TIMEOUT_S)

    def _cut(self) -> None:
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
        connection = AcceptedConnection()
        self._connections.add(connection)
        task = self._loop.create_task(self._serve(sock, connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    @abc.abstractmethod
    async def _serve(self, sock: socket.socket, connection: AcceptedConnection) -> None:
        """Serve one connection to its end, add its sockets to `connection`, and call `_forget` at last."""

    async def _connect(
        self, target: tuple[str, int], connection: AcceptedConnection
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the server behind, for `connection`."""
        # Shielded: a cancelled open_connection leaves its socket to the garbage collector.
        connecting = asyncio.ensure_future(asyncio.open_connection(*target))
        try:
            await asyncio.shield(connecting)
        finally:
            reader, writer = await connecting
            connection.add(writer)
        return reader, writer

    def _forget(self, connection: AcceptedConnection) -> None:
        self._connections.discard(connection)
        for end in connection.writers:
            end.close()


class AcceptedConnection:
    """All sockets that serve one client's connection."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self._is_reset = False

    def add(self, writer: asyncio.StreamWriter) -> None:
        """Add a socket. Raises ConnectionResetError if the connection was already reset."""
        self.writers.append(writer)
        if self._is_reset:
            raise ConnectionResetError("reset while it was being made")

    def close(self, writer: asyncio.StreamWriter) -> None:
        """Close one of them before the others."""
        self.writers.remove(writer)
        writer.close()

    def reset(self) -> None:
        self._is_reset = True
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()

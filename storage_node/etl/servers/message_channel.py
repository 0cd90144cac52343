"""Pool of message streams to a server, with one object at a time on each stream.

The messages are those of protos/ais_etl_server.proto, over a WebSocket or a gRPC stream. An object that is cancelled or
breaks off closes its stream; a second object on the same stream would fail with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from storage_node.etl.servers.channel import OutputReceiver, PutFailed, ServerFailed, Unanswered
from storage_node.etl.transform_http import read
from storage_node.etl.values import Content, Origin
from storage_node.etl.webserver.protocol import CHUNK_BYTES, Request
from storage_node.limits.tasks import retrieve, settled


class ServerStream(Protocol):
    """A connection, or a part of one. `send` and `receive` raise Unanswered when it breaks."""

    async def send(self, message: pb.ServerInput) -> None: ...
    async def receive(self) -> pb.ServerOutput: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Close immediately, even during a request."""


class MessageChannel:
    """A pool with one stream for each concurrent object."""

    def __init__(self, connect: Callable[[], Awaitable[ServerStream]], release: Callable[[], Awaitable[None]]) -> None:
        """Create an empty pool.

        Args:
            connect: Opens a stream. Raises Unanswered.
            release: Closes what all streams share.
        """
        self._connect, self._release = connect, release
        self._idle: list[ServerStream] = []
        self._busy: set[ServerStream] = set()

    async def ask(self, request: Request, origin: Origin, content: Content, receiver: OutputReceiver) -> str:
        stream = await self._free()
        self._busy.add(stream)
        between_two = False
        try:
            receipt = await _exchange(stream, request, content, receiver)
            between_two = True
            return receipt
        except (ServerFailed, PutFailed):
            between_two = True
            raise
        except Unanswered:
            self._forget_idle()
            raise
        finally:
            self._busy.discard(stream)
            if between_two:
                self._idle.append(stream)
            else:
                stream.close()

    async def _free(self) -> ServerStream:
        while self._idle:
            stream = self._idle.pop()
            if not stream.closed:
                return stream
            stream.close()
        return await self._connect()

    def _forget_idle(self) -> None:
        """Close all idle streams. When one is broken, a server or proxy may have closed all of them, and an object
        would use up its attempts on one broken stream after another."""
        for stream in self._idle:
            stream.close()
        self._idle.clear()

    async def close(self) -> None:
        for stream in self._busy:
            stream.close()
        self._forget_idle()
        await self._release()


async def _exchange(stream: ServerStream, request: Request, content: Content, receiver: OutputReceiver) -> str:
    """Pass one object through. When it returns or raises ServerFailed or PutFailed, the stream is ready for the next
    object."""
    if request.file or content.size_bytes <= CHUNK_BYTES:
        data = b"" if request.file else await read(content, 0, CHUNK_BYTES)
        await stream.send(request.message(data, last=True))
        return await _answered(stream, receiver, request)
    sending = asyncio.create_task(_send(stream, request, content))
    try:
        # The server reads its input to the end even if it has failed or needs no more of it.
        receipt: str | Exception = await _answered(stream, receiver, request)
    except (ServerFailed, PutFailed) as error:
        receipt = error
    except BaseException:
        await _ended(sending)
        raise
    await settled(sending, sending.cancel)
    if isinstance(receipt, Exception):
        raise receipt
    return receipt


async def _ended(sending: asyncio.Task[None]) -> None:
    """Cancel the sender and wait for it: it reads the input, which belongs to the caller afterwards."""
    sending.cancel()
    while not sending.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([sending])
    retrieve(sending)


async def _send(stream: ServerStream, request: Request, content: Content) -> None:
    for offset in range(0, content.size_bytes, CHUNK_BYTES):
        data, last = await read(content, offset, CHUNK_BYTES), offset + CHUNK_BYTES >= content.size_bytes
        await stream.send(request.message(data, last) if not offset else pb.ServerInput(data=data, last=last))


async def _answered(stream: ServerStream, receiver: OutputReceiver, request: Request) -> str:
    while True:
        output = await stream.receive()
        if output.error:
            raise PutFailed(output.error) if output.put_failed else ServerFailed(output.error)
        if output.data:
            await receiver.take(output.data)
        if output.last:
            if request.put_url and not output.receipt:
                raise ServerFailed("it sent back what it was to put: see direct_put")
            return output.receipt

"""Pool of WebSockets to a server, with one object at a time on each.

Their binary frames are the messages of protos/ais_etl_server.proto. An object that is cancelled or breaks off closes
its WebSocket; a second object on it would fail with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from storage_node.etl.servers.channel import CONNECT_S, OutputReceiver, PutFailed, ServerFailed, Unanswered
from storage_node.etl.servers.http_channel import new_session
from storage_node.etl.transform_http import read
from storage_node.etl.values import Content, Origin
from storage_node.etl.webserver.protocol import CHUNK_BYTES, WEBSOCKET_PATH, TransformRequest
from storage_node.limits.tasks import retrieve, settled

if TYPE_CHECKING:
    import aiohttp


class WebSocketStream:
    """One WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, url: str) -> None:
        self._socket, self._url = socket, url

    @property
    def closed(self) -> bool:
        """Whether it is closed, also by the server: no task reads an idle stream or answers the server's pings."""
        response = self._socket._response
        connection = response.connection if response is not None else None
        transport = connection.transport if connection is not None else None
        return self._socket.closed or transport is None or transport.is_closing()

    async def send(self, message: pb.ServerInput) -> None:
        import aiohttp

        try:
            await self._socket.send_bytes(message.SerializeToString())
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(f"{self._url} broke off: {error!r}", connected=True) from error

    async def receive(self) -> pb.ServerOutput:
        import aiohttp

        try:
            frame = await self._socket.receive()
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(f"{self._url} broke off: {error!r}", connected=True) from error
        if frame.type is not aiohttp.WSMsgType.BINARY:
            raise Unanswered(f"{self._url} closed the WebSocket: {frame.extra or frame.data}", connected=True)
        try:
            return pb.ServerOutput.FromString(frame.data)
        except DecodeError as error:
            raise Unanswered(f"{self._url} sent a frame that is no ServerOutput", connected=True) from error

    def close(self) -> None:
        """Close the connection without a closing handshake."""
        if (response := self._socket._response) is not None:
            response.close()


class WebSocketChannel:
    """A pool with one WebSocket for each concurrent object."""

    def __init__(self, address: str) -> None:
        """Create an empty pool. Raises TransformRefused without aiohttp."""
        self._session, self._url = new_session(), address + WEBSOCKET_PATH
        self._idle: list[WebSocketStream] = []
        self._busy: set[WebSocketStream] = set()

    async def ask(self, request: TransformRequest, origin: Origin, content: Content, receiver: OutputReceiver) -> str:
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

    async def _free(self) -> WebSocketStream:
        while self._idle:
            stream = self._idle.pop()
            if not stream.closed:
                return stream
            stream.close()
        return await self._connect()

    async def _connect(self) -> WebSocketStream:
        import aiohttp

        try:
            socket = await self._session.ws_connect(
                self._url,
                compress=0,
                max_msg_size=4 * CHUNK_BYTES,
                autoping=True,
                timeout=aiohttp.ClientWSTimeout(ws_close=CONNECT_S),
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 503:
                raise Unanswered(f"{self._url}: HTTP 503", connected=False) from error
            raise ServerFailed(f"HTTP {error.status} where a WebSocket is due at {self._url}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(f"nobody answers at {self._url}: {error}", connected=False) from error
        return WebSocketStream(socket, self._url)

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
        await self._session.close()


async def _exchange(
    stream: WebSocketStream, request: TransformRequest, content: Content, receiver: OutputReceiver
) -> str:
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


async def _send(stream: WebSocketStream, request: TransformRequest, content: Content) -> None:
    for offset in range(0, content.size_bytes, CHUNK_BYTES):
        data, last = await read(content, offset, CHUNK_BYTES), offset + CHUNK_BYTES >= content.size_bytes
        await stream.send(request.message(data, last) if not offset else pb.ServerInput(data=data, last=last))


async def _answered(stream: WebSocketStream, receiver: OutputReceiver, request: TransformRequest) -> str:
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

"""WebSockets to a server as message streams: each message is a binary frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from storage_node.etl.servers.channel import CONNECT_S, ServerFailed, Unanswered
from storage_node.etl.servers.http_channel import new_session
from storage_node.etl.servers.message_channel import MessageChannel
from storage_node.etl.webserver.protocol import CHUNK_BYTES, WEBSOCKET_PATH

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


def websocket_channel(address: str) -> MessageChannel:
    """Return a pool of WebSockets. Raises TransformRefused without aiohttp."""
    session = new_session()
    url = address + WEBSOCKET_PATH

    async def connect() -> WebSocketStream:
        import aiohttp

        try:
            socket = await session.ws_connect(
                url,
                compress=0,
                max_msg_size=4 * CHUNK_BYTES,
                autoping=True,
                timeout=aiohttp.ClientWSTimeout(ws_close=CONNECT_S),
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 503:
                raise Unanswered(f"{url}: HTTP 503", connected=False) from error
            raise ServerFailed(f"HTTP {error.status} where a WebSocket is due at {url}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(f"nobody answers at {url}: {error}", connected=False) from error
        return WebSocketStream(socket, url)

    return MessageChannel(connect, session.close)

"""Transform server on FastAPI and uvicorn: HTTP and WebSocket on one event loop, transforms in threads."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ais_loader.extras import needs
from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from storage_node.etl.webserver.answer import answer
from storage_node.etl.webserver.base import TransformServer
from storage_node.etl.webserver.exchange import exchange
from storage_node.etl.webserver.loop_bridge import MAX_THREADS, each_in_thread, from_loop, in_thread
from storage_node.etl.webserver.protocol import (
    CHUNK_BYTES,
    HEALTH_PATH,
    TRANSFORM_PATH,
    WEBSOCKET_PATH,
    TransformRequest,
)

if TYPE_CHECKING:
    import fastapi
    import starlette.requests
    import starlette.responses
    import starlette.websockets

T = TypeVar("T")
IDLE_S = 300
"""Time after which an idle connection is closed."""
GRACE_S = 5
"""Time that running requests get at shutdown."""


class FastAPIServer(TransformServer):
    """hpush, hpull and ws with FastAPI. `app` may be passed to another ASGI server."""

    def __init__(self) -> None:
        super().__init__()
        self._require_framework()
        self.app = self._build_app()
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="transform")
        self._server: Any = None
        self._stopped = False

    def _require_framework(self) -> None:
        with needs("fastapi", "FastAPIServer"):
            import fastapi  # noqa: F401
        with needs("uvicorn", "FastAPIServer"):
            import uvicorn  # noqa: F401
        with needs("websockets", "FastAPIServer"):
            import websockets  # noqa: F401

    def _build_app(self) -> fastapi.FastAPI:
        with needs("fastapi", "FastAPIServer"):
            import fastapi
        app = fastapi.FastAPI(title=type(self).__name__)
        app.add_api_route(HEALTH_PATH, _health, response_class=_plain_text())
        # Bypasses FastAPI's parameter parsing, which costs as much as the rest of a small request.
        app.router.add_route(TRANSFORM_PATH, self._transform, methods=["GET", "PUT"])
        app.router.add_websocket_route(WEBSOCKET_PATH, self._websocket)
        return app

    def _serve(self, listener: socket.socket) -> None:
        with needs("uvicorn", "FastAPIServer"):
            import uvicorn
        config = uvicorn.Config(
            self.app,
            log_level="warning",
            access_log=False,
            ws="websockets-sansio",
            ws_max_size=4 * CHUNK_BYTES,
            ws_per_message_deflate=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=GRACE_S,
            lifespan="off",
            h11_max_incomplete_event_size=1 << 16,
        )
        self._server = uvicorn.Server(config)
        if not self._stopped:
            self._server.run(sockets=[listener])

    def stop(self) -> None:
        """Stop. Returns at once; running requests get some seconds to finish."""
        self._stopped = True
        if self._server is not None:
            self._server.should_exit = True

    # -- HTTP

    async def _transform(self, http_request: starlette.requests.Request) -> starlette.responses.Response:
        from starlette.responses import Response

        request = TransformRequest.of_headers(http_request.headers)
        if self.streams and http_request.method == "PUT":
            body: Iterator[bytes] = from_loop(http_request.stream())
            reply = await in_thread(self._threads, answer, self, request, body)
        else:
            body = iter((await http_request.body(),))
            reply = await in_thread(self._threads, answer, self, request, body)
        if isinstance(reply.body, bytes):
            return Response(reply.body, reply.status, reply.headers)
        return _streamed(each_in_thread(self._threads, reply.body), reply.status, reply.headers)

    # -- WebSocket

    async def _websocket(self, socket: starlette.websockets.WebSocket) -> None:
        from starlette.websockets import WebSocketDisconnect

        await socket.accept()
        try:
            while True:
                first = pb.ServerInput.FromString(await socket.receive_bytes())
                if self.streams:
                    more = from_loop(_inputs(socket))
                    async for output in each_in_thread(self._threads, exchange(self, first, more)):
                        await socket.send_bytes(output.SerializeToString())
                    continue
                inputs = [first]
                while not inputs[-1].last:
                    inputs.append(pb.ServerInput.FromString(await socket.receive_bytes()))
                for frame in await in_thread(self._threads, _frames, self, inputs):
                    await socket.send_bytes(frame)
        except WebSocketDisconnect:
            pass  # the normal end between two objects; within one, the node retries


def _frames(server: TransformServer, inputs: list[pb.ServerInput]) -> list[bytes]:
    return [output.SerializeToString() for output in exchange(server, inputs[0], iter(inputs[1:]))]


async def _inputs(socket: starlette.websockets.WebSocket) -> AsyncIterator[pb.ServerInput]:
    while True:
        yield pb.ServerInput.FromString(await socket.receive_bytes())


def _streamed(chunks: AsyncIterator[bytes], status: int, headers: dict[str, str]) -> starlette.responses.Response:
    """Return a streamed response. Starlette's own watches for a disconnect of the client, and mistakes the rest of the
    input for it."""
    from starlette.responses import Response

    class Streamed(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": raw})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    return Streamed()


async def _health() -> str:
    return "running\n"


def _plain_text() -> Any:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse

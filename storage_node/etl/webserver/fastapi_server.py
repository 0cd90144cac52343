"""Transform server on FastAPI and uvicorn: HTTP and WebSocket on one event loop, transforms in threads."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ais_loader.extras import needs
from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from storage_node.etl.webserver.answer import answer
from storage_node.etl.webserver.base import Failed, Refused, TransformServer
from storage_node.etl.webserver.node_link import NodeLinkFailed
from storage_node.etl.webserver.protocol import (
    CHUNK_BYTES,
    HEALTH_PATH,
    TRANSFORM_PATH,
    WEBSOCKET_PATH,
    TransformRequest,
    short,
)

if TYPE_CHECKING:
    import fastapi
    import starlette.requests
    import starlette.responses
    import starlette.websockets

IDLE_S = 300
"""Time after which an idle connection is closed."""
GRACE_S = 5
"""Time that running requests get at shutdown."""


class FastAPIServer(TransformServer):
    """hpush, hpull and ws with FastAPI. `app` may be passed to another ASGI server."""

    def __init__(self) -> None:
        super().__init__()
        self.app = self._build_app()
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="transform")
        self._server: Any = None
        self._stopped = False

    def _build_app(self) -> fastapi.FastAPI:
        with needs("fastapi", "FastAPIServer"):
            import fastapi
            from starlette.responses import PlainTextResponse
        with needs("uvicorn", "FastAPIServer"):
            import uvicorn  # noqa: F401
        with needs("websockets", "FastAPIServer"):
            import websockets  # noqa: F401
        app = fastapi.FastAPI(title=type(self).__name__)
        app.add_api_route(HEALTH_PATH, _health, response_class=PlainTextResponse)
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


def exchange(
    server: TransformServer, first: pb.ServerInput, more: Iterator[pb.ServerInput]
) -> Iterator[pb.ServerOutput]:
    """Yield the response to one object. Its further messages are read from `more` up to the last one in any case."""
    body = _data(first, more)
    request = TransformRequest.of_message(first)
    try:
        output = server.perform(request, body)
        if request.put_url:
            yield _put(server, request, output)
        elif isinstance(output, bytes):
            yield from messages_of(output)
        else:
            yield from (pb.ServerOutput(data=chunk) for chunk in output)
            yield pb.ServerOutput(last=True)
    except (Refused, Failed, NodeLinkFailed) as error:
        yield pb.ServerOutput(error=short(str(error)) or type(error).__name__, last=True)
    for _ in body:  # unread input; the next object starts after it
        pass


def messages_of(output: bytes) -> Iterator[pb.ServerOutput]:
    """Yield a complete output as messages."""
    if len(output) <= CHUNK_BYTES:
        yield pb.ServerOutput(data=output, last=True)
        return
    view = memoryview(output)
    for start in range(0, len(view), CHUNK_BYTES):
        end = start + CHUNK_BYTES
        yield pb.ServerOutput(data=bytes(view[start:end]), last=end >= len(view))


def _put(server: TransformServer, request: TransformRequest, output: bytes | Iterator[bytes]) -> pb.ServerOutput:
    try:
        return pb.ServerOutput(receipt=server.put(request, output).receipt, last=True)
    except NodeLinkFailed as error:
        return pb.ServerOutput(error=short(str(error)), put_failed=True, last=True)


def _data(first: pb.ServerInput, more: Iterator[pb.ServerInput]) -> Iterator[bytes]:
    message = first
    if message.data:
        yield message.data
    while not message.last:
        message = next(more)
        yield message.data


T = TypeVar("T")
MAX_THREADS = 256
"""Most of these threads wait: for their turn, for a node, or for input."""


async def in_thread(threads: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)


async def each_in_thread(threads: ThreadPoolExecutor, items: Iterator[T]) -> AsyncIterator[T]:
    """Yield the items of an iterator that runs in threads, one after another."""
    done: Any = object()
    while (item := await in_thread(threads, next, items, done)) is not done:
        yield item


def from_loop(items: AsyncIterator[T]) -> Iterator[T]:
    """Return an iterator, for a thread, over items that arrive on the caller's event loop."""
    loop = asyncio.get_running_loop()

    async def following() -> T:
        return await anext(items)

    def each() -> Iterator[T]:
        while True:
            wanted: Coroutine[Any, Any, T] = following()
            try:
                item = asyncio.run_coroutine_threadsafe(wanted, loop).result()
            except StopAsyncIteration:
                return
            yield item

    return each()

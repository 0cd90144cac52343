"""Transform server on gRPC: streams on an event loop, transforms in threads."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc.aio

from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from ais_loader.wire.generated import ais_etl_server_pb2_grpc as rpc
from storage_node.etl.webserver.base import TransformServer, reserved
from storage_node.etl.webserver.exchange import exchange
from storage_node.etl.webserver.loop_bridge import MAX_THREADS, each_in_thread, from_loop, in_thread
from storage_node.etl.webserver.protocol import CHUNK_BYTES

GRACE_S = 5.0
"""Time that running requests get at shutdown."""
START_S = 10.0
_OPTIONS = (("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", 4 * CHUNK_BYTES))


class GRPCServer(TransformServer):
    """The stream of protos/ais_etl_server.proto; addresses start with grpc://."""

    _scheme = "grpc"

    def __init__(self) -> None:
        super().__init__()
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="transform")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._listening = threading.Event()

    def _require_framework(self) -> None:
        pass

    def _bind(self, host: str, port: int) -> socket.socket:
        """Reserve the port; gRPC opens its own listener on it."""
        return reserved(host, port)

    def _beside(self, held: socket.socket) -> socket.socket:
        return held

    def _await_listening(self) -> None:
        self._listening.wait(START_S)

    def _serve(self, listener: socket.socket) -> None:
        asyncio.run(self._served(listener))

    async def _served(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        host, port = listener.getsockname()[:2]
        server = grpc.aio.server(options=_OPTIONS)
        servicer = _Servicer(self, self._threads)
        rpc.add_TransformStreamServicer_to_server(servicer, server)
        server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        await server.start()
        self._listening.set()
        await self._stopping.wait()
        servicer.end_streams()
        await server.stop(GRACE_S)

    def stop(self) -> None:
        """Stop. Returns at once; running requests get some seconds to finish."""
        if self._loop is None or self._loop.is_closed():
            self._stopping.set()
        else:
            self._loop.call_soon_threadsafe(self._stopping.set)


class _Servicer(rpc.TransformStreamServicer):
    def __init__(self, server: TransformServer, threads: ThreadPoolExecutor) -> None:
        self._server, self._threads = server, threads
        self._ending = False
        self._between: set[asyncio.Task[Any]] = set()
        """Streams between two objects, which stay open until their node sends another object."""

    async def Run(self, requests: AsyncIterator[pb.ServerInput], context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not self._ending:
            self._between.add(task)
            try:
                first = await context.read()
            finally:
                self._between.discard(task)
            if first is grpc.aio.EOF:
                return
            await self._one(first, context)

    async def _one(self, first: pb.ServerInput, context: Any) -> None:
        if self._server.streams:
            inputs = from_loop(_inputs(context))
            async for output in each_in_thread(self._threads, exchange(self._server, first, inputs)):
                await context.write(output)
            return
        messages = [first]
        while not messages[-1].last:
            messages.append(await anext(_inputs(context)))
        for output in await in_thread(self._threads, _outputs, self._server, messages):
            await context.write(output)

    async def Health(self, request: pb.ServerHealthRequest, context: Any) -> pb.ServerHealthResponse:
        return pb.ServerHealthResponse()

    def end_streams(self) -> None:
        """End streams: at once between two objects, otherwise after the current object."""
        self._ending = True
        for task in self._between:
            task.cancel()


async def _inputs(context: Any) -> AsyncIterator[pb.ServerInput]:
    """Yield the input. Raises ConnectionError if the node breaks off within an object."""
    while (message := await context.read()) is not grpc.aio.EOF:
        yield message
    raise ConnectionError("the node broke off in the middle of the input")


def _outputs(server: TransformServer, messages: list[pb.ServerInput]) -> list[pb.ServerOutput]:
    return list(exchange(server, messages[0], iter(messages[1:])))

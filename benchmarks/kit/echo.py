"""Echo server, the baseline for anything over gRPC: it sends the same bytes and does nothing else.

Unary: one request, one answer of `size` bytes. Stream: one open bidirectional stream; each request is answered with one
message. Plain Python grpcio on both sides, as in its documentation: a sync client, and a thread-pool server or (as a
storage node is) an asyncio one.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Self

import grpc

from benchmarks.kit.workers import Workers

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0))


def _serve_asyncio(size_bytes: int, ready: Connection) -> None:
    import asyncio

    import grpc.aio

    answer = bytes(size_bytes)

    async def unary(request: bytes, context: object) -> bytes:
        return answer

    async def serve() -> None:
        server = grpc.aio.server(options=_OPTIONS)
        handlers = {"Unary": grpc.unary_unary_rpc_method_handler(unary)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready.send(port)
        await server.wait_for_termination()

    asyncio.run(serve())


def _serve(size_bytes: int, ready: Connection) -> None:
    answer = bytes(size_bytes)
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(lambda request, context: answer),
        "Stream": grpc.stream_stream_rpc_method_handler(lambda requests, context: (answer for _ in requests)),
    }
    serve(handlers, ready, threads=16)


def serve(handlers: dict[str, grpc.RpcMethodHandler], ready: Connection, threads: int = 4) -> None:
    """The methods of the service "echo", until this process ends; the port goes through `ready`."""
    server = grpc.server(ThreadPoolExecutor(threads), options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ready.send(port)
    server.wait_for_termination()


class ServerProcess:
    """`work(given, ready)` in a process of its own, which sends its port through `ready`: `port` after entering."""

    def __init__(self, work: Callable[[Any, Connection], None], given: object = None) -> None:
        self._work = work
        self._given = given

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(target=self._work, args=(self._given, there), daemon=True)
        self._process.start()
        if not here.poll(60):
            raise TimeoutError("the echo server did not start")
        self.port: int = here.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join(10)


class EchoServer(ServerProcess):
    def __init__(self, size_bytes: int, *, asyncio: bool = False) -> None:
        super().__init__(_serve_asyncio if asyncio else _serve, size_bytes)


def channel_to(port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)


def unary(port: int, count: int) -> float:
    """Calls per second of one client."""
    with channel_to(port) as channel:
        call = channel.unary_unary("/echo/Unary")
        call(b"warm")
        start = time.perf_counter()
        for _ in range(count):
            call(b"x" * 32)
        return count / (time.perf_counter() - start)


def _call(port: int, _: int, pipe: Connection) -> None:
    while (count := pipe.recv()) is not None:
        pipe.send(unary(port, count))


class EchoClients(Workers):
    """Processes that call a server's "Unary", one call after another."""

    def __init__(self, port: int, count: int) -> None:
        super().__init__(_call, port, count)
        self._count = count

    def rate(self, calls: int) -> float:
        """Calls per second of all together, where each makes so many."""
        start = time.perf_counter()
        self.ask([calls] * self._count)
        return self._count * calls / (time.perf_counter() - start)


def stream(port: int, count: int, in_flight: int = 3) -> float:
    """Messages per second on one open stream, with up to `in_flight` requests under way."""
    import threading

    room = threading.Semaphore(in_flight)

    def requests() -> Iterator[bytes]:
        for _ in range(count + 1):
            room.acquire()
            yield b"x" * 32

    with channel_to(port) as channel:
        answers: Any = channel.stream_stream("/echo/Stream")(requests())
        next(answers)
        room.release()
        start = time.perf_counter()
        for _ in answers:
            room.release()
        return count / (time.perf_counter() - start)

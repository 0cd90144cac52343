"""Transform server on gRPC: each stream has a thread, which transforms one object after another."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from ais_loader.wire.generated import ais_etl_server_pb2 as pb
from ais_loader.wire.generated import ais_etl_server_pb2_grpc as rpc
from storage_node.etl.webserver.base import TransformServer, reserved
from storage_node.etl.webserver.exchange import exchange
from storage_node.etl.webserver.protocol import CHUNK_BYTES

MAX_STREAMS = 256
"""Of all nodes together: each holds a thread."""
GRACE_S = 5.0
"""For what runs, when it is to stop."""
START_S = 10.0
_OPTIONS = (
    ("grpc.so_reuseport", 1),
    ("grpc.max_receive_message_length", 4 * CHUNK_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
)


class GRPCServer(TransformServer):
    """Our own stream, of protos/ais_etl_server.proto; addresses begin with grpc://."""

    _scheme = "grpc"

    def __init__(self) -> None:
        super().__init__()
        self._stopping = threading.Event()
        self._listening = threading.Event()

    def _require_framework(self) -> None:
        pass

    def _bind(self, host: str, port: int) -> socket.socket:
        """gRPC listens by itself, beside what holds the port."""
        return reserved(host, port)

    def _beside(self, held: socket.socket) -> socket.socket:
        return held

    def _await_listening(self) -> None:
        self._listening.wait(START_S)

    def _serve(self, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        server = grpc.server(ThreadPoolExecutor(MAX_STREAMS, thread_name_prefix="transform"), options=_OPTIONS)
        servicer = _Servicer(self)
        rpc.add_TransformStreamServicer_to_server(servicer, server)
        server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        server.start()
        self._listening.set()
        self._stopping.wait()
        stopped = server.stop(GRACE_S)
        servicer.end_streams()
        stopped.wait()

    def stop(self) -> None:
        """Returns at once; what runs has some seconds to end."""
        self._stopping.set()


class _Servicer(rpc.TransformStreamServicer):
    def __init__(self, server: TransformServer) -> None:
        self._server = server
        self._ending = False
        self._between: set[Any] = set()
        """Streams between two objects: they would stay so until their node has another."""
        self._lock = threading.Lock()

    def Run(self, requests: Iterator[pb.ServerInput], context: Any) -> Iterator[pb.ServerOutput]:
        while not self._ending:
            with self._lock:
                self._between.add(context)
            first = next(requests, None)
            with self._lock:
                self._between.discard(context)
            if first is None:
                return
            yield from exchange(self._server, first, requests)

    def end_streams(self) -> None:
        """At once between two objects, otherwise after the one that is under way."""
        self._ending = True
        with self._lock:
            for context in self._between:
                context.cancel()

    def Health(self, request: pb.ServerHealthRequest, context: Any) -> pb.ServerHealthResponse:
        return pb.ServerHealthResponse()

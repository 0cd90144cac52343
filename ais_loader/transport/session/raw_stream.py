"""Caller-driven bidirectional stream: no thread stands between a request and its answer.

grpcio's own stream object sends from one thread and receives in another, and waking them costs more than a small
answer. Its unary calls do better: the calling thread waits at gRPC's queue itself. The same building block, a
"segregated" call of grpcio's native module, also supports streams and reaches twice the requests per second. It is no
public API, so it is used only if the native module has the expected names; otherwise the public stream object is used.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, Protocol

import grpc

try:
    from grpc._cython import cygrpc
except ImportError:  # pragma: no cover - a grpcio with another layout
    cygrpc = None

_NEEDED = (
    "OperationType",
    "PropagationConstants",
    "ReceiveInitialMetadataOperation",
    "ReceiveMessageOperation",
    "ReceiveStatusOnClientOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "StatusCode",
)
_NO_FLAGS = 0


class Stream(Protocol):
    """A bidirectional stream with one request at a time. Belongs to one thread at a time, except `cancel`."""

    def write(self, message: bytes) -> None:
        """Send a message. Raises EOFError when the stream has ended."""

    def exchange(self, message: bytes) -> bytes | memoryview:
        """Send a message, and return the next one that arrives. Raises EOFError when the stream has ended."""

    def receive(self) -> bytes | memoryview:
        """Return the next message. Raises EOFError when the stream has ended."""

    def cancel(self) -> None:
        """End the stream, from any thread: a thread that waits in `exchange` gets an EOFError."""

    def close(self) -> None:
        """End the stream, from the thread that uses it, and free its resources."""


def open_stream(channel: grpc.Channel, method: str, metadata: tuple[tuple[str, str | bytes], ...] = ()) -> Stream:
    """Open a stream. Raises ValueError when the channel is closed."""
    native = getattr(channel, "_channel", None)
    if all(hasattr(cygrpc, name) for name in _NEEDED) and hasattr(native, "segregated_call"):
        return DirectStream(native, method, metadata)
    return IteratorStream(channel, method, metadata)


class DirectStream:
    """A stream on grpcio's native module."""

    def __init__(self, native: Any, method: str, headers: tuple[tuple[str, str | bytes], ...]) -> None:
        metadata = (
            cygrpc.SendInitialMetadataOperation(headers or None, _NO_FLAGS),
            cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS),
        )
        # The status is requested at the beginning: grpcio ends a call that waits for nothing.
        status = (cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS),)
        self._call = native.segregated_call(
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            method.encode(),
            None,
            None,
            None,
            None,
            ((metadata, "metadata"), (status, "status")),
            None,
        )
        self._due = {"metadata", "status"}
        self._received: bytes | None = None

    def write(self, message: bytes) -> None:
        self._finish("sent")
        self._begin((cygrpc.SendMessageOperation(message, _NO_FLAGS),), "sent")

    def exchange(self, message: bytes) -> bytes:
        self._finish("sent")
        return self._run_operations(
            cygrpc.SendMessageOperation(message, _NO_FLAGS), cygrpc.ReceiveMessageOperation(_NO_FLAGS)
        )

    def receive(self) -> bytes:
        return self._run_operations(cygrpc.ReceiveMessageOperation(_NO_FLAGS))

    def _run_operations(self, *operations: Any) -> bytes:
        self._begin(operations, "message")
        self._finish("message")
        if self._received is None:
            raise EOFError("the stream has ended")
        return self._received

    def _begin(self, operations: tuple[Any, ...], tag: str) -> None:
        if "status" not in self._due or not self._call.operate(operations, tag):
            raise EOFError("the stream has ended")
        self._due.add(tag)

    def _finish(self, tag: str) -> None:
        while tag in self._due:
            self._next_event()

    def _next_event(self) -> None:
        try:
            event = self._call.next_event()
        except BaseException:
            self._due.clear()  # grpcio ended the call before it passed the interrupt on
            raise
        self._due.discard(event.tag)
        if event.tag == "message":
            self._received = event.batch_operations[-1].message()

    def cancel(self) -> None:
        self._call.cancel(cygrpc.StatusCode.cancelled, "let go")  # harmless after the end

    def close(self) -> None:
        self.cancel()
        while self._due:  # started operations must be collected, or gRPC keeps them forever
            self._next_event()


class IteratorStream:
    """A stream on grpcio's public API."""

    def __init__(self, channel: grpc.Channel, method: str, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(method)(iter(self._outgoing.get, None), metadata=metadata)
        self._answers: Iterator[bytes] = iter(self._call)

    def write(self, message: bytes) -> None:
        self._outgoing.put(message)

    def exchange(self, message: bytes) -> bytes:
        self.write(message)
        return self.receive()

    def receive(self) -> bytes:
        try:
            return next(self._answers)
        except (StopIteration, grpc.RpcError) as error:
            raise EOFError("the stream has ended") from error

    def cancel(self) -> None:
        self._call.cancel()
        self._outgoing.put(None)

    close = cancel

"""Caller-driven bidirectional stream: no thread stands between a question and its answer.

grpcio's own stream object sends from one thread and receives in another, and waking them costs more than a small
answer does. Its unary calls do better: the calling thread waits at gRPC's queue itself. The same building block (a
"segregated" call of grpcio's native module) serves a stream as well, and does twice the questions per second. It is no
public API, so it is used only where it is found as it is known; elsewhere the stream object does the work.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, Protocol

import grpc

try:
    from grpc._cython import cygrpc
except ImportError:  # pragma: no cover - a grpcio that is laid out otherwise
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
    """One question at a time. Belongs to one thread at a time, but for `cancel`."""

    def tell(self, message: bytes) -> None:
        """Send a message. Raises EOFError when the stream has ended."""

    def ask(self, message: bytes) -> bytes | memoryview:
        """Send a message, and return the next one that arrives. Raises EOFError when the stream has ended."""

    def receive(self) -> bytes | memoryview:
        """The message after that."""

    def cancel(self) -> None:
        """End it, from any thread: whoever waits in `ask` gets an EOFError."""

    def close(self) -> None:
        """End it, from the thread that uses it, and let go of everything."""


def open_stream(channel: grpc.Channel, method: str, metadata: tuple[tuple[str, bytes], ...] = ()) -> Stream:
    """Raises ValueError when the channel is closed."""
    native = getattr(channel, "_channel", None)
    if all(hasattr(cygrpc, name) for name in _NEEDED) and hasattr(native, "segregated_call"):
        return DirectStream(native, method, metadata)
    return IteratorStream(channel, method, metadata)


class DirectStream:
    """On grpcio's native module."""

    def __init__(self, native: Any, method: str, said: tuple[tuple[str, bytes], ...]) -> None:
        metadata = (
            cygrpc.SendInitialMetadataOperation(said or None, _NO_FLAGS),
            cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS),
        )
        # The status is awaited from the beginning: a call of which nothing is awaited is taken down by grpcio.
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

    def tell(self, message: bytes) -> None:
        self._finish("sent")
        self._begin((cygrpc.SendMessageOperation(message, _NO_FLAGS),), "sent")

    def ask(self, message: bytes) -> bytes:
        self._finish("sent")
        return self._exchange(
            cygrpc.SendMessageOperation(message, _NO_FLAGS), cygrpc.ReceiveMessageOperation(_NO_FLAGS)
        )

    def receive(self) -> bytes:
        return self._exchange(cygrpc.ReceiveMessageOperation(_NO_FLAGS))

    def _exchange(self, *operations: Any) -> bytes:
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
            self._due.clear()  # grpcio has taken the call down before it let an interrupt through
            raise
        self._due.discard(event.tag)
        if event.tag == "message":
            self._received = event.batch_operations[-1].message()

    def cancel(self) -> None:
        self._call.cancel(cygrpc.StatusCode.cancelled, "let go")  # harmless when it has ended

    def close(self) -> None:
        self.cancel()
        while self._due:  # what was begun has to be fetched, or gRPC keeps it for ever
            self._next_event()


class IteratorStream:
    """On grpcio's public API."""

    def __init__(self, channel: grpc.Channel, method: str, metadata: tuple[tuple[str, bytes], ...]) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(method)(iter(self._outgoing.get, None), metadata=metadata)
        self._answers: Iterator[bytes] = iter(self._call)

    def tell(self, message: bytes) -> None:
        self._outgoing.put(message)

    def ask(self, message: bytes) -> bytes:
        self.tell(message)
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

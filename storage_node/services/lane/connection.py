"""Connection of a lane at the node: complete messages in and out of one non-blocking socket, without a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from ais_loader.errors import InvalidRequest, Overloaded, SilenceTimeout
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.lane import HEADER, MESSAGE
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.services.lane.socket_payload import SocketPayload
from storage_node.store.read.file_frame import FileFrame

_READ_BYTES = 64 << 10
_PARTS_AT_ONCE = 1024
"""Maximum number of buffers that the kernel accepts at once."""


class OnThread(Protocol):
    def __call__(self, function: Any, /, *arguments: Any) -> Awaitable[Any]: ...


class LaneConnection:
    """One connection. Belongs to the node's event loop. One task reads; one at a time writes.

    Args:
        max_request_bytes: A larger request ends the session.
        message_timeout_s: Time limit for the arrival of a message that has begun.
        requests: Budget for partially received requests.
        on_thread: Runs a function that may wait for a drive, outside the event loop.
    """

    def __init__(
        self,
        sock: socket.socket,
        max_request_bytes: int,
        message_timeout_s: float,
        requests: MemoryBudget,
        on_thread: OnThread,
    ) -> None:
        self._socket = sock
        self._on_thread = on_thread
        self._max_request_bytes = max_request_bytes
        self._message_timeout_s = message_timeout_s
        self._requests = requests
        self.tenant: str | None = None
        """The client's tenant, once it is known; for `requests`."""
        self._loop = asyncio.get_running_loop()
        self._writing = 0
        self._written = asyncio.Event()

    async def exactly(self, size_bytes: int) -> bytes:
        """Receive exactly `size_bytes`. Raises EOFError if the client disconnects before."""
        data = bytearray()
        while len(data) < size_bytes:
            part = await self._loop.sock_recv(self._socket, size_bytes - len(data))
            if not part:
                raise EOFError("the connection has ended")
            data += part
        return bytes(data)

    async def receive(self, most_bytes: int) -> bytes:
        """Receive at least one byte. Raises EOFError, OSError."""
        part = await self._loop.sock_recv(self._socket, most_bytes)
        if not part:
            raise EOFError("the connection has ended")
        return part

    async def receive_into(self, view: memoryview, wait_s: float | None = None) -> int:
        """Return the number of received bytes; 0 if none arrive within `wait_s`. Raises EOFError, OSError."""
        while True:
            try:
                count = self._socket.recv_into(view)
            except BlockingIOError:
                # A receive is never cancelled, because its bytes would be lost.
                if not await self._ready(self._loop.add_reader, self._loop.remove_reader, wait_s):
                    return 0
                continue
            if not count:
                raise EOFError("the connection has ended")
            return count

    def payload(
        self, received: bytearray, size_bytes: int, last: Callable[[bytes], Any], waits: threading.Semaphore
    ) -> SocketPayload:
        """Return `size_bytes` that another thread receives. Until then, nothing else may read."""
        return SocketPayload(self._socket, received, size_bytes, last, waits)

    def end_writing(self) -> None:
        """Close the sending side. The client sees the end after what has been written."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def requests(self, unread: bytes = b"") -> AsyncGenerator[pb.SessionRequest, None]:
        """Yield the requests of a session. `unread`: bytes that have been received already.

        Raises EOFError when the client has ended the connection, even if results are still due. Raises InvalidRequest
        for an invalid request, SilenceTimeout and Overloaded for one that arrives too slowly or finds no memory,
        OSError when the connection breaks.
        """
        data = bytearray(unread)
        held_bytes = 0
        ends_s: float | None = None
        """Deadline for completing a partially received request."""
        try:
            while True:
                while (message := self._whole_request(data)) is not None:
                    ends_s = None
                    if held_bytes:
                        self._requests.release(held_bytes, self.tenant)
                        held_bytes = 0
                    try:
                        request = pb.SessionRequest.FromString(message)
                    except DecodeError as error:
                        raise InvalidRequest(f"not a SessionRequest: {error}") from error
                    yield request
                if data and ends_s is None:
                    ends_s = self._loop.time() + self._message_timeout_s
                if (more_bytes := len(data) - held_bytes) > _READ_BYTES:
                    await self._reserve(more_bytes, held_bytes, ends_s)
                    held_bytes += more_bytes
                part = await self._part(ends_s)
                if not part:
                    raise EOFError(f"the client has ended it {len(data):,} bytes into a message")
                data += part
        finally:
            self._requests.release(held_bytes, self.tenant)

    def _whole_request(self, data: bytearray) -> bytes | None:
        """Remove and return the first message in `data`; None if it is incomplete. Raises InvalidRequest."""
        if len(data) < HEADER.size:
            return None
        size_bytes, kind = HEADER.unpack_from(data)
        if kind != MESSAGE or size_bytes > self._max_request_bytes:
            raise InvalidRequest(
                f"a message of kind {kind} and {size_bytes:,} bytes: a lane takes requests (kind {MESSAGE}) of "
                f"{self._max_request_bytes:,} bytes at most"
            )
        stop = HEADER.size + size_bytes
        if len(data) < stop:
            return None
        message = bytes(memoryview(data)[HEADER.size : stop])
        del data[:stop]
        return message

    async def _part(self, ends_s: float | None) -> bytes:
        """Wait for bytes; none at the end of the connection. Raises SilenceTimeout, OSError."""
        if ends_s is None:
            return await self._loop.sock_recv(self._socket, _READ_BYTES)
        try:
            async with asyncio.timeout_at(ends_s):
                return await self._loop.sock_recv(self._socket, _READ_BYTES)
        except TimeoutError:
            raise self.too_slow() from None

    async def _reserve(self, more_bytes: int, own_bytes: int, ends_s: float | None) -> None:
        """Acquire memory for a request. Raises Overloaded."""
        try:
            async with asyncio.timeout_at(ends_s):
                await self._requests.acquire(more_bytes, own_bytes, self.tenant)
        except TimeoutError:
            raise Overloaded(
                f"requests of {self._requests.held_bytes:,} bytes are being served (max_request_bytes): try again"
            ) from None

    def too_slow(self) -> SilenceTimeout:
        """Return the error for a message that has not arrived in time."""
        return SilenceTimeout(
            f"a message was not complete {self._message_timeout_s:g} s after it had begun (message_timeout_s): send "
            "messages without pauses"
        )

    async def write(self, message: bytes | memoryview, kind: int = MESSAGE) -> None:
        """Write a message. Raises OSError."""
        with self._whole():
            await self._write(HEADER.pack(len(message), kind), memoryview(message))

    def write_empty(self) -> None:
        """Write an empty message while nothing else is written, if the socket takes it at once."""
        with contextlib.suppress(OSError):
            if self._socket.send(HEADER.pack(0, MESSAGE)) < HEADER.size:
                self._shut()

    async def _write(self, head: bytes, rest: memoryview) -> None:
        try:
            sent = self._socket.sendmsg((head, rest))
        except BlockingIOError:
            sent = 0
        if sent < len(head):
            await self._loop.sock_sendall(self._socket, head[sent:])
            sent = len(head)
        if sent < len(head) + len(rest):
            await self._loop.sock_sendall(self._socket, rest[sent - len(head) :])

    async def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Like `write`, for a message in parts."""
        with self._whole():
            left = deque((HEADER.pack(sum(map(len, parts)), MESSAGE), *parts))
            while left:
                try:
                    sent = self._socket.sendmsg(list(islice(left, _PARTS_AT_ONCE)))
                except BlockingIOError:
                    await self._writable()
                    continue
                while left and sent >= len(left[0]):
                    sent -= len(left.popleft())
                if sent:
                    left[0] = memoryview(left[0])[sent:]

    async def write_file(self, frame: FileFrame) -> None:
        """Like `write`, for a frame, which remains the caller's."""
        with self._whole():
            await self._write_file(frame)

    async def _write_file(self, frame: FileFrame) -> None:
        header = HEADER.pack(len(frame), MESSAGE)
        await self._loop.sock_sendall(self._socket, header + frame.prefix)
        while True:
            if frame.cached:  # faster than switching to a thread and back
                frame.send(self._socket, 0)
            else:
                await self._on_thread(frame.send, self._socket)
            if frame.done:
                return
            await self._writable()

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Context of one message. If it is not written completely, for whatever reason, the connection ends: the client
        must neither wait for the rest nor mistake the next message for it."""
        self._writing += 1
        try:
            yield
        except BaseException:
            self._shut()
            raise
        finally:
            self._writing -= 1
            self._written.set()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def _writable(self) -> None:
        await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def _ready(
        self, watch: Callable[..., object], ignore: Callable[..., object], wait_s: float | None = None
    ) -> bool:
        """Return whether the socket becomes readable or writable within `wait_s`."""
        ready: asyncio.Future[bool] = self._loop.create_future()

        def wake(is_ready: bool) -> None:
            if not ready.done():
                ready.set_result(is_ready)

        timer = self._loop.call_later(wait_s, wake, False) if wait_s is not None else None
        watch(self._socket, wake, True)
        try:
            return await ready
        finally:
            ignore(self._socket)
            if timer is not None:
                timer.cancel()

    async def close(self) -> None:
        """Close the connection. A write in progress is aborted and raises.

        The socket is closed only when no task uses it: an event loop does not wake tasks that wait for a closed socket,
        and its number may then belong to another connection.
        """
        while self._writing:
            self._shut()
            self._written.clear()
            await self._written.wait()
        self._socket.close()

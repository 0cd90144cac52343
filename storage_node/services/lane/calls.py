"""Calls over a lane: gRPC's methods with their own messages, one call after another on one connection.

The called methods are those that gRPC calls, including admission, deadlines and counters. Only the transport differs:
messages are read from the socket, and the bytes of objects are not packed into messages.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np

from ais_loader.errors import InvalidRequest, LoaderError, Overloaded
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.lane import CALL, DATA, FAILED, HEADER, LAST, MAX_PUT_MESSAGE_BYTES, MESSAGE, REFUSED
from ais_loader.wire.reserved import ERROR_KIND_KEY, TENANT_KEY
from storage_node.limits.call_slots import CallSlot, Received, Streams
from storage_node.limits.tasks import retrieve
from storage_node.services.lane.connection import LaneConnection
from storage_node.services.lane.socket_payload import PIECE_BYTES, WAIT_S, SocketPayload

_READ_BYTES = 64 << 10
"""Part of a message that a lane may hold outside the budget."""
_STEP_BYTES = 256 << 10
"""Memory is acquired in steps, as bytes arrive; for a complete piece at once only while memory is plentiful."""
_PIECE_BYTES = 1 << 20
"""Largest piece of an object that the event loop receives before it is passed on."""
_STALL_S = 0.05
"""Pause of a client after which the received part of a piece is passed on, and the memory of the rest released."""
_TRICKLE_BYTES = 4 << 10
_TRICKLE_S = 0.02
"""Pause after a late client has sent less than _TRICKLE_BYTES, so that it cannot wake the event loop for each byte."""
_DRAIN_S = 5.0
_SILENCE_S = 0.1
"""Time without an answer after which a node tells another one that it is alive."""
_MAX_NAME_BYTES = 200


LANE_CHECK: ContextVar[Callable[[], object]] = ContextVar("lane_check", default=bool)
"""Checks each call by a lane, in the task that serves it. Raises LoaderError."""


class ObjectBytes:
    """A substitute for a PutRequest with data only. The data is a view, valid until the next message is requested."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def WhichOneof(self, group: str) -> str:
        return "data"

    def HasField(self, name: str) -> bool:
        return name == "data"


class LaneCalls:
    """Calls of one lane. Belongs to one task of the node's event loop.

    Args:
        methods: gRPC's handlers, by "Service/Method".
        slot: Slot of the lane. It counts as idle until the first message of a call is complete.
        streams: Owner of the budget for messages.
        waits: Limits the number of reader threads that wait for clients at the same time.
    """

    def __init__(
        self,
        connection: LaneConnection,
        methods: Mapping[str, Any],
        tenant: str,
        max_message_bytes: int,
        message_timeout_s: float,
        slot: CallSlot,
        streams: Streams,
        waits: threading.Semaphore,
    ) -> None:
        self._connection = connection
        self._methods = methods
        self._tenant = tenant
        self._max_message_bytes = max_message_bytes
        self._message_timeout_s = message_timeout_s
        self._slot = slot
        self._streams = streams
        self._waits = waits
        self._received = bytearray()
        self._whole = False
        """Whether all messages of this call have been read, and nothing of the next call."""
        self._gone = False
        self._from_socket = False
        self._data_bytes = 0
        """Announced bytes of an object that have not been received."""
        self._data_waited_s = 0.0
        """Time that the event loop has waited for the bytes of one DATA message."""
        self._is_late = False
        """Whether reader threads do not wait for this lane: the last bytes that one of them waited for came too late,
        and none have come in time since."""
        self._undelivered: Received[Any] | None = None

    def unread(self, data: bytes) -> None:
        """Add bytes that have been received already."""
        self._received += data

    async def wait(self) -> None:
        """Wait for the first bytes of the next call. Raises EOFError, OSError."""
        if not self._received:
            self._received += await self._connection.receive(_READ_BYTES)

    async def serve(self) -> bool:
        """Serve one call; return whether another one may follow. Raises EOFError, OSError, SilenceTimeout."""
        self._whole = self._from_socket = False
        self._data_bytes = 0
        try:
            handler, first = await self._first()
            self._undelivered = first
            try:
                LANE_CHECK.get()()
                await self._serve(handler, first)
            finally:
                self._release(self._undelivered)
                self._undelivered = None
        except (InvalidRequest, Overloaded) as error:
            await self._refuse(error.kind, str(error))
        except _Aborted as error:
            await self._refuse(error.kind, error.message)
        except asyncio.CancelledError:
            if self._gone:
                raise EOFError("the client has gone") from None
            raise
        if not self._whole:
            await self._drain()
        return self._whole

    async def _first(self) -> tuple[Any, Received[Any] | None]:
        """Return the handler and first message of a call. Raises EOFError, OSError, InvalidRequest, SilenceTimeout."""
        if self._is_first_here():
            return await self._read_beginning()
        try:
            async with asyncio.timeout(self._message_timeout_s):
                with self._slot.waiting():
                    return await self._read_beginning()
        except LoaderError:
            raise
        except TimeoutError:
            raise self._connection.too_slow() from None
        finally:
            self._slot.moved()

    def _is_first_here(self) -> bool:
        """Return whether the name of the method and the first message have arrived."""
        stop = 0
        for _ in range(2):
            if len(self._received) < stop + HEADER.size:
                return False
            stop += HEADER.size + HEADER.unpack_from(self._received, stop)[0]
        return len(self._received) >= stop

    async def _read_beginning(self) -> tuple[Any, Received[Any] | None]:
        size_bytes, kind = await self._next()
        if kind != CALL or size_bytes > _MAX_NAME_BYTES:
            raise InvalidRequest(f"a call begins with the name of its method, not with kind {kind}")
        name = (await self._message(size_bytes))[0].decode(errors="replace")
        if (handler := self._methods.get(name)) is None:
            raise InvalidRequest(f"lanes carry no calls of {name!r}: need one of {', '.join(self._methods)}")
        return handler, await self._request(handler)

    async def _serve(self, handler: Any, first: Received[Any] | None) -> None:
        context = _Context(self._connection, self._tenant, handler, self._take_from_socket)
        async with aclosing(self._requests(handler, first)) as requests:
            answer = await (handler.stream_unary or handler.stream_stream)(requests, context)
        if answer is not None:  # otherwise the method has written its answers
            await self._connection.write(handler.response_serializer(answer), MESSAGE if self._whole else LAST)

    def _take_from_socket(self) -> None:
        self._from_socket = True

    async def _refuse(self, kind: str, message: str) -> None:
        await self._connection.write(error_message(kind, message), REFUSED if self._whole else FAILED)

    async def _requests(self, handler: Any, first: Received[Any] | None) -> AsyncGenerator[Received[Any], None]:
        """Yield the messages of a call. Raises InvalidRequest, Overloaded, SilenceTimeout. Raises CancelledError, as
        gRPC does, if the client disconnects before it has sent everything.

        While a large message is being processed, the next one is already received.
        """
        ahead: asyncio.Task[Received[Any] | None] | None = None
        request = first
        try:
            while request is not None:
                if request.size_bytes >= _READ_BYTES and not self._whole and not self._from_socket:
                    ahead = asyncio.create_task(self._request(handler), name="lane ahead")
                self._undelivered = None
                yield request
                if isinstance(payload := request.message, SocketPayload):
                    self._data_bytes = payload.left_bytes
                    self._is_late = self._is_late or payload.was_late
                if ahead is None and self._whole:
                    return
                request = await (ahead or self._request(handler))
                ahead = None
        except LoaderError:  # SilenceTimeout is an OSError as well
            raise
        except (EOFError, OSError) as error:
            self._gone = True
            raise asyncio.CancelledError("the client has gone") from error
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait([ahead])
                retrieve(ahead)
                if not ahead.cancelled() and ahead.exception() is None:
                    self._release(ahead.result())

    def _release(self, received: Received[Any] | None) -> None:
        """Release the memory of a message that was not passed on."""
        if received is not None and received.reserved_bytes:
            self._streams.messages.release(received.reserved_bytes, self._tenant)

    async def _request(self, handler: Any) -> Received[Any] | None:
        """Receive the next message; None if there are no more. Raises EOFError, OSError, InvalidRequest, Overloaded,
        SilenceTimeout."""
        if self._data_bytes:
            return await self._piece()
        size_bytes, kind = await self._next()
        if kind == DATA:
            self._data_bytes, self._data_waited_s = size_bytes, 0.0
            if not self._from_socket or self._is_late:
                return await self._piece()
            payload = self._connection.payload(self._received, size_bytes, self._last(handler), self._waits)
            return Received(payload, min(size_bytes, PIECE_BYTES))
        if kind not in (MESSAGE, LAST):
            raise InvalidRequest(f"kind {kind} in the middle of a call: need messages, and bytes of objects")
        if not handler.response_streaming and size_bytes > MAX_PUT_MESSAGE_BYTES:
            raise InvalidRequest(
                f"a message of {size_bytes:,} bytes before or after the bytes of an object: "
                f"{MAX_PUT_MESSAGE_BYTES:,} bytes at most"
            )
        message, reserved_bytes = await self._message(size_bytes)
        self._whole = kind == LAST
        if self._whole and not message:
            return None
        try:
            request: Received[Any] = handler.request_deserializer(message)
        except BaseException:
            self._streams.messages.release(reserved_bytes, self._tenant)
            raise
        return request._replace(reserved_bytes=reserved_bytes) if reserved_bytes else request

    def _last(self, handler: Any) -> Callable[[bytes], Any]:
        def parsed(message: bytes) -> Any:
            self._whole = True
            return handler.request_deserializer(message).message

        return parsed

    async def _next(self) -> tuple[int, int]:
        """Return the size and kind of the next message. Raises EOFError, OSError, InvalidRequest."""
        while len(self._received) < HEADER.size:
            self._received += await self._connection.receive(_READ_BYTES)
        size_bytes, kind = HEADER.unpack_from(self._received)
        if size_bytes > self._max_message_bytes:
            raise InvalidRequest(f"a message of {size_bytes:,} bytes: {self._max_message_bytes:,} bytes at most")
        del self._received[: HEADER.size]
        return size_bytes, kind

    def _pop_received(self, size_bytes: int) -> bytes:
        """Remove and return as much of the next `size_bytes` as has been received already."""
        data = bytes(memoryview(self._received)[:size_bytes])
        del self._received[: len(data)]
        return data

    async def _message(self, size_bytes: int) -> tuple[bytes, int]:
        """Receive a complete message; return it with the memory acquired for it, which is 0 for a small message.

        Raises EOFError, OSError, Overloaded, SilenceTimeout.
        """
        data = self._pop_received(size_bytes)
        if len(data) == size_bytes:
            return data, 0
        parts, filled, reserved_bytes = [data], len(data), 0
        try:
            async with asyncio.timeout(self._message_timeout_s):
                while filled < size_bytes:
                    allowed = min(size_bytes, reserved_bytes + _READ_BYTES)
                    if filled >= allowed:
                        # Doubled at every step, so that few steps are needed.
                        step_bytes = min(size_bytes - reserved_bytes, max(_STEP_BYTES, reserved_bytes))
                        await self._streams.acquire(step_bytes, reserved_bytes, self._tenant)
                        reserved_bytes += step_bytes
                        continue
                    part = await self._connection.receive(allowed - filled)
                    parts.append(part)
                    filled += len(part)
        except BaseException as error:
            self._streams.messages.release(reserved_bytes, self._tenant)
            if isinstance(error, TimeoutError):
                raise self._connection.too_slow() from None
            raise
        return b"".join(parts), reserved_bytes

    async def _piece(self) -> Received[ObjectBytes]:
        """Receive the next bytes of an object, at most _PIECE_BYTES. Raises EOFError, OSError.

        A client that pauses holds no more memory than for what it has sent of one step.
        """
        began_s = time.monotonic()
        wanted = min(self._data_bytes, _PIECE_BYTES)
        data = self._pop_received(wanted)
        if len(data) == wanted:
            self._data_bytes -= wanted
            return Received(ObjectBytes(memoryview(data)), wanted)
        room = np.empty(wanted, np.uint8).data
        filled, reserved_bytes = len(data), 0
        room[:filled] = data
        try:
            while filled < wanted:
                allowed = min(wanted, reserved_bytes + _READ_BYTES)
                if filled >= allowed:
                    step_bytes = wanted - reserved_bytes
                    if self._streams.messages.is_half_full:
                        step_bytes = min(step_bytes, _STEP_BYTES)
                    if not self._streams.messages.acquire_now(step_bytes, reserved_bytes, self._tenant):
                        break
                    reserved_bytes += step_bytes
                    continue
                count = await self._connection.receive_into(room[filled:allowed], _STALL_S if filled else None)
                filled += count
                if not count:
                    break
                if self._is_late and count < _TRICKLE_BYTES and filled < allowed:
                    await asyncio.sleep(_TRICKLE_S)
        except BaseException:
            self._streams.messages.release(reserved_bytes, self._tenant)
            raise
        self._data_bytes -= filled
        self._data_waited_s += time.monotonic() - began_s
        if not self._data_bytes and self._data_waited_s < WAIT_S:
            self._is_late = False
        if reserved_bytes > filled:
            self._streams.messages.release(reserved_bytes - filled, self._tenant)
            reserved_bytes = filled
        return Received(ObjectBytes(room[:filled]), filled, reserved_bytes)

    async def _drain(self) -> None:
        """Let a client that is still sending read the error before it finds the connection closed."""
        self._connection.end_writing()
        try:
            async with asyncio.timeout(_DRAIN_S):
                while True:
                    await self._connection.receive(_READ_BYTES)
        except (TimeoutError, EOFError, OSError):
            """The client has read the error, or never will."""


class _Aborted(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class _Context:
    """Substitute for gRPC's context, with the methods that services use."""

    def __init__(
        self, connection: LaneConnection, tenant: str, handler: Any, take_from_socket: Callable[[], None]
    ) -> None:
        self.take_from_socket = take_from_socket
        """From now on, the bytes of objects are passed on as SocketPayload."""
        self._connection = connection
        self._tenant = tenant
        self._serialize = handler.response_serializer
        self._silence: asyncio.TimerHandle | None = None

    def invocation_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((TENANT_KEY, self._tenant.encode()),)

    async def abort(self, code: object, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        raise _Aborted(dict(trailing_metadata).get(ERROR_KIND_KEY, "internal"), details)

    async def send_initial_metadata(self, _: object) -> None:
        """Say that this node is alive, unless it writes an answer soon."""
        self._silence = asyncio.get_running_loop().call_later(_SILENCE_S, self._connection.write_empty)

    async def write(self, response: Any) -> None:
        if self._silence is not None:
            self._silence.cancel()
        await self._connection.write(self._serialize(response))


def error_message(kind: str, message: str) -> bytes:
    return pb.Error(kind=kind, message=message).SerializeToString()

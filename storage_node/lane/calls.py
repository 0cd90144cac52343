"""Calls by a lane: gRPC's methods, with their own messages, one call after another on one connection.

The method is the very one that gRPC calls, with what stands around it: admission, deadlines, counts. Only the carrier
is another: a message is read from the socket, and the bytes of objects are not packed into messages at all.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn

import numpy as np

from ais_loader.errors import InvalidRequest, LoaderError, Overloaded
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.lane import CALL, DATA, FAILED, HEADER, LAST, MAX_PUT_MESSAGE_BYTES, MESSAGE, REFUSED
from ais_loader.wire.reserved import ERROR_KIND_KEY, TENANT_KEY
from storage_node.lane.coming import PIECE_BYTES, WAIT_S, ComingBytes
from storage_node.lane.connection import LaneConnection
from storage_node.limits.places import Place
from storage_node.limits.streams import Received, Streams
from storage_node.limits.tasks import retrieve
from storage_node.limits.turns import ASKING

_READ_BYTES = 64 << 10
"""A lane holds this much of a message outside the budget."""
_STEP_BYTES = 256 << 10
"""Room is acquired in steps, as bytes arrive; for a whole piece at once only while there is plenty."""
_PIECE_BYTES = 1 << 20
"""Largest piece of an object's bytes that the event loop receives before they are handed on."""
_STALL_S = 0.05
"""Pause of a client after which the part of a piece that has arrived is handed on, and its room becomes free."""
_TRICKLE_BYTES = 4 << 10
_TRICKLE_S = 0.02
"""Pause after a late client has sent less than _TRICKLE_BYTES, so that it cannot wake the event loop for each byte."""
_DRAIN_S = 5.0
_MAX_NAME_BYTES = 200


class ObjectBytes:
    """As a PutRequest with nothing but data; a view, good until the next message is asked for."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def WhichOneof(self, group: str) -> str:
        return "data"

    def HasField(self, name: str) -> bool:
        return name == "data"


class LaneCalls:
    """Calls of one lane; belongs to one task of the node's event loop.

    Args:
        methods: gRPC's handlers, by "Service/Method".
        place: of the lane. It counts as idle until the first message of a call is complete.
        streams: whose budget holds the messages.
        waits: how many reader threads may wait for clients at the same time.
    """

    def __init__(
        self,
        connection: LaneConnection,
        methods: Mapping[str, Any],
        tenant: str,
        max_message_bytes: int,
        message_timeout_s: float,
        place: Place,
        streams: Streams,
        waits: threading.Semaphore,
    ) -> None:
        self._connection = connection
        self._methods = methods
        self._tenant = tenant
        self._max_message_bytes = max_message_bytes
        self._message_timeout_s = message_timeout_s
        self._place = place
        self._streams = streams
        self._waits = waits
        self._received = bytearray()
        self._whole = False
        """All of this call's messages have been read, and nothing of the next one's."""
        self._gone = False
        self._as_they_come = False
        self._data_bytes = 0
        """Bytes of an object that have been announced and not yet received."""
        self._data_waited_s = 0.0
        """How long the event loop has waited for the bytes of one DATA message."""
        self._is_late = False
        """Reader threads do not wait for this lane: the last bytes that one of them waited for came too late, and
        none have come in time since."""
        self._undelivered: Received[Any] | None = None

    def took(self, begun: bytes) -> None:
        """What has been received already."""
        self._received += begun

    async def begun(self) -> None:
        """Wait for the first bytes of the next call. Raises EOFError, OSError."""
        if not self._received:
            self._received += await self._connection.receive(_READ_BYTES)

    async def one(self) -> bool:
        """Serve a call; whether another one may come. Raises EOFError, OSError, SilenceTimeout."""
        ASKING.set(self._tenant)
        self._whole = self._as_they_come = False
        self._data_bytes = 0
        try:
            handler, first = await self._first()
            self._undelivered = first
            try:
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
        """The handler of a call, and its first message. Raises EOFError, OSError, InvalidRequest, SilenceTimeout."""
        if self._is_first_here():
            return await self._beginning()
        try:
            async with asyncio.timeout(self._message_timeout_s):
                with self._place.waiting():
                    return await self._beginning()
        except LoaderError:
            raise
        except TimeoutError:
            raise self._connection.too_slow() from None
        finally:
            self._place.moved()

    def _is_first_here(self) -> bool:
        """Whether the name of the method and the first message have arrived."""
        stop = 0
        for _ in range(2):
            if len(self._received) < stop + HEADER.size:
                return False
            stop += HEADER.size + HEADER.unpack_from(self._received, stop)[0]
        return len(self._received) >= stop

    async def _beginning(self) -> tuple[Any, Received[Any] | None]:
        size_bytes, kind = await self._next()
        if kind != CALL or size_bytes > _MAX_NAME_BYTES:
            raise InvalidRequest(f"a call begins with the name of its method, not with kind {kind}")
        name = (await self._message(size_bytes))[0].decode(errors="replace")
        if (handler := self._methods.get(name)) is None:
            raise InvalidRequest(f"lanes carry no calls of {name!r}: need one of {', '.join(self._methods)}")
        return handler, await self._request(handler)

    async def _serve(self, handler: Any, first: Received[Any] | None) -> None:
        context = _Context(self._connection, self._tenant, handler, self._take_as_they_come)
        async with aclosing(self._requests(handler, first)) as requests:
            if handler.response_streaming:
                await handler.stream_stream(requests, context)
                return
            answer = handler.response_serializer(await handler.stream_unary(requests, context))
        await self._connection.write(answer, MESSAGE if self._whole else LAST)

    def _take_as_they_come(self) -> None:
        self._as_they_come = True

    async def _refuse(self, kind: str, message: str) -> None:
        await self._connection.write(error_message(kind, message), REFUSED if self._whole else FAILED)

    async def _requests(self, handler: Any, first: Received[Any] | None) -> AsyncGenerator[Received[Any], None]:
        """Raises InvalidRequest, Overloaded, SilenceTimeout; CancelledError, as gRPC does, when the client goes before
        it has sent all.

        What follows a large message comes in while that is worked on.
        """
        ahead: asyncio.Task[Received[Any] | None] | None = None
        request = first
        try:
            while request is not None:
                if request.size_bytes >= _READ_BYTES and not self._whole and not self._as_they_come:
                    ahead = asyncio.create_task(self._request(handler), name="lane ahead")
                self._undelivered = None
                yield request
                if isinstance(coming := request.message, ComingBytes):
                    self._data_bytes = coming.left_bytes
                    self._is_late = self._is_late or coming.was_late
                if ahead is None and self._whole:
                    return
                request = await (ahead or self._request(handler))
                ahead = None
        except LoaderError:  # SilenceTimeout is an OSError, too
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
        """Give back the room of a message that nobody has taken."""
        if received is not None and received.reserved_bytes:
            self._streams.messages.release(received.reserved_bytes)

    async def _request(self, handler: Any) -> Received[Any] | None:
        """The next one; None where none comes any more. Raises EOFError, OSError, InvalidRequest, Overloaded,
        SilenceTimeout."""
        if self._data_bytes:
            return await self._piece()
        size_bytes, kind = await self._next()
        if kind == DATA:
            self._data_bytes, self._data_waited_s = size_bytes, 0.0
            if not self._as_they_come or self._is_late:
                return await self._piece()
            coming = self._connection.coming(self._received, size_bytes, self._last(handler), self._waits)
            return Received(coming, min(size_bytes, PIECE_BYTES))
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
            self._streams.messages.release(reserved_bytes)
            raise
        return request._replace(reserved_bytes=reserved_bytes) if reserved_bytes else request

    def _last(self, handler: Any) -> Callable[[bytes], Any]:
        def parsed(message: bytes) -> Any:
            self._whole = True
            return handler.request_deserializer(message).message

        return parsed

    async def _next(self) -> tuple[int, int]:
        """Size and kind of what comes. Raises EOFError, OSError, InvalidRequest."""
        while len(self._received) < HEADER.size:
            self._received += await self._connection.receive(_READ_BYTES)
        size_bytes, kind = HEADER.unpack_from(self._received)
        if size_bytes > self._max_message_bytes:
            raise InvalidRequest(f"a message of {size_bytes:,} bytes: {self._max_message_bytes:,} bytes at most")
        del self._received[: HEADER.size]
        return size_bytes, kind

    def _begin(self, size_bytes: int) -> bytes:
        """Take as much of the next `size_bytes` as has been received already."""
        begun = bytes(memoryview(self._received)[:size_bytes])
        del self._received[: len(begun)]
        return begun

    async def _message(self, size_bytes: int) -> tuple[bytes, int]:
        """A whole message, and the room that it has acquired: none for a small one.

        Raises EOFError, OSError, Overloaded, SilenceTimeout.
        """
        begun = self._begin(size_bytes)
        if len(begun) == size_bytes:
            return begun, 0
        parts, filled, reserved_bytes = [begun], len(begun), 0
        try:
            async with asyncio.timeout(self._message_timeout_s):
                while filled < size_bytes:
                    allowed = min(size_bytes, reserved_bytes + _READ_BYTES)
                    if filled >= allowed:
                        # Twice as much as has arrived, so that few steps are needed.
                        step_bytes = min(size_bytes - reserved_bytes, max(_STEP_BYTES, reserved_bytes))
                        await self._streams.acquire(step_bytes, reserved_bytes)
                        reserved_bytes += step_bytes
                        continue
                    part = await self._connection.receive(allowed - filled)
                    parts.append(part)
                    filled += len(part)
        except BaseException as error:
            self._streams.messages.release(reserved_bytes)
            if isinstance(error, TimeoutError):
                raise self._connection.too_slow() from None
            raise
        return b"".join(parts), reserved_bytes

    async def _piece(self) -> Received[ObjectBytes]:
        """The next bytes of an object, at most _PIECE_BYTES. Raises EOFError, OSError.

        A client that pauses holds no more than what it has sent of one step.
        """
        began_s = time.monotonic()
        wanted = min(self._data_bytes, _PIECE_BYTES)
        begun = self._begin(wanted)
        if len(begun) == wanted:
            self._data_bytes -= wanted
            return Received(ObjectBytes(memoryview(begun)), wanted)
        room = np.empty(wanted, np.uint8).data
        filled, reserved_bytes = len(begun), 0
        room[:filled] = begun
        try:
            while filled < wanted:
                allowed = min(wanted, reserved_bytes + _READ_BYTES)
                if filled >= allowed:
                    step_bytes = wanted - reserved_bytes
                    if self._streams.messages.is_half_full:
                        step_bytes = min(step_bytes, _STEP_BYTES)
                    if not self._streams.messages.acquire_now(step_bytes, reserved_bytes):
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
            self._streams.messages.release(reserved_bytes)
            raise
        self._data_bytes -= filled
        self._data_waited_s += time.monotonic() - began_s
        if not self._data_bytes and self._data_waited_s < WAIT_S:
            self._is_late = False
        if reserved_bytes > filled:
            self._streams.messages.release(reserved_bytes - filled)
            reserved_bytes = filled
        return Received(ObjectBytes(room[:filled]), filled, reserved_bytes)

    async def _drain(self) -> None:
        """A client that is still sending reads why it need not before it finds that the connection has ended."""
        self._connection.end_writing()
        try:
            async with asyncio.timeout(_DRAIN_S):
                while True:
                    await self._connection.receive(_READ_BYTES)
        except (TimeoutError, EOFError, OSError):
            """Now it knows, or never will."""


class _Aborted(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class _Context:
    """What services use of gRPC's context."""

    def __init__(
        self, connection: LaneConnection, tenant: str, handler: Any, take_as_they_come: Callable[[], None]
    ) -> None:
        self.take_as_they_come = take_as_they_come
        """From now on bytes of objects are ComingBytes."""
        self._connection = connection
        self._tenant = tenant
        self._serialize = handler.response_serializer

    def invocation_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((TENANT_KEY, self._tenant.encode()),)

    async def abort(self, code: object, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        raise _Aborted(dict(trailing_metadata).get(ERROR_KIND_KEY, "internal"), details)

    async def write(self, response: Any) -> None:
        await self._connection.write(self._serialize(response))


def error_message(kind: str, message: str) -> bytes:
    return pb.Error(kind=kind, message=message).SerializeToString()

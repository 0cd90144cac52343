"""Calls by a lane: gRPC's methods, with their own messages, one call after another on one connection.

The method is the very one that gRPC calls, with what stands around it: admission, deadlines, counts. Only the carrier
is another: a message is read from the socket, and the bytes of objects are not packed into messages at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn

import numpy as np

from ais_loader.errors import InvalidRequest
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.lane import CALL, DATA, FAILED, HEADER, LAST, MESSAGE, REFUSED
from ais_loader.wire.reserved import ERROR_KIND_KEY, TENANT_KEY
from storage_node.lane.coming import ComingBytes
from storage_node.lane.connection import LaneConnection
from storage_node.streams import Received
from storage_node.tasks import retrieve
from storage_node.turns import ASKING

_READ_BYTES = 64 << 10
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
    """Of one lane; belongs to one task of the node's event loop.

    Args:
        methods: gRPC's handlers, by "Service/Method".
    """

    def __init__(
        self, connection: LaneConnection, methods: Mapping[str, Any], tenant: str, max_message_bytes: int
    ) -> None:
        self._connection = connection
        self._methods = methods
        self._tenant = tenant
        self._max_message_bytes = max_message_bytes
        self._received = bytearray()
        self._whole = False
        """All of this call's messages have been read, and nothing of the next one's."""
        self._gone = False
        self._as_they_come = False

    def took(self, begun: bytes) -> None:
        """What has been received already."""
        self._received += begun

    async def begun(self) -> None:
        """Wait for the next call. Raises EOFError, OSError."""
        await self._header()

    async def one(self) -> bool:
        """Serve a call; whether another one may come. Raises EOFError, OSError."""
        ASKING.set(self._tenant)
        self._whole = self._as_they_come = False
        try:
            size_bytes, kind = await self._next()
            if kind != CALL or size_bytes > _MAX_NAME_BYTES:
                raise InvalidRequest(f"a call begins with the name of its method, not with kind {kind}")
            name = bytes(await self._take(size_bytes)).decode(errors="replace")
            if (handler := self._methods.get(name)) is None:
                raise InvalidRequest(f"lanes carry no calls of {name!r}: need one of {', '.join(self._methods)}")
            await self._serve(handler)
        except InvalidRequest as error:
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

    async def _serve(self, handler: Any) -> None:
        context = _Context(self._connection, self._tenant, handler, self._take_as_they_come)
        async with aclosing(self._requests(handler)) as requests:
            if handler.response_streaming:
                await handler.stream_stream(requests, context)
                return
            answer = handler.response_serializer(await handler.stream_unary(requests, context))
        await self._connection.write(answer, MESSAGE if self._whole else LAST)

    def _take_as_they_come(self) -> None:
        self._as_they_come = True

    async def _refuse(self, kind: str, message: str) -> None:
        await self._connection.write(error_message(kind, message), REFUSED if self._whole else FAILED)

    async def _requests(self, handler: Any) -> AsyncGenerator[Received[Any], None]:
        """Raises InvalidRequest; CancelledError, as gRPC does, when the client goes before it has sent all.

        What follows a large message comes in while that is worked on.
        """
        rooms = deque((memoryview(b""), memoryview(b"")))
        ahead: asyncio.Task[Received[Any] | None] | None = None
        try:
            while ahead is not None or not self._whole:
                request = await (ahead or self._request(handler, rooms))
                ahead = None
                if request is None:
                    return
                if request.size_bytes >= _READ_BYTES and not self._whole and not self._as_they_come:
                    ahead = asyncio.create_task(self._request(handler, rooms), name="lane ahead")
                yield request
                coming = request.message
                if isinstance(coming, ComingBytes) and (left_bytes := coming.left_bytes):  # they have to be waited for
                    yield Received(ObjectBytes(await self._take(left_bytes)), left_bytes)
        except (EOFError, OSError) as error:
            self._gone = True
            raise asyncio.CancelledError("the client has gone") from error
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait([ahead])
                retrieve(ahead)

    async def _request(self, handler: Any, rooms: deque[memoryview]) -> Received[Any] | None:
        """The next one; None where none comes any more. Raises EOFError, OSError, InvalidRequest."""
        size_bytes, kind = await self._next()
        if kind == DATA and self._as_they_come:
            return Received(self._connection.coming(self._received, size_bytes, self._last(handler)), size_bytes)
        if kind == DATA:
            rooms.rotate()
            if len(rooms[0]) < size_bytes:
                rooms[0] = np.empty(size_bytes, np.uint8).data
            return Received(ObjectBytes(await self._take(size_bytes, rooms[0])), size_bytes)
        if kind not in (MESSAGE, LAST):
            raise InvalidRequest(f"kind {kind} in the middle of a call: need messages, and bytes of objects")
        message = bytes(await self._take(size_bytes))
        self._whole = kind == LAST
        if self._whole and not message:
            return None
        request: Received[Any] = handler.request_deserializer(message)
        return request

    def _last(self, handler: Any) -> Callable[[bytes], Any]:
        def parsed(message: bytes) -> Any:
            self._whole = True
            return handler.request_deserializer(message).message

        return parsed

    async def _next(self) -> tuple[int, int]:
        """Size and kind of what comes. Raises EOFError, OSError, InvalidRequest."""
        await self._header()
        size_bytes, kind = HEADER.unpack_from(self._received)
        if size_bytes > self._max_message_bytes:
            raise InvalidRequest(f"a message of {size_bytes:,} bytes: {self._max_message_bytes:,} bytes at most")
        del self._received[: HEADER.size]
        return size_bytes, kind

    async def _header(self) -> None:
        while len(self._received) < HEADER.size:
            self._received += await self._connection.receive(_READ_BYTES)

    async def _take(self, size_bytes: int, room: memoryview | None = None) -> memoryview:
        """What a header has announced, in `room` if there is any. Raises EOFError, OSError."""
        view = memoryview(bytearray(size_bytes)) if room is None else room[:size_bytes]
        here = min(size_bytes, len(self._received))
        view[:here] = self._received[:here]
        del self._received[:here]
        await self._connection.fill(view[here:])
        return view

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

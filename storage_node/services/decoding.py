"""Common path of all calls: reads and decodes the request, and turns a LoaderError into the status of the call.

gRPC itself would read the request of a call with a single request. It waits for it as long as the client likes, and
keeps all that has arrived in memory. Therefore a node declares such a call as one with many requests, and reads the
first one itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ais_loader.errors import InvalidRequest, LoaderError, Overloaded, SilenceTimeout
from storage_node.limits.call_slots import CallSlots, Received, tenant_of
from storage_node.services.errors import abort


class RequestReader:
    """Reads the request of calls that have a single request. Belongs to the node's event loop.

    Args:
        slots: Slots of calls whose request has not arrived completely.
    """

    def __init__(self, slots: CallSlots, timeout_s: float) -> None:
        self._slots = slots
        self._timeout_s = timeout_s

    async def read(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """Read the request of a call. Raises InvalidRequest, SilenceTimeout, Overloaded."""
        loop = asyncio.get_running_loop()
        deadline = asyncio.timeout(self._timeout_s)
        slot = self._slots.take(tenant_of(context), lambda: deadline.reschedule(loop.time()))
        if slot is None:
            raise Overloaded(f"the requests of {self._slots.held:,} calls are being received: try again later")
        try:
            with slot.waiting():
                async with deadline:
                    request = await anext(requests, None)
        except LoaderError:
            raise
        except TimeoutError:
            if slot.evicted:
                raise Overloaded("the request was not complete while memory was short: try again later") from None
            raise SilenceTimeout(
                f"the request was not complete after {self._timeout_s:g} s (message_timeout_s): send it without pauses"
            ) from None
        finally:
            slot.give_back()
        if request is None:
            raise InvalidRequest("a call without a request: the method takes one message")
        return request


def guarded(handler: grpc.RpcMethodHandler, *, sizes: bool, reader: RequestReader) -> grpc.RpcMethodHandler:
    """Return a handler that ends a call with the LoaderError of its method. An undecodable request is one too: it is
    refused with INVALID_ARGUMENT; gRPC itself answers UNKNOWN.

    `sizes`: Pass streamed requests to the method as `Received`.
    """
    response = "stream" if handler.response_streaming else "unary"
    if handler.request_streaming:
        method = getattr(handler, f"stream_{response}")
    else:
        method = _reading(getattr(handler, f"unary_{response}"), reader)
    # gRPC distinguishes generators from coroutines that write responses themselves.
    guard = _yielding if inspect.isasyncgenfunction(method) else _answering
    take = _received if sizes and handler.request_streaming else _decoded
    return handler._replace(
        request_streaming=True,
        request_deserializer=partial(take, handler.request_deserializer),
        unary_unary=None,
        unary_stream=None,
        **{f"stream_{response}": guard(method)},
    )


def _decoded(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """Decode a message. Raises InvalidRequest."""
    try:
        return decode(data)
    except DecodeError as error:
        raise InvalidRequest(f"this is no message that the method takes: {error}") from None


def _received(decode: Callable[[bytes], Any], data: bytes) -> Received[Any]:
    """Decode a message and keep its size. Raises InvalidRequest."""
    return Received(_decoded(decode, data), len(data))


def _reading(behaviour: Callable[..., Any], reader: RequestReader) -> Callable[..., Any]:
    """Convert a method with one request to a method with a stream of requests."""
    if not inspect.isasyncgenfunction(behaviour):

        async def answer(requests: AsyncIterator[Any], context: Any) -> Any:
            return await behaviour(await reader.read(requests, context), context)

        return answer

    async def answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for answer in behaviour(await reader.read(requests, context), context):
            yield answer

    return answers


def _answering(behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def checked(requests: AsyncIterator[Any], context: Any) -> Any:
        try:
            return await behaviour(requests, context)
        except LoaderError as error:
            await abort(context, error)

    return checked


def _yielding(behaviour: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    async def checked(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            async for answer in behaviour(requests, context):
                yield answer
        except LoaderError as error:
            await abort(context, error)

    return checked

"""Reading and decoding of requests: what is no message of its method's kind is refused, as any other wrong request is.

gRPC itself reads the request of a call that has only one, and waits for it as long as the client likes, with everything
that has arrived in memory. So a node takes such a call as one with many requests, and reads the first one itself.
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
from storage_node.limits.places import Places
from storage_node.limits.streams import Received, tenant_of
from storage_node.services.errors import abort


class RequestReader:
    """Reads the request of calls that have only one. Belongs to the node's event loop.

    Args:
        places: of calls whose request has not arrived completely.
    """

    def __init__(self, places: Places, timeout_s: float) -> None:
        self._places = places
        self._timeout_s = timeout_s

    async def read(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """Raises InvalidRequest, SilenceTimeout, Overloaded."""
        loop = asyncio.get_running_loop()
        deadline = asyncio.timeout(self._timeout_s)
        place = self._places.take(tenant_of(context), lambda: deadline.reschedule(loop.time()))
        if place is None:
            raise Overloaded(f"the requests of {self._places.held:,} calls are being received: try again later")
        try:
            with place.waiting():
                async with deadline:
                    request = await anext(requests, None)
        except LoaderError:
            raise
        except TimeoutError:
            if place.evicted:
                raise Overloaded("the request was not complete while memory was short: try again later") from None
            raise SilenceTimeout(
                f"the request was not complete after {self._timeout_s:g} s (message_timeout_s): send it without pauses"
            ) from None
        finally:
            place.give_back()
        if request is None:
            raise InvalidRequest("a call without a request: the method takes one message")
        return request


def guarded(handler: grpc.RpcMethodHandler, *, sizes: bool, reader: RequestReader) -> grpc.RpcMethodHandler:
    """A method's handler that refuses what it cannot decode with INVALID_ARGUMENT; by itself gRPC says UNKNOWN.

    `sizes`: where there are many requests, they come to the method as `Received`.
    """
    response = "stream" if handler.response_streaming else "unary"
    if handler.request_streaming:
        method = getattr(handler, f"stream_{response}")
    else:
        method = _reading(getattr(handler, f"unary_{response}"), reader)
    # gRPC tells generators from coroutines that write for themselves.
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
    """Raises InvalidRequest."""
    try:
        return decode(data)
    except DecodeError as error:
        raise InvalidRequest(f"this is no message that the method takes: {error}") from None


def _received(decode: Callable[[bytes], Any], data: bytes) -> Received[Any]:
    """Raises InvalidRequest."""
    return Received(_decoded(decode, data), len(data))


def _reading(behaviour: Callable[..., Any], reader: RequestReader) -> Callable[..., Any]:
    """A method that takes many requests, from one that takes one."""
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

"""Common path of calls: reading the request, the status of an error, and decorators of methods that transfer objects.

gRPC would read the request of a unary call itself, wait for it without a limit, and keep what has arrived in memory.
A node therefore declares unary calls as calls with a stream of requests, and reads the first one itself (`guarded`).

The decorators `bounded...` hold a slot for a call, with deadlines for what its client sends and receives. `counted...`
count calls on single objects when they end, errors by their kind, and payload bytes as they pass; in a PUT of many
objects, each object counts as one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial, wraps
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError

from ais_loader.errors import InvalidRequest, LoaderError, Overloaded, SilenceTimeout
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.limits.call_slots import CallSlots, Received, Streams, tenant_of
from storage_node.limits.counters import NodeCounters, count
from storage_node.limits.tenant_rates import TenantRates
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


def rated(handler: grpc.RpcMethodHandler, rates: TenantRates) -> grpc.RpcMethodHandler:
    """Return a handler that counts each call of a client toward the rate of its tenant, and refuses those beyond it.

    `handler` is one of `guarded`: it takes a stream of requests.
    """
    field, answer = answering(handler)

    async def call(requests: AsyncIterator[Any], context: Any) -> Any:
        if (why := rates.take(tenant_of(context))) is not None:
            await abort(context, Overloaded(f"{why}: try again later"))
        return await answer(requests, context)

    return handler._replace(**{field: call})


def answering(handler: grpc.RpcMethodHandler) -> tuple[str, Callable[[AsyncIterator[Any], Any], Awaitable[Any]]]:
    """Return the field that has the method of a handler, one of `guarded`, and a coroutine function that answers a call
    as the method does. It writes the responses of a generator to the call's context; a single one it returns.
    """
    field = f"stream_{'stream' if handler.response_streaming else 'unary'}"
    method = getattr(handler, field)
    if not inspect.isasyncgenfunction(method):
        return field, method

    async def answer(requests: AsyncIterator[Any], context: Any) -> None:
        async with aclosing(method(requests, context)) as responses:
            async for response in responses:
                await context.write(response)

    return field, answer


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


class _Serving(Protocol):
    @property
    def streams(self) -> Streams: ...
    @property
    def metrics(self) -> NodeCounters: ...


class _HasNode(Protocol):
    @property
    def _node(self) -> _Serving: ...


Q = TypeVar("Q")
R = TypeVar("R")
S = TypeVar("S", bound=_HasNode)


def _size_of(message: Any) -> int:
    """Return the payload bytes of a response; for a header, its encoded size, because it is progress as well."""
    data = getattr(message, "data", b"")
    return len(data) or message.ByteSize()


def bounded(method: Callable[[S, Any, Any], Awaitable[R]]) -> Callable[[S, Any, Any], Awaitable[R]]:
    """Decorate a method with one request and one response that may take long."""

    @wraps(method)
    async def call(self: S, request: Any, context: Any) -> R:
        with self._node.streams.open(tenant_of(context)) as stream:
            await stream.keep(request.ByteSize())
            return await method(self, request, context)

    return call


def bounded_requests(
    method: Callable[[S, AsyncIterator[Any], Any], Awaitable[R]],
) -> Callable[[S, AsyncIterator[Any], Any], Awaitable[R]]:
    """Decorate a method with many requests and one response."""

    @wraps(method)
    async def call(self: S, requests: AsyncIterator[Any], context: Any) -> R:
        with self._node.streams.open(tenant_of(context)) as stream:
            async with aclosing(stream.messages(requests)) as messages:
                return await method(self, messages, context)

    return call


def bounded_responses(
    *, deadline: bool, many_requests: bool = False
) -> Callable[[Callable[[S, Any, Any], AsyncIterator[Any]]], Callable[[S, Any, Any], Awaitable[None]]]:
    """Decorate a method with many responses, which is an asynchronous generator.

    Without a `deadline`, its client may pause as long as it likes while no other call needs the slot: nothing is held
    for it between two messages.
    """

    def decorate(method: Callable[[S, Any, Any], AsyncIterator[Any]]) -> Callable[[S, Any, Any], Awaitable[None]]:
        @wraps(method)
        async def call(self: S, request: Any, context: Any) -> None:
            with self._node.streams.open(tenant_of(context)) as stream:
                if many_requests:
                    request = stream.messages(request, deadline=deadline)
                responses: Any = method(self, request, context)
                async with aclosing(responses):
                    async for response in responses:
                        await stream.waiting(context.write(response))
                        stream.slot.moved(_size_of(response))

        return call

    return decorate


def counted(operation: str) -> Callable[[Callable[[S, Q, Any], Awaitable[R]]], Callable[[S, Q, Any], Awaitable[R]]]:
    """Decorate a method with one response."""

    def decorate(method: Callable[[S, Q, Any], Awaitable[R]]) -> Callable[[S, Q, Any], Awaitable[R]]:
        @wraps(method)
        async def call(self: S, request: Q, context: Any) -> R:
            with _Call(self._node.metrics, operation) as counting:
                response = await method(self, request, context)
                counting.take(response)
                return response

        return call

    return decorate


def counted_stream(
    operation: str,
) -> Callable[[Callable[[S, Q, Any], AsyncIterator[R]]], Callable[[S, Q, Any], AsyncIterator[R]]]:
    """Decorate a method with many responses, which is an asynchronous generator."""

    def decorate(method: Callable[[S, Q, Any], AsyncIterator[R]]) -> Callable[[S, Q, Any], AsyncIterator[R]]:
        @wraps(method)
        async def call(self: S, request: Q, context: Any) -> AsyncIterator[R]:
            with _Call(self._node.metrics, operation) as counting:
                responses: Any = method(self, request, context)
                async with aclosing(responses):
                    async for response in responses:
                        counting.take(response)
                        yield response

        return call

    return decorate


def count_each(counts: NodeCounters, operation: str, kinds: Iterable[str]) -> None:
    """Count an operation on many objects as one for each: `kinds` contains the error kind of each, "" for success."""
    for kind in kinds:
        count(counts.requests, operation)
        if kind:
            count(counts.request_errors, (operation, kind))


class _Call:
    """One call, a context manager around it."""

    def __init__(self, counts: NodeCounters, operation: str) -> None:
        self._counts, self._operation, self._whole = counts, operation, True

    def take(self, response: object) -> None:
        counts = self._counts
        if isinstance(response, pb.GetResponse):
            count(counts.request_bytes, "get", len(response.data))
        elif isinstance(response, pb.PutManyResponse):
            self._whole = False
            for result in response.result:
                count_each(counts, self._operation, [result.error.kind])  # "" if there is no error
                count(counts.request_bytes, "put", result.info.size_bytes)
        elif isinstance(response, pb.ListResponse):
            counts.listed_objects += len(response.object)
        elif isinstance(response, pb.ObjectInfo) and self._operation == "put":
            count(counts.request_bytes, "put", response.size_bytes)

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        failed_as = error.kind if isinstance(error, LoaderError) else "internal"
        # A client that needs nothing more cancels its call, which is not an error.
        if error is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
            failed_as = ""
        if self._whole or failed_as:
            count_each(self._counts, self._operation, [failed_as])

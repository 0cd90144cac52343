"""Decorators for methods that transfer objects: a slot, and deadlines for what clients send and receive."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from storage_node.limits.call_slots import Streams, tenant_of


class _Serving(Protocol):
    @property
    def streams(self) -> Streams: ...


class _HasNode(Protocol):
    @property
    def _node(self) -> _Serving: ...


R = TypeVar("R")
S = TypeVar("S", bound=_HasNode)


def _size_of(message: Any) -> int:
    """Return the payload bytes of a response; for a header, its encoded size, because it is progress as well."""
    data = getattr(message, "data", b"")
    return len(data) or message.ByteSize()


def bounded(method: Callable[[S, Any, Any], Awaitable[R]]) -> Callable[[S, Any, Any], Awaitable[R]]:
    """Decorate a method with one request and one response that may take long."""

    @functools.wraps(method)
    async def call(self: S, request: Any, context: Any) -> R:
        with self._node.streams.open(tenant_of(context)) as stream:
            await stream.keep(request.ByteSize())
            return await method(self, request, context)

    return call


def bounded_requests(
    method: Callable[[S, AsyncIterator[Any], Any], Awaitable[R]],
) -> Callable[[S, AsyncIterator[Any], Any], Awaitable[R]]:
    """Decorate a method with many requests and one response."""

    @functools.wraps(method)
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

    def decorate(
        method: Callable[[S, Any, Any], AsyncIterator[Any]],
    ) -> Callable[[S, Any, Any], Awaitable[None]]:
        @functools.wraps(method)
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

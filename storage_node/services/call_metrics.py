"""Call metrics: decorators that count the calls on single objects, one line above each method of a service.

A call is counted when it ends, an error by its kind, payload bytes as they pass. In a PUT of many objects, each object
counts as one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.limits.counters import NodeCounters, count


class _Counting(Protocol):
    @property
    def metrics(self) -> NodeCounters: ...


class _HasNode(Protocol):
    @property
    def _node(self) -> _Counting: ...


Q = TypeVar("Q")
R = TypeVar("R")
S = TypeVar("S", bound=_HasNode)


def counted(operation: str) -> Callable[[Callable[[S, Q, Any], Awaitable[R]]], Callable[[S, Q, Any], Awaitable[R]]]:
    """Decorate a method with one response."""

    def decorate(method: Callable[[S, Q, Any], Awaitable[R]]) -> Callable[[S, Q, Any], Awaitable[R]]:
        @functools.wraps(method)
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
        @functools.wraps(method)
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
        self._counts = counts
        self._operation = operation
        self._whole = True

    def take(self, response: object) -> None:
        counts = self._counts
        if isinstance(response, pb.GetResponse):
            count(counts.request_bytes, "get", len(response.data))
        elif isinstance(response, pb.PutManyResponse):
            self._whole = False
            for result in response.result:
                self._end(result.error.kind if result.HasField("error") else "")
                count(counts.request_bytes, "put", result.info.size_bytes)
        elif isinstance(response, pb.ListResponse):
            counts.listed_objects += len(response.object)
        elif isinstance(response, pb.ObjectInfo) and self._operation == "put":
            count(counts.request_bytes, "put", response.size_bytes)

    def _end(self, kind: str) -> None:
        count_each(self._counts, self._operation, [kind])

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        failed_as = error.kind if isinstance(error, LoaderError) else "internal"
        # A client that needs nothing more cancels its call, which is not an error.
        if error is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
            failed_as = ""
        if self._whole or failed_as:
            self._end(failed_as)

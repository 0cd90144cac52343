"""Decoding of requests: what is no message of its method's kind is refused, as any other request that is wrong."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ais_loader.errors import InvalidRequest
from storage_node.services.errors import abort
from storage_node.streams import Received


def guarded(handler: grpc.RpcMethodHandler, *, sizes: bool) -> grpc.RpcMethodHandler:
    """A method's handler that refuses what it cannot decode with INVALID_ARGUMENT; by itself gRPC says UNKNOWN.

    `sizes`: where there are many requests, they come to the method as `Received`.
    """
    name = "_".join("stream" if many else "unary" for many in (handler.request_streaming, handler.response_streaming))
    method = getattr(handler, name)
    take: Callable[[Callable[[bytes], Any], bytes], Any] = _decoded_or_error
    if handler.request_streaming:
        take = _received if sizes else _decoded
    # gRPC tells generators from coroutines that write for themselves.
    guard = _yielding if inspect.isasyncgenfunction(method) else _answering
    return handler._replace(request_deserializer=partial(take, handler.request_deserializer), **{name: guard(method)})


def _decoded(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """Raises InvalidRequest."""
    try:
        return decode(data)
    except DecodeError as error:
        raise InvalidRequest(f"this is no message that the method takes: {error}") from None


def _received(decode: Callable[[bytes], Any], data: bytes) -> Received[Any]:
    """Raises InvalidRequest."""
    return Received(_decoded(decode, data), len(data))


def _decoded_or_error(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """A single message is decoded before the method is called: what is raised there is gRPC's to answer."""
    try:
        return _decoded(decode, data)
    except InvalidRequest as error:
        return error


def _answering(behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def checked(request: Any, context: Any) -> Any:
        try:
            if isinstance(request, InvalidRequest):
                raise request
            return await behaviour(request, context)
        except InvalidRequest as error:
            await abort(context, error)

    return checked


def _yielding(behaviour: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    async def checked(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            if isinstance(request, InvalidRequest):
                raise request
            async for answer in behaviour(request, context):
                yield answer
        except InvalidRequest as error:
            await abort(context, error)

    return checked

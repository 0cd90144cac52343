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


def guarded(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """A method's handler that refuses what it cannot decode with INVALID_ARGUMENT; by itself gRPC says UNKNOWN."""
    decode = handler.request_deserializer
    deserializer = partial(_decoded, decode) if handler.request_streaming else partial(_decoded_or_error, decode)
    guard: Callable[[Any], Any]
    if not handler.response_streaming:
        name, guard = ("stream_unary" if handler.request_streaming else "unary_unary"), _answering
    else:
        name = "stream_stream" if handler.request_streaming else "unary_stream"
        # gRPC tells generators from coroutines that write for themselves.
        guard = _yielding if inspect.isasyncgenfunction(getattr(handler, name)) else _answering
    return handler._replace(request_deserializer=deserializer, **{name: guard(getattr(handler, name))})


def _decoded(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """Raises InvalidRequest."""
    try:
        return decode(data)
    except DecodeError as error:
        raise InvalidRequest(f"this is no message that the method takes: {error}") from None


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

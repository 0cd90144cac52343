"""Check of the certificate behind a call: the role and the uuid that a caller states are those of its certificate.

A server of grpc.aio shows a call's certificate to its handler alone, so the check is the first step of the handler,
before a request is read.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc

URI_PROPERTY = "peer_uri"


NODE_PREFIX = "ais-loader:node:"
OPERATOR_URI = "ais-loader:operator"


def node_uri(uuid: bytes) -> str:
    return NODE_PREFIX + uuid.hex()


def is_of_cluster(uri: str) -> bool:
    """Whether a URI in a certificate names a node or an operator."""
    return uri == OPERATOR_URI or uri.startswith(NODE_PREFIX)


def described(uris: Iterable[str]) -> str:
    """Describe for whom a certificate was issued, for messages."""
    names = [
        "an operator" if uri == OPERATOR_URI else f"node {uri.removeprefix(NODE_PREFIX)}"
        for uri in uris
        if is_of_cluster(uri)
    ]
    return " and ".join(names) or "neither a node nor an operator"


def certified(handler: grpc.RpcMethodHandler | None, node_uuid: bytes) -> grpc.RpcMethodHandler | None:
    """Return a handler that first requires the certificate of this node, or of an operator if `node_uuid` is empty.

    `handler` is one of `guarded`: it takes a stream of requests.
    """
    if handler is None:
        return None
    needed = node_uri(node_uuid) if node_uuid else OPERATOR_URI
    response = "stream" if handler.response_streaming else "unary"
    method = getattr(handler, f"stream_{response}")
    return handler._replace(**{f"stream_{response}": _checking(method, needed)})


def _checking(method: Callable[..., Any], needed: str) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(method):

        async def answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            await _require(needed, context)
            async for answer in method(requests, context):
                yield answer

        return answers

    async def answer(requests: AsyncIterator[Any], context: Any) -> Any:
        await _require(needed, context)
        return await method(requests, context)

    return answer


async def _require(needed: str, context: Any) -> None:
    if (problem := problem_of(needed, context.auth_context())) is not None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, problem)


def problem_of(needed: str, auth_context: Mapping[str, Any]) -> str | None:
    """Return the reason why a caller is not the one that it states; None if it is.

    A certificate is for one node, or for operators: one with two such names is refused, since it would let its owner
    choose a role.
    """
    uris = [uri.decode(errors="replace") for uri in auth_context.get(URI_PROPERTY, ())]
    if [uri for uri in uris if is_of_cluster(uri)] == [needed]:
        return None
    return f"the call is made as {described([needed])}, and its certificate is for {described(uris)}"

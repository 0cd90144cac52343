"""Callers of a node's peer listener, as tests need them: an operator, and a node of its map; and what calls come to."""

from __future__ import annotations

from typing import Any

import grpc

from ais_loader.testing.node import peer_secret_file
from storage_node.context.channels import Caller, read_secret
from storage_node.server import NodeServer

OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
TIMEOUT_S = 180.0
PROCESS_OPERATOR = Caller(read_secret(peer_secret_file()))
"""Operator of nodes that run in processes of their own."""


def operator_of(node: NodeServer, secret: str = "") -> Any:
    """A channel; a context manager."""
    return Caller(secret).through(grpc.insecure_channel(node.peer_endpoint, options=OPTIONS), node.peer_endpoint)


def peer_of(node: NodeServer, uuid: bytes = b"", version: int = 0, secret: str = "") -> Any:
    """The same, as a node; as the very node that is called, where none is named."""
    caller = Caller(secret, uuid or node.membership.node_uuid, lambda: version)
    return caller.through(grpc.insecure_channel(node.peer_endpoint, options=OPTIONS), node.peer_endpoint)


def peer_at(endpoint: str, uuid: bytes, version: int = 0) -> Any:
    """The same, of a node in another process."""
    return Caller(PROCESS_OPERATOR.secret, uuid, lambda: version).through(
        grpc.insecure_channel(endpoint, options=OPTIONS), endpoint
    )


def outcome(channel: Any, method: str, *metadata: tuple[str, str]) -> grpc.StatusCode:
    """Return the status of a call with an empty message."""
    more = {"metadata": metadata} if metadata else {}  # a caller with a proof adds its own
    call = channel.stream_stream(f"/ais_loader.v1.{method}")(iter([b""]), timeout=TIMEOUT_S, **more)
    try:
        list(call)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK

"""Callers of a node's peer listener, as tests need them: an operator, and a node of its map."""

from __future__ import annotations

from typing import Any

import grpc

from storage_node.cluster.caller import Caller
from storage_node.server import NodeServer

OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def operator_of(node: NodeServer, secret: str = "") -> Any:
    """A channel; a context manager."""
    return Caller(secret).through(grpc.insecure_channel(node.peer_endpoint, options=OPTIONS))


def peer_of(node: NodeServer, uuid: bytes = b"", version: int = 0, secret: str = "") -> Any:
    """The same, as a node; as the very node that is called, where none is named."""
    caller = Caller(secret, uuid or node.membership.node_uuid, lambda: version)
    return caller.through(grpc.insecure_channel(node.peer_endpoint, options=OPTIONS))


def peer_at(endpoint: str, uuid: bytes, version: int = 0) -> Any:
    """The same, of a node in another process."""
    return Caller("", uuid, lambda: version).through(grpc.insecure_channel(endpoint, options=OPTIONS))

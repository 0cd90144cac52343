"""In-process nodes, and what is asked of them: their maps, their uuids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import create_cluster
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig

TIMEOUT_S = 180.0


def node_at(folder: Path, port: int = 0, drives: int = 1) -> NodeServer:
    return NodeServer([folder / f"drive-{drive}" for drive in range(drives)], ServerConfig(port=port))


@contextmanager
def nodes_at(folder: Path, count: int, drives: int = 1) -> Iterator[list[NodeServer]]:
    """Running nodes that belong to no cluster yet. Those stopped by the test stay stopped."""
    with ExitStack() as held:
        yield [held.enter_context(node_at(folder / f"node-{number}", drives=drives)) for number in range(count)]


def endpoint_of(node: NodeServer) -> str:
    return node.url.partition("://")[2]


def endpoints_of(nodes: Sequence[NodeServer]) -> list[str]:
    return [endpoint_of(node) for node in nodes]


def member(node: NodeServer, host: str = "") -> pb.MapNode:
    endpoint = endpoint_of(node)
    return pb.MapNode(
        uuid=node.membership.node_uuid,
        host=host or f"host-{endpoint}",
        endpoint=endpoint,
        peer_endpoint=node.peer_endpoint,
        weight=1.0,
    )


def make_cluster(nodes: Sequence[NodeServer]) -> pb.ClusterMap:
    return change_map(endpoints_of(nodes), create_cluster([member(node) for node in nodes]), timeout_s=TIMEOUT_S)


def known_map(node: NodeServer) -> pb.ClusterMap | None:
    return None if node.membership.view is None else node.membership.view.map

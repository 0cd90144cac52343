"""Transforms of nodes that come and go: who joins has them with the map, who comes back from its drives."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader import Client, Entry, NodeCommand, Stage, connect
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import add_node, create_cluster
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig

pytestmark = pytest.mark.slow

NAMES = [f"{at:02}" for at in range(40)]


def config(**fields: int) -> ServerConfig:
    commands = {"shift": "tr a-z {to:A-Z|B-ZA}"}
    return ServerConfig(**{"port": 0, "etl_commands": commands, "etl_workers": 1, **fields})  # type: ignore[arg-type]


def member(node: NodeServer, host: str) -> pb.MapNode:
    return pb.MapNode(
        uuid=node.membership.node_uuid, host=host, endpoint=node.endpoint, peer_endpoint=node.peer_endpoint, weight=1.0
    )


def upper_of_all(client: Client, **args: str) -> list[bytes | None]:
    etl = Stage("up", {"to": "A-Z", **args})
    return client.get_batch([Entry("b", name, etl=etl) for name in NAMES], on_error="placeholder").tobytes()


def made_by(node: NodeServer) -> int:
    assert node.batches is not None and node.batches.resources.etl is not None
    return node.batches.resources.etl.transforms.counts("up").objects


def test_a_node_that_comes_back_serves_what_was_made_before(tmp_path: Path) -> None:
    with NodeServer([tmp_path], config()) as node, connect(node.url) as client:
        client.create_bucket("b").put_many([(name, b"abc") for name in NAMES])
        version = client.etl.init("up", NodeCommand("shift")).version
    with NodeServer([tmp_path], config()) as node, connect(node.url) as client:
        assert [one.version for one in client.etl.list()] == [version]
        assert upper_of_all(client) == [b"ABC"] * len(NAMES)
        assert made_by(node) == len(NAMES)


def test_a_node_that_joins_and_one_that_comes_back_to_a_cluster_transform_what_they_own(tmp_path: Path) -> None:
    with NodeServer([tmp_path / "first"], config()) as first, NodeServer([tmp_path / "second"], config()) as second:
        endpoints = [first.peer_endpoint]
        change_map(endpoints, create_cluster([member(first, "h-1")]), timeout_s=180.0)
        with connect(first.url) as client:
            client.create_bucket("b", copies=1).put_many([(name, b"abc") for name in NAMES])
            client.etl.init("up", NodeCommand("shift"))
            assert upper_of_all(client) == [b"ABC"] * len(NAMES)
            change_map(endpoints, add_node(member(second, "h-2")), timeout_s=180.0)

            def has_joined() -> bool:
                view = second.membership.view
                return view is not None and [node.state for node in view.nodes] == [pb.MapNode.ACTIVE] * 2

            eventually(has_joined)
            eventually(lambda: upper_of_all(client, to="B-ZA") == [b"BCD"] * len(NAMES))
            assert made_by(second) and made_by(first) > len(NAMES)
        ports = {"port": second.port, "peer_port": second.peer_port}
        second.stop()
        with NodeServer([tmp_path / "second"], config(**ports)) as again, connect(first.url) as client:
            # While it finds out what it missed, it is not asked.
            eventually(lambda: upper_of_all(client) == [b"ABC"] * len(NAMES) and made_by(again) > 0)
            assert [one.name for one in client.etl.list()] == ["up"]

"""A part of a batch that was planned with an older map is refused: its entries may belong to others by now."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from protos import ais_batch_pb2 as pb
from protos import ais_cluster_pb2 as cluster_pb
from storage_node.server import NodeServer
from tests.node.node_kit import RawSession, batch_of, serving

NAMES = ["a", "nope"]


def learn(node: NodeServer, version: int) -> None:
    map_ = cluster_pb.ClusterMap(cluster_uuid=bytes(16), version=version)
    map_.node.add(
        uuid=node.membership.node_uuid, host="h", endpoint=node.url.removeprefix("grpc://"), weight=1.0, number=1
    )
    map_.bucket.add(name="b", uuid=uuid.UUID(int=7).bytes, copies=1, min_copies=1)
    node.membership.learn(map_)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"local": True, "map_version": 2}, True),
        ({"local": True, "map_version": 3}, False),
        ({"local": True, "map_version": 4}, False),  # this node is the one that is behind
        ({"local": True}, False),
        ({"map_version": 2}, False),  # the node looks up itself who has what
    ],
)
def test_only_a_part_with_an_older_map_is_refused(tmp_path: Path, fields: dict[str, int], refused: bool) -> None:
    with serving(tmp_path) as node, RawSession(node.url) as session:
        learn(node, 3)
        frames, end = session.ask(1, batch_of(NAMES, **fields))
        if refused:
            assert (frames, end.outcome, end.error_kind) == ([], pb.End.REFUSED, "stale-map")
            assert end.message == "planned with map 2, this node has 3"
        else:
            assert (end.outcome, end.entries, end.failed_entries) == (pb.End.COMPLETE, 2, 2)
        assert session.ask(2, batch_of(NAMES, local=True, map_version=3))[1].outcome == pb.End.COMPLETE

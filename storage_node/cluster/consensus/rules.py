"""What a proposer must not do: take over another's new cluster, or propose a map that no cluster can have."""

from __future__ import annotations

from collections.abc import Mapping

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.errors import OtherCluster


def half_made(begun_by: Mapping[bytes, pb.ClusterMap], given: set[bytes]) -> pb.ClusterMap | None:
    """The cluster that somebody else has begun to make of these nodes and may have finished. Raises OtherCluster.

    It takes all its nodes. Where one of those that were asked has accepted no such thing, having promised a higher
    ballot by now, it never will have been made.
    """
    for begun in begun_by.values():
        members = {node.uuid for node in begun.node}
        if begun.version == 1:
            if any(not _same_but_ballot(begun_by.get(uuid), begun) for uuid in members & given):
                continue
            if members == given:
                return begun
        raise OtherCluster(
            f"a node was asked to be part of cluster {begun.cluster_uuid.hex()} with nodes at "
            f"{', '.join(node.endpoint for node in begun.node)}, which may have been made; change that one's map, or "
            "begin with empty drives"
        )
    return None


def _same_but_ballot(one: pb.ClusterMap | None, other: pb.ClusterMap) -> bool:
    return one is not None and (one.cluster_uuid, one.version, list(one.change)) == (
        other.cluster_uuid,
        other.version,
        list(other.change),
    )


def check_map(new: pb.ClusterMap, base: pb.ClusterMap | None) -> None:
    """Raises ValueError for what no edit may make of a map."""
    ClusterView(new)
    if len(new.cluster_uuid) != 16 or (base is not None and new.cluster_uuid != base.cluster_uuid):
        raise ValueError("a cluster keeps the uuid of 16 bytes that it was made with")
    if not new.node:
        raise ValueError("a cluster needs at least one node")
    if base is not None and list(new.change) != list(base.change):
        raise ValueError("an edit leaves the list of changes alone")

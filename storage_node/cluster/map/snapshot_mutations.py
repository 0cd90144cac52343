"""Mutations of the map for snapshots: edits like those of `mutations`. Pure.

The map alone defines which snapshots exist. One being created is in it as well, so that every node retains what it
sees, and so that any node can remove it if it is abandoned.
"""

from __future__ import annotations

from ais_loader.errors import SnapshotExists, SnapshotNotFound, Unsupported
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.effects import changing
from storage_node.cluster.map.mutations import bucket_with_uuid
from storage_node.context.errors import TooFewCopies


class MapChanged(TooFewCopies):
    """Nodes may have joined that do not hold the bucket's writes."""


@changing
def begin_snapshot(map_: pb.ClusterMap, bucket_uuid: bytes, snapshot: pb.MapSnapshot, base_version: int) -> None:
    """Add a snapshot that is being created. `base_version` is the map all of whose nodes hold the bucket. The edit
    raises MapChanged if there is a newer one."""
    bucket = bucket_with_uuid(map_, bucket_uuid)
    if any(one == snapshot for one in bucket.snapshot):
        return
    require_settled(map_, bucket)
    require_new(bucket, snapshot.name)
    if map_.version != base_version:
        raise MapChanged("the map of the cluster has changed meanwhile; try again")
    bucket.snapshot.append(snapshot)


@changing
def finish_snapshot(map_: pb.ClusterMap, bucket_uuid: bytes, finished: pb.MapSnapshot, nodes: frozenset[bytes]) -> None:
    """Complete a snapshot. `nodes` are the uuids of the nodes that have it; the map must not have gained others."""
    bucket = bucket_with_uuid(map_, bucket_uuid)
    for one in bucket.snapshot:
        if (one.name, one.cut, one.created_ns) == (finished.name, finished.cut, finished.created_ns):
            if one.maker and (frozenset(node.uuid for node in map_.node) != nodes or _is_changing(map_)):
                raise TooFewCopies("nodes came or went while the snapshot was made; try again")
            one.CopyFrom(finished)
            return
    raise TooFewCopies("making the snapshot took so long that another node took it for abandoned; try again")


@changing
def delete_snapshot(map_: pb.ClusterMap, bucket_uuid: bytes, name: str) -> None:
    bucket = bucket_with_uuid(map_, bucket_uuid)
    found = find_snapshot(bucket, name)
    if found is None or found.maker:
        raise SnapshotNotFound(f"bucket {bucket.name!r} has no snapshot {name!r}")
    bucket.snapshot.remove(found)


@changing
def abandon_snapshot(map_: pb.ClusterMap, bucket_uuid: bytes, making: pb.MapSnapshot) -> None:
    """Remove a snapshot that is being created, if it is still there."""
    for bucket in map_.bucket:
        if bucket.uuid == bucket_uuid and making in bucket.snapshot:
            bucket.snapshot.remove(making)


def find_snapshot(bucket: pb.MapBucket, name: str) -> pb.MapSnapshot | None:
    return next((one for one in bucket.snapshot if one.name == name), None)


def require_new(bucket: pb.MapBucket, name: str) -> None:
    """Raise SnapshotExists if the bucket has a snapshot of this name."""
    if (found := find_snapshot(bucket, name)) is not None:
        how = "is making a snapshot" if found.maker else "has a snapshot"
        raise SnapshotExists(f"bucket {bucket.name!r} {how} {name!r} already")


def require_settled(map_: pb.ClusterMap, bucket: pb.MapBucket) -> None:
    """Raise Unsupported while nodes or the number of copies are changing."""
    if _is_changing(map_):
        raise Unsupported("nodes are joining or leaving; make the snapshot when that is over")
    if bucket.former_copies:
        raise Unsupported(
            f"bucket {bucket.name!r} is being changed to copies={bucket.copies}; make the snapshot when that is over"
        )


def _is_changing(map_: pb.ClusterMap) -> bool:
    return any(node.state != pb.MapNode.ACTIVE for node in map_.node)

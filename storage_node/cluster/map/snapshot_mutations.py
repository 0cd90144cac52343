"""Mutations of the map for snapshots: edits like those of `mutations`. Pure.

The map alone defines which snapshots exist. One being created is in it as well, so that every node retains what it
sees, and so that any node can remove it if it is abandoned.
"""

from __future__ import annotations

from ais_loader.errors import BucketNotFound, SnapshotExists, SnapshotNotFound, Unsupported
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.effects import Edit
from storage_node.context.errors import TooFewCopies


class MapChanged(TooFewCopies):
    """Nodes may have joined that do not hold the bucket's writes."""


def begin_snapshot(bucket_uuid: bytes, snapshot: pb.MapSnapshot, base_version: int) -> Edit:
    """Add a snapshot that is being created. `base_version` is the map all of whose nodes hold the bucket. The edit
    raises MapChanged if there is a newer one."""

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        map_, bucket = _bucket(map_, bucket_uuid)
        if any(one == snapshot for one in bucket.snapshot):
            return map_
        require_settled(map_, bucket)
        require_new(bucket, snapshot.name)
        if map_.version != base_version:
            raise MapChanged("the map of the cluster has changed meanwhile; try again")
        bucket.snapshot.append(snapshot)
        return map_

    return edit


def finish_snapshot(bucket_uuid: bytes, finished: pb.MapSnapshot, nodes: frozenset[bytes]) -> Edit:
    """Complete a snapshot. `nodes` are the uuids of the nodes that have it; the map must not have gained others."""

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        map_, bucket = _bucket(map_, bucket_uuid)
        for one in bucket.snapshot:
            if (one.name, one.cut, one.created_ns) == (finished.name, finished.cut, finished.created_ns):
                if one.maker and (frozenset(node.uuid for node in map_.node) != nodes or _is_changing(map_)):
                    raise TooFewCopies("nodes came or went while the snapshot was made; try again")
                one.CopyFrom(finished)
                return map_
        raise TooFewCopies("making the snapshot took so long that another node took it for abandoned; try again")

    return edit


def delete_snapshot(bucket_uuid: bytes, name: str) -> Edit:
    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        map_, bucket = _bucket(map_, bucket_uuid)
        found = find_snapshot(bucket, name)
        if found is None or found.maker:
            raise SnapshotNotFound(f"bucket {bucket.name!r} has no snapshot {name!r}")
        bucket.snapshot.remove(found)
        return map_

    return edit


def abandon_snapshot(bucket_uuid: bytes, making: pb.MapSnapshot) -> Edit:
    """Remove a snapshot that is being created, if it is still there."""

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        if map_ is None:
            raise ValueError("the nodes of this node's cluster belong to none")
        for bucket in map_.bucket:
            if bucket.uuid == bucket_uuid and making in bucket.snapshot:
                bucket.snapshot.remove(making)
        return map_

    return edit


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


def _bucket(map_: pb.ClusterMap | None, bucket_uuid: bytes) -> tuple[pb.ClusterMap, pb.MapBucket]:
    found = next((bucket for bucket in map_.bucket if bucket.uuid == bucket_uuid), None) if map_ is not None else None
    if map_ is None or found is None:
        raise BucketNotFound("the bucket has been deleted meanwhile")
    return map_, found

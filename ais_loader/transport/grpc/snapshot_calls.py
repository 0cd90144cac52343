"""Snapshot calls over gRPC, to one node."""

from __future__ import annotations

from ais_loader import errors
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S
from ais_loader.transport.validation import require_bucket, require_text
from ais_loader.values.snapshots import SnapshotAction, SnapshotInfo
from ais_loader.wire.generated import ais_snapshots_pb2 as pb


def call_snapshots(here: Connection, action: SnapshotAction, bucket: str, name: str) -> list[SnapshotInfo]:
    """Return the snapshots that were created, or exist; none after a deletion. Raises grpc.RpcError, BucketNotFound,
    InvalidName."""
    require_bucket(bucket)
    require_text(name, errors.InvalidName, "snapshot name")
    stub = here.snapshots
    # Calls without a deadline take as long as the number of objects requires.
    if action == "create":
        return [_info(bucket, stub.CreateSnapshot(pb.CreateSnapshotRequest(bucket=bucket, name=name)))]
    if action == "delete":
        stub.DeleteSnapshot(pb.DeleteSnapshotRequest(bucket=bucket, name=name))
        return []
    found = stub.ListSnapshots(pb.ListSnapshotsRequest(bucket=bucket), timeout=CALL_TIMEOUT_S)
    return [_info(bucket, snapshot) for snapshot in found.snapshot]


def _info(bucket: str, found: pb.Snapshot) -> SnapshotInfo:
    return SnapshotInfo(bucket, found.name, found.created_ns, found.objects, found.size_bytes)

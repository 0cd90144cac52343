"""Commits that are long on their way to a replica that was told of another write in the meantime."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.replication.replica import HeldWrite, to_wire
from storage_node.store.drive.preconditions import memory_of
from storage_node.store.format import Version
from storage_node.store.store import Store
from tests.node.cluster_kit import BUCKET

ID = b"W1".rjust(16, b"i")


@pytest.mark.parametrize("told", [False, True])
def test_a_replica_that_was_told_of_another_write_while_the_commit_was_on_its_way_refuses_it(
    tmp_path: Path, told: bool
) -> None:
    """The coordinator sends the commit as soon as it has the answer, long before it arrives."""
    with Store.open([tmp_path / "drive"], mode="a") as store:
        store.create_bucket(BUCKET)
        uuid = store.bucket(BUCKET).uuid_bytes
        group = wire.WriteGroup(object=[pb.SmallObject(bucket=BUCKET, name="name", data=b"W1")])
        group.bucket_uuid[BUCKET] = uuid
        write = HeldWrite(store)
        assert write.take(wire.WriteRequest(group=group)) is not None
        if told:
            store.replicas.stale.mark_names(uuid, {"name": Version(1, 5, 2)})
        commit = wire.WriteCommit(looked_ms=0, wall_ms=store.clock.wall_ms())
        commit.object.add(version=to_wire(Version(1, 6, 1)), modified_ns=1, writes=memory_of(ID))
        answer = write.take(wire.WriteRequest(commit=commit))
        assert answer is not None and answer.committed.object[0].error.kind == ("write-too-late" if told else "")

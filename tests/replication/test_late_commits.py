"""Commits to replicas that were told of another write, or have failed, since they were staged."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.replication.commit import SnapshotBarrier
from storage_node.cluster.replication.replica import HeldWrite, to_wire
from storage_node.cluster.replication.replicas import RemoteReplicaStream
from storage_node.store.drive.preconditions import memory_of
from storage_node.store.format import Version
from storage_node.store.store import Store
from tests.node.cluster_kit import BUCKET
from tests.node.write_kit import Writer, cluster_of, copies_of
from tests.table import table

TIMEOUT_S = 180.0
ID = b"W1".rjust(16, b"i")


@table("pause_s", [0.0, 0.1])
@table("told", [False, True])
def test_a_replica_that_was_told_of_another_write_while_the_commit_was_on_its_way_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool, pause_s: float
) -> None:
    """The coordinator sends the commit as soon as it has the answer, long before it arrives. `pause_s`: the replica's
    thread gets no processor for this time after it has begun with the commit."""
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
        believable = store.replicas.require_believable

        def pausing(version: Version, wall_ms: int) -> None:
            time.sleep(pause_s)
            believable(version, wall_ms)

        monkeypatch.setattr(store.replicas, "require_believable", pausing)
        answer = write.take(wire.WriteRequest(commit=commit))
        assert answer is not None and answer.committed.object[0].error.kind == ("write-too-late" if told else "")


def first_put(writer: Writer) -> Any:
    """None while the nodes do not reach each other, as on a busy machine."""
    try:
        return writer.put("name", b"W0")
    except grpc.RpcError:
        return None


def test_a_put_whose_replicas_become_too_few_after_they_were_staged_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, go_on = threading.Event(), threading.Event()
    streams: list[RemoteReplicaStream] = []
    passing, begin = SnapshotBarrier.passing, RemoteReplicaStream.begin

    @asynccontextmanager
    async def late(barrier: SnapshotBarrier, buckets: Iterable[bytes]) -> AsyncIterator[None]:
        arrived.set()
        await asyncio.to_thread(go_on.wait, TIMEOUT_S)
        async with passing(barrier, buckets):
            yield

    async def noted(stream: RemoteReplicaStream, request: wire.WriteRequest) -> wire.WriteResponse:
        streams.append(stream)
        return await begin(stream, request)

    with (
        cluster_of(tmp_path, 2, copies=2, min_copies=2, linked=True) as cluster,
        Writer(cluster.nodes[0].url) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        old = eventually(lambda: first_put(writer))
        monkeypatch.setattr(SnapshotBarrier, "passing", late)
        monkeypatch.setattr(RemoteReplicaStream, "begin", noted)
        writing = pool.submit(writer.put, "name", b"W1")
        assert arrived.wait(TIMEOUT_S)
        cluster.links[1].cut()
        eventually(lambda: streams[0].has_failed)
        go_on.set()
        error = writing.exception(TIMEOUT_S)
        assert isinstance(error, grpc.RpcError) and "nothing was changed" in str(error)
        assert copies_of(cluster, "name") == dict.fromkeys(range(2), (old.version, b"W0"))

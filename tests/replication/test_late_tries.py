"""First tries of writes that a node goes on with after their repeats have been done through another one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader import connect
from ais_loader.errors import ObjectNotFound, WriteTooLate
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_contents_pb2 as contents
from ais_loader.wire.generated import ais_contents_pb2_grpc as contents_rpc
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication import replica
from storage_node.cluster.replication.commit import SnapshotBarrier
from storage_node.store.store import Store
from tests.node.cluster_kit import BUCKET
from tests.node.write_kit import Writer, cluster_of, copies_of
from tests.replication.test_replication_faults import write_quietly

pytestmark = pytest.mark.slow  # nodes, one of which is cut off until its lease is over

NAME, ID = "name", b"W1".rjust(16, b"i")


def put(writer: Writer, how: pb.PutCondition) -> object:
    return writer.put(NAME, b"W1", condition=how)


def delete(writer: Writer, how: pb.PutCondition) -> object:
    request = pb.DeleteRequest(bucket=BUCKET, name=NAME, write_id=how.write_id, repeat_ms=how.repeat_ms)
    return writer.stub.Delete(request, timeout=180)


def delete_many(writer: Writer, how: pb.PutCondition) -> object:
    stub = contents_rpc.ContentsStub(writer._channel)
    request = contents.DeleteManyRequest(bucket=BUCKET, name=[NAME], write_id=how.write_id, repeat_ms=how.repeat_ms)
    return stub.DeleteMany(request, timeout=180)


class StandingStill:
    """The next write stands still once it has looked what there is, before it has a version."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.arrived, self.go_on = threading.Event(), threading.Event()
        passing = SnapshotBarrier.passing

        @asynccontextmanager
        async def late(barrier: SnapshotBarrier, buckets: Iterable[bytes]) -> AsyncIterator[None]:
            if not self.arrived.is_set():
                self.arrived.set()
                await asyncio.to_thread(self.go_on.wait, 180)
            async with passing(barrier, buckets):
                yield

        patch.setattr(SnapshotBarrier, "passing", late)


def done(write: Callable[[], object]) -> None:
    """Write, and again while too few nodes answer a busy one in time."""
    eventually(lambda: write_quietly(lambda: not getattr(write(), "failure", ())), interval_s=0.1)


@pytest.mark.parametrize(("write", "replaced"), [(put, True), (put, False), (delete, True), (delete_many, True)])
def test_a_try_that_stood_still_undoes_nothing_that_came_after_its_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Writer, pb.PutCondition], object], replaced: bool
) -> None:
    """Its node is cut off meanwhile: it takes no part in the repeat, nor in what replaces it."""
    how = {"copies": 3, "min_copies": 2, "linked": True, "reach_timeout_s": 0.5, "repair_interval_s": 0.5}
    with (
        cluster_of(tmp_path, 3, **how) as cluster,  # type: ignore[arg-type]
        Writer(cluster.nodes[0].url) as first,
        Writer(cluster.nodes[1].url) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        done(lambda: second.put(NAME, b"W0"))
        still, began_s = StandingStill(monkeypatch), time.monotonic()
        late = pool.submit(write, first, pb.PutCondition(write_id=ID))
        assert still.arrived.wait(180)
        cluster.links[0].stall()

        def repeat() -> object:
            age_ms = int((time.monotonic() - began_s) * 1000) + 1
            return write(second, pb.PutCondition(write_id=ID, repeat_ms=age_ms))

        done(repeat)
        if replaced:
            done(lambda: second.put(NAME, b"W2"))
        acknowledged = copies_of(cluster, NAME)[1]
        still.go_on.set()
        assert isinstance(late.exception(180), grpc.RpcError | None)
        cluster.links[0].flow()
        eventually(lambda: set(copies_of(cluster, NAME).values()) == {acknowledged})


def test_a_try_that_its_repeat_has_overtaken_gives_it_no_second_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        cluster_of(tmp_path, 3, copies=3, min_copies=2, read_lease_s=120.0) as cluster,  # none is ever out of touch
        Writer(cluster.nodes[0].url) as first,
        Writer(cluster.nodes[1].url) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        still = StandingStill(monkeypatch)
        late = pool.submit(first.put, NAME, b"W1", condition=pb.PutCondition(write_id=ID))
        assert still.arrived.wait(180)
        repeat = second.put(NAME, b"W1", condition=pb.PutCondition(write_id=ID, repeat_ms=60_000))
        still.go_on.set()
        assert late.result(180).version == repeat.version
        assert copies_of(cluster, NAME) == dict.fromkeys(range(3), (repeat.version, b"W1"))


def test_objects_that_no_replica_takes_so_late_are_looked_at_again_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where nodes have only just come into touch with each other."""
    refused: Counter[str] = Counter()
    late_fault = replica.late_fault

    def late_once(store: Store, bucket_uuid: bytes, name: str, *rest: Any) -> WriteTooLate | None:
        if refused[name] < 3:
            refused[name] += 1
            return WriteTooLate(f"{name!r}: out of touch")
        return late_fault(store, bucket_uuid, name, *rest)

    monkeypatch.setattr(replica, "late_fault", late_once)
    objects = {f"k{at}": bytes([at]) * 300 for at in range(40)}
    with cluster_of(tmp_path, 2, copies=1, min_copies=1) as cluster, connect(cluster.nodes[0].url) as client:
        bucket = client.bucket(BUCKET)
        put = bucket.put_many(objects.items())
        assert [info.name for info in put.infos] == list(objects) and refused == dict.fromkeys(objects, 3)
        assert client.get_batch([f"ais://{BUCKET}/{name}" for name in objects]).tobytes() == list(objects.values())
        bucket.put("alone", b"first", if_absent=True)
        refused.clear()
        bucket.put("alone", b"second")
        assert bytes(bucket.get("alone")) == b"second" and refused["alone"] == 3
        refused.clear()
        bucket.delete("alone")
        assert refused["alone"] == 3
        with pytest.raises(ObjectNotFound):
            bucket.get("alone")

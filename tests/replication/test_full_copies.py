"""Writes of which some copies are made and others are not, as drives are full: how they end, and what is there then."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_compose_pb2_grpc as compose_rpc
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_contents_pb2_grpc as contents_rpc
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.store.drive.catalog import Catalog
from storage_node.store.store import Store
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import CALL_TIMEOUT_S, Writer, cluster_of, copies_of
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow  # nodes
WRITES = ["put", "put_many", "compose", "delete", "delete_many"]
OLD, NEW = b"old", b"new"


class FullDrives:
    """Catalogs of these nodes refuse what comes; from the first refusal on there is no room for staged bytes either."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = root
        self.nodes: set[int] = set()
        self.refused = 0
        write, begin_put = Catalog.write, Store.begin_put

        def write_if_room(catalog: Catalog, *arguments: Any, **how: Any) -> None:
            if self._is_full(catalog.path):
                self.refused += 1
                raise errors.DriveFull(f"{catalog.path}: no space left while committing to the catalog")
            write(catalog, *arguments, **how)

        def begin_if_room(store: Store, *arguments: Any, **how: Any) -> Any:
            if self.refused and any(drive is not None and self._is_full(drive.root) for drive in store.drives):
                raise errors.DriveFull("no space left while writing an object")
            return begin_put(store, *arguments, **how)

        patch.setattr(Catalog, "write", write_if_room)
        patch.setattr(Store, "begin_put", begin_if_room)

    def _is_full(self, path: Path) -> bool:
        return any(path.is_relative_to(self._root / f"node-{number}") for number in self.nodes)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullDrives:
    return FullDrives(tmp_path, monkeypatch)


@pytest.fixture
def cluster(tmp_path: Path, full: FullDrives) -> Iterator[LocalCluster]:
    how = {"copies": 3, "min_copies": 2, "repair_interval_s": 3600.0}
    with cluster_of(tmp_path, 3, spread=WRITES, **how) as running:  # type: ignore[arg-type]
        yield running


def written(cluster: LocalCluster, name: str) -> dict[int, bytes | None]:
    return {number: data for number, (_, data) in copies_of(cluster, name).items()}


def call(bucket: Bucket, write: str, name: str) -> None:
    """`name` becomes NEW, or nothing."""
    if write == "put":
        bucket.put(name, NEW)
    elif write == "put_many":
        bucket.put_many([(name, NEW)])
    elif write == "compose":
        bucket.copy("source", name)
    elif write == "delete":
        bucket.delete(name)
    else:
        bucket.delete_many([name])


@pytest.fixture
def bucket(cluster: LocalCluster) -> Iterator[Bucket]:
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        found = client.bucket(BUCKET)
        found.put("source", NEW)
        found.put_many((write, OLD) for write in WRITES)
        yield found


@pytest.fixture
def impatient(cluster: LocalCluster, bucket: Bucket) -> Iterator[Bucket]:
    with connect(cluster.nodes[0].url, options=ClusterOptions(retry_s=1.0)) as client:
        yield client.bucket(BUCKET)


def test_what_enough_copies_are_made_of_is_acknowledged(
    cluster: LocalCluster, full: FullDrives, bucket: Bucket
) -> None:
    full.nodes = {2}
    clock = cluster.batches(2).node.store.replicas._clock
    for write in WRITES:
        clock._limit = 0  # the next version that it gives has to be noted on its drive
        call(bucket, write, write)
        wanted = None if "delete" in write else NEW
        assert written(cluster, write) == {0: wanted, 1: wanted, 2: OLD}
    assert full.refused
    full.nodes = set()
    for node in cluster.nodes:
        node.repair.wake()
    for write in WRITES:
        wanted = None if "delete" in write else NEW
        eventually(lambda: set(written(cluster, write).values()) == {wanted})  # noqa: B023


@pytest.mark.parametrize("write", WRITES)
def test_what_too_few_copies_are_made_of_is_never_refused_as_if_there_were_none(
    cluster: LocalCluster, full: FullDrives, impatient: Bucket, write: str
) -> None:
    full.nodes = {1, 2}
    with pytest.raises(errors.OutcomeUnknown):
        call(impatient, write, write)
    assert written(cluster, write)[0] == (None if "delete" in write else NEW)


@pytest.mark.parametrize("write", WRITES)
def test_what_too_few_copies_are_made_of_is_written_again_until_there_are_enough(
    cluster: LocalCluster, full: FullDrives, write: str
) -> None:
    with connect(cluster.nodes[0].url, options=ClusterOptions(retry_s=180.0)) as client, ThreadPoolExecutor(1) as pool:
        bucket = client.bucket(BUCKET)
        bucket.put_many([("source", NEW), (write, OLD)])
        full.nodes = {1, 2}
        writing = pool.submit(call, bucket, write, write)
        try:
            eventually(lambda: full.refused >= 2)  # the first try has changed one copy by now
        finally:
            full.nodes = set()
        writing.result(180)
        wanted = None if "delete" in write else NEW
        assert list(written(cluster, write).values()).count(wanted) >= 2


def test_objects_of_a_bulk_put_go_by_another_owner_where_the_first_cannot_give_a_version(
    cluster: LocalCluster, full: FullDrives, bucket: Bucket
) -> None:
    names = [f"many-{number}" for number in range(30)]
    assert cluster.names_of(2, names)
    full.nodes = {2}
    cluster.batches(2).node.store.replicas._clock._limit = 0
    bucket.put_many((name, NEW) for name in names)
    assert full.refused
    assert all(written(cluster, name).get(0) == NEW for name in names)


def test_names_of_a_bulk_deletion_go_by_another_node_where_the_asked_one_cannot_give_a_version(
    cluster: LocalCluster, full: FullDrives, bucket: Bucket
) -> None:
    names = [f"many-{number}" for number in range(12)]
    bucket.put_many((name, OLD) for name in names)
    full.nodes = {0, 1, 2}
    clocks = [cluster.batches(number).node.store.replicas._clock for number in range(3)]
    for clock in clocks:
        clock._limit = 0
    failed = bucket.delete_many(names, on_error="return")
    assert [type(failure.error) for failure in failed.failures] == [errors.DriveFull] * len(names)
    full.nodes = {2}
    for first in range(0, len(names), 2):  # whichever node is asked first
        for clock in clocks:
            clock._limit = 0
        assert bucket.delete_many(names[first : first + 2]).deleted == 2
    assert all(written(cluster, name) == {0: None, 1: None, 2: OLD} for name in names)


# -- tries of one write, by hand

ID = os.urandom(16)


def tried(cluster: LocalCluster, write: str, *, by: int, repeat_ms: int) -> str:
    """Of one try by one node: the kind of error that it ends with; empty: acknowledged."""
    condition = pb.PutCondition(write_id=ID, repeat_ms=repeat_ms)
    made = pb.SmallObject(bucket=BUCKET, name=write, data=NEW, condition=condition)
    with grpc.insecure_channel(cluster.nodes[by].endpoint) as channel, Writer(cluster.nodes[by].url) as writer:
        objects, contents = writer.stub, contents_rpc.ContentsStub(channel)
        composing = compose_rpc.ComposeStub(channel)
        calls: dict[str, Callable[[], Any]] = {
            "put": lambda: writer.put(write, NEW, condition=condition),
            "put_many": lambda: next(objects.PutMany(iter([pb.PutManyRequest(object=[made])]), timeout=CALL_TIMEOUT_S)),
            "compose": lambda: list(
                composing.Compose(
                    compose_pb.ComposeRequest(
                        object=pb.PutHeader(bucket=BUCKET, name=write, condition=condition),
                        part=[compose_pb.ComposePart(data=NEW)],
                    ),
                    timeout=CALL_TIMEOUT_S,
                )
            ),
            "delete": lambda: objects.Delete(
                pb.DeleteRequest(bucket=BUCKET, name=write, write_id=ID, repeat_ms=repeat_ms), timeout=CALL_TIMEOUT_S
            ),
            "delete_many": lambda: contents.DeleteMany(
                contents_pb.DeleteManyRequest(bucket=BUCKET, name=[write], write_id=ID, repeat_ms=repeat_ms),
                timeout=CALL_TIMEOUT_S,
            ),
        }
        try:
            answer = calls[write]()
        except grpc.RpcError as error:
            return str(dict(error.trailing_metadata())["ais-error-kind"])  # type: ignore[attr-defined]
    if write == "put_many":
        return str(answer.result[0].error.kind)
    return str(answer.failure[0].error.kind) if write == "delete_many" and answer.failure else ""


@pytest.mark.parametrize("write", WRITES)
def test_a_repeat_of_what_is_done_on_too_few_nodes_ends_as_done(
    cluster: LocalCluster, full: FullDrives, bucket: Bucket, write: str
) -> None:
    """A deletion among them: it finds its own tombstone, and not that there was no object."""
    full.nodes = {1, 2}
    assert tried(cluster, write, by=0, repeat_ms=0) == "node-unavailable"
    full.nodes = {2}
    assert tried(cluster, write, by=1, repeat_ms=100) == ""
    wanted = None if "delete" in write else NEW
    assert written(cluster, write) == {0: wanted, 1: wanted, 2: OLD}
    full.nodes = set()
    assert tried(cluster, write, by=2, repeat_ms=200) == ""
    assert written(cluster, write) == {0: wanted, 1: wanted, 2: wanted}
    if "delete" in write:
        with pytest.raises(errors.ObjectNotFound):
            call(bucket, write, write)  # another deletion than that


def test_a_deletion_of_what_was_never_there_stays_one(cluster: LocalCluster, full: FullDrives, bucket: Bucket) -> None:
    for write in ("delete", "delete_many"):
        bucket.delete(write)
        full.nodes = {2}
        assert tried(cluster, write, by=0, repeat_ms=100) == "object-not-found"
        full.nodes = set()

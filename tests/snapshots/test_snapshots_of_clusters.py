"""Snapshots made by several nodes together: one cut, whatever was going on, and the same bytes on every copy."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from ais_loader import Client, connect, errors
from ais_loader.errors import NodeUnavailable, ObjectNotFound
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc, ais_snapshot_copies_pb2_grpc
from ais_loader.wire.generated import ais_snapshot_copies_pb2 as pb
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map import snapshot_mutations
from storage_node.cluster.replication import commit as commit_module
from storage_node.cluster.snapshots import coordinator as snapshotting
from storage_node.cluster.snapshots import sweep as snapshot_care
from storage_node.store.format import Version
from storage_node.store.read.object_reader import open_object
from tests.faults.fault_kit import take_snapshot
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.loop_kit import until
from tests.patience import PATIENT_CLIENT
from tests.peer_kit import peer_of
from tests.store.snapshot_kit import retained

NAMES = [f"n{at:02d}" for at in range(12)]


@contextmanager
def three_nodes(root: Path, **options: object) -> Iterator[tuple[LocalCluster, Client]]:
    # Patient, so that a busy machine does not look like a dead one.
    config = {"spread": NAMES, "copies": 2, "repair_interval_s": 600.0, "reach_timeout_s": 20.0, **options}
    with LocalCluster(root, **config) as cluster, connect(url_of(cluster), options=PATIENT_CLIENT) as client:  # type: ignore[arg-type]
        yield cluster, client


def url_of(cluster: LocalCluster, numbers: Sequence[int] = (0, 1, 2)) -> str:
    return "grpc://" + ",".join(cluster.nodes[number].endpoint for number in numbers)


def endpoints(cluster: LocalCluster) -> list[str]:
    return [node.peer_endpoint for node in cluster.view.nodes]


def there(cluster: LocalCluster, number: int, name: str, snapshot: str = "s") -> bytes | None:
    """What a snapshot has of a name on this node."""
    store = cluster.batches(number).node.store
    try:
        return b"".join(open_object(store, f"{BUCKET}@{snapshot}", name))
    except ObjectNotFound:
        return None


def everywhere(cluster: LocalCluster, name: str, snapshot: str = "s") -> set[bytes | None]:
    """What it has of a name on the owners."""
    return {there(cluster, number, name, snapshot) for number in cluster.owners(name)}


@pytest.mark.slow
def test_copies_that_differ_when_a_snapshot_is_made_are_the_same_in_it(tmp_path: Path) -> None:
    """Writes that died half-way, on one owner or on a node that stood in for one, and deletions that did."""
    with three_nodes(tmp_path) as (cluster, client):
        bucket = client.bucket(BUCKET)
        cluster.put({name: b"first " + name.encode() for name in NAMES})
        newer, deleted, absent, elsewhere = NAMES[:4]
        first, second = cluster.owners(newer)
        above = max(cluster.batches(number).node.store.replicas.clock for number in range(3)) + 1
        cluster.put_on(second, {newer: b"newer"}, {newer: Version(1, above, 1)})
        cluster.batches(cluster.owners(deleted)[1]).node.store.delete(BUCKET, deleted, Version(1, above, 2), True)
        cluster.batches(cluster.owners(absent)[0]).node.store.delete(BUCKET, absent, Version(1, 1000))
        other = ({0, 1, 2} - set(cluster.owners(elsewhere))).pop()
        cluster.put_on(other, {elsewhere: b"elsewhere"}, {elsewhere: Version(1, above, 3)})
        made = take_snapshot(bucket, "s")
        for name in NAMES:
            bucket.put(name, b"after")
        wanted = {name: b"first " + name.encode() for name in NAMES}
        wanted |= {newer: b"newer", elsewhere: b"elsewhere"}
        del wanted[deleted]
        assert (made.objects, made.size_bytes) == (len(wanted), sum(map(len, wanted.values())))
        assert {name: everywhere(cluster, name) for name in NAMES} == {name: {wanted.get(name)} for name in NAMES}
        frozen = client.bucket(BUCKET, snapshot="s")
        assert {info.name: frozen.get(info.name) for info in frozen.objects()} == wanted
        assert frozen.summary().objects == len(wanted)
        assert first != second


@pytest.mark.slow
def test_what_ends_after_the_cut_and_before_the_copies_are_equal_is_in_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = snapshotting.SnapshotCoordinator._settle
    begun, go_on = threading.Event(), threading.Event()

    async def held_up(self: snapshotting.SnapshotCoordinator, *arguments: object) -> tuple[int, int]:
        begun.set()
        await until(go_on.is_set, 0.01)
        return await settle(self, *arguments)  # type: ignore[arg-type]

    with three_nodes(tmp_path) as (cluster, client):
        monkeypatch.setattr(snapshotting.SnapshotCoordinator, "_settle", held_up)
        bucket = client.bucket(BUCKET)
        cluster.put(dict.fromkeys(NAMES, b"first"))
        newer, deleted = NAMES[:2]
        above = max(cluster.batches(number).node.store.replicas.clock for number in range(3)) + 1
        cluster.put_on(cluster.owners(newer)[1], {newer: b"newer"}, {newer: Version(1, above, 1)})
        cluster.batches(cluster.owners(deleted)[1]).node.store.delete(BUCKET, deleted, Version(1, above, 2), True)
        making = threading.Thread(target=take_snapshot, args=(bucket, "s"))
        making.start()
        assert begun.wait(180)
        assert bucket.snapshots() == []
        for name in NAMES:
            bucket.put(name, b"after")
        go_on.set()
        making.join(180)
        wanted = {**dict.fromkeys(NAMES, b"first"), newer: b"newer", deleted: None}
        assert {name: everywhere(cluster, name) for name in NAMES} == {name: {wanted[name]} for name in NAMES}
        assert [info.objects for info in bucket.snapshots()] == [len(NAMES) - 1]
        bucket.delete_snapshot("s")
        eventually(lambda: not any(retained(cluster.batches(number).node.store) for number in range(3)))


@pytest.mark.slow
def test_a_write_whose_version_was_given_before_the_cut_and_comes_after_it_is_refused(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as (cluster, client):
        client.bucket(BUCKET).put("a", b"first")
        owner = cluster.owners("a")[0]
        store = cluster.batches(owner).node.store
        late = store.replicas.next_version(9, [])
        take_snapshot(client.bucket(BUCKET), "s")
        ref = wire.BucketRef(name=BUCKET, uuid=cluster.map.bucket[0].uuid)
        version = wire.ObjectVersion(epoch=late.epoch, counter=late.counter, node=late.node)
        with peer_of(cluster.nodes[owner]) as channel:
            replica = ais_replica_pb2_grpc.ReplicaStub(channel)
            with pytest.raises(grpc.RpcError, match="comes after a snapshot"):
                replica.Bury(wire.BuryRequest(bucket=ref, name="a", version=version), timeout=180)
            left = replica.Bury(wire.BuryRequest(bucket=ref, name="b", version=version, is_copy=True), timeout=180)
            assert left.version == version
        assert client.bucket(BUCKET).get("a") == b"first"


@pytest.mark.slow
def test_a_snapshot_needs_all_nodes_to_be_made_and_none_in_particular_to_be_read(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as (cluster, client):
        bucket = client.bucket(BUCKET)
        for name in NAMES:
            bucket.put(name, b"first " + name.encode())
        take_snapshot(bucket, "s")
        for name in NAMES[::2]:
            bucket.put(name, b"after")
        for name in NAMES[1::2]:
            bucket.delete(name)
        dead = endpoints(cluster)[2]
        cluster.nodes[2].stop(0)
        with connect(url_of(cluster, (0, 1)), options=PATIENT_CLIENT) as other:
            bucket, frozen = other.bucket(BUCKET), other.bucket(BUCKET, snapshot="s")
            with pytest.raises(errors.NodeUnavailable, match=f"all nodes of the cluster together: {dead}"):
                bucket.snapshot("t")
            assert [info.name for info in frozen.objects()] == NAMES
            assert [item.tobytes() for item in frozen.get_batch(NAMES)] == [b"first " + n.encode() for n in NAMES]
            assert [frozen.get(name) for name in NAMES] == [b"first " + n.encode() for n in NAMES]
            with frozen.open(NAMES[1]) as file:
                assert file.read() == b"first " + NAMES[1].encode()
            assert [info.name for info in bucket.snapshots()] == ["s"]
            bucket.put("more", b"writes go on")
            bucket.delete_snapshot("s")
            assert bucket.snapshots() == []


@pytest.mark.slow
def test_who_holds_a_bucket_and_dies_holds_it_for_seconds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "HOLD_S", 0.5)
    with three_nodes(tmp_path) as (cluster, client):
        bucket = client.bucket(BUCKET)
        ref = wire.BucketRef(name=BUCKET, uuid=cluster.map.bucket[0].uuid)
        hold = pb.HoldRequest(bucket=ref, attempt=b"a" * 16)
        for node in cluster.nodes:
            with peer_of(node) as channel:
                stub = ais_snapshot_copies_pb2_grpc.SnapshotCopiesStub(channel)

                def refuses_another(stub: ais_snapshot_copies_pb2_grpc.SnapshotCopiesStub = stub) -> bool:
                    """Not where the first one's seconds were over by then."""
                    assert stub.Hold(hold, timeout=180).clock >= 0
                    try:
                        stub.Hold(pb.HoldRequest(bucket=ref, attempt=b"b" * 16), timeout=180)
                    except grpc.RpcError as error:
                        assert "another snapshot" in error.details()
                        return True
                    stub.Release(pb.ReleaseRequest(bucket=ref, attempt=b"b" * 16), timeout=180)
                    return False

                eventually(refuses_another)
        bucket.put("a", b"1")  # waits
        bucket.delete("a")
        with peer_of(cluster.nodes[0]) as channel:
            release = pb.ReleaseRequest(bucket=ref, attempt=b"a" * 16)
            assert not ais_snapshot_copies_pb2_grpc.SnapshotCopiesStub(channel).Release(release, timeout=180).held
        assert take_snapshot(bucket, "s").objects == 0


def abandoned(cluster: LocalCluster, maker: bytes) -> None:
    """The map says that a snapshot is being made, by a node that knows nothing of it."""
    cut = max(cluster.batches(number).node.store.replicas.clock for number in range(2))
    snapshot = snapshot_mutations.pb.MapSnapshot(name="s", cut=cut, created_ns=1, maker=maker)
    version = cluster.nodes[0].membership.view.version  # type: ignore[union-attr]
    change_map(endpoints(cluster), snapshot_mutations.begin_snapshot(cluster.map.bucket[0].uuid, snapshot, version))


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["own", "gone", "dead"])
def test_a_snapshot_that_nobody_makes_any_more_retains_nothing_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    with three_nodes(tmp_path) as (cluster, client), monkeypatch.context() as patch:
        patch.setattr(snapshot_care, "INTERVAL_S", 0.05)
        patch.setattr(snapshot_care, "SILENT_S", 0.2)
        bucket = client.bucket(BUCKET)
        for name in NAMES:
            bucket.put(name, b"first")
        maker = b"x" * 16 if whose == "gone" else cluster.nodes[2].membership.node_uuid
        if whose == "dead":
            cluster.nodes[2].stop(0)
        abandoned(cluster, maker)
        stores: list[Callable[[], bool]] = [
            lambda number=number: (
                not cluster.batches(number).node.store.record.current.snapshots  # type: ignore[misc]
                and not cluster.batches(number).node.store.record.current.trimming
                and not retained(cluster.batches(number).node.store)
            )
            for number in range(2 if whose == "dead" else 3)
        ]
        eventually(lambda: all(clean() for clean in stores))
        assert bucket.snapshots() == []
        patch.undo()  # one that is being made is abandoned otherwise, when its maker is silent for a moment
        if whose != "dead":
            assert take_snapshot(bucket, "s").objects == len(NAMES)


def test_a_bucket_with_a_snapshot_is_not_deleted(tmp_path: Path) -> None:
    with three_nodes(tmp_path, copies=1) as (_, client):
        bucket = client.bucket(BUCKET)
        take_snapshot(bucket, "s")
        with pytest.raises(errors.BucketNotEmpty, match="snapshots, s: delete them first"):
            client.delete_bucket(BUCKET, force=True)
        bucket.delete_snapshot("s")
        client.delete_bucket(BUCKET)


@pytest.mark.slow
def test_several_that_are_made_at_once_by_different_nodes_are_all_made(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as (cluster, client):
        bucket = client.bucket(BUCKET)
        for name in NAMES:
            bucket.put(name, b"first")

        def make(at: int) -> int:
            with connect(url_of(cluster, (at % 3,)), options=PATIENT_CLIENT) as other:
                other.bucket(BUCKET).put(f"more{at}", b"more")

                def made() -> int:
                    with contextlib.suppress(NodeUnavailable):  # on a busy machine, a node answered too late
                        return other.bucket(BUCKET).snapshot(f"s{at}").objects
                    return 0

                return eventually(made)

        with ThreadPoolExecutor(6) as pool:
            counts = list(pool.map(make, range(6)))
        assert sorted(info.name for info in bucket.snapshots()) == [f"s{at}" for at in range(6)]
        assert all(len(NAMES) < count <= len(NAMES) + 6 for count in counts)
        assert max(counts) == len(NAMES) + 6
        listed = [sum(1 for _ in client.bucket(BUCKET, snapshot=f"s{at}").objects()) for at in range(6)]
        assert listed == counts


@pytest.mark.slow
def test_a_node_that_does_not_know_yet_that_a_snapshot_is_made_says_nothing_wrong(tmp_path: Path) -> None:
    """It was away when the map was changed: what it has is read elsewhere, or a little later."""
    with three_nodes(tmp_path, copies=1) as (cluster, client):
        bucket = client.bucket(BUCKET)
        for name in NAMES:
            bucket.put(name, b"first")
        take_snapshot(bucket, "s")
        store = cluster.batches(1).node.store
        known = store.record.current.snapshots
        [(uuid, named)] = known.items()
        store.snapshots.follow({uuid: {".s": named["s"]}})
        with connect(url_of(cluster), options=PATIENT_CLIENT) as other:
            frozen = other.bucket(BUCKET, snapshot="s")
            with ThreadPoolExecutor(3) as pool:
                reading = [
                    pool.submit(lambda: [item.tobytes() for item in frozen.get_batch(NAMES)]),
                    pool.submit(lambda: [frozen.get(name) for name in NAMES]),
                    pool.submit(lambda: [b"first" for info in frozen.objects() if info.name in NAMES]),
                ]
                assert not wait(reading, timeout=0.2).done
                store.snapshots.follow(known)
                assert [one.result(180) for one in reading] == [[b"first"] * len(NAMES)] * 3

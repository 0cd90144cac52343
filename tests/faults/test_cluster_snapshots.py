"""Snapshots of a cluster whose nodes are written to and killed: what each copy has on its drives, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import grpc
import pytest

from ais_loader import connect
from ais_loader.testing import NodeProcess, eventually, throwaway_folder
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_snapshots_pb2 as pb
from ais_loader.wire.generated import ais_snapshots_pb2_grpc
from storage_node.store.store import Store
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import serve_all, take_snapshot
from tests.faults.ledger_kit import BUCKET, GONE, OPTIONS, Ledger, content, current_map, delete, put, writing
from tests.store.snapshot_kit import contents_at, retained

pytestmark = pytest.mark.slow  # real processes, killed and awaited

Versions = dict[str, tuple[str, bytes]]


@pytest.fixture
def cluster() -> Iterator[ClusterProcesses]:
    with throwaway_folder() as folder, ClusterProcesses(Path(folder), 3, buckets={BUCKET: 2}, min_copies=2) as running:
        yield running


def on_drive(cluster: ClusterProcesses, number: int, snapshot: str) -> Versions:
    """What a node has of it, read beside the node or after its death; every byte is verified."""
    with Store.open(cluster.nodes[number].drives, mode="r") as store:
        return contents_at(store, f"{BUCKET}@{snapshot}")


def on_all(cluster: ClusterProcesses, snapshot: str) -> dict[str, bytes] | None:
    """What all owners have of it; None while one has missed something."""
    found = [on_drive(cluster, number, snapshot) for number in range(3)]
    view = ClusterView(cluster.map)
    same: Versions = {}
    for name in sorted(set().union(*found)):
        one, *others = {found[number].get(name) for number in view.owners(view.buckets[BUCKET], name)}
        if others:
            return None
        if one is not None:  # others may have what is out of date
            same[name] = one
    return {name: data for name, (_, data) in same.items()}


def read(url: str, snapshot: str) -> dict[str, bytes]:
    """By a client that knows nothing yet."""
    with connect(url, options=OPTIONS) as client:
        frozen = client.bucket(BUCKET, snapshot=snapshot)
        names = [info.name for info in frozen.objects()]
        return {item.entry.name: item.tobytes() for item in frozen.get_batch(names)}


def faults(ledger: Ledger, before: Mapping[str, tuple[int, bool]], found: Mapping[str, bytes]) -> list[str]:
    """What is wrong with a snapshot that was asked for when `before` was expected of each key."""
    wrong: list[str] = []
    for key, expected in before.items():
        data = found.get(key)
        number = GONE if data is None else int(data.split(b" ", 2)[1])
        if data is not None and data != content(key, number):
            wrong.append(f"{key}: damaged")
        if (fault := ledger.fault(key, expected, number)) is not None:
            wrong.append(fault)
    return wrong


@pytest.mark.parametrize("rounds", [3, pytest.param(6, marks=pytest.mark.exhaustive)])
def test_under_writers_and_kills_all_copies_have_the_same_and_go_on_having_it(
    cluster: ClusterProcesses, rounds: int
) -> None:
    ledger, seen = Ledger(), dict[str, dict[str, bytes]]()
    keys = [f"k{at:02d}" for at in range(30)]
    with connect(cluster.url, options=OPTIONS) as client:
        bucket = client.bucket(BUCKET)
        put(bucket, ledger, keys)
        with writing(cluster.url, ledger, keys, seed=7) as writers:
            for at in range(rounds):
                name = f"s{at}"
                before = {key: ledger.expected(key) for key in keys}
                made = take_snapshot(bucket, name)
                seen[name] = read(cluster.url, name)
                assert faults(ledger, before, seen[name]) == []
                assert (made.objects, made.size_bytes) == (len(seen[name]), sum(map(len, seen[name].values())))
                victim = at % 3
                cluster.kill([victim])  # in the middle of overwrites
                writers.round()
                assert read(cluster.url, name) == seen[name]
                cluster.start([victim])
                serve_all(cluster)
                writers.round()
    for name, wanted in seen.items():
        assert read(cluster.url, name) == wanted
        eventually(lambda name=name, wanted=wanted: on_all(cluster, name) == wanted, interval_s=0.2)  # type: ignore[misc]
    with connect(cluster.url, options=OPTIONS) as client:
        for name in seen:
            client.bucket(BUCKET).delete_snapshot(name)
    eventually(lambda: not any(kept(cluster, number) for number in range(3)))


def kept(cluster: ClusterProcesses, number: int) -> bool:
    """Whether a node has anything of any snapshot."""
    with Store.open(cluster.nodes[number].drives, mode="r") as store:
        return bool(store.record.current.snapshots or store.record.current.trimming or retained(store))


def test_what_was_down_while_objects_were_replaced_retains_what_a_snapshot_sees(cluster: ClusterProcesses) -> None:
    ledger = Ledger()
    keys = [f"k{at:02d}" for at in range(40)]
    with connect(cluster.url, options=OPTIONS) as client:
        bucket = client.bucket(BUCKET)
        put(bucket, ledger, keys)
        take_snapshot(bucket, "s")
        wanted = read(cluster.url, "s")
        cluster.kill([1])
        put(bucket, ledger, keys[:20])
        delete(bucket, ledger, keys[20:])
        put(bucket, ledger, keys[:10])
        bucket.snapshots()
        cluster.start([1])
        serve_all(cluster)
        eventually(lambda: on_all(cluster, "s") == wanted, interval_s=0.2)
        # A snapshot that was deleted while a node was down keeps nothing there either.
        cluster.kill([1])
        bucket.delete_snapshot("s")
        cluster.start([1])
        eventually(lambda: not any(kept(cluster, number) for number in range(3)))


def dies(maker: NodeProcess, make: Callable[..., object]) -> bool:
    """Whether a node dies while it makes a snapshot. It gives up before where another one is silent for too long."""
    with pytest.raises(grpc.RpcError):
        make(pb.CreateSnapshotRequest(bucket=BUCKET, name="s"), timeout=180)
    return not maker.alive


@pytest.mark.parametrize("point", ["snapshot.held", "snapshot.cut_by_all", "snapshot.settled"])
@pytest.mark.sampled(1)
def test_a_node_that_dies_while_it_makes_a_snapshot_leaves_nothing_and_holds_nobody_up(
    cluster: ClusterProcesses, point: str
) -> None:
    maker = cluster.nodes[0]
    cluster.kill([0])
    maker._environment["AIS_LOADER_FAILPOINT"] = point
    cluster.start([0])
    serve_all(cluster)
    ledger = Ledger()
    keys = [f"k{at:02d}" for at in range(20)]
    with connect(cluster.url, options=OPTIONS) as client:
        bucket = client.bucket(BUCKET)
        put(bucket, ledger, keys)
        with grpc.insecure_channel(maker.url.removeprefix("grpc://")) as channel:
            make = ais_snapshots_pb2_grpc.SnapshotsStub(channel).CreateSnapshot
            eventually(lambda: dies(maker, make), interval_s=0.2)
        cluster.kill([0])  # it is dead
        put(bucket, ledger, keys)
        assert bucket.snapshots() == []
        del maker._environment["AIS_LOADER_FAILPOINT"]
        cluster.start([0])
        eventually(lambda: not any(kept(cluster, number) for number in range(3)))
        assert not any(one.snapshot for one in current_map(cluster.nodes).bucket)
        serve_all(cluster)
        take_snapshot(bucket, "s")
        wanted = read(cluster.url, "s")
        assert wanted == {key: content(key, ledger.expected(key)[0]) for key in keys}
        delete(bucket, ledger, keys)
        eventually(lambda: on_all(cluster, "s") == wanted, interval_s=0.2)


def test_of_an_unfinished_snapshot_nothing_stays_though_its_maker_never_comes_back(cluster: ClusterProcesses) -> None:
    maker = cluster.nodes[0]
    cluster.kill([0])
    maker._environment["AIS_LOADER_FAILPOINT"] = "snapshot.cut_by_all"
    cluster.start([0])
    serve_all(cluster)
    with (
        connect(cluster.url, options=OPTIONS) as client,
        grpc.insecure_channel(maker.url.removeprefix("grpc://")) as channel,
    ):
        client.bucket(BUCKET).put("a", b"1")
        make = ais_snapshots_pb2_grpc.SnapshotsStub(channel).CreateSnapshot
        eventually(lambda: dies(maker, make), interval_s=0.2)
        assert any(one.snapshot for one in current_map(cluster.nodes).bucket) and kept(cluster, 1)
        client.bucket(BUCKET).put("a", b"2")
        eventually(lambda: not any(kept(cluster, number) for number in (1, 2)))
        assert not any(one.snapshot for one in current_map(cluster.nodes).bucket)

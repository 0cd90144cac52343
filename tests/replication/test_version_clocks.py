"""Version clocks of several nodes: writes to holders that fail in turn, and cuts, are ordered as they were made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from ais_loader import connect
from ais_loader.errors import StoreFormatError
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_contents_pb2_grpc as contents_rpc
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc as rpc
from ais_loader.wire.generated import ais_snapshot_copies_pb2 as keep_pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2_grpc as keep_rpc
from storage_node.cluster.repair.reconcile import Reconciler
from storage_node.server import NodeServer
from storage_node.store.drive.version_clock import at_ms, machine_ms
from storage_node.store.format import Version
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import Writer, held
from tests.peer_kit import peer_of
from tests.repair.test_repair import back, stopped, store_of
from tests.replication.test_replication_faults import write_quietly

TIMEOUT_S = 180.0


async def _fetches_nothing(*_: object) -> None:
    """What is known to be newer elsewhere does not come."""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["put", "delete"])
@pytest.mark.parametrize("apart", ["in-doubt", "unheard", "older-map"])
@pytest.mark.sampled(3)
def test_the_later_write_stays_when_its_two_holders_fail_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, apart: str
) -> None:
    """A is down, W1 goes to B, which has been started once more; B is down, W2 goes to A, then both are up.

    What A has heard of W1 by then: its version, nothing, or nothing and the map is a newer one since it was down.
    """
    with (
        LocalCluster(tmp_path, 2, copies=2, reconcile_patience_s=0.5, repair_interval_s=0.5) as cluster,
        contextlib.ExitStack() as nodes,
    ):
        for number in range(2):
            write(cluster.nodes[number], "x", b"W0")
        a = stopped(cluster, 0)
        b = stopped(cluster, 1)
        nodes.enter_context(back(tmp_path, cluster, 1, b))
        if apart == "older-map":
            cluster.map.version += 1
            cluster.nodes[1].membership.learn(cluster.map)
        write(cluster.nodes[1], "x", b"W1")
        if apart == "in-doubt":
            with monkeypatch.context() as patched:
                patched.setattr(Reconciler, "_fetch", _fetches_nothing)
                nodes.enter_context(back(tmp_path, cluster, 0, a))
                eventually(lambda: in_doubt(cluster.nodes[0], "x"), TIMEOUT_S)
                b = stopped(cluster, 1)
        else:
            b = stopped(cluster, 1)
            nodes.enter_context(back(tmp_path, cluster, 0, a))
        write(cluster.nodes[0], "x", b"W2" if how == "put" else None)
        nodes.enter_context(back(tmp_path, cluster, 1, b))
        expected = b"W2" if how == "put" else None
        eventually(lambda: [value(node, "x") for node in cluster.nodes] == [expected] * 2, TIMEOUT_S)
        eventually(lambda: not any(in_doubt(node, "x") for node in cluster.nodes), TIMEOUT_S)


def write(node: NodeServer, name: str, data: bytes | None) -> None:
    """Acknowledged through this node, at once or as soon as it takes writes; None deletes."""

    def done() -> bool:
        with Writer(node.url) as writer:
            if data is None:
                writer.delete(name)
            else:
                writer.put(name, data)
        return True

    eventually(lambda: write_quietly(done), TIMEOUT_S, interval_s=0.1)


def value(node: NodeServer, name: str) -> bytes | None:
    return held(store_of(node)).get(name, ("", b"never there"))[1]


def in_doubt(node: NodeServer, name: str) -> bool:
    store = store_of(node)
    return store.replicas.stale.wanted(store.bucket(BUCKET).uuid_bytes, name) is not None


# -- numbers that no clock gives


NUMBERS = [
    wire.ObjectVersion(epoch=1, counter=2**62, node=1),
    wire.ObjectVersion(epoch=1, counter=2**64 - 1, node=1),
    wire.ObjectVersion(epoch=2**32 - 1, counter=7, node=1),
]


@pytest.mark.parametrize("number", NUMBERS, ids=["above", "highest", "epoch"])
def test_a_version_that_no_clock_gives_is_refused_by_every_call_and_changes_nothing(
    tmp_path: Path, number: wire.ObjectVersion
) -> None:
    with LocalCluster(tmp_path, 2, copies=2) as cluster, Writer(cluster.nodes[0].url) as writer:
        writer.put("a", b"1")
        store = store_of(cluster.nodes[0])
        before, clock = held(store), store.clock.highest
        bucket = wire.BucketRef(name=BUCKET, uuid=cluster.map.bucket[0].uuid)
        fine = wire.ObjectVersion(epoch=1, counter=clock + 1, node=1)
        group = wire.WriteGroup(
            object=[pb.SmallObject(bucket=BUCKET, name="a", data=b"2")], bucket_uuid={BUCKET: bucket.uuid}
        )
        keep = keep_pb.KeepHeader(bucket=bucket, name="a", version=number, is_tombstone=True, ended=2**62 - 1)
        with peer_of(cluster.nodes[0]) as channel:
            replica, repair = rpc.ReplicaStub(channel), rpc.RepairStub(channel)
            chosen = wire.CommitObject(version=number)
            commit = wire.WriteCommit(object=[chosen])
            copy = wire.WriteCommit(object=[chosen], is_copy=True)
            limit = wire.WriteCommit(object=[wire.CommitObject(version=fine, not_above=number)])
            messages = [
                [wire.WriteRequest(group=group), wire.WriteRequest(commit=one)] for one in (commit, copy, limit)
            ]
            calls: list[Callable[[], object]] = [
                *(lambda sent=sent: list(replica.Write(iter(sent), timeout=TIMEOUT_S)) for sent in messages),
                lambda: replica.Bury(wire.BuryRequest(bucket=bucket, name="a", version=number), timeout=TIMEOUT_S),
                lambda: replica.Bury(
                    wire.BuryRequest(bucket=bucket, name="a", version=fine, not_above=number), timeout=TIMEOUT_S
                ),
                lambda: repair.Missed(
                    wire.MissedRequest(bucket=bucket, name=["a"], version=[number]), timeout=TIMEOUT_S
                ),
                lambda: repair.Missed(wire.MissedRequest(bucket=bucket, name=["a", "b"]), timeout=TIMEOUT_S),
                lambda: contents_rpc.ContentsReplicaStub(channel).BuryMany(
                    contents_pb.BuryManyRequest(bucket=bucket, name=["a"], version=[number]), timeout=TIMEOUT_S
                ),
                lambda: keep_rpc.SnapshotCopiesStub(channel).Keep(
                    iter([keep_pb.KeepRequest(header=keep)]), timeout=TIMEOUT_S
                ),
            ]
            for at, call in enumerate(calls):
                with pytest.raises(grpc.RpcError) as caught:
                    call()
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, (at, caught.value.details())
        assert held(store) == before and store.clock.highest == clock
        assert not in_doubt(cluster.nodes[0], "a")
        assert held(store)["a"][1] == b"1"
        writer.put("a", b"after")
        assert held(store)["a"][1] == b"after"


@pytest.mark.parametrize("end", [0, 6, 7, 2**62, 2**64 - 1])
def test_a_version_that_ends_before_it_begins_or_never_is_not_retained(tmp_path: Path, end: int) -> None:
    with LocalCluster(tmp_path, 1) as cluster:
        bucket = wire.BucketRef(name=BUCKET, uuid=cluster.map.bucket[0].uuid)
        version = wire.ObjectVersion(epoch=1, counter=7, node=1)
        header = keep_pb.KeepHeader(bucket=bucket, name="a", version=version, is_tombstone=True, ended=end)
        with (
            peer_of(cluster.nodes[0]) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            keep_rpc.SnapshotCopiesStub(channel).Keep(iter([keep_pb.KeepRequest(header=header)]), timeout=TIMEOUT_S)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_map_with_a_cut_that_no_clock_gives_is_not_learned(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 1) as cluster, Writer(cluster.nodes[0].url) as writer:
        cluster.map.bucket[0].snapshot.add(name="s", cut=2**64 - 1, created_ns=1)
        cluster.map.version += 1
        with pytest.raises(ValueError, match="no version clock gives"):
            cluster.nodes[0].membership.learn(cluster.map)
        writer.put("a", b"1")
        assert held(store_of(cluster.nodes[0]))["a"][1] == b"1"


# -- cuts below what there is


@pytest.mark.slow
@pytest.mark.parametrize("forgetful", [(0, 1), (1,)])
def test_a_snapshot_that_would_lack_an_object_is_not_made_and_the_next_one_has_it(
    tmp_path: Path, forgetful: tuple[int, ...]
) -> None:
    """Clocks that have not heard of what their own drives hold; each object is on one node."""
    with LocalCluster(tmp_path, 2, copies=1, spread=[f"n{at}" for at in range(20)]) as cluster:
        names = {f"n{at}" for at in range(20)}
        far = machine_ms() + 30_000
        ahead = cluster.names_of(1, names)[0]
        with connect(",".join(node.url for node in cluster.nodes)) as client:
            bucket = client.bucket(BUCKET)
            for name in names - {ahead}:
                bucket.put(name, b"1")
            cluster.put_on(1, {ahead: b"2"}, {ahead: Version(1, at_ms(far), 2)})
            for number in forgetful:
                store_of(cluster.nodes[number]).clock._next = at_ms(machine_ms() + 1)
            with pytest.raises(StoreFormatError, match=f"would lack '{ahead}'"):
                bucket.snapshot("s")
            assert bucket.snapshots() == []
            bucket.snapshot("s")
            assert {info.name for info in client.bucket(f"{BUCKET}@s").objects()} == names


# -- clocks that are wrong


HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def set_wall(node: NodeServer, offset_ms: int) -> None:
    store_of(node).clock.wall_ms = lambda: machine_ms() + offset_ms


def problem_of(node: NodeServer, name: str, how: str) -> str | None:
    """What the node has against a write; None when it is acknowledged."""
    try:
        with Writer(node.url) as writer:
            if how == "put":
                writer.put(name, b"new")
            elif how == "put_many":
                (result,) = writer.put_many({name: b"new"})
                return f"{result.error.kind}: {result.error.message}" if result.HasField("error") else None
            elif how == "delete":
                writer.delete(name)
            else:
                with grpc.insecure_channel(node.url.removeprefix("grpc://")) as channel:
                    request = contents_pb.DeleteManyRequest(bucket=BUCKET, name=[name])
                    answer = contents_rpc.ContentsStub(channel).DeleteMany(request, timeout=TIMEOUT_S)
                for failure in answer.failure:
                    return f"{failure.error.kind}: {failure.error.message}"
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error.details()
        kind = dict(error.trailing_metadata())["ais-error-kind"]
        return f"{kind}: {error.details()}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "offset_ms"),
    [
        *(("put", offset_ms) for offset_ms in (-YEAR_MS, -HOUR_MS, HOUR_MS, YEAR_MS)),
        *((how, HOUR_MS) for how in ("put_many", "delete", "delete_many")),
    ],
)
def test_a_node_whose_clock_the_others_contradict_coordinates_nothing_and_draws_nobody_after_it(
    tmp_path: Path, how: str, offset_ms: int
) -> None:
    with LocalCluster(tmp_path, 3, copies=3) as cluster:
        for number in range(3):  # each has heard both others
            write(cluster.nodes[number], "x", b"before")
        set_wall(cluster.nodes[0], offset_ms)
        problem = problem_of(cluster.nodes[0], "x", how)
        assert problem is not None and problem.startswith("clock-offset: "), problem
        for part in ("the clock of 127.0.0.1:", "this node's", "60 s", "max_clock_offset_s", "nothing was changed"):
            assert part in problem
        assert [value(node, "x") for node in cluster.nodes] == [b"before"] * 3
        assert problem_of(cluster.nodes[1], "x", how) is None
        expected = None if how.startswith("delete") else b"new"
        assert [value(node, "x") for node in cluster.nodes[1:]] == [expected] * 2
        for node in cluster.nodes[1:]:
            assert store_of(node).clock.ahead_ms < 60_000
        assert abs(cluster.nodes[1].repair.progress().clock_offset_s - offset_ms / 1000) < 30
        set_wall(cluster.nodes[0], 0)
        assert problem_of(cluster.nodes[0], "x", "put") is None
        assert [value(node, "x") for node in cluster.nodes] == [b"new"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("offset_ms", [-HOUR_MS, HOUR_MS])
def test_of_two_nodes_whose_clocks_differ_neither_coordinates_while_both_are_there(
    tmp_path: Path, offset_ms: int
) -> None:
    with LocalCluster(tmp_path, 2, copies=2) as cluster:
        set_wall(cluster.nodes[0], offset_ms)
        for node in cluster.nodes:
            problem = problem_of(node, "x", "put")
            assert problem is not None and problem.startswith("clock-offset: ")
        assert [value(node, "x") for node in cluster.nodes] == [b"never there"] * 2
        set_wall(cluster.nodes[0], 0)
        assert problem_of(cluster.nodes[0], "x", "put") is None


@pytest.mark.slow
def test_what_has_a_version_of_a_year_from_now_is_read_repaired_replaced_deleted_and_in_snapshots(
    tmp_path: Path,
) -> None:
    with (
        LocalCluster(tmp_path, 2, copies=2, repair_interval_s=0.2, max_clock_offset_s=600.0) as cluster,
        connect(",".join(node.url for node in cluster.nodes)) as client,
    ):
        far = Version(1, at_ms(machine_ms() + YEAR_MS), 1)
        cluster.put_on(0, {"a": b"far", "b": b"far"}, {"a": far, "b": far})
        bucket = client.bucket(BUCKET)
        cluster.nodes[0].repair.wake()
        eventually(lambda: [value(node, "a") for node in cluster.nodes] == [b"far"] * 2, TIMEOUT_S)
        eventually(lambda: [value(node, "b") for node in cluster.nodes] == [b"far"] * 2, TIMEOUT_S)
        assert bucket.get("a") == b"far"
        bucket.snapshot("s")
        bucket.put("a", b"replaced")
        bucket.delete("b")
        assert [value(node, "a") for node in cluster.nodes] == [b"replaced"] * 2
        assert [value(node, "b") for node in cluster.nodes] == [None] * 2
        assert client.bucket(f"{BUCKET}@s").get("a") == b"far"
        assert cluster.nodes[1].repair.progress().clock_ahead_s > YEAR_MS / 2000


@pytest.mark.slow
@pytest.mark.parametrize("how", ["put", "put_many", "delete", "delete_many"])
def test_a_node_that_wrote_with_its_clock_ahead_goes_on_writing_when_that_is_right_again(
    tmp_path: Path, how: str
) -> None:
    """No other node has heard of it; all copies are needed."""
    with LocalCluster(tmp_path, 3, copies=3, repair_interval_s=600.0) as cluster:
        cluster.map.bucket[0].min_copies = 3
        cluster.learn()
        assert problem_of(cluster.nodes[1], "x", "put") is None
        cluster.put_on(0, {"alone": b"far"}, {"alone": Version(1, at_ms(machine_ms() + 2 * HOUR_MS), 1)})
        assert problem_of(cluster.nodes[0], "x", how) is None
        assert [value(node, "x") for node in cluster.nodes] == [None if how.startswith("delete") else b"new"] * 3
        assert problem_of(cluster.nodes[2], "x", "put") is None
        assert [value(node, "x") for node in cluster.nodes] == [b"new"] * 3
        with connect(cluster.nodes[1].url) as client:
            client.bucket(BUCKET).snapshot("s")
            assert {info.name for info in client.bucket(f"{BUCKET}@s").objects()} == {"x", "alone"}


@pytest.mark.parametrize("how", ["write", "tombstone", "tombstones"])
def test_a_new_version_of_a_clock_far_ahead_is_refused_and_a_copy_of_it_is_not(tmp_path: Path, how: str) -> None:
    with LocalCluster(tmp_path, 2, copies=2) as cluster, peer_of(cluster.nodes[0]) as channel:
        node = cluster.nodes[0]
        bucket = wire.BucketRef(name=BUCKET, uuid=cluster.map.bucket[0].uuid)
        far = wire.ObjectVersion(epoch=1, counter=at_ms(machine_ms() + HOUR_MS), node=2)
        group = wire.WriteGroup(
            object=[pb.SmallObject(bucket=BUCKET, name="a", data=b"2")], bucket_uuid={BUCKET: bucket.uuid}
        )
        replica = rpc.ReplicaStub(channel)

        def send(*, is_copy: bool) -> None:
            if how == "write":
                commit = wire.WriteCommit(object=[wire.CommitObject(version=far)], is_copy=is_copy)
                list(replica.Write(iter([wire.WriteRequest(group=group), wire.WriteRequest(commit=commit)])))
            elif how == "tombstone" or is_copy:
                replica.Bury(wire.BuryRequest(bucket=bucket, name="a", version=far, is_copy=is_copy))
            else:
                contents_rpc.ContentsReplicaStub(channel).BuryMany(
                    contents_pb.BuryManyRequest(bucket=bucket, name=["a"], version=[far])
                )

        with pytest.raises(grpc.RpcError) as caught:
            send(is_copy=False)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "by the clock of node 2" in caught.value.details()
        assert held(store_of(node)) == {} and store_of(node).clock.ahead_ms == 0
        send(is_copy=True)
        assert held(store_of(node))["a"][0] == f"1.{far.counter}.2"

"""Writes of several copies, coordinated by whatever node they come to."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc as wire_rpc
from storage_node.cluster.replication.replica import from_wire
from storage_node.store.format import Version
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import (
    CALL_TIMEOUT_S,
    Writer,
    cluster_of,
    copies_of,
    held,
    put_messages,
    staged_files,
)
from tests.peer_kit import peer_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with cluster_of(tmp_path) as running:
        yield running


# -- where copies go


@pytest.mark.parametrize("size", [0, 1, 5 << 20])
def test_a_put_at_any_node_leaves_equal_copies_on_the_owners_alone(cluster: LocalCluster, size: int) -> None:
    data = os.urandom(size)
    for number in range(4):
        name = f"from {number}"
        with Writer(cluster.nodes[number].url) as writer:
            info = writer.put(name, data, metadata={"k": "grüß"})
        assert copies_of(cluster, name) == dict.fromkeys(cluster.owners(name), (info.version, data))
        for owner in cluster.owners(name):
            [record] = cluster.batches(owner).node.store.replicas.newest(BUCKET, [name])
            assert record is not None
            assert (record.metadata, record.modified_ns, record.checksum) == (
                {"k": "grüß"},
                info.modified_ns,
                info.checksum,
            )
            assert record.node == number + 1
    eventually(lambda: staged_files(cluster) == 0)


@pytest.mark.slow
def test_many_small_objects_are_each_on_their_owners_and_acknowledged_in_order(cluster: LocalCluster) -> None:
    objects = {f"n{at}": os.urandom(at) for at in range(100)}
    with Writer(cluster.nodes[1].url) as writer:
        results = writer.put_many(
            {name: objects[name] for name in list(objects)[:70]}, {name: objects[name] for name in list(objects)[70:]}
        )
    assert [result.info.name for result in results] == list(objects)
    for result in results:
        name = result.info.name
        assert copies_of(cluster, name) == dict.fromkeys(cluster.owners(name), (result.info.version, objects[name]))
        assert result.info.size_bytes == len(objects[name])


def test_faults_of_single_objects_stop_no_others_and_the_later_of_two_wins(cluster: LocalCluster) -> None:
    wrong = pb.SmallObject(bucket=BUCKET, name="wrong", data=b"x", checksum=1)
    group = pb.PutManyRequest(
        object=[
            pb.SmallObject(bucket=BUCKET, name="same", data=b"1"),
            wrong,
            pb.SmallObject(bucket=BUCKET, name="a//b", data=b"x"),
            pb.SmallObject(bucket="none", name="a", data=b"x"),
            pb.SmallObject(bucket=BUCKET, name="same", data=b"2"),
        ]
    )
    with Writer(cluster.nodes[0].url) as writer:
        (answer,) = writer.stub.PutMany(iter([group]), timeout=CALL_TIMEOUT_S)
    kinds = [result.error.kind for result in answer.result]
    assert kinds == ["", "content-mismatch", "invalid-name", "bucket-not-found", ""]
    assert copies_of(cluster, "same") == dict.fromkeys(cluster.owners("same"), (answer.result[4].info.version, b"2"))
    assert copies_of(cluster, "wrong") == {}
    eventually(lambda: staged_files(cluster) == 0)


@pytest.mark.slow
def test_overwriting_through_other_nodes_gives_ever_higher_versions(cluster: LocalCluster) -> None:
    versions = []
    for turn in range(8):
        with Writer(cluster.nodes[turn % 4].url) as writer:
            info = writer.put("same", b"%d" % turn) if turn % 2 else writer.put_many({"same": b"%d" % turn})[0].info
        versions.append(Version(*map(int, info.version.split("."))))
        assert copies_of(cluster, "same") == dict.fromkeys(cluster.owners("same"), (info.version, b"%d" % turn))
    assert versions == sorted(set(versions))


@pytest.mark.slow
def test_writers_of_the_same_names_through_all_nodes_leave_all_copies_equal(cluster: LocalCluster) -> None:
    names = [f"n{at}" for at in range(6)]
    acknowledged: dict[str, list[tuple[Version, bytes]]] = {name: [] for name in names}

    def write(number: int) -> None:
        with Writer(cluster.nodes[number].url) as writer:
            for turn in range(12):
                datas = {name: b"%s %d %d" % (name.encode(), number, turn) for name in names}
                if turn % 3:
                    infos = [result.info for result in writer.put_many(datas)]
                else:
                    infos = [writer.put(name, data) for name, data in datas.items()]
                for info in infos:
                    version = Version(*map(int, info.version.split(".")))
                    acknowledged[info.name].append((version, datas[info.name]))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    for name in names:
        assert len({version for version, _ in acknowledged[name]}) == 4 * 12
        version, data = max(acknowledged[name])
        assert copies_of(cluster, name) == dict.fromkeys(cluster.owners(name), (str(version), data))


# -- deleting


def test_a_deletion_leaves_tombstones_on_the_owners_and_a_put_replaces_them(cluster: LocalCluster) -> None:
    with Writer(cluster.nodes[3].url) as writer, Writer(cluster.nodes[0].url) as other:
        writer.put("a", b"1")
        other.delete("a")
        deleted = copies_of(cluster, "a")
        assert set(deleted) == set(cluster.owners("a"))
        assert len({version for version, _ in deleted.values()}) == 1 and {data for _, data in deleted.values()} == {
            None
        }
        for name in ("a", "never"):
            with pytest.raises(grpc.RpcError) as caught:
                writer.delete(name)
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert copies_of(cluster, "never") == {}
        info = writer.put("a", b"2")
        assert copies_of(cluster, "a") == dict.fromkeys(cluster.owners("a"), (info.version, b"2"))


@pytest.mark.slow
def test_a_deletion_finds_the_object_where_only_one_owner_has_it(cluster: LocalCluster) -> None:
    name = "a"
    owner, other = cluster.owners(name)
    cluster.put_on(other, {name: b"only here"})
    with Writer(cluster.nodes[owner].url) as writer:
        writer.delete(name)
    assert {data for _, data in copies_of(cluster, name).values()} == {None}


# -- what a client does wrong, or not to the end


def test_wrong_bytes_and_an_unfinished_put_leave_nothing_on_any_node(cluster: LocalCluster) -> None:
    with Writer(cluster.nodes[0].url) as writer:
        for broken, code in [
            (put_messages("a", b"x" * 100, checksum=1), grpc.StatusCode.INVALID_ARGUMENT),
            (put_messages("a", b"x" * 100, size_bytes=5), grpc.StatusCode.INVALID_ARGUMENT),
            (iter(list(put_messages("a", b"x" * 100))[:-1]), grpc.StatusCode.INVALID_ARGUMENT),
            (put_messages("a//b", b""), grpc.StatusCode.INVALID_ARGUMENT),
            (put_messages("a", b"", bucket="none"), grpc.StatusCode.NOT_FOUND),
        ]:
            with pytest.raises(grpc.RpcError) as caught:
                writer.stub.Put(broken, timeout=CALL_TIMEOUT_S)
            assert caught.value.code() == code, caught.value.details()
        assert copies_of(cluster, "a") == {}
        eventually(lambda: staged_files(cluster) == 0)


@pytest.mark.slow
def test_a_client_that_gives_up_leaves_nothing_on_any_node(cluster: LocalCluster) -> None:
    release = threading.Event()

    def messages() -> Iterator[pb.PutRequest]:
        sent = list(put_messages("a", b"x" * 3_000_000))
        yield from sent[:2]
        release.wait(CALL_TIMEOUT_S)

    with Writer(cluster.nodes[0].url) as writer:
        call = writer.stub.Put.future(messages(), timeout=CALL_TIMEOUT_S)
        eventually(lambda: staged_files(cluster) == 2)
        call.cancel()
        eventually(lambda: staged_files(cluster) == 0)
        release.set()
    assert copies_of(cluster, "a") == {}


# -- a map in motion


@pytest.mark.slow
def test_while_objects_move_a_write_goes_above_what_only_the_former_owner_has(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 4, copies=1, linked=True) as cluster, Writer(cluster.nodes[0].url) as writer:
        cluster.links[3].refuse()  # so that nobody finishes the change
        cluster.map.node[2].state = cluster_pb.MapNode.JOINING
        cluster.learn()
        name = next(
            name for at in range(1000) if cluster.owners(name := f"n{at}") == [2] and cluster.holders(name) == [2, 1]
        )
        store = cluster.batches(1).node.store
        with store.begin_put(BUCKET, name, version=Version(90, 7, 2)) as upload:
            upload.write(b"not moved yet")
            upload.commit()
        info = writer.put(name, b"new")
        assert Version(*map(int, info.version.split("."))) > Version(90, 7, 2)
        assert copies_of(cluster, name)[2] == (info.version, b"new")
        writer.delete(name)
        copies = copies_of(cluster, name)
        assert {data for _, data in copies.values()} == {None}
        assert {2} <= set(copies) <= {1, 2}  # repair drops the former owner's once the owner has it


def test_a_node_without_a_place_in_the_map_refuses_writes(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, copies=1) as cluster, Writer(cluster.nodes[2].url) as writer:
        del cluster.map.node[2]
        cluster.learn()
        with pytest.raises(grpc.RpcError) as caught:
            writer.put("a", b"1")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "no longer part of the cluster" in caught.value.details()


# -- the protocol between nodes


def commit(*versions: int) -> wire.WriteRequest:
    chosen = [wire.CommitObject(version=wire.ObjectVersion(epoch=5, counter=counter, node=1)) for counter in versions]
    return wire.WriteRequest(commit=wire.WriteCommit(object=chosen))


@pytest.mark.slow
def test_messages_out_of_turn_end_a_write_and_leave_nothing(cluster: LocalCluster) -> None:
    uuid = cluster.map.bucket[0].uuid
    header = wire.WriteRequest(header=wire.WriteHeader(object=pb.PutHeader(bucket=BUCKET, name="a"), bucket_uuid=uuid))
    end = wire.WriteRequest(end=pb.PutEnd())
    group = wire.WriteRequest(
        group=wire.WriteGroup(object=[pb.SmallObject(bucket=BUCKET, name="a")], bucket_uuid={BUCKET: uuid})
    )
    with peer_of(cluster.nodes[0]) as channel:
        stub = wire_rpc.ReplicaStub(channel)
        for wrong in (
            [commit(1)],
            [end],
            [wire.WriteRequest(data=b"x")],
            [wire.WriteRequest()],
            [header, header],
            [header, group],
            [group, group],
            [group, end],
            [group, commit(1, 2)],
        ):
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Write(iter(wrong), timeout=CALL_TIMEOUT_S))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, wrong
        assert held(cluster.batches(0).node.store) == {}
        eventually(lambda: staged_files(cluster) == 0)
        answers = list(stub.Write(iter([group, commit(7)]), timeout=CALL_TIMEOUT_S))
        assert [answer.WhichOneof("part") for answer in answers] == ["staged", "committed"]
        late = list(stub.Write(iter([group, commit(6)]), timeout=CALL_TIMEOUT_S))
        assert late[0].staged.object[0].newest.counter == 7
        assert late[1].committed.object[0].version.counter == 7
    assert held(cluster.batches(0).node.store) == {"a": ("5.7.1", b"")}


@pytest.mark.slow
def test_another_bucket_of_the_same_name_takes_nothing(cluster: LocalCluster) -> None:
    header = wire.WriteHeader(object=pb.PutHeader(bucket=BUCKET, name="a"), bucket_uuid=b"x" * 16)
    with peer_of(cluster.nodes[0]) as channel:
        stub = wire_rpc.ReplicaStub(channel)
        (answer,) = stub.Write(iter([wire.WriteRequest(header=header)]), timeout=CALL_TIMEOUT_S)
    assert answer.staged.object[0].error.kind == "bucket-not-found"
    eventually(lambda: staged_files(cluster) == 0)


# -- what repair works with


@pytest.mark.slow
def test_versions_are_listed_page_by_page_and_forgotten_on_request(cluster: LocalCluster) -> None:
    with Writer(cluster.nodes[0].url) as writer:
        writer.put_many({f"n{at:02}": b"x" * at for at in range(30)})
        writer.delete("n03")
    bucket = wire.BucketRef(name=BUCKET, uuid=cluster.map.bucket[0].uuid)
    for number in range(4):
        expected = held(cluster.batches(number).node.store)
        with peer_of(cluster.nodes[number]) as channel:
            stub = wire_rpc.ReplicaStub(channel)
            found: list[wire.ObjectState] = []
            is_last, after = False, ""
            while not is_last:
                page = stub.Versions(
                    wire.VersionsRequest(bucket=bucket, start_after=after, limit=4), timeout=CALL_TIMEOUT_S
                )
                assert 0 < len(page.object) <= 4
                found += page.object
                is_last, after = not page.next, page.next
            assert [state.name for state in found] == sorted(expected)
            assert [state.is_tombstone for state in found] == [expected[state.name][1] is None for state in found]
            newest = stub.Newest(
                wire.NewestRequest(bucket=bucket, name=[*sorted(expected), "none"]), timeout=CALL_TIMEOUT_S
            )
            for state in newest.object:
                if not state.is_tombstone:
                    state.ClearField("writes")
                state.ClearField("modified_ns")
            assert list(newest.object)[:-1] == found and not newest.object[-1].HasField("version")
            if "n03" in expected:
                (tombstone,) = [state for state in found if state.is_tombstone]
                store = cluster.batches(number).node.store
                assert store.replicas.forget_tombstone(BUCKET, "n03", from_wire(tombstone.version))
                assert "n03" not in held(store)
            other = wire.BucketRef(name=BUCKET, uuid=b"x" * 16)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Versions(wire.VersionsRequest(bucket=other), timeout=CALL_TIMEOUT_S)
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND

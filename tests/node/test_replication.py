"""Writes of several copies, coordinated by whatever node they come to."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader.testing import eventually
from protos import ais_cluster_pb2 as cluster_pb
from protos import ais_objects_pb2 as pb
from protos import ais_replica_pb2 as wire
from protos import ais_replica_pb2_grpc as wire_rpc
from protos.cluster_map import object_hashes
from storage_node.store.format import Version
from tests.node.cluster_kit import LocalCluster
from tests.node.write_kit import BUCKET, CALL_TIMEOUT_S, Writer, held, put_messages


@contextlib.contextmanager
def cluster_of(
    root: Path, nodes: int = 4, *, copies: int = 2, min_copies: int = 1, **how: object
) -> Iterator[LocalCluster]:
    with LocalCluster(root, nodes, copies=copies, **how) as cluster:  # type: ignore[arg-type]
        if min_copies != 1:
            cluster.map.bucket[0].min_copies = min_copies
            cluster.learn()
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with cluster_of(tmp_path) as running:
        yield running


def copies_of(cluster: LocalCluster, name: str) -> dict[int, tuple[str, bytes | None]]:
    """Which nodes have the name, with version and bytes."""
    found = {}
    for number in range(len(cluster.nodes)):
        here = held(cluster.service(number).store)
        if name in here:
            found[number] = here[name]
    return found


def staged_files(cluster: LocalCluster) -> int:
    drives = [drive for number in range(len(cluster.nodes)) for drive in cluster.service(number).store.drives]
    return sum(len(os.listdir(drive.root / "staging")) for drive in drives if drive is not None)


def name_with(cluster: LocalCluster, fits: Callable[[list[int]], bool], prefix: str = "n") -> str:
    """A name whose owners, best first, fit."""
    return next(name for at in range(10_000) if fits(cluster.owners(name := f"{prefix}{at}")))


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
            record = cluster.service(owner).store.head(BUCKET, name)
            assert (record.metadata, record.modified_ns, record.checksum) == (
                {"k": "grüß"}, info.modified_ns, info.checksum,
            )  # fmt: skip
            assert record.node == number + 1
    assert staged_files(cluster) == 0


def test_many_small_objects_are_each_on_their_owners_and_acknowledged_in_order(cluster: LocalCluster) -> None:
    objects = {f"n{at}": os.urandom(at) for at in range(100)}
    with Writer(cluster.nodes[1].url) as writer:
        results = writer.put_many({name: objects[name] for name in list(objects)[:70]},
                                  {name: objects[name] for name in list(objects)[70:]})  # fmt: skip
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
    assert staged_files(cluster) == 0


def test_overwriting_through_other_nodes_gives_ever_higher_versions(cluster: LocalCluster) -> None:
    versions = []
    for turn in range(8):
        with Writer(cluster.nodes[turn % 4].url) as writer:
            info = writer.put("same", b"%d" % turn) if turn % 2 else writer.put_many({"same": b"%d" % turn})[0].info
        versions.append(Version(*map(int, info.version.split("."))))
        assert copies_of(cluster, "same") == dict.fromkeys(cluster.owners("same"), (info.version, b"%d" % turn))
    assert versions == sorted(set(versions))


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
        thread.join(100)
    for name in names:
        assert len({version for version, _ in acknowledged[name]}) == 4 * 12
        version, data = max(acknowledged[name])
        assert copies_of(cluster, name) == dict.fromkeys(cluster.owners(name), (str(version), data))


# -- deleting


def test_a_deletion_leaves_tombstones_on_the_owners_and_a_put_replaces_them(cluster: LocalCluster) -> None:
    with Writer(cluster.nodes[3].url) as writer, Writer(cluster.nodes[0].url) as other:
        writer.put("a", b"1")
        other.delete("a")
        buried = copies_of(cluster, "a")
        assert set(buried) == set(cluster.owners("a"))
        assert len({version for version, _ in buried.values()}) == 1 and {data for _, data in buried.values()} == {None}
        for name in ("a", "never"):
            with pytest.raises(grpc.RpcError) as caught:
                writer.delete(name)
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert copies_of(cluster, "never") == {}
        info = writer.put("a", b"2")
        assert copies_of(cluster, "a") == dict.fromkeys(cluster.owners("a"), (info.version, b"2"))


def test_a_deletion_finds_the_object_where_only_one_owner_has_it(cluster: LocalCluster) -> None:
    name = "a"
    owner, other = cluster.owners(name)
    cluster.put_on(other, {name: b"only here"})
    with Writer(cluster.nodes[owner].url) as writer:
        writer.delete(name)
    assert {data for _, data in copies_of(cluster, name).values()} == {None}


# -- nodes that do not answer


def test_the_next_host_takes_the_place_of_an_owner_that_is_gone(cluster: LocalCluster) -> None:
    gone = 2
    cluster.nodes[gone].stop(grace_s=0)
    rankings = {f"n{at}": cluster_ranking(cluster, f"n{at}") for at in range(40)}
    expected = {name: [node for node in ranking if node != gone][:2] for name, ranking in rankings.items()}
    with Writer(cluster.nodes[0].url) as writer:
        results = writer.put_many({name: name.encode() for name in rankings})
        one = writer.put("n0", b"again")
    assert {result.WhichOneof("result") for result in results} == {"info"}
    live = {number: held(cluster.service(number).store) for number in (0, 1, 3)}
    for name, nodes in expected.items():
        assert [number for number in (0, 1, 3) if name in live[number]] == sorted(nodes)
        assert {live[number][name][1] for number in nodes} == {b"again" if name == "n0" else name.encode()}
    assert one.name == "n0"


def cluster_ranking(cluster: LocalCluster, name: str) -> list[int]:
    placement = cluster.view.placement
    ranking: list[int] = placement.owners(object_hashes(cluster.view.buckets[BUCKET].uuid, [name]), placement.hosts)[
        0
    ].tolist()
    return ranking


@pytest.mark.parametrize("how", ["put", "put_many", "delete"])
def test_fewer_nodes_than_min_copies_is_an_error_to_retry_and_changes_nothing(tmp_path: Path, how: str) -> None:
    with cluster_of(tmp_path, 3, copies=3, min_copies=3) as cluster, Writer(cluster.nodes[0].url) as writer:
        before = writer.put("a", b"before")
        cluster.nodes[2].stop(grace_s=0)
        if how == "put_many":
            (result,) = writer.put_many({"a": b"after"})
            kind, message = result.error.kind, result.error.message
        else:
            with pytest.raises(grpc.RpcError) as caught:
                writer.put("a", b"after" * 1000) if how == "put" else writer.delete("a")
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            kind = dict(caught.value.trailing_metadata())["ais-error-kind"]
            message = caught.value.details()
        assert kind == "node-unavailable"
        assert "2 copies can be written now, 3 at least are needed" in message
        for number in (0, 1):
            assert held(cluster.service(number).store) == {"a": (before.version, b"before")}
            eventually(lambda: staged_here(cluster, number) == 0)  # noqa: B023


def staged_here(cluster: LocalCluster, number: int) -> int:
    drive = cluster.service(number).store.drives[0]
    assert drive is not None
    return len(os.listdir(drive.root / "staging"))


def staged_bytes(cluster: LocalCluster, number: int) -> int:
    drive = cluster.service(number).store.drives[0]
    assert drive is not None
    return sum(path.stat().st_size for path in (drive.root / "staging").iterdir())


def test_with_fewer_hosts_than_copies_all_of_them_get_one(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, copies=3, min_copies=2) as cluster, Writer(cluster.nodes[1].url) as writer:
        info = writer.put("a", b"1")
        assert copies_of(cluster, "a") == {0: (info.version, b"1"), 1: (info.version, b"1")}


def test_a_node_that_says_nothing_is_passed_over_and_has_the_next_write_when_it_speaks_again(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, copies=2, linked=True) as cluster:
        silent = 1
        name = name_with(cluster, lambda owners: owners[0] == silent and owners[1] == 0)
        with Writer(cluster.nodes[0].url) as writer:
            cluster.links[silent].stall()
            first = writer.put(name, b"first" * 100_000)
            (second,) = writer.put_many({name: b"second"})
            assert first.version != second.info.version
            for number in (0, 2):
                assert held(cluster.service(number).store)[name] == (second.info.version, b"second")
            assert held(cluster.service(silent).store) == {}
            cluster.links[silent].flow()

            def arrives() -> bool:
                third = writer.put(name, b"third")
                return held(cluster.service(silent).store).get(name) == (third.version, b"third")

            eventually(arrives, 30, interval_s=0.2)
        eventually(lambda: staged_files(cluster) == 0, 20)


def test_an_owner_that_breaks_while_bytes_stream_in_is_left_out(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, copies=2, linked=True) as cluster:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        half, data = threading.Event(), os.urandom(4 << 20)

        def messages() -> Iterator[pb.PutRequest]:
            for at, message in enumerate(put_messages(name, data)):
                if at == 3:
                    eventually(lambda: staged_bytes(cluster, 1) > 0)  # it has taken the object on
                    cluster.links[1].refuse()
                    half.set()
                yield message

        with Writer(cluster.nodes[0].url) as writer:
            info = writer.stub.Put(messages(), timeout=CALL_TIMEOUT_S)
        assert half.is_set()
        assert copies_of(cluster, name) == {0: (info.version, data)}
        eventually(lambda: staged_files(cluster) == 0)


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


def test_while_objects_move_a_write_goes_above_what_only_the_former_owner_has(tmp_path: Path) -> None:
    states = {2: cluster_pb.MapNode.JOINING}
    with cluster_of(tmp_path, 3, copies=1, states=states) as cluster, Writer(cluster.nodes[0].url) as writer:
        name = next(
            name for at in range(1000)
            if cluster.owners(name := f"n{at}") == [2] and cluster.holders(name) == [2, 1]
        )  # fmt: skip
        store = cluster.service(1).store
        with store.begin_put(BUCKET, name, version=Version(90, 7, 2)) as upload:
            upload.write(b"not moved yet")
            upload.commit()
        info = writer.put(name, b"new")
        assert Version(*map(int, info.version.split("."))) > Version(90, 7, 2)
        assert copies_of(cluster, name)[2] == (info.version, b"new")
        writer.delete(name)
        assert {data for _, data in copies_of(cluster, name).values()} == {None}
        assert set(copies_of(cluster, name)) == {1, 2}


def test_a_node_without_a_place_in_the_map_refuses_writes(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, copies=1) as cluster, Writer(cluster.nodes[2].url) as writer:
        del cluster.map.node[2]
        cluster.learn()
        with pytest.raises(grpc.RpcError) as caught:
            writer.put("a", b"1")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "no longer part of the cluster" in caught.value.details()


# -- what repair works with


def test_versions_are_listed_page_by_page_and_forgotten_on_request(cluster: LocalCluster) -> None:
    with Writer(cluster.nodes[0].url) as writer:
        writer.put_many({f"n{at:02}": b"x" * at for at in range(30)})
        writer.delete("n03")
    bucket = wire.BucketRef(name=BUCKET, uuid=cluster.map.bucket[0].uuid)
    for number in range(4):
        expected = held(cluster.service(number).store)
        with grpc.insecure_channel(cluster.nodes[number].url.removeprefix("grpc://")) as channel:
            stub = wire_rpc.ReplicaStub(channel)
            found: list[wire.ObjectState] = []
            more, after = True, ""
            while more:
                page = stub.Versions(
                    wire.VersionsRequest(bucket=bucket, start_after=after, limit=4), timeout=CALL_TIMEOUT_S
                )
                assert 0 < len(page.object) <= 4
                found += page.object
                more, after = page.more, found[-1].name
            assert [state.name for state in found] == sorted(expected)
            assert [state.is_tombstone for state in found] == [expected[state.name][1] is None for state in found]
            newest = stub.Newest(
                wire.NewestRequest(bucket=bucket, name=[*sorted(expected), "none"]), timeout=CALL_TIMEOUT_S
            )
            assert list(newest.object)[:-1] == found and not newest.object[-1].HasField("version")
            if "n03" in expected:
                (grave,) = [state for state in found if state.is_tombstone]
                forget = wire.ForgetRequest(bucket=bucket, name="n03", version=grave.version, tombstone_only=True)
                assert not stub.Forget(forget, timeout=CALL_TIMEOUT_S).HasField("left")
                assert "n03" not in held(cluster.service(number).store)
            other = wire.BucketRef(name=BUCKET, uuid=b"x" * 16)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Versions(wire.VersionsRequest(bucket=other), timeout=CALL_TIMEOUT_S)
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND

"""Writes on conditions in a cluster: the first owner decides, or nobody does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader import ClusterOptions, connect, errors
from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication.commit import CommitProtocol
from storage_node.limits.name_locks import NameLocks
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.format import Version
from storage_node.store.store import Store
from storage_node.store.write import Upload
from tests.faulty_link import FaultyLink
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.loop_kit import run, settle
from tests.node.write_kit import Writer, cluster_of, copies_of, name_with, staged_files
from tests.patience import PATIENT_CLIENT

ABSENT = pb.PutCondition(if_absent=True)
LARGE = bytes(2 << 20)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with cluster_of(tmp_path, 3, repair_interval_s=600.0) as running:
        yield running


def at(version: str, write_id: bytes = b"") -> pb.PutCondition:
    return pb.PutCondition(if_version=version, write_id=write_id)


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    """The kind of error that a call ends with, and what it says."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    trailer = dict(caught.value.trailing_metadata() or ())  # type: ignore[attr-defined]
    return trailer["ais-error-kind"], caught.value.details()  # type: ignore[attr-defined]


def put_on(cluster: LocalCluster, number: int, name: str, data: bytes, version: Version) -> None:
    with cluster.batches(number).node.store.begin_put(BUCKET, name, version=version) as upload:
        upload.write(data)
        upload.commit()


def refusals(url: str, name: str, version: str) -> list[tuple[str, str]]:
    """What a node has against writes of all kinds in place of a version."""
    condition = at(version)
    with Writer(url) as writer:
        small = pb.SmallObject(bucket=BUCKET, name=name, data=b"x", condition=condition)
        (answer,) = writer.stub.PutMany(iter([pb.PutManyRequest(object=[small])]), timeout=180)
        return [
            (answer.result[0].error.kind, answer.result[0].error.message),
            refused(lambda: writer.put(name, b"x", condition=condition)),
            refused(lambda: writer.put(name, LARGE, condition=condition)),
            refused(
                lambda: writer.stub.Delete(pb.DeleteRequest(bucket=BUCKET, name=name, if_version=version), timeout=180)
            ),
        ]


# -- who decides


def test_a_node_that_is_not_the_first_owner_says_who_is_and_stores_nothing(cluster: LocalCluster) -> None:
    name = name_with(cluster, lambda owners: owners == [1, 0])
    before = Version(5, 7, 1)
    for number in (0, 1):
        put_on(cluster, number, name, b"old", before)
    for number in (0, 2):
        for kind, said in refusals(cluster.nodes[number].url, name, "5.7.1"):
            assert kind == "stale-map"
            assert cluster.map.node[1].peer_endpoint in said
    assert copies_of(cluster, name) == {0: ("5.7.1", b"old"), 1: ("5.7.1", b"old")}
    eventually(lambda: staged_files(cluster) == 0)


@pytest.mark.parametrize("data", [b"new", LARGE])
def test_what_only_another_owner_has_counts(cluster: LocalCluster, data: bytes) -> None:
    name = name_with(cluster, lambda owners: owners == [1, 0])
    put_on(cluster, 0, name, b"other", Version(5, 70, 3))
    with Writer(cluster.nodes[1].url) as writer:
        kind, said = refused(lambda: writer.put(name, data, condition=ABSENT))
        assert (kind, "5.70.3" in said) == ("version-conflict", True)
        info = writer.put(name, data, condition=at("5.70.3"))
        assert Version(*map(int, info.version.split("."))) > Version(5, 70, 3)
        assert copies_of(cluster, name) == dict.fromkeys((0, 1), (info.version, data))
        assert refused(lambda: writer.put(name, data, condition=at("5.70.3")))[0] == "version-conflict"
        writer.stub.Delete(pb.DeleteRequest(bucket=BUCKET, name=name, if_version=info.version))
        assert {held for _, held in copies_of(cluster, name).values()} == {None}
        writer.put(name, data, condition=ABSENT)
    eventually(lambda: staged_files(cluster) == 0)


@pytest.mark.slow
def test_with_another_owner_gone_the_first_one_decides(cluster: LocalCluster) -> None:
    name = name_with(cluster, lambda owners: owners == [1, 0])
    with Writer(cluster.nodes[1].url) as writer:
        first = writer.put(name, b"1", condition=ABSENT)
        cluster.nodes[0].stop(grace_s=0)
        second = writer.put(name, b"2", condition=at(first.version))
        assert refused(lambda: writer.put(name, b"3", condition=at(first.version)))[0] == "version-conflict"
        assert refused(lambda: writer.put(name, b"3", condition=ABSENT))[0] == "version-conflict"
        (result,) = writer.put_many([(name, b"4")])
        assert result.info.version > second.version


@pytest.mark.slow
def test_with_the_first_owner_gone_nobody_decides(cluster: LocalCluster) -> None:
    name = name_with(cluster, lambda owners: owners == [1, 0])
    url = ",".join(node.url for node in cluster.nodes)
    with (
        connect(url, options=ClusterOptions(retry_s=0.5)) as client,
        connect(url, options=PATIENT_CLIENT) as patient,
    ):
        bucket = client.bucket(BUCKET)
        info = patient.bucket(BUCKET).put(name, b"1", if_absent=True)
        cluster.nodes[1].stop(grace_s=0)
        for call in (
            lambda: bucket.put(name, b"2", if_version=info.version),
            lambda: bucket.put(f"{name}", LARGE, if_absent=True),
            lambda: bucket.delete(name, if_version=info.version),
            lambda: bucket.set_metadata(name, {"k": "v"}),
            lambda: bucket.put_many([(name, b"2")], if_absent=True),
        ):
            with pytest.raises(errors.NodeUnavailable):
                call()
        bucket = patient.bucket(BUCKET)
        assert (bucket.get(name), bucket.head(name)) == (b"1", info)
        bucket.put(name, b"2")  # without a condition another owner takes its place
    eventually(lambda: sum(staged_files_of(cluster, number) for number in (0, 2)) == 0)


def staged_files_of(cluster: LocalCluster, number: int) -> int:
    return sum(
        len(list((drive.root / "staging").iterdir()))
        for drive in cluster.batches(number).node.store.drives
        if drive is not None
    )


@pytest.mark.slow
def test_a_first_owner_whose_copies_are_in_doubt_asks_all_nodes_or_does_not_decide(cluster: LocalCluster) -> None:
    name = name_with(cluster, lambda owners: owners == [1, 0])
    put_on(cluster, 2, name, b"elsewhere", Version(5, 70, 3))  # the third node, which took an owner's place once
    doubts = cluster.batches(1).node.store.replicas.stale
    with Writer(cluster.nodes[1].url) as writer:
        doubts.mark_names(cluster.map.bucket[0].uuid, {name: Version(5, 70, 3)})
        assert refused(lambda: writer.put(name, b"1", condition=ABSENT))[0] == "version-conflict"
        cluster.nodes[2].stop(grace_s=0)
        kind, said = refused(lambda: writer.put(name, b"1", condition=ABSENT))
        assert (kind, cluster.map.node[2].peer_endpoint in said) == ("node-unavailable", True)


# -- a map in motion


@pytest.mark.slow
def test_while_objects_move_what_a_former_owner_has_counts(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, copies=1, linked=True) as cluster, Writer(cluster.nodes[2].url) as writer:
        cluster.links[2].refuse()  # so that nobody finishes the change
        cluster.map.node[2].state = cluster_pb.MapNode.JOINING
        cluster.learn()
        names = [name for n in range(200) if cluster.holders(name := f"n{n}") == [2, 1]]
        put_on(cluster, 1, names[0], b"not moved yet", Version(5, 70, 2))
        kind, said = refused(lambda: writer.put(names[0], b"1", condition=ABSENT))
        assert (kind, "5.70.2" in said) == ("version-conflict", True)
        writer.put(names[0], b"1", condition=at("5.70.2"))
        writer.put(names[1], b"2", condition=ABSENT)
        # By the map before, that node decided: without it nobody can tell what it has told others.
        cluster.nodes[1].stop(grace_s=0)
        kind, said = refused(lambda: writer.put(names[2], b"3", condition=ABSENT))
        assert (kind, cluster.map.node[1].peer_endpoint in said) == ("node-unavailable", True)


def test_a_former_first_owner_hears_of_the_map_before_another_one_decides(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, copies=1, repair_interval_s=600.0) as cluster:
        old = {name: cluster.owners(name) for name in (f"n{n}" for n in range(200))}
        cluster.map.node[2].state = cluster_pb.MapNode.LEAVING
        cluster.map.version += 1
        cluster.view = type(cluster.view)(cluster.map)
        name = next(name for name, owners in old.items() if owners == [2] and cluster.owners(name) == [1])
        cluster.nodes[1].membership.learn(cluster.map)
        with Writer(cluster.nodes[1].url) as writer, Writer(cluster.nodes[2].url) as former:
            lease = cluster.nodes[2].membership.lease
            lease.hold(1)  # as if it were about to commit
            kind, said = refused(lambda: writer.put(name, b"1", condition=ABSENT))
            assert (kind, "older map" in said) == ("node-unavailable", True)
            lease.end(1)
            info = writer.put(name, b"1", condition=ABSENT)
            # Once the change is finished, it has no place in the map.
            assert refused(lambda: former.put(name, b"2", condition=ABSENT))[0] in ("stale-map", "node-unavailable")
            assert copies_of(cluster, name)[1] == (info.version, b"1")


def test_a_first_owner_that_has_missed_a_map_does_not_decide_by_the_old_one(cluster: LocalCluster) -> None:
    name = name_with(cluster, lambda owners: owners == [1, 0])
    cluster.map.version += 1
    del cluster.map.node[1]
    cluster.nodes[0].membership.learn(cluster.map)
    with Writer(cluster.nodes[1].url) as writer:
        # What its fellow owner answers tells it.
        assert refused(lambda: writer.put(name, b"1", condition=ABSENT))[0] in ("stale-map", "node-unavailable")
    assert copies_of(cluster, name) == {}


# -- the same write twice


def test_a_write_that_is_sent_again_knows_itself(cluster: LocalCluster) -> None:
    name = name_with(cluster, lambda owners: owners == [1, 0])
    mine = pb.PutCondition(if_absent=True, write_id=b"m" * 16)
    with Writer(cluster.nodes[1].url) as writer:
        first = writer.put(name, b"mine", condition=mine)
        again = writer.put(name, b"mine", condition=mine)
        assert copies_of(cluster, name) == dict.fromkeys((0, 1), (again.version, b"mine"))
        other = pb.PutCondition(if_absent=True, write_id=b"o" * 16)
        assert refused(lambda: writer.put(name, b"mine", condition=other))[0] == "version-conflict"
        last = writer.put(name, b"next", condition=at(again.version, b"n" * 16))
        # Replaced since: it was stored all the same, and what replaced it stays.
        assert writer.put(name, b"mine", condition=mine).version in (first.version, again.version)
        assert copies_of(cluster, name) == dict.fromkeys((0, 1), (last.version, b"next"))


@pytest.mark.parametrize("how", ["put", "put_many"])
def test_an_answer_that_is_lost_is_no_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    lost: list[str] = []
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0)) as node, FaultyLink(node.url) as link:

        def losing(done: Any) -> Any:
            def commit(*arguments: Any) -> Any:
                result = done(*arguments)
                if not lost:
                    lost.append(how)
                    link.cut()  # it is committed, and nobody is told
                return result

            return commit

        monkeypatch.setattr(Upload, "commit", losing(Upload.commit))
        monkeypatch.setattr(Store, "commit_many", losing(Store.commit_many))
        with connect(link.url, options=PATIENT_CLIENT) as client:
            bucket = client.create_bucket(BUCKET)
            if how == "put":
                info = bucket.put("a", b"mine", if_absent=True)
            else:
                (info,) = bucket.put_many([("a", b"mine")], if_absent=True).infos
            assert lost == [how]
            assert (bucket.head("a"), bucket.get("a")) == (info, b"mine")
            with pytest.raises(errors.VersionConflict):
                bucket.put("a", b"mine", if_absent=True)


@pytest.mark.slow
def test_an_answer_that_is_lost_in_a_cluster_is_no_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[str] = []
    real = CommitProtocol.commit
    with LocalCluster(tmp_path, 3, copies=2, clients_linked=True, reach_timeout_s=20.0) as cluster:

        async def commit(self: CommitProtocol, *arguments: Any) -> Any:
            done = await real(self, *arguments)
            if not lost:
                lost.append("put")
                for link in cluster.client_links:
                    link.cut()
            return done

        monkeypatch.setattr(CommitProtocol, "commit", commit)
        with connect(",".join(link.url for link in cluster.client_links), options=PATIENT_CLIENT) as client:
            bucket = client.bucket(BUCKET)
            info = bucket.put("a", b"mine", if_absent=True)
            assert (lost, bucket.get("a"), bucket.head("a")) == (["put"], b"mine", info)
            with pytest.raises(errors.VersionConflict):
                bucket.put("a", b"mine", if_absent=True)


# -- names


def test_a_name_is_one_writers_at_a_time_and_nothing_is_left_of_locks() -> None:
    async def main() -> None:
        locks, order = NameLocks(), []
        first_has, go = asyncio.Event(), asyncio.Event()

        async def hold(who: str, *names: str) -> None:
            async with locks.hold((b"", name) for name in names):
                order.append(who)
                if who == "first":
                    first_has.set()
                    await go.wait()
                order.append(who)

        tasks = [asyncio.create_task(hold("first", "b", "a", "b"))]
        await first_has.wait()
        tasks += [asyncio.create_task(hold("second", "a", "c")), asyncio.create_task(hold("other", "d"))]
        given_up = asyncio.create_task(hold("given up", "c", "a"))
        await settle()
        given_up.cancel()
        await settle()
        assert order == ["first", "other", "other"]
        go.set()
        await asyncio.gather(*tasks)
        assert order[3:] == ["first", "second", "second"]
        assert len(locks) == 0

    run(main())


@pytest.mark.slow
def test_no_write_comes_between_what_a_condition_wanted_and_what_replaced_it(cluster: LocalCluster) -> None:
    name = name_with(cluster, lambda owners: owners == [1, 0])
    over = threading.Event()
    written: list[Version] = []
    failed: list[BaseException] = []

    def overwrite() -> None:
        try:
            with Writer(cluster.nodes[1].url) as writer:
                for number in range(60):
                    if number % 10 == 9:
                        writer.delete(name)
                    else:
                        written.append(version_of(writer.put(name, b"any")))
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=overwrite)
    thread.start()
    replaced: list[tuple[Version, Version]] = []
    with Writer(cluster.nodes[1].url) as writer:
        while not over.is_set():
            there = cluster.batches(1).node.store.replicas.newest(BUCKET, [name])[0]
            if there is not None and not there.is_tombstone:
                try:
                    info = writer.put(name, b"mine", condition=at(str(there.version)))
                    replaced.append((there.version, version_of(info)))
                except grpc.RpcError as error:
                    assert dict(error.trailing_metadata())["ais-error-kind"] == "version-conflict"
    thread.join(timeout=180)
    assert not failed
    ends = [after for _, after in replaced]
    for before, after in replaced:
        assert not [version for version in (*written, *ends) if before < version < after]
    assert len({before for before, _ in replaced}) == len(replaced)
    copies = copies_of(cluster, name)
    assert set(copies) == {0, 1}
    assert len(set(copies.values())) == 1


def version_of(info: pb.ObjectInfo) -> Version:
    return Version(*map(int, info.version.split(".")))

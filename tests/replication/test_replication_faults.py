"""Coordinated writes while nodes are gone, silent, stopped or lost at the worst moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.store.format import Version
from storage_node.store.replica_state import ReplicaState
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import (
    CALL_TIMEOUT_S,
    Writer,
    cluster_of,
    cluster_ranking,
    copies_of,
    held,
    name_with,
    put_messages,
    staged_bytes,
    staged_files,
    staged_here,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with cluster_of(tmp_path) as running:
        yield running


# -- nodes that do not answer


@pytest.mark.slow
def test_the_next_host_takes_the_place_of_an_owner_that_is_gone(cluster: LocalCluster) -> None:
    gone = 2
    cluster.nodes[gone].stop(grace_s=0)
    rankings = {f"n{at}": cluster_ranking(cluster, f"n{at}") for at in range(40)}
    expected = {name: [node for node in ranking if node != gone][:2] for name, ranking in rankings.items()}
    with Writer(cluster.nodes[0].url) as writer:
        results = writer.put_many({name: name.encode() for name in rankings})
        one = writer.put("n0", b"again")
    assert {result.WhichOneof("result") for result in results} == {"info"}
    live = {number: held(cluster.batches(number).node.store) for number in (0, 1, 3)}
    for name, nodes in expected.items():
        assert [number for number in (0, 1, 3) if name in live[number]] == sorted(nodes)
        assert {live[number][name][1] for number in nodes} == {b"again" if name == "n0" else name.encode()}
    assert one.name == "n0"


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
            assert held(cluster.batches(number).node.store) == {"a": (before.version, b"before")}
            eventually(lambda: staged_here(cluster, number) == 0)  # noqa: B023


def test_with_fewer_hosts_than_copies_all_of_them_get_one(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, copies=3, min_copies=2) as cluster, Writer(cluster.nodes[1].url) as writer:
        info = writer.put("a", b"1")
        assert copies_of(cluster, "a") == {0: (info.version, b"1"), 1: (info.version, b"1")}


@pytest.mark.slow
def test_a_node_that_says_nothing_is_passed_over_and_has_the_next_write_when_it_speaks_again(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, copies=2, linked=True, reach_timeout_s=1.0) as cluster:
        silent = 1
        name = name_with(cluster, lambda owners: owners[0] == silent and owners[1] == 0)
        with Writer(cluster.nodes[0].url) as writer:
            cluster.links[silent].stall()
            first = writer.put(name, b"first" * 100_000)

            def passed_over() -> bool:
                """Also the third node may be too slow for a moment."""
                (second,) = writer.put_many({name: b"second"})
                assert first.version != second.info.version
                found = [held(cluster.batches(number).node.store).get(name) for number in (0, 2)]
                return found == [(second.info.version, b"second")] * 2

            eventually(passed_over)
            assert held(cluster.batches(silent).node.store) == {}
            cluster.links[silent].flow()

            def arrives() -> bool:
                third = writer.put(name, b"third")
                return held(cluster.batches(silent).node.store).get(name) == (third.version, b"third")

            eventually(arrives, interval_s=0.2)
        eventually(lambda: staged_files(cluster) == 0)


@pytest.mark.slow
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
        copies = copies_of(cluster, name)  # the third node may have taken its place by now
        assert {0} <= set(copies) <= {0, 2} and set(copies.values()) == {(info.version, data)}
        eventually(lambda: staged_files(cluster) == 0)


@pytest.mark.slow
def test_an_owner_that_is_stopped_while_bytes_stream_in_is_left_out(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, copies=2) as cluster:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        data = os.urandom(4 << 20)

        def messages() -> Iterator[pb.PutRequest]:
            for at, message in enumerate(put_messages(name, data)):
                if at == 3:
                    eventually(lambda: staged_bytes(cluster, 1) > 0)
                    cluster.nodes[1].stop(grace_s=0)
                yield message

        with Writer(cluster.nodes[0].url) as writer:
            info = writer.stub.Put(messages(), timeout=CALL_TIMEOUT_S)
        # The third node may have taken its place by now.
        here, other = (held(cluster.batches(number).node.store) for number in (0, 2))
        assert here == {name: (info.version, data)} and other in ({}, here)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["put", "put_many", "delete"])
def test_a_write_without_an_owner_goes_above_what_only_that_one_has_heard_of(tmp_path: Path, how: str) -> None:
    with cluster_of(tmp_path, 3, copies=2, linked=True) as cluster, Writer(cluster.nodes[0].url) as writer:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        before = version_of(writer.put(name, b"before").version)
        half_done = Version(before.epoch, before.counter + 1000, 3)  # by a coordinator that died after one commit
        with cluster.batches(1).node.store.begin_put(BUCKET, name, version=half_done) as upload:
            upload.write(b"never acknowledged")
            upload.commit()
        cluster.links[1].refuse()
        assert write_once(writer, how, name) is None
        first = version_of(held(cluster.batches(0).node.store)[name][0])
        assert first > half_done
        assert version_of(writer.put(name, b"later").version) > first


def version_of(text: str) -> Version:
    return Version(*map(int, text.split(".")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "min_copies"),
    [
        *(("put", 1), ("put_many", 1), ("delete", 1), ("put", 2)),
        *(pytest.param(how, 2, marks=pytest.mark.slow) for how in ("put_many", "delete")),
    ],
)
@pytest.mark.sampled(2)
def test_an_owner_lost_between_staging_and_commit_costs_its_copy_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, min_copies: int
) -> None:
    with cluster_of(tmp_path, 3, copies=2, min_copies=min_copies, linked=True) as cluster:
        name = name_with(cluster, lambda owners: owners == [0, 1])
        choose = ReplicaState.next_version

        def lose_then_choose(replicas: ReplicaState, *arguments: object) -> Version:
            cluster.links[1].refuse()
            return choose(replicas, *arguments)  # type: ignore[arg-type]

        with Writer(cluster.nodes[0].url) as writer:
            before = writer.put(name, b"before")
            with monkeypatch.context() as patched:
                patched.setattr(ReplicaState, "next_version", lose_then_choose)
                problem = write_once(writer, how, name)
            new, old = held(cluster.batches(0).node.store)[name], held(cluster.batches(1).node.store)[name]
            assert old in ((before.version, b"before"), new), "it may have fetched by now what it lacks"
            if min_copies == 1:
                assert problem is None
            else:
                assert problem is not None
                assert "1 copies can be written now, 2 at least are needed" in problem
            if problem is not None and "nothing was changed" in problem:
                assert how != "delete" and new == old  # the coordinator noticed it before the first commit
            else:
                assert new[1] == (None if how == "delete" else b"after")
                assert problem is None or "trying again makes them equal" in problem
            cluster.links[1].accept()

            def equal() -> bool:
                info = writer.put(name, b"again")
                copies = copies_of(cluster, name)  # node 2 may have stood in for the owner that was lost
                return [copies[number] for number in (0, 1)] == [(info.version, b"again")] * 2

            eventually(lambda: write_quietly(equal), interval_s=0.1)
        eventually(lambda: staged_files(cluster) == 0)


def write_once(writer: Writer, how: str, name: str) -> str | None:
    """What the node had against it."""
    try:
        if how == "put":
            writer.put(name, b"after")
        elif how == "delete":
            writer.delete(name)
        else:
            (result,) = writer.put_many({name: b"after"})
            return result.error.message or None
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        return str(error.details())
    return None


def write_quietly(write: Callable[[], bool]) -> bool:
    """False while too few nodes can be written, or say that they were out of touch with the others."""
    try:
        return write()
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
        return False

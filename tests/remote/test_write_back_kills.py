"""Write-back of a node that is killed at each step of the journal, and of clusters whose nodes are killed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ais_loader import Bucket, ClusterOptions, Remote, connect, errors
from ais_loader.testing.node import NodeProcess
from ais_loader.testing.waiting import eventually
from storage_node.store.store import Store
from tests.cluster_processes import ClusterProcesses
from tests.patience import PATIENT_CLIENT
from tests.remote.backend_kit import ANY_HOST
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_cluster_faults import first_owner, process_of

pytestmark = pytest.mark.slow
UPLOAD_POINTS = ["upload.noted", "upload.sent", "upload.done", "upload.settled"]
IMPATIENT = ClusterOptions(retry_s=0.0)


@pytest.fixture
def node(remote_bucket: RemoteBucket, tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "drive", arguments=ANY_HOST) as running:
        yield running


def armed(node: NodeProcess, point: str) -> None:
    node._environment["AIS_LOADER_FAILPOINT"] = point
    node.restart()
    del node._environment["AIS_LOADER_FAILPOINT"]


def until_killed(node: NodeProcess, change: Callable[[Bucket], object]) -> object:
    """Change the bucket, and wait until the node is killed by that. Returns None if the change was not acknowledged.

    The client has no patience for a node that is gone. A busy machine may be slow to answer: then it asks again.
    """
    answer, is_answered = None, False
    while not is_answered and node.alive:
        with contextlib.suppress(errors.LoaderError), connect(node.url, options=IMPATIENT) as client:
            answer, is_answered = change(client.bucket("train")), True
    eventually(lambda: not node.alive)
    return answer


def made(url: str, remote_bucket: RemoteBucket, copies: int = 1) -> None:
    with connect(url, options=PATIENT_CLIENT) as client:
        remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write="back")
        bucket = client.create_bucket("train", remote=remote, copies=copies, min_copies=copies)
        bucket.put("a", b"old")
        bucket.flush(timeout_s=120)


@pytest.mark.parametrize("point", ["put.staged", "put.intended", "put.published", "put.committed", *UPLOAD_POINTS])
def test_a_put_survives_a_kill_at_each_step(
    node: NodeProcess, remote_bucket: RemoteBucket, proxy: FaultProxy, point: str
) -> None:
    made(node.url, remote_bucket)
    armed(node, point)
    proxy.forget()
    version = until_killed(node, lambda bucket: bucket.put("a", b"new").version)
    is_sent = point in ("upload.sent", "upload.done", "upload.settled")
    assert remote_bucket.get("a") == (b"new" if is_sent else b"old")
    node.kill()
    node.start()
    with connect(node.url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket("train")
        bucket.flush(timeout_s=120)
        has = bucket.get("a")
        assert has == remote_bucket.get("a")
        assert has == b"new" or (not version and point in ("put.staged", "put.intended", "put.published"))
        if version:
            assert bucket.head("a").version == version
        assert bucket.evict().copies == 1  # it is a copy again
        assert bucket.get("a") == has
    assert proxy.count("PUT", remote_bucket.path("a")) == (has == b"new")


@pytest.mark.parametrize("point", ["delete.committed", *UPLOAD_POINTS])
def test_a_deletion_survives_a_kill_at_each_step(
    node: NodeProcess, remote_bucket: RemoteBucket, proxy: FaultProxy, point: str
) -> None:
    made(node.url, remote_bucket)
    armed(node, point)
    until_killed(node, lambda bucket: bucket.delete("a"))
    node.kill()
    with proxy.held("DELETE", "*"):
        node.start()
        with connect(node.url, options=PATIENT_CLIENT) as client:
            for _ in range(3):
                with pytest.raises(errors.ObjectNotFound):
                    client.bucket("train").get("a")
            assert not list(client.bucket("train"))
    with connect(node.url, options=PATIENT_CLIENT) as client:
        client.bucket("train").flush(timeout_s=120)
        assert remote_bucket.keys() == []
        with pytest.raises(errors.ObjectNotFound):
            client.bucket("train").get("a")


def test_what_others_write_between_the_upload_and_the_restart_stays(
    node: NodeProcess, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    made(node.url, remote_bucket)
    armed(node, "upload.sent")
    until_killed(node, lambda bucket: bucket.put("a", b"new"))
    assert remote_bucket.get("a") == b"new"
    remote_bucket.put("a", b"theirs")
    node.kill()
    node.start()
    with connect(node.url, options=PATIENT_CLIENT) as client:
        client.bucket("train").flush(timeout_s=120)
    assert remote_bucket.get("a") == b"theirs"


def test_a_long_outage_with_kills_loses_nothing(
    node: NodeProcess, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    made(node.url, remote_bucket)
    down = proxy.on("*", "*", Fault(status=503))
    expected: dict[str, bytes] = {"a": b"old"}
    for round_ in range(3):
        with connect(node.url, options=PATIENT_CLIENT) as client:
            bucket = client.bucket("train")
            for at in range(20):
                name, data = f"{at % 7}", b"%d.%d" % (round_, at)
                bucket.put(name, data)
                expected[name] = data
            bucket.delete(f"{round_}")
            expected.pop(f"{round_}", None)
        node.kill()
        node.start()
    down.remove()
    with connect(node.url, options=PATIENT_CLIENT) as client:
        client.bucket("train").flush(timeout_s=120)
        assert {name: client.bucket("train").get(name) for name in client.bucket("train")} == expected
    assert {key: remote_bucket.get(key) for key in sorted(remote_bucket.keys())} == expected


def test_a_put_waits_for_room_and_then_fails(remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path) -> None:
    arguments = [*ANY_HOST, "--set", "remote_write_back_bytes=300000", "--set", "remote_write_back_wait_s=15"]
    with NodeProcess(tmp_path / "drive", arguments=arguments) as node:
        made(node.url, remote_bucket)
        with connect(node.url, options=PATIENT_CLIENT) as client, connect(node.url, options=IMPATIENT) as impatient:
            bucket = client.bucket("train")
            with proxy.held("*", "*"):
                bucket.put("0", bytes(100_000))
                bucket.put("1", bytes(100_000))
                with pytest.raises(errors.Overloaded, match="remote_write_back_bytes") as failed:
                    impatient.bucket("train").put("2", bytes(200_000))
                assert failed.value.retryable
            bucket.flush(timeout_s=120)
            bucket.put("big", bytes(1_000_000))  # alone, it may be larger
            bucket.put("2", bytes(200_000))  # waits for it
            bucket.flush(timeout_s=120)
    assert remote_bucket.keys() == ["0", "1", "2", "a", "big"]


@pytest.mark.parametrize("nodes", [2, 3])
def test_the_next_owner_uploads_when_the_first_is_killed(
    remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path, nodes: int
) -> None:
    with ClusterProcesses(tmp_path, nodes, arguments=ANY_HOST) as cluster:
        made(cluster.url, remote_bucket, copies=2)
        with connect(cluster.url, options=PATIENT_CLIENT) as client:
            bucket = client.bucket("train")
            down = proxy.on("*", "*", Fault(status=503))
            names = [f"{at}" for at in range(12)]
            versions = {name: bucket.put(name, name.encode()).version for name in names}
            victim = cluster.nodes[process_of(cluster, client, first_owner(client, "train", names[0]))]
            victim.kill()
            down.remove()
            eventually(lambda: set(remote_bucket.keys()) >= set(names))
            assert [remote_bucket.get(name) for name in names] == [name.encode() for name in names]
            victim.restart()
            eventually(lambda: _is_flushed(bucket))
            assert {name: bucket.head(name).version for name in names} == versions
            assert [bucket.get(name) for name in names] == [name.encode() for name in names]
            bucket.put(names[0], b"newer")
            bucket.delete(names[1])
            bucket.flush(timeout_s=120)
            assert remote_bucket.get(names[0]) == b"newer"
            assert names[1] not in set(remote_bucket.keys())


def test_a_deletion_that_an_owner_has_missed_is_uploaded_without_the_one_that_took_it(
    remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    with ClusterProcesses(tmp_path, 2, arguments=ANY_HOST) as cluster:
        names = [f"{at}" for at in range(12)]
        with connect(cluster.url, options=PATIENT_CLIENT) as client:
            remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write="back")
            bucket = client.create_bucket("train", remote=remote, copies=2, min_copies=1)
            bucket.put_many((name, name.encode()) for name in names)
            bucket.flush(timeout_s=120)
            down = proxy.on("*", "*", Fault(status=503))
            cluster.kill([0])
            assert bucket.delete_many(names).deleted == len(names)
            cluster.start([0])

            def has_them() -> bool:
                with Store.open(cluster.nodes[0].drives, mode="r") as store:
                    return {found.name for found in store.replicas.tombstones("train")} == set(names)

            eventually(has_them, interval_s=0.1)
            cluster.kill([1])
            down.remove()
            eventually(lambda: not remote_bucket.keys())


def _is_flushed(bucket: object) -> bool:
    try:
        bucket.flush(timeout_s=5)  # type: ignore[attr-defined]
    except errors.LoaderError:
        return False
    return True

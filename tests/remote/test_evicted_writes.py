"""Writes of a cluster that have been uploaded and evicted: older copies elsewhere do not come back in their place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Bucket, Client, Remote, connect, errors
from ais_loader.testing.waiting import eventually
from ais_loader.transport.cluster.transport import RemoteTransport
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_replica_pb2 as replica_pb
from ais_loader.wire.generated import ais_replica_pb2_grpc
from storage_node.cluster.replication.replica import to_wire
from storage_node.store.drive.preconditions import parse_version
from tests.cluster_processes import ClusterProcesses
from tests.node.write_kit import cluster_of
from tests.patience import PATIENT_CLIENT
from tests.peer_kit import peer_at
from tests.remote.backend_kit import ANY_HOST
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.s3_server import S3Server
from tests.remote.test_cache_cluster import evict_at
from tests.remote.test_cluster_faults import process_of
from tests.remote.test_write_back_kills import _is_flushed

pytestmark = pytest.mark.slow  # nodes
NAME, OLD, NEW = "written", b"old", b"newer"
OFTEN = [*ANY_HOST, "--set", "repair_interval_s=1"]


@pytest.fixture
def cluster(remote_bucket: RemoteBucket, tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 3, arguments=OFTEN) as running:
        yield running


def made(client: Client, remote_bucket: RemoteBucket, write: str) -> Bucket:
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write=write)  # type: ignore[arg-type]
    return client.create_bucket("train", remote=remote, copies=2, min_copies=2)


def view_of(client: Client) -> ClusterView:
    transport = client._transport
    assert isinstance(transport, RemoteTransport)
    return transport.members.view


def owners_of(cluster: ClusterProcesses, client: Client) -> tuple[int, int, int]:
    """The processes of the first owner, of the second one, and of the node that stands in for them."""
    view = view_of(client)
    first, second = (process_of(cluster, client, at) for at in view.owners(view.buckets["train"], NAME))
    return first, second, ({0, 1, 2} - {first, second}).pop()


def evicted(cluster: ClusterProcesses, bucket: Bucket, number: int) -> None:
    """Evict the copy on one node, once it is uploaded."""
    eventually(lambda: evict_at(cluster.nodes[number], bucket) == 1)


def size_at(cluster: ClusterProcesses, client: Client, number: int) -> int | None:
    """Size of the copy on one node; None if it has none."""
    view = view_of(client)
    bucket = replica_pb.BucketRef(name="train", uuid=view.buckets["train"].uuid)
    with peer_at(cluster.nodes[number].peer_endpoint, cluster.uuid_of(number), view.version) as channel:
        stub = ais_replica_pb2_grpc.ReplicaStub(channel)
        (state,) = stub.Newest(replica_pb.NewestRequest(bucket=bucket, name=[NAME]), timeout=180).object
    return state.size_bytes if state.HasField("version") and not state.is_tombstone else None


def is_put(bucket: Bucket, data: bytes = NEW) -> bool:
    """Whether a write is acknowledged. It is repeated where a node has just started, or has stood still."""
    try:
        bucket.put(NAME, data)
    except errors.OutcomeUnknown:  # the remote storage has it, and too few nodes
        return False
    return True


def is_uploaded(remote_bucket: RemoteBucket) -> bool:
    try:
        return remote_bucket.get(NAME) == NEW
    except KeyError:  # nothing was uploaded yet
        return False


def is_read(bucket: Bucket) -> bool:
    """Whether the newest write is read, and not refused while an owner compares its copies or is not reached yet."""
    try:
        assert bucket.get(NAME) == NEW
    except errors.RemoteUnavailable:
        return False
    return True


def check(bucket: Bucket) -> bool:
    """Whether all is uploaded and read; lists the newest write before and afterwards."""
    is_over = False
    for _ in range(2):
        assert [(info.name, info.size_bytes) for info in bucket.objects()] == [(NAME, len(NEW))]
        if not is_read(bucket):
            return False
        is_flushed, is_over = is_over, _is_flushed(bucket)
    return is_flushed


@pytest.mark.parametrize("write", ["back", "through"])
def test_an_older_copy_of_a_stand_in_does_not_come_back(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket, write: str
) -> None:
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        bucket = made(client, remote_bucket, write)
        first, second, other = owners_of(cluster, client)
        cluster.nodes[second].kill()
        eventually(lambda: is_put(bucket, OLD))
        cluster.nodes[other].pause()
        cluster.nodes[second].start()
        eventually(lambda: is_put(bucket))
        eventually(lambda: is_uploaded(remote_bucket))
        evicted(cluster, bucket, first)
        if write == "back":  # it is sent to an owner that has just come back
            evicted(cluster, bucket, second)
        evict_at(cluster.nodes[second], bucket)
        cluster.nodes[other].resume()
        eventually(lambda: check(bucket))
        eventually(lambda: size_at(cluster, client, other) != len(OLD))  # it lets go
        eventually(lambda: check(bucket))


@pytest.mark.parametrize("write", ["back", "through"])
def test_an_older_copy_of_an_owner_that_was_away_does_not_come_back(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket, write: str
) -> None:
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        bucket = made(client, remote_bucket, write)
        first, second, other = owners_of(cluster, client)
        eventually(lambda: is_put(bucket, OLD))
        bucket.flush(timeout_s=120)
        cluster.nodes[second].kill()
        eventually(lambda: is_put(bucket))
        eventually(lambda: is_uploaded(remote_bucket))
        evicted(cluster, bucket, first)
        cluster.nodes[other].kill()
        cluster.nodes[second].start()
        eventually(lambda: evict_at(cluster.nodes[second], bucket) == 0)
        cluster.nodes[other].start()
        eventually(lambda: check(bucket))


def test_an_older_deletion_of_an_owner_that_was_away_does_not_hide_a_later_write(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        bucket = made(client, remote_bucket, "back")
        first, second, other = owners_of(cluster, client)
        bucket.put(NAME, OLD)
        bucket.flush(timeout_s=120)
        down = proxy.on("*", "*", Fault(status=503))
        bucket.delete(NAME)
        cluster.nodes[second].kill()
        bucket.put(NAME, NEW)
        down.remove()
        eventually(lambda: is_uploaded(remote_bucket))
        evicted(cluster, bucket, first)
        eventually(lambda: evict_at(cluster.nodes[other], bucket) == 0)
        cluster.nodes[second].start()
        eventually(lambda: _is_flushed(bucket))
        eventually(lambda: is_read(bucket))
        assert remote_bucket.get(NAME) == NEW
        assert [info.name for info in bucket.objects()] == [NAME]


def test_a_write_that_is_announced_and_never_done_hides_no_change_of_others(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket
) -> None:
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write="back", validate="always")
        bucket = client.create_bucket("train", remote=remote, copies=2)
        remote_bucket.put(NAME, OLD)
        assert bucket.get(NAME) == OLD
        first, _, other = owners_of(cluster, client)
        view = view_of(client)
        version = parse_version(bucket.head(NAME).version)
        missed = replica_pb.MissedRequest(
            bucket=replica_pb.BucketRef(name="train", uuid=view.buckets["train"].uuid),
            name=[NAME],
            version=[to_wire(version._replace(counter=version.counter + 1))],
        )
        with peer_at(cluster.nodes[first].peer_endpoint, cluster.uuid_of(other), view.version) as channel:
            ais_replica_pb2_grpc.RepairStub(channel).Missed(missed, timeout=180)
        remote_bucket.put(NAME, NEW)
        for _ in range(6):
            eventually(lambda: is_read(bucket))
        assert [(info.name, info.size_bytes) for info in bucket.objects()] == [(NAME, len(NEW))]


def test_an_upload_that_ends_while_a_node_lists_what_is_pending_is_forgotten(
    s3: S3Server, remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        cluster_of(tmp_path, 3, remote_hosts=("any",)) as cluster,
        connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client,
    ):
        bucket = made(client, remote_bucket, "back")
        down = proxy.on("PUT", "*", Fault(status=503))
        bucket.put(NAME, OLD)
        stores = [cluster.batches(number).node.store for number in range(3)]
        listed = next(found for store in stores if (found := store.uploads.pending()))
        down.remove()
        bucket.flush(timeout_s=120)
        for number, store in enumerate(stores):
            write_back = cluster.batches(number).resources.remote.write_back
            monkeypatch.setattr(store.uploads, "pending", lambda: listed)
            write_back._load()
            assert not write_back.rows()

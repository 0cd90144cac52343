"""Remote buckets of a cluster whose nodes are killed, and two stores over one remote bucket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import Entry, Remote, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing.waiting import eventually
from ais_loader.transport.cluster.transport import RemoteTransport
from tests.cluster_processes import ClusterProcesses
from tests.patience import PATIENT_CLIENT
from tests.remote.backend_kit import ANY_HOST
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.remote.test_remote_buckets import data_of, filled

pytestmark = pytest.mark.slow
UNHEDGED = [*ANY_HOST, "--set", "remote_hedge_budget=0"]
"""Arguments of nodes whose requests are counted: none is repeated because a busy machine is slow to answer it."""


@pytest.fixture
def cluster(remote_bucket: RemoteBucket, tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 3, arguments=UNHEDGED) as running:
        yield running


def made(client: Client, remote_bucket: RemoteBucket, **rule: object) -> Bucket:
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, **rule)  # type: ignore[arg-type]
    return client.create_bucket("train", remote=remote, copies=2)


def first_owner(client: Client, bucket: str, name: str) -> int:
    """Position in the map of the node that fetches an object."""
    transport = client._transport
    assert isinstance(transport, RemoteTransport)
    view = transport.members.view
    return view.owners(view.buckets[bucket], name)[0]


def test_a_batch_survives_the_kill_of_the_node_that_fetches(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 12)
    with connect(cluster.url, options=PATIENT_CLIENT) as client, ThreadPoolExecutor(1) as pool:
        bucket = made(client, remote_bucket)
        victim = cluster.nodes[process_of(cluster, client, first_owner(client, "train", names[0]))]
        with proxy.held("GET", remote_bucket.path(names[0]), times=1) as held:
            entries = [Entry("train", name) for name in names]
            reading = pool.submit(lambda: [item.data.tobytes() for item in client.get_batch(entries, timeout_s=180.0)])
            held.wait_for(1)
            victim.kill()
            assert reading.result(180) == [data_of(at) for at in range(12)]
        assert proxy.count("GET", remote_bucket.path(names[0])) == 2
        assert bucket.get(names[0]) == data_of(0)


def process_of(cluster: ClusterProcesses, client: Client, position: int) -> int:
    transport = client._transport
    assert isinstance(transport, RemoteTransport)
    endpoint = transport.members.view.nodes[position].endpoint
    return next(at for at, node in enumerate(cluster.nodes) if endpoint in node.url)


def test_cold_objects_are_read_while_a_node_is_down_and_kept_when_it_is_back(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 30)
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        bucket = made(client, remote_bucket)
        cluster.nodes[1].kill()
        entries = [Entry("train", name) for name in names]
        assert [item.data.tobytes() for item in client.get_batch(entries, timeout_s=180.0)] == [
            data_of(at) for at in range(30)
        ]
        cluster.nodes[1].restart()
        eventually(lambda: bucket.get(names[0]) == data_of(0))
        proxy.forget()
        eventually(
            lambda: (
                [item.data.tobytes() for item in client.get_batch(entries, timeout_s=180.0)]
                == [data_of(at) for at in range(30)]
            ),
        )
        assert sum(proxy.count("GET", remote_bucket.path(name)) for name in names) <= 30


def test_two_stores_over_one_remote_bucket_see_each_others_writes(remote_bucket: RemoteBucket, tmp_path: Path) -> None:
    with connect(tmp_path / "one") as here, connect(tmp_path / "two") as there:
        remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, validate="always")
        one, two = (client.create_bucket("b", remote=remote) for client in (here, there))
        for round_ in range(5):
            one.put("a", b"one %d" % round_)
            assert two.get("a") == b"one %d" % round_
            two.put("a", b"two %d" % round_)
            assert one.get("a") == b"two %d" % round_
        two.delete("a")
        with pytest.raises(errors.ObjectNotFound):
            one.get("a")

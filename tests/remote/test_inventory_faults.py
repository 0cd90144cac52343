"""Inventories and nodes that are killed, in a cluster and alone, and listings of a cloud bucket with many names."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import ClusterOptions, Remote, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.testing.node import NodeProcess
from tests.cluster_processes import ClusterProcesses
from tests.patience import PATIENT_CLIENT
from tests.remote.backend_kit import ANY_HOST
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.remote.test_cluster_faults import first_owner, process_of
from tests.remote.test_inventory import hidden, lists, names_of
from tests.remote.test_remote_buckets import data_of, filled

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(remote_bucket: RemoteBucket, tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 3, arguments=ANY_HOST) as running:
        yield running


def test_every_node_of_a_cluster_has_the_inventory_and_one_may_be_killed(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    from ais_loader import MapDataset

    names = filled(remote_bucket, 12)
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        bucket = client.create_bucket("train", remote=remote, copies=2, min_copies=2)
        assert bucket.refresh_inventory().count == 12
        bucket.delete(names[5])
        bucket.put("new", b"new")
    left = sorted([*names[:5], *names[6:], "new"])
    proxy.forget()
    for node in cluster.nodes:
        with connect(node.url, options=PATIENT_CLIENT) as client:
            assert names_of(client.bucket("train")) == left
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket("train")
        (current,) = [name for name in hidden(bucket) if name.endswith("/current")]
        cluster.nodes[process_of(cluster, client, first_owner(client, "train", current))].kill()
        assert names_of(bucket) == left
        assert MapDataset(client, "ais://train/en/")[0] == data_of(0)
    assert lists(proxy) == 0


def test_a_deletion_through_another_node_counts_from_the_first_refresh_on(
    cluster: ClusterProcesses, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 6)
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
    with (
        connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client,
        connect(cluster.nodes[2].url, options=PATIENT_CLIENT) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        bucket = client.create_bucket("train", remote=remote, copies=2)
        other.bucket("train").get(names[5])
        with proxy.held("GET", remote_bucket.name) as held:
            refresh = pool.submit(bucket.refresh_inventory)
            held.wait_for(1)
            other.bucket("train").delete_many(names[:2])
            held.release()
            refresh.result(180)
        assert names_of(bucket) == names_of(other.bucket("train")) == names[2:]


def test_a_refresh_that_is_killed_leaves_the_old_inventory(
    remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    names = filled(remote_bucket, 5)
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
    with (
        NodeProcess(tmp_path / "drive", arguments=ANY_HOST) as node,
        connect(node.url, options=PATIENT_CLIENT) as client,
        connect(node.url, options=ClusterOptions(retry_s=20.0)) as refreshing,
    ):
        bucket = client.create_bucket("train", remote=remote)
        old = bucket.refresh_inventory()
        remote_bucket.put("later", b"1")
        failed: list[errors.LoaderError] = []

        def refresh() -> None:
            try:
                refreshing.bucket("train").refresh_inventory()
            except errors.LoaderError as error:
                failed.append(error)

        with proxy.held("GET", remote_bucket.name) as held:
            thread = threading.Thread(target=refresh)
            thread.start()
            held.wait_for(1)
            node.kill()
            thread.join(180)
        assert [type(error) for error in failed] == [errors.NodeUnavailable]
        node.start()
        assert bucket.inventory() == old and names_of(bucket) == names
        assert bucket.refresh_inventory().count == 6 and len(hidden(bucket)) == 2


def test_several_streams_list_what_one_lists(cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    letters = "ab/0é日🎧"
    rnd = random.Random(11)
    keys = {f"{'deep/' * rnd.randrange(3)}{''.join(rnd.choices(letters, k=5))}{number}" for number in range(2600)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: remote_bucket.put(key, b"1"), keys))
    proxy.forget()
    one_by_one = [(info.name, info.version, info.modified_ns) for info in cold.objects()]
    in_sequence = lists(proxy)
    assert len(one_by_one) > 2000
    info = cold.refresh_inventory()
    assert info.count == len(one_by_one) and info.count + info.skipped == len(keys)
    requests = [one for one in proxy.requests if "list-type=2" in one.query][in_sequence:]
    assert 3 <= len(requests) <= in_sequence + 64
    assert [(info.name, info.version, info.modified_ns) for info in cold.objects()] == one_by_one

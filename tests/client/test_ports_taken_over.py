"""A map with the port of a node that is gone: another node's listener for nodes has it now, and refuses clients."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ais_loader import Client, ClusterOptions, connect, errors
from ais_loader.testing import seeded_bytes
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.patience import PATIENT_CLIENT

OBJECTS = {f"{at:02}": seeded_bytes(1000 + at, seed=at) for at in range(12)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("taken"), 2, copies=2, spread=OBJECTS) as cluster:
        cluster.put(OBJECTS)
        cluster.map.node[0].endpoint = cluster.nodes[1].peer_endpoint
        cluster.learn()
        cluster.await_compared()
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with connect(cluster.nodes[1].url, options=PATIENT_CLIENT) as client:
        yield client


def test_objects_come_from_the_other_replica(client: Client) -> None:
    bucket = client.bucket(BUCKET)
    assert [bucket.get(name) for name in OBJECTS] == list(OBJECTS.values())
    assert [bucket.head(name).size_bytes for name in OBJECTS] == [len(data) for data in OBJECTS.values()]
    assert [bytes(item.data) for item in bucket.get_batch(list(OBJECTS))] == list(OBJECTS.values())
    assert list(bucket) == list(OBJECTS)


@pytest.mark.slow
def test_objects_are_put_by_the_other_owner(client: Client, cluster: LocalCluster) -> None:
    bucket = client.bucket(BUCKET)
    for name in cluster.names_of(0, OBJECTS):
        bucket.put(name, OBJECTS[name])
        assert bucket.get(name) == OBJECTS[name]
    bucket.put_many(OBJECTS.items())


def test_who_connects_there_is_told(cluster: LocalCluster) -> None:
    url = f"grpc://{cluster.nodes[1].peer_endpoint}"

    def told() -> str:
        with (
            connect(url, options=ClusterOptions(retry_s=0.0)) as client,
            pytest.raises(errors.NodeUnavailable) as raised,
        ):
            client.bucket(BUCKET).get("00")
        return str(raised.value)

    # A machine that stands still for some seconds has the node be silent.
    assert any(re.search(r"no node for clients is there: .* clients have another one", told()) for _ in range(5))

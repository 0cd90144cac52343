"""Readers of a bucket with copies turn from the first holder to the second when the first has more to do."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, connect
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.transport.cluster.transport import RemoteTransport
from tests.faulty_link import FaultyLink
from tests.node.cluster_kit import BUCKET, LocalCluster

pytestmark = pytest.mark.slow

OBJECTS = {f"{at:04d}": seeded_bytes(2000 + at, seed=at) for at in range(300)}
NAMES = list(OBJECTS)
ONCE = ClusterOptions(hedge_budget=0.0)
LONG_S = 1e9
"""A wait that is not forgotten while a machine stands still: half of it is in each second."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    """Node 0 owns nothing; nodes 1 and 2 both have everything. Nobody is asked for anything twice."""
    with LocalCluster(tmp_path, 3, copies=2, hedge_budget=0.0, read_lease_s=120.0) as cluster:
        cluster.map.node[0].weight = 1e-9
        cluster.learn()
        cluster.put(OBJECTS)
        yield cluster
        cluster.settle()


def entries_read(cluster: LocalCluster, answers: int) -> list[int]:
    """By each node, for others or for clients, after so many answers with all objects."""

    def counted() -> list[int]:
        return [sum(cluster.batches(at).node.metrics.entries.get("part", {}).values()) for at in range(3)]

    eventually(lambda: sum(counted()) >= answers * len(NAMES))  # the END comes to the client before it is counted
    return counted()


def read(client: Client) -> None:
    items = list(client.bucket(BUCKET).get_batch(NAMES, assembly="direct"))
    assert [item.data for item in items] == list(OBJECTS.values())


def routed(client: Client) -> RemoteTransport:
    transport = client._transport
    assert isinstance(transport, RemoteTransport)
    return transport


def test_while_nobody_is_known_to_have_much_to_do_each_object_is_read_from_its_first_holder(pair: LocalCluster) -> None:
    firsts = [sum(pair.owners(name)[0] == at for name in NAMES) for at in range(3)]
    with connect(pair.nodes[0].url, options=ONCE) as client:
        read(client)
        assert entries_read(pair, 1) == firsts


def test_a_client_turns_to_the_holder_that_has_less_to_do_and_back(pair: LocalCluster) -> None:
    with connect(pair.nodes[0].url, options=ONCE) as client:
        read(client)
        members = routed(client).members
        busy = pair.nodes[1].membership.node_uuid
        members.loads.report_wait(busy, LONG_S)
        before = entries_read(pair, 1)
        read(client)
        after = entries_read(pair, 2)
        assert after[1] == before[1] and after[2] - before[2] == len(NAMES)
        name = next(name for name in NAMES if pair.owners(name)[0] == 1)
        members.loads.report_wait(busy, LONG_S)
        assert client.bucket(BUCKET).get(name) == OBJECTS[name]
        members.loads.report_wait(busy, 0.0)
        read(client)
        assert entries_read(pair, 3)[1] > after[1]


def test_a_node_that_gathers_does_so_too(pair: LocalCluster) -> None:
    service = pair.batches(0)
    endpoint = pair.nodes[2].peer_endpoint
    service.resources.loads.report_wait(endpoint, LONG_S)
    answer = pair.ask(NAMES)
    assert [answer.data[at] for at in range(len(NAMES))] == list(OBJECTS.values())
    # Not entries: a part that node 0 has whole and lets go of before its END counts as abandoned.
    parts = [pair.batches(at).node.metrics.batches["part"] for at in range(3)]
    eventually(lambda: sum(parts[1].values()) > 0)
    assert sum(parts[2].values()) == 0


def test_a_node_says_how_long_reads_wait_for_it(pair: LocalCluster) -> None:
    pair.batches(1).node.load.reader_wait_s = 4000.0  # half of it is forgotten in each second
    with connect(pair.nodes[0].url) as client:
        read(client)
        loads = routed(client).members.loads.of([node.membership.node_uuid for node in pair.nodes])
        busy, other = (loads[pair.nodes[at].membership.node_uuid].backlog_s for at in (1, 2))
        assert busy > max(1.0, other)
    pair.batches(1).node.load.reader_wait_s = 4000.0
    pair.ask(NAMES)
    found = pair.batches(0).resources.loads.of(node.peer_endpoint for node in pair.nodes)
    assert found[pair.nodes[1].peer_endpoint].backlog_s > 1.0


def test_a_pickled_client_knows_the_nodes_that_have_joined_since_its_url_was_written(pair: LocalCluster) -> None:
    with FaultyLink(pair.nodes[0].url) as link:
        with connect(link.url) as client:
            read(client)
            pickled = pickle.dumps(client)
        link.refuse()
        with pickle.loads(pickled) as there:
            read(there)
            assert there.url == link.url

"""Node processes that come, go and die while clients read and write: nothing old returns, nothing deleted rises."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.testing import NodeProcess, eventually
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import begin_leave
from tests.faults.ledger_kit import (
    TIMEOUT_S,
    delete,
    endpoints,
    equal,
    filled,
    join,
    joining,
    put,
    reading,
    settled,
    versions,
)
from tests.peer_kit import PROCESS_OPERATOR

pytestmark = pytest.mark.slow  # real processes, killed and awaited

KEYS = [f"k{at:03}" for at in range(60)]


def test_a_node_that_was_killed_brings_back_nothing_old(tmp_path: Path) -> None:
    with filled(tmp_path, KEYS) as (cluster, bucket, ledger), reading(cluster.url, ledger) as clients:
        clients.round()
        cluster.nodes[1].kill()
        put(bucket, ledger, KEYS[:20])
        delete(bucket, ledger, KEYS[20:40])
        put(bucket, ledger, [f"new{at:03}" for at in range(20)])
        clients.round()
        cluster.nodes[1].start()
        put(bucket, ledger, KEYS[10:30])
        delete(bucket, ledger, KEYS[40:50])
        clients.round(2)
        eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
        clients.round()
        clients.check()


def test_a_node_joins_while_clients_read_and_write(tmp_path: Path) -> None:
    with (
        filled(tmp_path / "cluster", KEYS) as (cluster, bucket, ledger),
        NodeProcess([tmp_path / "fourth"]) as fourth,
        reading(cluster.url, ledger) as clients,
    ):
        join(cluster, fourth, "host-3")
        put(bucket, ledger, KEYS[:30])
        delete(bucket, ledger, KEYS[30:45])
        nodes = [*cluster.nodes, fourth]
        eventually(lambda: settled(nodes, 4), TIMEOUT_S, interval_s=0.2)
        put(bucket, ledger, KEYS[20:40])
        clients.round()
        eventually(lambda: equal(nodes, ledger), TIMEOUT_S, interval_s=0.2)
        clients.check()


def test_a_node_leaves_while_clients_read_and_write(tmp_path: Path) -> None:
    with filled(tmp_path, KEYS) as (cluster, bucket, ledger), reading(cluster.url, ledger) as clients:
        change_map(
            endpoints(cluster.nodes), begin_leave(cluster.uuid_of(1)), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR
        )
        put(bucket, ledger, KEYS[:30])
        delete(bucket, ledger, KEYS[30:45])
        left = [cluster.nodes[0], cluster.nodes[2]]
        eventually(lambda: settled(left, 2), TIMEOUT_S, interval_s=0.2)
        eventually(lambda: versions(cluster.nodes[1], cluster.map.bucket[0]) == {}, interval_s=0.2)
        cluster.nodes[1].stop()
        put(bucket, ledger, KEYS[20:40])
        clients.round()
        eventually(lambda: equal(left, ledger), TIMEOUT_S, interval_s=0.2)
        clients.check()


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.sampled(1)
def test_a_node_is_killed_while_objects_move(tmp_path: Path, victim: int) -> None:
    with (
        filled(tmp_path / "cluster", KEYS) as (cluster, bucket, ledger),
        NodeProcess([tmp_path / "fourth"]) as fourth,
        reading(cluster.url, ledger) as clients,
    ):
        nodes = [*cluster.nodes, fourth]
        join(cluster, fourth, "host-3")
        nodes[victim].kill()
        put(bucket, ledger, KEYS[:30])
        delete(bucket, ledger, KEYS[30:45])
        nodes[victim].start()
        put(bucket, ledger, KEYS[20:40])
        eventually(lambda: settled(nodes, 4), TIMEOUT_S, interval_s=0.2)
        clients.round()
        eventually(lambda: equal(nodes, ledger), TIMEOUT_S, interval_s=0.2)
        clients.check()


@pytest.mark.exhaustive
def test_two_nodes_join_at_once(tmp_path: Path) -> None:
    with (
        filled(tmp_path / "cluster", KEYS) as (cluster, bucket, ledger),
        NodeProcess([tmp_path / "fourth"]) as fourth,
        NodeProcess([tmp_path / "fifth"]) as fifth,
        reading(cluster.url, ledger) as clients,
    ):
        with joining(cluster, fourth, fifth):
            put(bucket, ledger, KEYS[:30])
            delete(bucket, ledger, KEYS[30:45])
        nodes = [*cluster.nodes, fourth, fifth]
        eventually(lambda: settled(nodes, 5), TIMEOUT_S, interval_s=0.2)
        clients.round()
        eventually(lambda: equal(nodes, ledger), TIMEOUT_S, interval_s=0.2)
        clients.check()

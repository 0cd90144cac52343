"""What snapshots see while nodes join, leave and are lost: read all the time, and in the end every owner has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.testing import NodeProcess, eventually
from ais_loader.wire.cluster_map import ClusterView
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import begin_leave, remove_node
from storage_node.store import format as fmt
from storage_node.store.store import Store
from tests.faults.fault_kit import serve_all, take_snapshot
from tests.faults.ledger_kit import (
    BUCKET,
    OPTIONS,
    TIMEOUT_S,
    assert_content,
    content,
    current_map,
    delete,
    endpoints,
    filled,
    join,
    put,
    settled,
    writing,
)
from tests.peer_kit import PROCESS_OPERATOR
from tests.store.snapshot_kit import contents_at

pytestmark = pytest.mark.slow  # real processes, killed and awaited

KEYS = [f"k{at:03}" for at in range(60)]


def read(url: str, snapshot: str = "s") -> dict[str, bytes]:
    with connect(url, options=OPTIONS) as client:
        frozen = client.bucket(BUCKET, snapshot=snapshot)
        names = [info.name for info in frozen.objects()]
        return {item.entry.name: item.tobytes() for item in frozen.get_batch(names)}


def on_drive(node: NodeProcess, snapshot: str) -> dict[str, bytes]:
    with Store.open(node.drives, mode="r") as store:
        return {name: data for name, (_, data) in contents_at(store, f"{BUCKET}@{snapshot}").items()}


def all_have(nodes: Sequence[NodeProcess], wanted: dict[str, bytes], snapshot: str = "s") -> bool:
    """Whether every owner has all of it, as it should be."""
    view = ClusterView(current_map(nodes))
    at = {node.endpoint: number for number, node in enumerate(view.nodes)}
    for node in nodes:
        here, found = at[endpoints([node])[0]], on_drive(node, snapshot)
        owned = {name for name in wanted if here in view.owners(view.buckets[BUCKET], name)}
        if any(found.get(name) != wanted[name] for name in owned):
            return False
    return True


def retained_names(node: NodeProcess) -> list[str]:
    with Store.open(node.drives, mode="r") as store:
        return [
            fmt.name_of_retained(key)
            for drive in store.drives
            if drive is not None
            for key, _ in drive.catalog.scan(fmt.RETAINED_PREFIX)
        ]


def only_owners_retain(nodes: Sequence[NodeProcess]) -> bool:
    view = ClusterView(current_map(nodes))
    at = {node.endpoint: number for number, node in enumerate(view.nodes)}
    return all(
        at[endpoints([node])[0]] in view.owners(view.buckets[BUCKET], name)
        for node in nodes
        for name in retained_names(node)
    )


def test_a_node_joins_and_another_leaves_beside_writers_and_take_what_a_snapshot_sees_along(tmp_path: Path) -> None:
    with filled(tmp_path / "cluster", KEYS) as (cluster, bucket, ledger), NodeProcess([tmp_path / "fourth"]) as fourth:
        first = {key: content(key, ledger.expected(key)[0]) for key in KEYS}
        take_snapshot(bucket, "s")
        put(bucket, ledger, KEYS[:20])
        delete(bucket, ledger, KEYS[20:40])
        nodes = [*cluster.nodes, fourth]
        with writing(cluster.url, ledger, KEYS[:50], seed=5) as writers:
            writers.round()
            join(cluster, fourth, "host-3")
            while not settled(nodes, 4):
                assert read(cluster.url) == first
            assert read(cluster.url) == first
            writers.round()
            made = take_snapshot(bucket, "t")
            later = read(cluster.url, "t")
            assert made.objects == len(later)
            change_map(endpoints(nodes), begin_leave(cluster.uuid_of(0)), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)
            while not settled(nodes[1:], 3):
                assert read(fourth.url) == first and read(fourth.url, "t") == later
            nodes[0].kill()
            writers.round()
        assert read(fourth.url) == first and read(fourth.url, "t") == later
        left = nodes[1:]
        eventually(lambda: all_have(left, first) and all_have(left, later, "t"), TIMEOUT_S, interval_s=0.2)
        eventually(lambda: only_owners_retain(left), 2 * TIMEOUT_S, interval_s=0.5)
        assert_content(fourth.url, ledger)
        with connect(fourth.url, options=OPTIONS) as client:
            for name in ("s", "t"):
                client.bucket(BUCKET).delete_snapshot(name)
        eventually(lambda: not any(map(retained_names, left)), TIMEOUT_S)


def test_what_a_lost_node_retained_is_made_again_on_others(tmp_path: Path) -> None:
    with filled(tmp_path / "cluster", KEYS, nodes=4) as (cluster, bucket, ledger):
        first = {key: content(key, ledger.expected(key)[0]) for key in KEYS}
        take_snapshot(bucket, "s")
        put(bucket, ledger, KEYS[:20])
        delete(bucket, ledger, KEYS[20:40])
        cluster.kill([2])
        left = [node for number, node in enumerate(cluster.nodes) if number != 2]
        assert read(left[0].url) == first
        lost = cluster.map.node[2].uuid
        change_map(endpoints(left), remove_node(lost), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)
        assert read(left[0].url) == first
        eventually(lambda: all_have(left, first), TIMEOUT_S, interval_s=0.2)
        serve_all(cluster, [1, 3])
        cluster.kill([0])
        assert read(left[1].url) == first

"""The number of a bucket's copies is raised and lowered while every key is put, overwritten, deleted and read, and
while nodes die and return.

Every answer to a reader is right or an error that says "try again"; nothing that was acknowledged is lost, no old
version returns, no deleted object rises; in the end each key is on as many nodes as it should be, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ais_loader import Bucket, connect
from ais_loader.testing import NodeProcess, eventually
from ais_loader.wire.cluster_map import ClusterView
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import serve_all, take_snapshot
from tests.faults.ledger_kit import (
    BUCKET,
    OPTIONS,
    TIMEOUT_S,
    Ledger,
    Writers,
    all_changing,
    assert_content,
    content,
    current_map,
    delete,
    equal,
    filled,
    put,
    reading,
    versions,
)

pytestmark = pytest.mark.slow  # real processes, killed and awaited

KEYS = [f"k{at:03}" for at in range(60)]


def copies_settled(nodes: Sequence[NodeProcess], copies: int) -> bool:
    """Whether the map says that the bucket has so many copies, all of them where they belong."""
    bucket = current_map(nodes).bucket[0]
    return bucket.copies == copies and not bucket.former_copies


def dies_while_copies_are_made(cluster: ClusterProcesses, bucket: Bucket, victim: int, writers: Writers) -> bool:
    """Kill a node when a third copy of each object is wanted; whether it had not said before that it has all of its
    own, which it has if this process stood still. Then all is as it was."""
    changed = bucket.set(copies=3)
    cluster.nodes[victim].kill()
    assert (changed.copies, changed.settling) == (3, True)
    writers.round()  # by then the others have ended what it said to them
    if not copies_settled(cluster.nodes, 3):
        return True
    cluster.nodes[victim].start()
    bucket.set(copies=2)
    eventually(lambda: copies_settled(cluster.nodes, 2), 2 * TIMEOUT_S, interval_s=0.2)
    return False


def assert_no_node_is_needed(cluster: ClusterProcesses, ledger: Ledger) -> None:
    """With each of the nodes dead all that was acknowledged is there, and nothing else."""
    serve_all(cluster)
    for node in cluster.nodes:
        node.kill()
        assert_content(cluster.url, ledger)
        node.start()
        serve_all(cluster)


@pytest.mark.parametrize("victim", [0, *(pytest.param(other, marks=pytest.mark.exhaustive) for other in (1, 2))])
def test_a_node_dies_while_copies_are_made_and_afterwards_any_one_can_be_lost(tmp_path: Path, victim: int) -> None:
    with filled(tmp_path, KEYS, copies=2) as (cluster, bucket, ledger):
        with all_changing(cluster.url, ledger, KEYS, seed=victim) as writers:
            writers.round()
            eventually(lambda: dies_while_copies_are_made(cluster, bucket, victim, writers))
            writers.round()
            assert not copies_settled(cluster.nodes, 3), "not before every node has said that it has its copies"
            cluster.nodes[victim].start()
            writers.round()
            eventually(lambda: copies_settled(cluster.nodes, 3), 2 * TIMEOUT_S, interval_s=0.2)
        eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
        assert_no_node_is_needed(cluster, ledger)


@pytest.mark.parametrize("after", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_the_only_copies_are_down_while_others_are_made_and_no_reader_is_told_that_there_is_nothing(
    tmp_path: Path, after: int
) -> None:
    with filled(tmp_path, KEYS, copies=1) as (cluster, bucket, ledger):
        with reading(cluster.url, ledger) as clients:
            bucket.set(copies=after)
            cluster.nodes[0].kill()
            there = [key for key in KEYS if ClusterView(cluster.map).owners(cluster.map.bucket[0], key) != [0]]
            put(bucket, ledger, there)
            cluster.nodes[0].start()
            put(bucket, ledger, KEYS[:20])
            eventually(lambda: copies_settled(cluster.nodes, after), 2 * TIMEOUT_S, interval_s=0.2)
            delete(bucket, ledger, KEYS[20:32])
            clients.round()
            clients.check(all_answered=False)
        eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
        assert_no_node_is_needed(cluster, ledger)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("before", "after", "victim"),
    [(3, 1, 0), *(pytest.param(*other, marks=pytest.mark.exhaustive) for other in ((3, 2, 1), (2, 1, 2)))],
)
def test_surplus_copies_go_while_a_node_dies_and_returns_and_bring_nothing_back(
    tmp_path: Path, before: int, after: int, victim: int
) -> None:
    with filled(tmp_path, KEYS, copies=before) as (cluster, bucket, ledger):
        with all_changing(cluster.url, ledger, KEYS, seed=10 + victim) as writers:
            writers.round()
            cluster.nodes[victim].kill()
            assert bucket.set(copies=after).settling
            writers.round()
            assert bucket.info().settling, "one that is down may have surplus copies"
            cluster.nodes[victim].start()
            writers.round()
            eventually(lambda: copies_settled(cluster.nodes, after), 2 * TIMEOUT_S, interval_s=0.2)
        eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
        assert_content(cluster.url, ledger)


@pytest.mark.exhaustive
def test_the_number_of_copies_changes_again_and_again_before_it_has_settled(tmp_path: Path) -> None:
    with filled(tmp_path, KEYS, copies=2) as (cluster, bucket, ledger):
        with all_changing(cluster.url, ledger, KEYS, seed=3) as writers:
            for turn, copies in enumerate((3, 1, 3, 2, 1, 3, 1, 2)):
                bucket.set(copies=copies)
                if turn % 3 == 2:
                    writers.round()
            eventually(lambda: copies_settled(cluster.nodes, 2), 2 * TIMEOUT_S, interval_s=0.2)
        eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
        assert_no_node_is_needed(cluster, ledger)


def test_a_node_that_missed_everything_since_brings_no_deleted_object_back(tmp_path: Path) -> None:
    """It has all objects, many of which are not its own by now, and have been deleted or replaced."""
    with filled(tmp_path, KEYS, copies=3) as (cluster, bucket, ledger), reading(cluster.url, ledger) as clients:
        cluster.nodes[2].kill()
        bucket.set(copies=2)
        delete(bucket, ledger, KEYS[:24])
        put(bucket, ledger, KEYS[24:44])
        cluster.nodes[2].start()
        eventually(lambda: copies_settled(cluster.nodes, 2), 2 * TIMEOUT_S, interval_s=0.2)
        clients.round()
        clients.check(all_answered=False)
        eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
        bucket.set(copies=3)
        eventually(lambda: copies_settled(cluster.nodes, 3), 2 * TIMEOUT_S, interval_s=0.2)
        assert_no_node_is_needed(cluster, ledger)


def frozen_content(url: str) -> dict[str, bytes]:
    """As a client finds it that knows nothing yet, not even who was down a moment ago."""
    with connect(url, options=OPTIONS) as client:
        frozen = client.bucket(BUCKET, snapshot="s")
        names = [info.name for info in frozen.objects()]
        return {item.entry.name: item.tobytes() for item in frozen.get_batch(names)}


def test_what_a_snapshot_sees_follows_the_number_of_copies(tmp_path: Path) -> None:
    with filled(tmp_path, KEYS, copies=1) as (cluster, bucket, ledger):
        first = {key: content(key, ledger.expected(key)[0]) for key in KEYS}
        take_snapshot(bucket, "s")
        put(bucket, ledger, KEYS[:20])
        delete(bucket, ledger, KEYS[20:40])
        bucket.set(copies=2)
        while not copies_settled(cluster.nodes, 2):
            assert frozen_content(cluster.url) == first
        serve_all(cluster)
        for node in cluster.nodes:
            node.kill()
            assert frozen_content(cluster.url) == first
            node.start()
            serve_all(cluster)
        bucket.set(copies=1)
        while not copies_settled(cluster.nodes, 1):
            assert frozen_content(cluster.url) == first
        assert frozen_content(cluster.url) == first
        eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
        there = [set(versions(node, current_map(cluster.nodes).bucket[0])) for node in cluster.nodes]
        assert sum(map(len, there)) == len(set().union(*there))
        assert_content(cluster.url, ledger)

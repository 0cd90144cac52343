"""Every key is put, overwritten and deleted all the time while objects move and nodes die, start, join and leave.

Every answer to a reader is right or an error that says "try again"; nothing that was acknowledged is lost, no old
version returns, no deleted object rises; in the end all copies are where they belong, byte for byte.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ais_loader import Client, connect, errors
from ais_loader.testing import NodeProcess, eventually
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.consensus.effects import Edit
from storage_node.cluster.map.mutations import add_node, begin_leave
from tests.faults.ledger_kit import (
    BUCKET,
    OPTIONS,
    TIMEOUT_S,
    Ledger,
    all_changing,
    assert_content,
    content,
    current_map,
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

KEYS = [f"k{at:03}" for at in range(80)]


def deleted(client: Client, bucket: str) -> bool:
    """Whether it is; a try whose answer is lost with its node may have done it."""
    try:
        client.delete_bucket(bucket, force=True)
    except errors.NodeUnavailable:
        return False
    except errors.BucketNotFound:
        pass
    return True


@pytest.mark.parametrize("victim", [0, 3], ids=["a-source-is-down", "the-new-node-is-down"])
@pytest.mark.sampled(1)
def test_all_keys_change_while_a_node_joins_and_one_is_down_and_back(tmp_path: Path, victim: int) -> None:
    with (
        filled(tmp_path / "cluster", KEYS) as (cluster, _, ledger),
        NodeProcess([tmp_path / "fourth"]) as fourth,
    ):
        nodes = [*cluster.nodes, fourth]
        with all_changing(cluster.url, ledger, KEYS, seed=victim) as writers:
            join(cluster, fourth, "host-3")
            nodes[victim].kill()
            writers.round()
            nodes[victim].start()
            writers.round()
            eventually(lambda: settled(nodes, 4), 2 * TIMEOUT_S, interval_s=0.2)
        eventually(lambda: equal(nodes, ledger), TIMEOUT_S, interval_s=0.2)
        assert_content(cluster.url, ledger)


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(1, id="the-leaving-node-restarts"),
        pytest.param(2, id="another-node-restarts", marks=pytest.mark.exhaustive),
    ],
)
def test_all_keys_change_while_a_node_leaves_and_one_restarts(tmp_path: Path, victim: int) -> None:
    with filled(tmp_path, KEYS, nodes=4) as (cluster, _, ledger):
        with all_changing(cluster.url, ledger, KEYS, seed=victim) as writers:
            change_map(
                endpoints(cluster.nodes), begin_leave(cluster.uuid_of(1)), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR
            )
            cluster.nodes[victim].restart()
            writers.round()
            left = [node for at, node in enumerate(cluster.nodes) if at != 1]
            eventually(lambda: settled(left, 3), 2 * TIMEOUT_S, interval_s=0.2)
            eventually(lambda: versions(cluster.nodes[1], cluster.map.bucket[0]) == {}, interval_s=0.2)
            cluster.nodes[1].stop()
        eventually(lambda: equal(left, ledger), TIMEOUT_S, interval_s=0.2)
        assert_content(left[0].url, ledger)


@pytest.mark.exhaustive
def test_two_nodes_join_at_once_and_one_leaves_while_all_keys_change(tmp_path: Path) -> None:
    with (
        filled(tmp_path / "cluster", KEYS) as (cluster, _, ledger),
        NodeProcess([tmp_path / "fourth"]) as fourth,
        NodeProcess([tmp_path / "fifth"]) as fifth,
    ):
        nodes = [*cluster.nodes, fourth, fifth]
        with all_changing(cluster.url, ledger, KEYS, seed=7) as writers:
            with joining(cluster, fourth, fifth):
                writers.round()
            change_map(endpoints(nodes), begin_leave(cluster.uuid_of(0)), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)
            fifth.restart()
            writers.round()
            eventually(lambda: settled(nodes[1:], 4), 2 * TIMEOUT_S, interval_s=0.2)
            cluster.nodes[0].stop()
        eventually(lambda: equal(nodes[1:], ledger), TIMEOUT_S, interval_s=0.2)
        assert_content(fourth.url, ledger)


def moved(member: cluster_pb.MapNode, state: cluster_pb.MapNode.State) -> Edit:
    """A node that goes the other way in the middle; one that has left by now joins again."""

    def edit(map_: cluster_pb.ClusterMap | None) -> cluster_pb.ClusterMap:
        assert map_ is not None
        for node in map_.node:
            if node.uuid == member.uuid:
                node.state = state
                return map_
        # Taken out for good otherwise: it has nothing that others forgot, as nobody deletes here.
        left = [uuid for uuid in map_.removed if uuid != member.uuid]
        del map_.removed[:]
        map_.removed.extend(left)
        return add_node(member)(map_)

    return edit


@pytest.mark.exhaustive
def test_the_only_copies_stay_readable_while_a_node_leaves_and_returns_again_and_again(tmp_path: Path) -> None:
    """By each map other nodes may let go of what they have, and the map changes just when they do."""
    draw = random.Random(5)
    with filled(tmp_path, KEYS, copies=1) as (cluster, _, ledger):
        nodes, bucket = cluster.nodes, cluster.map.bucket[0]
        member = cluster.map.node[1]
        with reading(cluster.url, ledger) as clients:
            for turn in range(8):
                state = cluster_pb.MapNode.JOINING if turn % 2 else cluster_pb.MapNode.LEAVING
                before = {node.url: len(versions(node, bucket)) for node in nodes}
                change_map(endpoints(nodes), moved(member, state), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)
                going = nodes[1:2] if state == cluster_pb.MapNode.LEAVING else [nodes[0], nodes[2]]
                if draw.random() < 0.8:  # until some copies have gone; otherwise at once

                    def some_went() -> bool:
                        return any(len(versions(node, bucket)) < before[node.url] for node in going)  # noqa: B023

                    eventually(lambda: some_went() or settled(nodes, len(current_map(nodes).node)), TIMEOUT_S)
            change_map(
                endpoints(nodes),
                moved(member, cluster_pb.MapNode.JOINING),
                timeout_s=TIMEOUT_S,
                caller=PROCESS_OPERATOR,
            )
            eventually(lambda: settled(nodes, 3), TIMEOUT_S, interval_s=0.2)
            clients.round()
            clients.check()
        eventually(lambda: equal(nodes, ledger), TIMEOUT_S, interval_s=0.2)
        assert_content(cluster.url, ledger)


def test_of_a_bucket_deleted_and_made_again_a_node_that_was_down_brings_back_nothing(tmp_path: Path) -> None:
    with filled(tmp_path, KEYS) as (cluster, bucket, before):
        client, ledger = bucket.client, Ledger(first=1000)
        delete(bucket, before, KEYS[70:])
        cluster.nodes[1].kill()
        eventually(lambda: deleted(client, BUCKET), TIMEOUT_S)
        client.create_bucket(BUCKET, copies=2)
        again, never = KEYS[:40], KEYS[40:]
        put(bucket, ledger, again)
        with reading(cluster.url, ledger) as clients:
            cluster.nodes[1].start()
            with connect(cluster.nodes[1].url, options=OPTIONS) as alone:
                returned = alone.bucket(BUCKET)
                for key in again:
                    assert returned.get(key) == content(key, ledger.expected(key)[0])
                for key in never:
                    with pytest.raises(errors.NotFound):
                        returned.get(key)
            put(bucket, ledger, again[:20])
            delete(bucket, ledger, again[20:27])
            eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
            clients.round()
            clients.check()
        made = current_map(cluster.nodes).bucket[0]
        assert made.uuid != cluster.map.bucket[0].uuid
        for node in cluster.nodes:
            assert set(versions(node, made)) <= set(again)
        assert_content(cluster.url, ledger)

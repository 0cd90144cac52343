"""Agreement on the map over a network that loses, repeats and reorders: one history, and every change made once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Network, Running, content

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.effects import Edit
from storage_node.cluster.consensus.errors import ChangeUnknown
from storage_node.cluster.map.mutations import add_node, create_cluster, remove_node
from tests.example_count import examples

seeds = st.integers(0, 2**32 - 1)


def marked(mark: str, change: Edit | None = None) -> Edit:
    """An edit that leaves a bucket of this name each time that it is made."""

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        assert map_ is not None
        map_.bucket.add(name=mark, uuid=b"b" * 16, copies=1, min_copies=1)
        return change(map_) if change is not None else map_

    return edit


def replaced(members: list[pb.MapNode]) -> Edit:
    """An edit after which these are the nodes: majorities before and after need not have a node in common."""

    def edit(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        assert map_ is not None
        del map_.node[:]
        map_.node.extend(members)
        return map_

    return edit


def made(network: Network, members: int) -> None:
    """A cluster of the first nodes."""
    edit = create_cluster([network.member(at) for at in range(members)])
    making = network.start("make", edit, [f"n{at}:1" for at in range(members)])
    network.settle()
    assert making.result is not None, making.error


def last_map(network: Network) -> pb.ClusterMap:
    """After the last fault: what a change that changes nothing returns. Finishes what others have begun."""

    def unchanged(map_: pb.ClusterMap | None) -> pb.ClusterMap:
        assert map_ is not None
        return map_

    reading = network.start("read", unchanged, list(network.nodes))
    network.settle()
    assert reading.result is not None, reading.error
    return reading.result


def assert_made_once(network: Network, changes: list[Running]) -> None:
    newest = last_map(network)
    history = network.committed()
    assert sorted(history) == list(range(1, newest.version + 1)), "a version is missing"
    assert content(history[newest.version]) == content(newest)
    for version in range(2, newest.version + 1):
        before, after = list(history[version - 1].bucket), list(history[version].bucket)
        assert after[:-1] == before, f"version {version} lost an update"
        assert history[version].change[: len(before)] == history[version - 1].change[: len(before)]
    times = Counter(bucket.name for bucket in newest.bucket)
    for change in changes:
        if change.result is not None:
            assert times[change.name] == 1, f"{change.name} was reported as made"
            assert any(bucket.name == change.name for bucket in change.result.bucket)
        elif change.killed or isinstance(change.error, ChangeUnknown):
            assert times[change.name] <= 1
        else:
            assert times[change.name] == 0, f"{change.name} was reported as not made: {change.error}"


def run_with_faults(network: Network, begin: Callable[[int], Running], count: int, kill: float) -> list[Running]:
    changes: list[Running] = []
    loss, repeat = network.random.choice([0.0, 0.02, 0.2]), network.random.choice([0.0, 0.1])
    for _ in range(4000):
        if len(changes) < count and (not changes or network.random.random() < 0.05):
            changes.append(begin(len(changes)))
        if not network.step(loss=loss, repeat=repeat, kill=kill) and len(changes) == count:
            break
    for change in changes:
        change.killed = change.killed or not change.over
    return changes


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(seed=seeds, members=st.sampled_from([1, 2, 3, 4, 5]), kill=st.sampled_from([0.0, 0.005]))
def test_concurrent_changes_make_one_history_and_none_is_lost_or_made_twice(
    seed: int, members: int, kill: float
) -> None:
    network = Network(members, seed)
    made(network, members)

    def begin(number: int) -> Running:
        known = network.random.sample(list(network.nodes), network.random.randint(1, members))
        return network.start(f"change-{number}", marked(f"change-{number}"), known)

    assert_made_once(network, run_with_faults(network, begin, 5, kill))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(seed=seeds, kill=st.sampled_from([0.0, 0.005]))
def test_nodes_come_and_go_while_the_map_changes(seed: int, kill: float) -> None:
    network = Network(6, seed)
    made(network, 3)

    def begin(number: int) -> Running:
        name = f"change-{number}"
        at = network.random.randrange(6)
        kind = network.random.choice(["add", "remove", "replace", "mark"])
        change = None
        if kind == "add":
            change = add_node(network.member(at))
        elif kind == "remove":
            change = remove_node(network.member(at).uuid)
        elif kind == "replace":
            change = replaced([network.member(at) for at in network.random.sample(range(6), 3)])
        known = network.random.sample(list(network.nodes), 3)
        # Nodes that were never part of the cluster do not know it: somebody has to.
        return network.start(name, marked(name, change), [*known, "n0:1", "n1:1", "n2:1"])

    changes = run_with_faults(network, begin, 8, kill)
    assert_made_once(network, changes)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(seed=seeds, kill=st.sampled_from([0.0, 0.01]))
def test_of_several_clusters_made_at_once_of_the_same_nodes_one_comes_about(seed: int, kill: float) -> None:
    network = Network(3, seed)
    edit = create_cluster([network.member(at) for at in range(3)])
    makers = run_with_faults(
        network, lambda number: network.start(f"make-{number}", edit, list(network.nodes)), 3, kill
    )
    last = network.start("make-last", edit, list(network.nodes))
    network.settle()
    assert last.result is not None, last.error
    for maker in makers:
        assert maker.result is None or maker.result.cluster_uuid == last.result.cluster_uuid
    assert sorted(network.committed()) == [1]


@settings(max_examples=examples(100), deadline=None)
@given(seed=seeds)
def test_clusters_made_at_once_of_overlapping_nodes_share_none(seed: int) -> None:
    network = Network(4, seed)
    groups = [[0, 1], [1, 2], [2, 3]]

    def begin(number: int) -> Running:
        group = groups[number]
        edit = create_cluster([network.member(at) for at in group])
        return network.start(f"make-{number}", edit, [f"n{at}:1" for at in group], timeout_s=20.0)

    makers = run_with_faults(network, begin, 3, 0.0)
    owned: dict[bytes, bytes] = {}
    for maker in makers:
        if maker.result is not None:
            for node in maker.result.node:
                assert owned.setdefault(node.uuid, maker.result.cluster_uuid) == maker.result.cluster_uuid


@pytest.mark.exhaustive
@settings(max_examples=3000, deadline=None)
@given(seed=seeds, kill=st.sampled_from([0.0, 0.005]))
def test_nodes_come_and_go_for_long(seed: int, kill: float) -> None:
    test_nodes_come_and_go_while_the_map_changes.hypothesis.inner_test(seed, kill)  # type: ignore[attr-defined]

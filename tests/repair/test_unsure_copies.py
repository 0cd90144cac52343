"""Copies that a node had of objects before a map made it their owner: read once they are known to be the newest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.testing import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.store.format import Version
from tests.node.cluster_kit import LocalCluster
from tests.node.write_kit import DOUBT, NOTHING, name_with, said

OLD, NEW = b"old", b"new"
TIMEOUT_S = 180.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, 3, copies=1, repair_interval_s=600.0) as running:
        for node in running.nodes:  # a pass before the change, however late, takes no copy of a stand-in away
            node.repair._take_away = _nothing  # type: ignore[method-assign, assignment]
        yield running


def let_leave(cluster: LocalCluster, number: int) -> None:
    cluster.map.node[number].state = cluster_pb.MapNode.LEAVING
    cluster.learn()


@pytest.mark.slow
def test_what_a_stand_in_has_is_not_read_once_it_is_an_owner_before_it_is_known_to_be_the_newest(
    cluster: LocalCluster,
) -> None:
    names = [name_with(cluster, lambda owners: owners == [0], f"k{at}-") for at in range(8)]
    cluster.put_on(0, dict.fromkeys(names, NEW), dict.fromkeys(names, Version(1, 20)))
    for number in (1, 2):
        cluster.put_on(number, dict.fromkeys(names, OLD), dict.fromkeys(names, Version(1, 10)))
    let_leave(cluster, 0)
    new_owner = {name: cluster.owners(name)[0] for name in names}
    assert set(new_owner.values()) <= {1, 2}
    assert {said(cluster, new_owner[name], name) for name in names} <= {DOUBT, NEW}
    for name in names:
        eventually(lambda: said(cluster, new_owner[name], name) == NEW, TIMEOUT_S)  # noqa: B023


def test_what_it_has_in_the_newest_version_is_read_without_being_copied_again(cluster: LocalCluster) -> None:
    name = name_with(cluster, lambda owners: owners == [0])
    for number in range(3):
        cluster.put_on(number, {name: NEW}, {name: Version(1, 20)})
    let_leave(cluster, 0)
    (owner,) = cluster.owners(name)
    eventually(lambda: said(cluster, owner, name) == NEW, TIMEOUT_S)
    assert cluster.nodes[owner].repair.metrics.names_fetched == 0


@pytest.mark.slow
def test_what_a_stand_in_has_is_not_sent_to_an_owner_that_cannot_know_of_newer_ones(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=1, linked=True, repair_interval_s=600.0) as cluster:
        names = [name_with(cluster, lambda owners: owners == [0], f"k{at}-") for at in range(8)]
        cluster.put_on(0, dict.fromkeys(names, NEW), dict.fromkeys(names, Version(1, 20)))
        cluster.put_on(1, dict.fromkeys(names, OLD), dict.fromkeys(names, Version(1, 10)))
        cluster.links[0].refuse()
        # It does not get so far as to hand over what it has.
        cluster.nodes[0].repair._push = _nothing  # type: ignore[method-assign, assignment]
        passes = cluster.nodes[1].repair.metrics.passes
        let_leave(cluster, 0)
        theirs = [name for name in names if cluster.owners(name) == [2]]
        assert theirs
        eventually(lambda: cluster.nodes[1].repair.metrics.passes >= passes + 2, TIMEOUT_S)
        assert {said(cluster, 2, name) for name in theirs} == {NOTHING}


async def _nothing(*_: object) -> None:
    return None

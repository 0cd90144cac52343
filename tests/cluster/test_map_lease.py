"""In every order in which nodes ask, send, take away and learn maps: no last copy goes, and nothing deleted rises."""

from __future__ import annotations

import itertools
import threading
import uuid

import pytest
from copies_model import DEAD, OLD, SLIPS, Model, Slip

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.context.membership import Membership, reported_version
from tests.table import table

TIMEOUT_S = 180.0


# -- all orders of two and three nodes


@pytest.mark.slow
@table("has", [(1, 0), (1, 1), (2, 1), (1, 2)])
def test_two_nodes_that_become_owners_in_turn_never_both_let_go(has: tuple[int, int]) -> None:
    assert Model([(0,), (1,), (0,), (1,)]).lost(has) is None


@pytest.mark.slow
@pytest.mark.parametrize(("second", "third"), list(itertools.product(range(3), repeat=2)))
def test_of_three_nodes_one_always_has_the_object_over_two_changes_of_its_owner(second: int, third: int) -> None:
    assert Model([(0,), (second,), (third,)]).lost((1, 0, 0)) is None


@pytest.mark.slow
@pytest.mark.parametrize("slip", SLIPS)
def test_without_each_part_of_the_agreement_the_last_copy_goes(slip: Slip) -> None:
    assert Model([(0,), (1,), (0,)], slip).lost((1, 0)) is not None


@pytest.mark.slow
def test_of_a_deleted_object_no_copy_rises_while_it_moves() -> None:
    assert Model([(0, 1)], dead=True).lost((DEAD, 0, OLD)) is None
    assert Model([(0,), (1,)], dead=True).lost((DEAD, 0, OLD)) is None


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("slip", ["asks by any map", "asks once", "takes what it sends"])
def test_without_each_part_of_the_agreement_a_deleted_object_rises(slip: Slip) -> None:
    assert Model([(0,), (1,)], slip, dead=True).lost((DEAD, 0, OLD)) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "owners",
    [
        [(0, 1), (1, 2), (0, 2)],
        [(0, 1), (2,), (0, 1)],
        pytest.param([(0, 1), (0, 2), (1, 2)], marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.sampled(1)
def test_of_three_nodes_two_of_which_own_the_object_one_always_has_it(owners: list[tuple[int, ...]]) -> None:
    assert Model(owners).lost((1, 1, 0)) is None


@pytest.mark.exhaustive
def test_of_three_nodes_one_always_has_the_newest_version_while_an_old_one_is_left() -> None:
    assert Model([(0, 1), (2,), (0, 1)]).lost((1, 2, 0)) is None


@pytest.mark.slow
def test_of_a_deleted_object_no_copy_rises_over_two_changes_of_its_owner() -> None:
    assert Model([(0,), (1,), (0,)], dead=True).lost((DEAD, OLD, 0)) is None


# -- one node


def a_view(version: int, cluster_uuid: bytes = b"c" * 16) -> ClusterView:
    map_ = pb.ClusterMap(cluster_uuid=cluster_uuid, version=version)
    map_.node.add(uuid=uuid.UUID(int=1).bytes, host="h", endpoint="127.0.0.1:1", weight=1.0, number=1)
    return ClusterView(map_)


def test_what_is_under_way_by_an_older_map_is_what_others_are_told() -> None:
    assert reported_version(7, []) == 7
    membership = Membership(uuid.UUID(int=1).bytes)
    lease = membership.lease
    assert lease.version == 0
    membership.learn(a_view(3).map)
    view = membership.view
    assert view is not None and lease.begin(view) and lease.begin(view)
    lease.hold(2)
    membership.learn(a_view(4).map)
    assert lease.version == 2
    lease.end(2)
    assert lease.version == 3 and not lease.begin(view)
    lease.end(3)
    assert lease.version == 3
    lease.end(3)
    assert lease.version == 4


@pytest.mark.slow
def test_a_map_learnt_at_any_moment_is_not_told_before_what_began_by_the_older_one_is_over() -> None:
    """Two threads: one begins and ends things by the map that it sees, one learns maps; what is told never lies."""
    membership = Membership(uuid.UUID(int=1).bytes, a_view(1))
    lease, stopping = membership.lease, threading.Event()
    newest = 2_000

    def learn() -> None:
        for version in range(2, newest + 1):
            membership.learn(a_view(version).map)
        stopping.set()

    learner = threading.Thread(target=learn, daemon=True)
    learner.start()
    begun = 0
    while not stopping.is_set():
        view = membership.view
        assert view is not None
        if lease.begin(view):
            begun += 1
            assert lease.version == view.version
            lease.end(view.version)
            assert lease.version >= view.version
    learner.join(TIMEOUT_S)
    assert begun and lease.version == newest

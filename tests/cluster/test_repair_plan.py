"""What repair decides from versions alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.reserved import REMOTE_ETAG
from storage_node.cluster.repair import plan as repair_plan
from storage_node.cluster.repair.plan import (
    UNKNOWN,
    Answer,
    NamePage,
    RepairWork,
    State,
    batches,
    compare,
    finish_changes,
    owned_by,
    page_of,
    questions,
    same_owners,
)
from storage_node.cluster.repair.shortage import shortages
from storage_node.store.format import CatalogEntry, Version, encode_metadata, tombstone
from tests.table import table

NODES = 4


def state(counter: int, *, dead: bool = False) -> State:
    return State(Version(1, counter), dead, 0 if dead else 10)


def page(mine: State, owners: list[int], *, ripe: bool = False) -> NamePage:
    return NamePage(["a"], [mine], [owners], [ripe])


def plan(page: NamePage, here: int, nodes: int, answers: Mapping[int, Answer]) -> RepairWork:
    """All that answer do so by this map."""
    return repair_plan.plan(page, here, nodes, answers, answers.keys())


def test_what_another_owner_lacks_or_has_older_is_pushed_to_it() -> None:
    work = plan(page(state(5), [0, 1, 2]), 0, NODES, {1: {"a": None}, 2: {"a": state(4)}})
    assert work.push == {1: ["a"], 2: ["a"]}
    assert not work.is_clean and not work.drop and not work.older_local


def evictable(mine: State, owners: list[int]) -> NamePage:
    """An object that is a copy of a remote one."""
    return NamePage(["a"], [mine], [owners], [False], [True])


def test_an_owner_that_lacks_a_copy_of_a_remote_object_is_left_without() -> None:
    work = plan(evictable(state(5), [0, 1, 2]), 0, NODES, {1: {"a": None}, 2: {"a": state(4)}})
    assert work.push == {2: ["a"]}  # an older one is wrong
    assert plan(evictable(state(5), [0, 1]), 0, NODES, {1: {"a": None}}).is_clean
    assert not shortages(evictable(state(5), [0, 1]), 0, {1: {"a": None}})
    assert shortages(page(state(5), [0, 1]), 0, {1: {"a": None}}) == {"a": 1}


def test_a_copy_of_a_remote_object_that_belongs_elsewhere_goes_when_one_owner_has_it() -> None:
    copy = evictable(state(5), [1, 2])
    assert plan(copy, 0, NODES, {1: {"a": None}, 2: {"a": state(5)}}).drop == [("a", state(5))]
    work = plan(copy, 0, NODES, {1: {"a": None}, 2: {"a": None}})
    assert work.push == {1: ["a"]} and not work.drop
    work = plan(copy, 0, NODES, {1: {"a": None}})  # the other one is silent
    assert not work.drop and not work.is_clean
    work = plan(copy, 0, NODES, {1: {"a": None}, 2: {"a": state(4)}})
    assert work.push == {2: ["a"]} and not work.drop


def evicted(counter: int) -> State:
    return State(Version(1, counter), True, is_evicted=True)


def test_what_an_owner_has_evicted_is_not_kept_elsewhere_nor_sent_back_to_it() -> None:
    for copy in (page(state(5), [1, 2]), evictable(state(5), [1, 2])):
        for newest in (5, 6):
            work = plan(copy, 0, NODES, {1: {"a": evicted(newest)}, 2: {"a": None}})
            assert work.drop == [("a", state(5))] and not any(
                "a" in names for at, names in work.push.items() if at == 1
            )
        work = repair_plan.plan(copy, 0, NODES, {1: {"a": evicted(6)}, 2: {"a": None}}, {2})
        assert not work.drop  # by another map
        work = plan(copy, 0, NODES, {1: {"a": evicted(4)}, 2: {"a": None}})
        assert 1 in work.push and not work.drop
    owned = plan(page(state(5), [0, 1]), 0, NODES, {1: {"a": evicted(6)}})
    assert owned.older_local == {"a": (1, evicted(6))} and not owned.push
    assert plan(evictable(state(5), [0, 1]), 0, NODES, {1: {"a": evicted(5)}}).is_clean
    tombstone = page(state(5, dead=True), [0, 1], ripe=True)
    assert plan(tombstone, 0, NODES, {node: {"a": evicted(4)} for node in (1, 2, 3)}).forget


def test_a_page_knows_copies_of_remote_objects_by_their_metadata() -> None:
    map_ = pb.ClusterMap(version=1, node=[pb.MapNode(uuid=b"n" * 16, weight=1)])
    bucket = map_.bucket.add(name="b", uuid=b"b" * 16, copies=1)
    held = [
        (name, CatalogEntry(1, 1, 0, 0, 0, 0, 0, b"p", encode_metadata(metadata), b""))
        for name, metadata in (("copy", {REMOTE_ETAG: "e"}), ("own", {"x": "y"}))
    ]
    assert not any(map(page_of(ClusterView(map_), bucket, held, now_ns=0, grace_s=1).is_evictable, range(2)))
    bucket.remote.url = "s3://b"
    assert list(map(page_of(ClusterView(map_), bucket, held, now_ns=0, grace_s=1).is_evictable, range(2))) == [
        True,
        False,
    ]


def test_equal_copies_need_nothing() -> None:
    work = plan(page(state(5), [0, 1]), 0, NODES, {1: {"a": state(5)}})
    assert work.is_clean and not work.drop


def test_an_owner_with_an_older_copy_learns_who_has_the_newest() -> None:
    work = plan(page(state(5), [0, 1, 2]), 0, NODES, {1: {"a": state(6)}, 2: {"a": state(7)}})
    assert work.older_local == {"a": (2, state(7))}
    assert not work.push and not work.is_clean


def test_a_copy_that_belongs_elsewhere_goes_when_all_owners_have_it() -> None:
    answers = {1: {"a": state(5)}, 2: {"a": state(6)}}
    assert plan(page(state(5), [1, 2]), 0, NODES, answers).drop == [("a", state(5))]


@table("missing", [None, state(4), UNKNOWN, "silent"])
def test_a_copy_that_belongs_elsewhere_stays_while_one_owner_may_not_have_it(missing: State | str | None) -> None:
    answers = {1: {"a": state(5)}}
    if not isinstance(missing, str):
        answers[2] = {"a": missing}  # type: ignore[dict-item]
    work = plan(page(state(5), [1, 2]), 0, NODES, answers)
    assert not work.drop and not work.is_clean


def test_silence_of_an_owner_is_not_clean_and_pushes_nothing() -> None:
    work = plan(page(state(5), [0, 1]), 0, NODES, {})
    assert work.unknown == 1 and not work.push and not work.is_clean


def test_a_tombstone_is_pushed_like_an_object_until_its_time_is_over() -> None:
    tombstone = state(5, dead=True)
    assert plan(page(tombstone, [0, 1]), 0, NODES, {1: {"a": state(4)}}).push == {1: ["a"]}
    assert plan(page(tombstone, [0, 1]), 0, NODES, {1: {"a": None}}).push == {1: ["a"]}


def test_a_ripe_tombstone_is_forgotten_when_every_node_has_said_that_it_has_nothing_older() -> None:
    tombstone = state(5, dead=True)
    ripe = page(tombstone, [0, 1], ripe=True)
    assert questions(ripe, 0, NODES) == {1: ["a"], 2: ["a"], 3: ["a"]}
    work = plan(ripe, 0, NODES, {1: {"a": None}, 2: {"a": None}, 3: {"a": tombstone}})
    assert work.forget == [("a", tombstone)] and not work.push


@pytest.mark.parametrize("lagging", [1, 2])
def test_what_an_owner_says_by_another_map_lets_no_copy_go_and_is_not_clean(lagging: int) -> None:
    answers = {1: {"a": state(5)}, 2: {"a": state(5)}}
    work = repair_plan.plan(page(state(5), [1, 2]), 0, NODES, answers, answers.keys() - {lagging})
    assert not work.drop and not work.push and not work.is_clean
    work = repair_plan.plan(page(state(5), [0, lagging]), 0, NODES, answers, answers.keys() - {lagging})
    assert not work.is_clean


def test_what_an_owner_lacks_by_another_map_is_pushed_to_it_all_the_same() -> None:
    assert repair_plan.plan(page(state(5), [1, 2]), 0, NODES, {1: {"a": None}}, ()).push == {1: ["a"]}


@table("lagging", [1, 2, 3])
def test_a_ripe_tombstone_stays_while_a_node_places_objects_by_another_map(lagging: int) -> None:
    answers: dict[int, Answer] = {1: {"a": None}, 2: {"a": None}, 3: {"a": None}}
    ripe = page(state(5, dead=True), [0, 1], ripe=True)
    assert not repair_plan.plan(ripe, 0, NODES, answers, answers.keys() - {lagging}).forget


def test_an_old_version_is_not_pushed_where_another_owner_has_a_newer_one() -> None:
    for owners in ([0, 1, 2], [1, 2]):
        work = plan(page(state(5), owners), 0, NODES, {1: {"a": None}, 2: {"a": state(6, dead=True)}})
        assert not work.push and not work.drop
        assert bool(work.older_local) == (0 in owners)


@table("third", [state(4), UNKNOWN, "silent"])
def test_a_ripe_tombstone_stays_while_a_node_may_have_what_it_guards_against(third: State | str) -> None:
    answers = {1: {"a": None}, 2: {"a": None}}
    if not isinstance(third, str):
        answers[3] = {"a": third}  # type: ignore[dict-item]
    assert not plan(page(state(5, dead=True), [0, 1], ripe=True), 0, NODES, answers).forget


def test_a_ripe_tombstone_is_not_brought_back_to_an_owner_that_has_forgotten_it() -> None:
    work = plan(page(state(5, dead=True), [0, 1], ripe=True), 0, NODES, {1: {"a": None}})
    assert not work.push


def test_an_object_that_is_newer_than_a_tombstone_is_never_dropped_for_it() -> None:
    work = plan(page(state(6), [1, 2]), 0, NODES, {1: {"a": state(5, dead=True)}, 2: {"a": state(6)}})
    assert work.push == {1: ["a"]} and not work.drop


def test_comparing_finds_what_is_owned_and_missing_and_whatever_is_older() -> None:
    theirs = [
        ("new", state(3)),
        ("other", state(3)),
        ("old", state(3)),
        ("same", state(3)),
        ("lost", state(3)),
        ("gone", state(4, dead=True)),
    ]
    mine = {"new": None, "other": None, "old": state(2), "same": state(3), "lost": UNKNOWN, "gone": state(3)}
    found = dict(compare(theirs, mine, {"new", "same", "lost"}))
    assert found == {"new": state(3), "old": state(3), "gone": state(4, dead=True)}
    theirs = [(name, evicted(3)) for name in mine]
    assert dict(compare(theirs, mine, {"new", "same", "lost"})) == {"old": evicted(3)}


def a_map(states: list[pb.MapNode.State]) -> pb.ClusterMap:
    map_ = pb.ClusterMap(cluster_uuid=b"c" * 16, version=7)
    for number, node_state in enumerate(states):
        map_.node.add(
            uuid=uuid.UUID(int=number).bytes,
            host=f"host-{number}",
            endpoint=f"127.0.0.1:{number}",
            weight=1.0,
            state=node_state,
            number=number + 1,
        )
    map_.bucket.add(name="b", uuid=b"b" * 16, copies=2)
    return map_


def test_owners_are_those_of_the_map() -> None:
    view = ClusterView(a_map([pb.MapNode.ACTIVE] * NODES))
    bucket = view.buckets["b"]
    names = [f"n{at}" for at in range(100)]
    record = CatalogEntry(1, 5, 0, 10, 0, 10**9, 0, b"x", b"")
    held = [(name, record) for name in names]
    held[3] = names[3], tombstone(Version(1, 9), 10**9)
    found = page_of(view, bucket, held, now_ns=20 * 10**9, grace_s=10)
    assert [list(owners) for owners in found.owners] == [view.owners(bucket, name) for name in names]
    assert [at for at, ripe in enumerate(found.ripe) if ripe] == [3]
    assert not any(page_of(view, bucket, held, now_ns=2 * 10**9, grace_s=10).ripe)
    for here in range(NODES):
        assert owned_by(view, bucket, names, here) == {n for n in names if here in view.owners(bucket, n)}


def test_a_finished_change_leaves_active_nodes_alone() -> None:
    before = a_map([pb.MapNode.ACTIVE, pb.MapNode.JOINING, pb.MapNode.LEAVING, pb.MapNode.JOINING])
    done = finish_changes(7)(_copy(before))
    assert [node.state for node in done.node] == [pb.MapNode.ACTIVE] * 3
    assert [node.number for node in done.node] == [1, 2, 4]


def test_a_change_is_not_finished_under_another_version_of_the_map() -> None:
    before = a_map([pb.MapNode.ACTIVE, pb.MapNode.JOINING])
    assert finish_changes(6)(_copy(before)) == before


@table(
    "change, same",
    [
        (lambda map_: map_.bucket.add(name="new", uuid=b"n" * 16, copies=2), True),
        (lambda map_: map_.bucket.pop(), True),
        (lambda map_: map_.job.add(name="j"), True),
        (lambda map_: None, True),
        (lambda map_: setattr(map_.bucket[0], "copies", 3), False),
        (lambda map_: map_.bucket[0].former_copies.append(1), False),
        (lambda map_: map_.bucket[0].snapshot.add(name="s", cut=4), False),
        (lambda map_: setattr(map_.node[1], "weight", 2.0), False),
        (lambda map_: setattr(map_.node[1], "state", pb.MapNode.LEAVING), False),
        (lambda map_: setattr(map_.node[1], "peer_endpoint", "elsewhere:1"), False),
        (lambda map_: map_.node.pop(), False),
    ],
)
def test_owners_are_the_same_when_nodes_and_the_buckets_that_there_were_are(
    change: Callable[[pb.ClusterMap], object], same: bool
) -> None:
    before = a_map([pb.MapNode.ACTIVE] * 3)
    for at, node in enumerate(before.node):
        node.peer_endpoint = f"host:{at}"
    before.bucket.add(name="a", uuid=b"a" * 16, copies=2)
    before.bucket.add(name="b", uuid=b"b" * 16, copies=2)
    after = _copy(before)
    after.version += 1
    change(after)
    assert same_owners(ClusterView(before), ClusterView(after)) is same


def test_while_a_map_changes_nothing_is_the_same() -> None:
    changing = a_map([pb.MapNode.ACTIVE, pb.MapNode.JOINING])
    assert not same_owners(ClusterView(changing), ClusterView(_copy(changing)))


def _copy(map_: pb.ClusterMap) -> pb.ClusterMap:
    copy = pb.ClusterMap()
    copy.CopyFrom(map_)
    return copy


@given(st.lists(st.integers(0, 50)), st.integers(1, 5), st.integers(1, 60))
def test_batches_take_everything_once_and_stay_within_their_limits(sizes: list[int], names: int, most: int) -> None:
    groups = batches([str(at) for at in range(len(sizes))], sizes, most_names=names, most_bytes=most)
    assert [at for group in groups for at in group] == list(range(len(sizes)))
    for group in groups:
        assert len(group) <= names
        assert len(group) == 1 or sum(sizes[at] for at in group) <= most

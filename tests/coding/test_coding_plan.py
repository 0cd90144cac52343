"""Plans of erasure coding: groups of objects, places of fragments, and what a keeper finds. Without I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from ais_loader.errors import InvalidRequest
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.redundancy import Redundancy, companion_name
from storage_node.cluster.coding.group import Manifest, Slot, lay_out
from storage_node.cluster.coding.plan import (
    GROUP_BYTES,
    GROUP_OBJECTS,
    LEAST_FRAGMENT_BYTES,
    Candidate,
    Collector,
    denied_slots,
    is_lost,
    is_sparse,
    living,
    lost_fragments,
    may_be_coded,
    most_fragment_bytes,
    place_fragments,
    plain_owners,
)
from storage_node.cluster.repair.plan import UNKNOWN, State
from storage_node.context.errors import TooFewCopies
from storage_node.store.format import DENIAL_BIT, CatalogEntry, Version, coded_path, tombstone
from tests.table import table

RS = Redundancy(4, 2)
GROUP, OTHER = bytes(range(16)), bytes(range(1, 17))
ONE = Version(1, 100, 1)


def entry(size_bytes: int = 1000, modified_ns: int = 0, path: bytes = b"00/00/x.1") -> CatalogEntry:
    return CatalogEntry(*ONE, size_bytes, 0, modified_ns, 0, path, b"")


def candidates(sizes: Iterable[int]) -> list[Candidate]:
    return [Candidate(f"{at:05}", entry(size), cast(Any, None)) for at, size in enumerate(sizes)]


def view_of(hosts: int, nodes_each: int = 1) -> ClusterView:
    map_ = pb.ClusterMap(cluster_uuid=b"c" * 16, version=1)
    for number in range(hosts * nodes_each):
        map_.node.add(uuid=bytes([number + 1]) * 16, host=f"host-{number // nodes_each}", weight=1.0, number=number + 1)
    map_.bucket.add(name="b", uuid=b"b" * 16, copies=3)
    map_.bucket.add(name=companion_name(b"b" * 16), uuid=b"f" * 16, copies=1, coded_of=b"b" * 16)
    return ClusterView(map_)


def companion_of(view: ClusterView) -> pb.MapBucket:
    return view.buckets[companion_name(b"b" * 16)]


@table(
    ("text", "expected"),
    [
        ("copies", None),
        ("rs:4+2", Redundancy(4, 2)),
        ("rs:2+1", Redundancy(2, 1)),
        ("rs:28+4", Redundancy(28, 4)),
        *((wrong, InvalidRequest) for wrong in ("", "rs:1+2", "rs:4+0", "rs:30+4", "rs:4", "RS:4+2", "rs:4+2 ", "3")),
    ],
)
def test_a_redundancy_is_read_from_its_text(text: str, expected: Any) -> None:
    if expected is InvalidRequest:
        with pytest.raises(InvalidRequest, match=r"need copies, or rs:K\+M"):
            Redundancy.parse(text)
        return
    found = Redundancy.parse(text)
    assert found == expected
    assert found is None or str(found) == text


def test_only_settled_objects_with_files_are_coded() -> None:
    now_ns = 100 * 10**9
    assert may_be_coded("a", entry(), now_ns, 60.0)
    assert not may_be_coded("a", entry(modified_ns=now_ns - 59 * 10**9), now_ns, 60.0)
    assert not may_be_coded("a", entry(path=coded_path(GROUP)), now_ns, 60.0)
    assert not may_be_coded("a", tombstone(ONE, 0), now_ns, 60.0)
    assert not may_be_coded("/.coded/" + "0" * 32, entry(), now_ns, 60.0), "a manifest is what a group is found by"


@table(
    "sizes",
    [
        [10 << 10] * 3000,
        [1] * (2 * GROUP_OBJECTS),
        [700 << 10] * 50,
        [GROUP_BYTES + 1, 10, most_fragment_bytes(RS.data) + 1, 3 * most_fragment_bytes(RS.data), 0, 300_000],
        [],
    ],
)
def test_each_object_is_in_one_group_whose_fragments_hold_it(sizes: list[int]) -> None:
    collector = Collector(RS)
    groups = [*collector.add(candidates(sizes)), *collector.rest()]
    grouped = [one.name for group in groups for one in group]
    assert len(grouped) == len(set(grouped))
    left = sum(sizes[int(name)] for name in {one.name for one in candidates(sizes)} - {*grouped})
    assert left < RS.data * LEAST_FRAGMENT_BYTES, "only what would not shrink stays as copies"
    for group in groups:
        held = [one.entry.size_bytes for one in group]
        assert len(group) == 1 or max(held) <= GROUP_BYTES
        offsets, fragment_bytes = lay_out(held, RS.data, most_fragment_bytes(RS.data))
        assert len(offsets) == len(held)
        assert max(at + size for at, size in zip(offsets, held, strict=True)) <= RS.data * fragment_bytes


def test_a_group_is_bounded_whatever_its_redundancy() -> None:
    for data in range(1, 32):
        most_bytes = most_fragment_bytes(data)
        assert (1 << 20) <= most_bytes <= GROUP_BYTES // data and most_bytes % 4096 == 0
        offsets, fragment_bytes = lay_out([700_000] * 200, data, most_bytes)
        assert offsets and data * fragment_bytes <= GROUP_BYTES


@table(("hosts", "nodes_each"), [(6, 1), (6, 3), (20, 1)])
def test_fragments_are_named_such_that_their_owners_are_on_different_hosts(hosts: int, nodes_each: int) -> None:
    view = view_of(hosts, nodes_each)
    for number in range(20):
        group = bytes([number]) * 16
        places = place_fragments(view, companion_of(view), group, range(6))
        assert sorted(places) == list(range(6))
        assert all(view.owners(companion_of(view), place.name) == [place.node] for place in places.values())
        assert len({view.nodes[place.node].host for place in places.values()}) == 6


def test_a_fragment_that_is_written_again_keeps_its_name_where_its_host_is_free() -> None:
    view = view_of(6)
    before = place_fragments(view, companion_of(view), GROUP, range(6))
    names = [before[index].name for index in range(6)]
    used = {view.nodes[before[index].node].host for index in range(5)}
    assert place_fragments(view, companion_of(view), GROUP, [5], used=used, names=names) == {5: before[5]}
    hosts = {view.nodes[before[index].node].host for index in (0, 1, 2, 3, 5)}
    moved = place_fragments(view, companion_of(view), GROUP, [5], used=hosts, names=names)[5]
    assert moved.name not in names and view.nodes[moved.node].host not in hosts
    with pytest.raises(TooFewCopies, match="no host is left"):
        place_fragments(view, companion_of(view), GROUP, [5], used=[f"host-{number}" for number in range(6)])


def manifest(fragments: tuple[str, ...] = ("f",) * 6) -> Manifest:
    slots = tuple(Slot(name, ONE, 1000 * at, 1000, 0) for at, name in enumerate("abcd"))
    return Manifest(GROUP, 4, 2, 1000, b"b" * 16, fragments, slots)


def test_an_object_lives_in_a_group_while_any_owner_has_its_entry_there() -> None:
    here, elsewhere, file = State(ONE, False, group=GROUP), State(ONE, False, group=OTHER), State(ONE, False)
    nodes = dict.fromkeys("abcd", (0, 1))
    answers = {0: {"a": here, "b": file, "c": None, "d": elsewhere}, 1: {"a": file, "b": here, "c": file, "d": None}}
    found = living(manifest(), nodes, answers)
    assert found is not None and [slot.name for slot in found] == ["a", "b"]
    assert not is_sparse(manifest(), found)
    assert is_sparse(manifest(), found[:1])
    unsure = [{0: answers[0]}, {0: answers[0], 1: {**answers[1], "c": UNKNOWN}}, {1: answers[1]}]
    assert [living(manifest(), nodes, one) for one in unsure] == [None] * 3, "a node that is silent may have an entry"


def test_an_object_that_was_put_after_its_denial_stays_in_its_group() -> None:
    later = Version(ONE.epoch + 2 * DENIAL_BIT, 300, 1)
    slots = (Slot("a", ONE, 0, 10, 0), Slot("b", later, 10, 10, 0))
    denied, here = State(Version(ONE.epoch + DENIAL_BIT, 200, 1), True), State(later, False, group=GROUP)
    answers = {0: {"a": denied, "b": here}, 1: {"a": None, "b": denied}}
    assert denied_slots(manifest()._replace(slots=slots), answers) == [slots[0]]


def test_an_owner_with_a_file_swaps_it_once_another_owner_has_swapped() -> None:
    here, file = State(ONE, False, group=GROUP), State(ONE, False)
    newer, dead = State(Version(1, 200, 1), False), State(ONE, True)
    owners = dict.fromkeys("abcd", (0, 1))
    answers = {0: {"a": here, "b": file, "c": here, "d": here}, 1: {"a": file, "b": file, "c": newer, "d": dead}}
    found = plain_owners(manifest(), owners, answers)
    assert {node: [slot.name for slot in slots] for node, slots in found.items()} == {1: ["a"]}
    found = plain_owners(manifest(), owners, {0: answers[1], 1: answers[0]})
    assert {node: [slot.name for slot in slots] for node, slots in found.items()} == {0: ["a"]}, "the first one as well"
    assert plain_owners(manifest(), owners, {1: answers[1]}) == {}


def test_fragments_are_lost_that_their_owner_lacks_or_that_share_a_host() -> None:
    view = view_of(6)
    places = place_fragments(view, companion_of(view), GROUP, range(6))
    names = tuple(places[index].name for index in range(6))
    nodes = [places[index].node for index in range(6)]
    there = {nodes[index]: {names[index]: State(ONE, False)} for index in range(6)}

    def lost(answers: Any, owners: list[int] = nodes) -> list[int]:
        return lost_fragments(view, manifest(names), owners, answers)

    assert lost(there) == []
    assert lost({**there, nodes[1]: {names[1]: None}, nodes[4]: {names[4]: UNKNOWN}}) == [1, 4]
    assert lost({node: answer for node, answer in there.items() if node != nodes[3]}) == [], "it may only be silent"
    shared = [*nodes[:5], nodes[0]]
    answers = {**there, nodes[0]: {names[0]: State(ONE, False), names[5]: State(ONE, False)}}
    assert lost(answers, shared) == [5]


def test_a_fragment_is_written_to_its_owner_again_that_answers_and_has_none() -> None:
    there: list[State | None] = [None, UNKNOWN, State(ONE, True), State(ONE, False)]
    assert [is_lost("f", {"f": state}) for state in there] == [True, True, True, False]
    assert not is_lost("f", None), "a silent owner takes none, and may have it"

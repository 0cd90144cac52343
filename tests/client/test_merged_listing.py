"""Listings of several nodes as one: order, newest versions, when a silent node can be done without, and that nothing is
missing while objects go from node to node and maps change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ais_loader.errors import BucketNotFound, DriveFailed, NodeUnavailable, StaleMap
from ais_loader.testing import eventually
from ais_loader.transport.cluster import listing
from ais_loader.transport.cluster.listing import ListedMap, ListedPage, MergedListing
from ais_loader.transport.listings import name_of_item
from ais_loader.values.entry import ObjectInfo
from tests.example_count import examples


def info(name: str, version: str = "1.1.1") -> ObjectInfo:
    return ObjectInfo("b", name, 1, version, 0, 0)


def objects_of(*args: Any, **options: Any) -> list[ObjectInfo]:
    return [one for found in MergedListing(*args, **options).stretches() for one in found]


def names_of(page: Callable[..., ListedPage], *args: Any, **options: Any) -> list[str]:
    """The listing of the same nodes, when they are asked for names alone."""

    def names(*where: Any) -> ListedPage:
        found = page(*where)
        return replace(found, items=[name_of_item(one).encode() for one in found.items])

    stretches = MergedListing(names, *args, **options).stretches()
    return [name.decode() for found in stretches for name in found]


def map_of(hosts: Sequence[str], *, version: int = 1, copies: int = 1, moving: bool = False) -> ListedMap:
    return ListedMap(version, [host.encode() for host in hosts], hosts, copies, moving)


class Nodes:
    """Each node's objects, two on a page; what stands behind an error is never told."""

    def __init__(self, *listings: list[ObjectInfo | Exception]) -> None:
        self.listings = listings
        self.asked = [0] * len(listings)
        self.in_doubt: dict[int, list[str]] = {}

    def page(self, map_: ListedMap, at: int, after: str) -> ListedPage:
        self.asked[at] += 1
        found: list[ObjectInfo] = []
        for one in self.listings[at]:
            if isinstance(one, Exception):
                if not found:
                    raise one
                return ListedPage(found, found[-1].name, (), 1, 1)
            if one.name > after:
                if len(found) == 2:
                    return ListedPage(found, found[-1].name, (), 1, 1)
                found.append(one)
        doubts = [name for name in self.in_doubt.get(at, []) if name > after]
        return ListedPage(found, None, doubts, 1, 1)


def merged(
    nodes: Nodes, copies: int, hosts: list[str] | None = None, *, retry_s: float = 0.05
) -> list[tuple[str, str]]:
    names = hosts or [f"host-{at}" for at in range(len(nodes.listings))]
    map_ = map_of(names, copies=copies)
    found = objects_of(nodes.page, lambda _: map_, map_=map_, retry_s=retry_s)
    others = Nodes(*nodes.listings)
    others.in_doubt = nodes.in_doubt
    assert names_of(others.page, lambda _: map_, map_=map_, retry_s=0.05) == [one.name for one in found]
    return [(one.name, one.version) for one in found]


def test_names_come_once_in_the_order_of_their_bytes_with_their_newest_version() -> None:
    nodes = Nodes(
        [info("a", "1.9.1"), info("é", "1.2.1")], [info("a", "1.10.1"), info("b")], [], [info("Z"), info("é")]
    )
    assert merged(nodes, 2) == [("Z", "1.1.1"), ("a", "1.10.1"), ("b", "1.1.1"), ("é", "1.2.1")]


def test_a_node_that_breaks_off_is_done_without_while_there_are_other_copies() -> None:
    nodes = Nodes([info("a"), NodeUnavailable("gone")], [info("a"), info("b")], [info("b"), info("c")])
    assert [name for name, _ in merged(nodes, 2)] == ["a", "b", "c"]


def test_a_node_that_never_answers_is_an_error_where_it_may_have_the_only_copy() -> None:
    nodes = Nodes([NodeUnavailable("gone")], [info("b")])

    def is_asked_again() -> bool:
        """Unless this process stands still for as long as it would try."""
        before = nodes.asked[0]
        with pytest.raises(NodeUnavailable, match="gone"):
            merged(nodes, 1, retry_s=0.2)
        return nodes.asked[0] > before + 1

    eventually(is_asked_again)


def test_a_node_that_lacks_a_drive_is_done_without_or_says_so_at_once() -> None:
    nodes = Nodes([DriveFailed("no drive")], [info("a")], [info("a"), info("b")])
    assert [name for name, _ in merged(nodes, 2)] == ["a", "b"]
    with pytest.raises(DriveFailed, match="no drive"):
        merged(nodes, 1)
    assert nodes.asked[0] == 2, "it is not asked again: the drive is no better in a moment"


def test_two_silent_nodes_of_one_host_are_one_copy_and_of_two_hosts_two() -> None:
    nodes = Nodes([NodeUnavailable("x")], [NodeUnavailable("y")], [info("a")])
    assert merged(nodes, 2, ["h", "h", "i"]) == [("a", "1.1.1")]
    with pytest.raises(NodeUnavailable):
        merged(nodes, 2, ["h", "i", "j"])


def test_a_bucket_that_no_node_has_is_not_found_and_one_that_some_have_is_listed() -> None:
    with pytest.raises(BucketNotFound):
        merged(Nodes([BucketNotFound("b")], [BucketNotFound("b")]), 1)
    assert merged(Nodes([BucketNotFound("b")], [info("a")]), 1) == [("a", "1.1.1")]


def test_a_name_of_which_only_a_silent_node_can_tell_is_not_left_out() -> None:
    nodes = Nodes([info("a")], [NodeUnavailable("away")])
    nodes.in_doubt[0] = ["b"]
    with pytest.raises(NodeUnavailable, match="1 names are in doubt"):
        merged(nodes, 2)
    nodes.listings[1][:] = [info("b")]
    assert [name for name, _ in merged(nodes, 2)] == ["a", "b"]
    nodes.listings[1][:] = []
    assert [name for name, _ in merged(nodes, 2)] == ["a"], "those who know have said that it is not there"


def test_a_name_of_which_all_who_have_it_are_in_doubt_is_not_left_out() -> None:
    nodes = Nodes([info("a")], [info("a"), info("c")], [info("c")])
    nodes.in_doubt = {0: ["b"], 1: ["b"]}
    with pytest.raises(NodeUnavailable, match="1 names are in doubt"):
        merged(nodes, 2)
    nodes.in_doubt = {1: ["b"]}  # the other one that has it would have listed it
    assert [name for name, _ in merged(nodes, 2)] == ["a", "c"]
    nodes.in_doubt = {0: ["b"], 1: ["b"], 2: []}
    nodes.listings[2].insert(0, info("b"))
    assert [name for name, _ in merged(nodes, 2)] == ["a", "b", "c"]


@pytest.mark.parametrize("silent", [False, True])
def test_names_that_come_into_doubt_while_others_are_waited_for_are_not_left_out(silent: bool) -> None:
    third = [NodeUnavailable("gone")] if silent else []
    nodes = Nodes([info("b"), info("d", "1.2.1")], [info("b"), info("d")], third)
    nodes.in_doubt = {0: ["a", "c"], 1: ["a", "c"]}

    def page(map_: ListedMap, at: int, after: str) -> ListedPage:
        answer = nodes.page(map_, at, after)
        if at == 1:  # looked at for the first time: "b", "d" and "e" are being written now, and what "a" is is settled
            nodes.in_doubt = {0: ["b", "d", "e"], 1: ["b", "d", "e"]}
            nodes.listings = [info("a")], [info("a")], third
        return answer

    map_ = map_of(["x", "y", "z"], copies=2)
    listed = [(one.name, one.version) for one in objects_of(page, lambda _: map_, map_=map_, retry_s=5.0)]
    assert listed == [("a", "1.1.1"), ("b", "1.1.1"), ("d", "1.2.1")]


def test_a_newer_map_that_nobody_tells_is_an_error_and_no_short_list() -> None:
    def page(map_: ListedMap, at: int, after: str) -> ListedPage:
        return ListedPage([], None, (), 2, 2)

    with pytest.raises(StaleMap):
        objects_of(page, lambda _: map_of(["h"]), map_=map_of(["h"]), retry_s=0.05)


class World:
    """Nodes that join and leave while a listing goes on; between any two questions something may happen.

    As the product does it: an object is at its new owner before it goes from where it was; nobody lets go of one but by
    a map that he and its owner know; no change begins before the one before it is finished.
    """

    def __init__(self, random: Random, names: list[str], clock: list[float]) -> None:
        self.random = random
        self.clock = clock
        self.members = [0, 1, 2]
        self.version, self.moving = 1, False
        self.has: dict[int, set[str]] = {at: set() for at in range(8)}
        self.known = dict.fromkeys(self.members, 1)
        self.let_go: dict[int, float] = {}
        self.next_node = 3
        self.leaving: set[int] = set()
        for name in names:
            self.has[random.choice(self.members)].add(name)  # some are with stand-ins

    def owner(self, name: str) -> int:
        left = [at for at in self.members if at not in self.leaving]
        return left[crc32(f"{name} {left}".encode()) % len(left)]

    def step(self) -> None:
        self.clock[0] += 0.01
        kind = self.random.choice(["learn", "move", "move", "move", "change"])
        if kind == "learn":
            at = self.random.choice(self.members)
            self.known[at] = self.version
        elif kind == "move":
            self.move()
        elif not self.moving and self.random.random() < 0.3:
            self.version, self.moving = self.version + 1, True
            if self.random.random() < 0.6 and self.next_node < 8:
                self.members.append(self.next_node)
                self.known[self.next_node] = self.version
                self.next_node += 1
            elif len(self.members) > 2:
                self.leaving = {self.random.choice(self.members)}
        elif self.moving and all(self.known[at] == self.version for at in self.members) and self.in_place():
            self.version, self.moving = self.version + 1, False
            self.members = [at for at in self.members if at not in self.leaving]
            self.leaving = set()
            self.known[self.random.choice(self.members)] = self.version

    def in_place(self) -> bool:
        return all(self.owner(name) == at for at in self.members for name in self.has[at])

    def move(self) -> None:
        strays = [(at, name) for at in self.members for name in sorted(self.has[at]) if self.owner(name) != at]
        if not strays:
            return
        at, name = self.random.choice(strays)
        to = self.owner(name)
        if self.known[at] == self.known[to] == self.version:
            self.has[to].add(name)
            self.has[at].discard(name)
            self.let_go[at] = self.clock[0]

    def map(self) -> ListedMap:
        hosts = [str(at) for at in self.members]
        return ListedMap(self.version, [host.encode() for host in hosts], hosts, 1, self.moving)

    def page(self, map_: ListedMap, at: int, after: str) -> ListedPage:
        for _ in range(self.random.randrange(4)):
            self.step()
        node = int(map_.hosts[at])
        found = [info(name) for name in sorted(self.has[node]) if name > after]
        page = found[:3]
        since = self.clock[0] - self.let_go.get(node, float("-inf"))
        known = self.known[node]
        return ListedPage(page, page[-1].name if len(found) > 3 else None, (), known, known, since)


@pytest.mark.slow
@example(seed=9994)  # an object goes to a node that has said that it has no more
@example(seed=13465)
@settings(max_examples=examples(300))
@given(seed=st.integers(0, 1 << 32))
@pytest.mark.parametrize("alone", [False, True], ids=["objects", "names"])
@pytest.mark.parametrize("side_by_side", [False, True], ids=["in turn", "side by side"])
def test_nothing_is_missing_whatever_moves_while_it_is_listed(seed: int, alone: bool, side_by_side: bool) -> None:
    clock = [100.0]
    names = [f"{at:02}" for at in range(20)]
    world = World(Random(seed), names, clock)

    def newest(first: bytes | None) -> ListedMap:
        if first is not None:
            world.known[int(first)] = world.version
        return world.map()

    def begin(call: Callable[[], Any]) -> Callable[[], Any]:
        """Some calls end before later ones begin, and others only when they are waited for."""
        if not side_by_side or world.random.random() < 0.5:
            return call
        answer = call()
        return lambda: answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing.time, "monotonic", lambda: clock[0])
        patch.setattr(time, "sleep", lambda _: None)
        if alone:
            found = names_of(world.page, newest, map_=world.map(), retry_s=1e9, begin=begin)
        else:
            found = [one.name for one in objects_of(world.page, newest, map_=world.map(), retry_s=1e9, begin=begin)]
    assert found == names


@pytest.mark.parametrize("count", [2, 5])
def test_all_nodes_are_asked_for_a_page_before_one_has_answered_and_for_no_second_one(count: int) -> None:
    nodes = Nodes(*([info(f"{name:02}-{at}") for name in range(6)] for at in range(count)))
    all_asked = threading.Barrier(count)
    outstanding, most = [0] * count, [0] * count

    def page(map_: ListedMap, at: int, after: str) -> ListedPage:
        outstanding[at] += 1
        most[at] = max(most[at], outstanding[at])
        if not after:
            all_asked.wait(timeout=180)  # breaks if another node is asked only after this one has answered
        found = nodes.page(map_, at, after)
        outstanding[at] -= 1
        return found

    map_ = map_of([f"host-{at}" for at in range(count)])
    with ThreadPoolExecutor(count) as pool:
        found = objects_of(page, lambda _: map_, map_=map_, retry_s=0.05, begin=lambda call: pool.submit(call).result)
    assert [one.name for one in found] == sorted(f"{name:02}-{at}" for name in range(6) for at in range(count))
    assert most == [1] * count

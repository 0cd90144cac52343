"""Models behind a forecast, without a store: what a cache keeps, and when a trainer waits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.training.cold_reads import ColdObject, ColdReads, Fetch, PartRead, hit_rates
from ais_loader.training.waiting_model import Door, LoaderPace, wait_s
from ais_loader.wire.cold_reads import later_ranges

LIMITS = {"remote_large_object_bytes": 100, "remote_range_bytes": 30, "remote_ranges_per_object": 2}


def objects_of(plan: list[list[int]], sizes: list[int]) -> list[ColdObject]:
    objects = [ColdObject(size, is_stored=False, is_validated=False) for size in sizes]
    for step, numbers in enumerate(plan):
        for number in numbers:
            objects[number].uses.append(step)
    return objects


def misses(plan: list[list[int]], sizes: list[int], cache_bytes: int, *, is_ahead: bool) -> int:
    objects, model = objects_of(plan, sizes), ColdReads(LIMITS, cache_bytes, is_ahead=is_ahead)
    return sum(
        fetch.gets
        for step, numbers in enumerate(plan)
        for fetch in model.fetches(step, [PartRead(objects[number]) for number in numbers])
    )


@given(st.lists(st.integers(0, 7), max_size=24), st.integers(1, 8))
def test_without_a_plan_what_was_read_last_stays(order: list[int], slots: int) -> None:
    kept: list[int] = []
    missed = 0
    for number in order:
        missed += number not in kept
        kept = [*(one for one in kept if one != number), number][-slots:]
    plan = [[number] for number in order]
    assert misses(plan, [10] * 8, 10 * slots, is_ahead=False) == missed
    assert misses(plan, [10] * 8, 0, is_ahead=False) == len({*order})


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4))
def test_with_the_plan_no_cache_fetches_less(order: list[int], slots: int) -> None:
    def fewest(at: int, kept: frozenset[int]) -> int:
        if at == len(order):
            return 0
        if order[at] in kept:
            return fewest(at + 1, kept)
        larger = kept | {order[at]}
        if len(larger) <= slots:
            return 1 + fewest(at + 1, larger)
        return 1 + min(fewest(at + 1, larger - {one}) for one in larger)

    plan = [[number] for number in order]
    # An eighth is for what is fetched ahead.
    assert misses(plan, [7] * 6, 8 * slots, is_ahead=True) == fewest(0, frozenset())
    assert misses(plan, [7] * 6, 7 * slots, is_ahead=False) >= fewest(0, frozenset())


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(1, 9), min_size=6, max_size=6))
def test_hit_rates_are_those_of_reuse_distances(order: list[int], sizes: list[int]) -> None:
    distances = []
    for at, number in enumerate(order):
        before = [earlier for earlier in range(at) if order[earlier] == number]
        distances.append(sum(sizes[one] for one in {*order[before[-1] : at]}) if before else math.inf)
    found = [*hit_rates(objects_of([[one] for one in order], sizes), (0.25, 0.5, 1.0))]
    for (size_bytes, rate), share in zip(found, (0.25, 0.5, 1.0), strict=bool(order)):
        assert size_bytes == int(share * sum(sizes))
        within = sum(distance <= size_bytes for distance in distances) / len(order)
        # An object that is larger than the cache empties it: then less is found.
        assert rate == within if max(sizes) <= size_bytes else rate <= within


@given(st.integers(0, 1000), st.integers(1, 300), st.integers(1, 90))
def test_the_ranges_of_an_object_cover_it_once(size_bytes: int, first_bytes: int, range_bytes: int) -> None:
    at = min(size_bytes, first_bytes)
    for start, length in later_ranges(size_bytes, first_bytes, range_bytes):
        assert start == at and 0 < length <= range_bytes
        at += length
    assert at == size_bytes


def test_parts_of_an_object_are_counted_until_it_is_fetched() -> None:
    large = ColdObject(1000, is_stored=False, is_validated=True)
    model = ColdReads(LIMITS, 0, is_ahead=False)
    assert model.fetches(0, [PartRead(large, 0, 90), PartRead(large, 0, 90)]) == [
        Fetch(0, 1, 1, 0, is_whole=False),
        Fetch(1, 0, 2, 90, is_whole=False),
    ]
    assert model.fetches(1, [PartRead(large, 500, 500)]) == [Fetch(0, 0, 1, 0, is_whole=False)]
    assert model.fetches(2, [PartRead(large, 0, 160)]) == [Fetch(1 + 30, 0, 1 + 15, 1000)]
    assert model.fetches(3, [PartRead(large)]) == [Fetch(1, 0, 1, 0)]  # a copy that is compared
    assert (model.reads, model.hits) == (4, 1)


# -- waiting


def pace(**changed: object) -> LoaderPace:
    fields = {"step_s": 0.0, "in_flight": 1, "threads": 0, "ahead": 0, "requests": 64, "requests_ahead": 32}
    return LoaderPace(**{"store": Door(0.0, 1e12), "cloud": Door(2.0, 1e12), **fields, **changed})  # type: ignore[arg-type]


COLD = [(1000, [Fetch(1, 0, 1, 1000)] * 4)] * 12


def approx(value: float) -> object:
    return pytest.approx(value, abs=1e-3)


def test_each_batch_waits_for_what_it_requests() -> None:
    assert wait_s(COLD, pace()) == approx(24)
    assert wait_s(COLD, pace(in_flight=3)) == approx(8)
    assert wait_s(COLD, pace(in_flight=3, threads=1)) == approx(24)
    assert wait_s(COLD, pace(in_flight=12, requests=4)) == approx(24)
    assert wait_s(COLD, pace(step_s=0.5)) == approx(24 - 11 * 0.5)
    assert wait_s(COLD, pace(step_s=5.0)) == approx(2)
    assert wait_s(COLD, pace(store=Door(1.0, 1e12))) == approx(36)
    assert wait_s([(1000, [])] * 12, pace(store=Door(1.0, 1e12))) == approx(12)
    assert wait_s([(1000, [])] * 12, pace(store=Door(0.0, 500))) == approx(24)
    assert wait_s([], pace()) == 0


def test_what_is_known_ahead_is_fetched_ahead() -> None:
    assert wait_s(COLD, pace(ahead=12)) == approx(4)  # 32 of 48 requests at a time
    assert wait_s(COLD, pace(ahead=12, requests_ahead=48)) == approx(2)
    assert wait_s(COLD, pace(ahead=4, step_s=1.0)) == approx(2)
    parts = [(1000, [Fetch(1, 0, 1, 1000, is_whole=False)])] * 12
    assert wait_s(parts, pace(ahead=12)) == approx(24)


def test_the_rate_bounds_the_bytes_of_all_requests() -> None:
    cloud = Door(0.0, 1000)
    assert wait_s(COLD, pace(cloud=cloud)) == approx(48)
    assert wait_s(COLD, pace(cloud=cloud, ahead=12, step_s=3.0)) == approx(48 - 11 * 3)


def test_a_full_cache_holds_fetches_ahead_back() -> None:
    held = [(1000, [Fetch(1, 0, 1, 1000, most_ahead_bytes=2000)] * 4)] * 12
    assert wait_s(held, pace(ahead=12, requests_ahead=48)) == approx(24)  # two of four objects are urgent in each step
    two = [(1000, [Fetch(1, 0, 1, 1000, most_ahead_bytes=4000)] * 2)] * 12
    assert wait_s(two, pace(ahead=12)) == approx(12)
    assert wait_s(two, pace(ahead=12, step_s=3.0)) == approx(2)

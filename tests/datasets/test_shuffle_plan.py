"""ShufflePlan: the order of an epoch is a pure function of (seed, epoch), the same everywhere and for ever."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader import Entry, ShufflePlan
from ais_loader.errors import InvalidRequest
from ais_loader.values.entry_table import EntryTable

NAMES = [f"ais://b/{i}" for i in range(10)]


def whole_epoch(plan: ShufflePlan, epoch: int) -> list[object]:
    return [entry for step in range(plan.steps(epoch)) for entry in plan.batch(epoch, step)]


@settings(deadline=None)
@given(
    count=st.integers(0, 60), batch_size=st.integers(1, 17), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**63)
)
def test_an_epoch_has_every_entry_once_in_batches_of_the_size_asked(
    count: int, batch_size: int, seed: int, epoch: int
) -> None:
    plan = ShufflePlan(range(count), batch_size, seed)  # type: ignore[arg-type]  # any value can stand for an entry
    sizes = [len(plan.batch(epoch, step)) for step in range(plan.steps(epoch))]
    assert Counter(whole_epoch(plan, epoch)) == Counter(range(count))
    assert all(size == batch_size for size in sizes[:-1])
    assert plan.steps(epoch) == -(-count // batch_size)


@settings(deadline=None)
@given(count=st.integers(0, 60), batch_size=st.integers(1, 17))
def test_drop_last_leaves_out_only_the_short_batch_at_the_end(count: int, batch_size: int) -> None:
    kept = ShufflePlan(range(count), batch_size, drop_last=True)  # type: ignore[arg-type]
    full = ShufflePlan(range(count), batch_size)  # type: ignore[arg-type]
    assert kept.steps(0) == count // batch_size
    assert whole_epoch(kept, 0) == whole_epoch(full, 0)[: count // batch_size * batch_size]


def philox_draws(key: tuple[int, int], count: int) -> list[int]:
    """Philox 4x64 with ten rounds, written from its specification, counting from 1 as numpy does.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3, and Random123's philox.h.
    """
    draws: list[int] = []
    for counter in range(1, count // 4 + 2):
        a, b, c, d = counter, 0, 0, 0
        k0, k1 = key
        for _ in range(10):
            low, high = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
            a, b, c, d = (high >> 64) ^ b ^ k0, high % 2**64, (low >> 64) ^ d ^ k1, low % 2**64
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) % 2**64, (k1 + 0xBB67AE8584CAA73B) % 2**64
        draws += [a, b, c, d]
    return draws[:count]


@settings(deadline=None)
@given(count=st.integers(1, 30), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**63))
def test_the_order_is_that_of_philox_draws_which_no_version_of_numpy_changes(count: int, seed: int, epoch: int) -> None:
    draws = philox_draws((seed, epoch), count)
    plan = ShufflePlan(range(count), 4, seed)  # type: ignore[arg-type]
    assert whole_epoch(plan, epoch) == sorted(range(count), key=draws.__getitem__)


def test_a_batch_does_not_depend_on_what_was_asked_before() -> None:
    asked_in_order, asked_at_random = ShufflePlan(NAMES, 3, seed=1), ShufflePlan(NAMES, 3, seed=1)
    expected = {(epoch, step): asked_in_order.batch(epoch, step) for epoch in range(3) for step in range(4)}
    for epoch, step in [(2, 3), (0, 0), (1, 2), (2, 0), (0, 3), (1, 0), (2, 3)]:
        assert asked_at_random.batch(epoch, step) == expected[epoch, step]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(whole_epoch(ShufflePlan(NAMES, 3, seed=seed), epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4


def test_without_shuffle_the_order_is_that_of_the_entries() -> None:
    plan = ShufflePlan(NAMES, 4, shuffle=False)
    assert [plan.batch(5, step) for step in range(3)] == [NAMES[:4], NAMES[4:8], NAMES[8:]]


def test_only_four_bytes_an_entry_stay_in_memory() -> None:
    plan = ShufflePlan(range(500_000), 10)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        for epoch in range(2):
            plan.batch(epoch, 0)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 4 * 500_000 <= kept_bytes < 5 * 500_000


def test_a_pickled_plan_is_small_and_goes_on_with_the_same_order() -> None:
    plan = ShufflePlan(range(100_000), 10, seed=5)  # type: ignore[arg-type]
    batch = plan.batch(3, 17)
    pickled = pickle.dumps(plan)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).batch(3, 17) == batch


@pytest.mark.parametrize("step", [-1, 4, 100])
def test_a_step_outside_the_epoch_is_an_index_error(step: int) -> None:
    with pytest.raises(IndexError, match="4 steps"):
        ShufflePlan(NAMES, 3).batch(0, step)


@pytest.mark.parametrize("batch_size, seed", [(0, 0), (1, -1), (1, 2**64)])
def test_impossible_arguments_are_refused(batch_size: int, seed: int) -> None:
    with pytest.raises(InvalidRequest):
        ShufflePlan(NAMES, batch_size, seed)


def test_the_fingerprint_tells_plans_apart_by_each_argument() -> None:
    entries: list[Sequence[str]] = [NAMES, NAMES[::-1], NAMES[:-1]]
    plans = [ShufflePlan(some, 3) for some in entries]
    plans += [
        ShufflePlan(NAMES, 4),
        ShufflePlan(NAMES, 3, seed=1),
        ShufflePlan(NAMES, 3, shuffle=False),
        ShufflePlan(NAMES, 3, drop_last=True),
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)


@pytest.mark.parametrize("form", ["urls", "table", "pinned"])
def test_the_fingerprint_covers_every_single_entry(form: str) -> None:
    def plan_of(names: list[str]) -> ShufflePlan:
        if form == "urls":
            return ShufflePlan([f"ais://b/{name}" for name in names], 8)
        if form == "table":
            return ShufflePlan(EntryTable("b", [name.encode() for name in names]), 8)
        return ShufflePlan([Entry("b", name, version="1") for name in names], 8)

    names = [f"{at:04d}" for at in range(1000)]
    replaced = [[*names[:at], "new", *names[at + 1 :]] for at in range(0, 1000, 37)]
    swapped = [*names[:500], names[501], names[500], *names[502:]]
    shifted = [*names[:500], names[500] + names[501][:1], names[501][1:], *names[502:]]
    lists = [names, *replaced, swapped, shifted]
    assert len({plan_of(some).fingerprint for some in lists}) == len(lists)


def test_the_fingerprint_tells_what_is_read_of_an_object() -> None:
    entries = [
        Entry("b", "x"),
        Entry("c", "x"),
        Entry("b", "x", member="m"),
        Entry("b", "x", start=1),
        Entry("b", "x", length=1),
        Entry("b", "x", version="1"),
        Entry("b", "x", ranges=((0, 1),)),
        Entry("b", "x", etl="resize"),
        Entry("b", "x", etl="resize", args={"size": 2}),
    ]
    assert len({ShufflePlan([one] * 3, 2).fingerprint for one in entries}) == len(entries)


def test_the_entries_are_read_once_for_all_fingerprints_of_a_plan_and_of_its_copies() -> None:
    class Counting(list[str]):
        read = 0

        def __getitem__(self, at: Any) -> Any:
            Counting.read += 1
            return super().__getitem__(at)

        def __iter__(self) -> Iterator[str]:
            Counting.read += len(self)
            return super().__iter__()

    plan = ShufflePlan(Counting(NAMES), 3)
    first = plan.fingerprint
    read = Counting.read
    assert first == plan.fingerprint == copy.copy(plan).fingerprint
    assert Counting.read == read


def test_the_fingerprint_is_the_same_for_urls_and_for_the_entries_they_mean() -> None:
    entries = [Entry("b", str(i)) for i in range(10)]
    assert ShufflePlan(entries, 3).fingerprint == ShufflePlan(NAMES, 3).fingerprint
    table = EntryTable("b", [str(at).encode() for at in range(10)])
    assert ShufflePlan(table, 3).fingerprint == ShufflePlan(NAMES, 3).fingerprint
    assert ShufflePlan([], 3).fingerprint == ShufflePlan([], 3).fingerprint

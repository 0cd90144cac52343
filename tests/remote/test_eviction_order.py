"""EvictionOrder as plain code: bytes, protection, hits, plans, and its memory."""

from __future__ import annotations

import random
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.remote.copies import eviction_order
from storage_node.remote.copies.eviction_order import EvictionOrder, NeededAt
from tests.table import table

UUID = b"u" * 16


def cache(needed_at: NeededAt | None = None) -> EvictionOrder:
    return EvictionOrder(UUID, needed_at)


def store(order: EvictionOrder, name: str, limit_bytes: int, size_bytes: int = 1) -> list[str]:
    """Add a copy within a budget; return what was evicted for it."""
    victims = order.take(order.size_bytes + size_bytes - limit_bytes) if name not in order else []
    order.add(name, size_bytes)
    return [name for name, _ in victims]


NAMES = st.sampled_from([f"n{at}" for at in range(12)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NAMES, st.integers(0, 30)),
        st.tuples(st.just("read"), NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("take"), st.integers(0, 60), st.sets(NAMES), st.dictionaries(NAMES, st.integers(0, 9))),
    ),
    max_size=60,
)


@pytest.mark.slow
@given(STEPS)
def test_bytes_are_exact_and_what_may_not_go_stays(steps: list[tuple]) -> None:
    needed: dict[str, int] = {}
    order, sizes = cache(lambda uuid, name: needed.get(name)), {}
    for step in steps:
        if step[0] == "add":
            order.add(step[1], step[2])
            sizes[step[1]] = step[2]
        elif step[0] == "read":
            order.note_read(step[1])
        elif step[0] == "remove":
            order.remove(step[1])
            sizes.pop(step[1], None)
        else:
            _, size_bytes, protected, needed = step
            may_go = {name for name in sizes if name not in protected}
            free = {name for name in may_go if name not in needed}
            victims = order.take(size_bytes, may_go.__contains__)
            names = [name for name, _ in victims]
            assert len(set(names)) == len(names) and may_go.issuperset(names)
            assert all(sizes[name] == size for name, size in victims)
            freed = sum(size for _, size in victims)
            assert freed >= min(size_bytes, sum(sizes[name] for name in may_go))
            assert freed - (victims[-1][1] if victims else 0) < max(size_bytes, 1)  # not one too many
            planned = [needed[name] for name in names if name in needed]
            assert planned == sorted(planned, reverse=True)
            if planned:  # only after everything that no plan needs
                assert names[: len(names) - len(planned)] == [name for name in names if name not in needed]
                assert free.issubset(names)
                left = [needed[name] for name in may_go if name in needed and name not in names]
                assert max(left, default=0) <= planned[-1]
            for name in names:
                del sizes[name]
        assert order.size_bytes == sum(sizes.values()) and set(order) == set(sizes) and len(order) == len(sizes)


def test_a_hot_set_survives_a_pass_over_everything() -> None:
    order = cache()
    hot = [f"hot{at}" for at in range(60)]
    for _ in range(3):
        for name in hot:
            if name in order:
                order.note_read(name)
            store(order, name, 100)
    for at in range(10_000):
        store(order, f"scan{at}", 100)
    assert all(name in order for name in hot)
    assert order.size_bytes <= 100


def test_what_is_not_read_again_leaves_in_the_order_of_its_arrival() -> None:
    order = cache()
    evicted = [gone for at in range(50) for gone in store(order, str(at), 20)]
    assert evicted == [str(at) for at in range(30)]


def test_what_comes_back_soon_stays_longer_than_what_is_new() -> None:
    order = cache()
    for at in range(101):
        store(order, str(at), 100)
    store(order, "0", 100)  # it was evicted, and is remembered
    for at in range(1000):
        store(order, f"new{at}", 100)
    assert "0" in order


def test_a_plan_keeps_what_it_needs_first() -> None:
    steps = {str(at): at for at in range(50)}
    order = cache(lambda uuid, name: steps.get(name) if uuid == UUID else None)
    for at in range(100):
        order.add(str(at), 1)
    assert [name for name, _ in order.take(50)] == [str(at) for at in range(50, 100)]
    assert [name for name, _ in order.take(10)] == [str(at) for at in range(49, 39, -1)]
    assert [name for name, _ in order.take(5, lambda name: int(name) < 20)] == ["19", "18", "17", "16", "15"]


def test_one_call_looks_at_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction_order, "LOOKED_AT", 10)
    order = cache()
    for at in range(100):
        order.add(str(at), 1)
    asked: list[str] = []
    assert order.take(100, lambda name: bool(asked.append(name))) == [] and len(asked) == 10
    assert len(order.take(100)) == 10


@pytest.mark.slow
def test_removing_and_adding_again_does_not_grow_without_end() -> None:
    order = cache()
    tracemalloc.start()
    try:
        for at in range(20_000):
            order.add("same", 1)
            order.remove("same")
            if at == 2000:
                before = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_of_a_copy() -> None:
    names = [f"speech/en/{at:08}.flac" for at in range(20_000)]
    order = cache()
    tracemalloc.start()
    try:
        for name in names:
            order.add(name, 1 << 20)
        per_copy = tracemalloc.get_traced_memory()[0] / len(names)
    finally:
        tracemalloc.stop()
    assert per_copy + sys.getsizeof(names[0]) - len(names[0]) < 180  # its name is held by the test


class Epochs:
    """A loader that reads each object once in an epoch, in batches, with a cache and a window of its next steps."""

    def __init__(self, *, window: int, capacity: int) -> None:
        self._window, self._capacity = window, capacity
        self._random = random.Random(1)
        self._needed: dict[str, int] = {}
        self._order = cache(lambda uuid, name: self._needed.get(name))

    def run(self, names: list[str], batch: int = 16) -> float:
        """Return the fetches of one epoch, as a share of the objects."""
        shuffled = self._random.sample(names, len(names))
        steps = [shuffled[at : at + batch] for at in range(0, len(shuffled), batch)]
        number, fetched = self._order.begin_pass(), 0
        for at, step in enumerate(steps):
            ahead = steps[at : at + self._window]
            self._needed = {name: later for later, names_ in enumerate(ahead) for name in names_}
            for name in step:
                if name not in self._order:
                    fetched += 1
                    store(self._order, name, self._capacity)
                self._order.note_read(name)
            for name in step:
                self._order.note_passed(name)
        self._order.end_pass(number)
        return fetched / len(names)


@pytest.mark.slow
@table("window", [1, 8, 64])
def test_a_cache_for_half_of_the_objects_saves_half_of_the_requests(window: int) -> None:
    names = [f"n{at}" for at in range(4000)]
    epochs = Epochs(window=window, capacity=2000)
    assert epochs.run(names) == 1.0
    assert [epochs.run(names) < 0.53 for _ in range(4)] == [True] * 4  # 0.5 is the least that any cache can do


def test_copies_that_nobody_trains_on_any_more_make_room() -> None:
    epochs = Epochs(window=8, capacity=2000)
    old, new = [f"old{at}" for at in range(4000)], [f"new{at}" for at in range(4000)]
    for _ in range(3):
        epochs.run(old)
    assert epochs.run(new) == 1.0
    epochs.run(new)
    assert epochs.run(new) < 0.55

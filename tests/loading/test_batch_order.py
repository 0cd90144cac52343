"""Batches equal those of a single thread that was never stopped, whatever threads, stops and order of arrival are."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading_kit import LISTS, MAKERS, Held, N, Numbers, Steps, our_threads

from ais_loader import BatchLoader, Item, MapDataset, ShufflePlan, concat, connect
from ais_loader.errors import InvalidRequest
from ais_loader.testing import eventually, throwaway_node


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_stops_and_threads_change_no_batch(kind: str, data: st.DataObject) -> None:
    make = MAKERS[kind]
    expected = list(BatchLoader(Numbers(N), make(), threads=1, in_flight=1))
    found: list[Any] = []
    state = None
    for stop in [*data.draw(st.lists(st.integers(0, 6), max_size=3)), None]:
        threads, in_flight = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
        loader = BatchLoader(Numbers(N, 0.001), make(), threads=threads, in_flight=in_flight)
        if state is not None:
            loader.load_state_dict(state)
        if data.draw(st.booleans()):
            loader.start_prefetch()
        found += list(islice(loader, stop))
        loader.close()
        state = json.loads(json.dumps(loader.state_dict()))
        if len(found) == len(expected):
            break
    assert found == expected


@pytest.mark.slow
def test_an_abandoned_iteration_leaves_no_thread() -> None:
    loader = BatchLoader(Numbers(N), ShufflePlan(N, 3), threads=3)
    for _ in loader:
        break
    assert our_threads() == []
    loader.start_prefetch()
    assert our_threads()
    del loader
    gc.collect()
    assert our_threads() == []


def test_a_prefetched_iteration_that_is_dropped_before_its_first_batch_leaves_no_thread() -> None:
    loader = BatchLoader(Numbers(N), ShufflePlan(N, 3), threads=3)
    loader.start_prefetch()
    batches = iter(loader)
    assert our_threads()
    del batches, loader
    gc.collect()
    assert our_threads() == []


def test_two_loaders_share_a_dataset() -> None:
    dataset = Numbers(N, 0.001)
    loaders = [BatchLoader(dataset, ShufflePlan(N, 3, seed=seed)) for seed in range(2)]
    found = list(zip(*loaders, strict=True))
    assert [[pair[at] for pair in found] for at in range(2)] == [
        list(BatchLoader(Numbers(N), ShufflePlan(N, 3, seed=seed))) for seed in range(2)
    ]


def test_a_prefetch_begins_before_the_first_batch_and_reads_while_the_trainer_computes() -> None:
    dataset = Numbers(N)
    fetched: list[int] = []
    loader = BatchLoader(dataset, LISTS, in_flight=4, collate=lambda batch: fetched.append(batch[0]) or batch)
    loader.start_prefetch()
    eventually(lambda: len(fetched) == 4)
    batches = iter(loader)
    assert next(batches) == LISTS[0]
    eventually(lambda: len(fetched) == 5)
    loader.load_state_dict(loader.state_dict())
    loader.start_prefetch()
    assert list(loader) == LISTS[1:]


def test_a_prefetched_epoch_is_dropped_if_another_one_is_set() -> None:
    plan = ShufflePlan(N, 3)
    loader = BatchLoader(Numbers(N), plan)
    loader.start_prefetch()
    loader.set_epoch(0)
    assert len(our_threads()) == 3
    loader.set_epoch(4)
    assert next(iter(loader)) == plan.batch(4, 0).tolist()


def test_no_more_than_in_flight_are_drawn() -> None:
    drawn: list[int] = []

    def sampler() -> Iterator[list[int]]:
        for at in range(N):
            drawn.append(at)
            yield [at]

    for count, _ in enumerate(BatchLoader(Numbers(N), sampler(), in_flight=3, threads=4), 1):
        assert len(drawn) <= count + 3
        if count == 5:
            eventually(lambda: len(drawn) == 8)


def test_a_batch_that_takes_long_holds_up_only_its_place() -> None:
    dataset = Held(N, 0)
    loader = BatchLoader(dataset, LISTS, in_flight=4)
    loader.start_prefetch()
    assert dataset.reached.wait(180)
    threading.Timer(0.05, dataset.go.set).start()
    assert list(loader) == LISTS


class Ends:
    """A sampler that raises at a batch."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __iter__(self) -> Iterator[list[int]]:
        yield from LISTS[:3]
        raise self.error


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("at", [0, 2])
def test_numbers_out_of_range_are_refused_in_their_place(at: int, workers: int) -> None:
    batches = [*LISTS[:at], [1, N], [2]]
    for on_bad in ("raise", "skip"):
        found = []
        with pytest.raises(IndexError, match=f"{N}") as raised:
            for batch in BatchLoader(Numbers(N), batches, on_bad=on_bad, workers=workers):
                found.append(batch)
        assert found == LISTS[:at]
        assert raised.value.__notes__[-1] == f"raised for batch {at} of this iteration, of sample 1, …"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError("damaged"), KeyError("no such key"), TimeoutError("silent")])
def test_a_sampler_that_raises_does_so_in_its_place(error: Exception, workers: int) -> None:
    loader = BatchLoader(Numbers(N), Ends(error), workers=workers)
    found = []
    with pytest.raises(type(error)):
        for batch in loader:
            found.append(batch)
    assert found == LISTS[:3]
    assert our_threads() == []


@pytest.mark.parametrize("batches", [[LISTS[0], 7], [LISTS[0], None], [LISTS[0], np.int64(7)]])
def test_a_sampler_of_numbers_is_told_from_one_of_batches(batches: Any) -> None:
    loader = iter(BatchLoader(Numbers(N), batches))
    assert next(loader) == LISTS[0]
    with pytest.raises(
        TypeError, match=r"list: batch 1 of this iteration is (7|None|np.int64\(7\)); need a batch sampl"
    ):
        next(loader)


def test_a_sampler_that_ends_early_cannot_resume_behind_its_end() -> None:
    loader = BatchLoader(Numbers(N), LISTS)
    list(islice(loader, 5))
    loader.close()
    shorter = BatchLoader(Numbers(N), LISTS[:3])
    shorter.load_state_dict(loader.state_dict())
    with pytest.raises(InvalidRequest, match="ends after 3 of the 5 batches"):
        list(shorter)


@pytest.mark.parametrize("batches", [[], ShufflePlan(0, 3), iter([])])
def test_nothing_to_read_is_an_epoch_without_batches(batches: Any) -> None:
    loader = BatchLoader(Numbers(0), batches)
    assert list(loader) == []
    loader.start_prefetch()
    assert list(loader) == []


class TestStates:
    def test_the_first_difference_of_a_plan_is_told_and_may_be_accepted(self) -> None:
        state = BatchLoader(Numbers(N), ShufflePlan(N, 32)).state_dict() | {"step": 1}
        other = BatchLoader(Numbers(N), ShufflePlan(N, 4, seed=3))
        with pytest.raises(InvalidRequest, match=r"it was saved with batch_size 32, and has 4$"):
            other.load_state_dict(state)
        other.load_state_dict(state, strict=False)
        assert next(iter(other)) == ShufflePlan(N, 4, seed=3).batch(0, 1).tolist()

    def test_states_of_plans_and_samplers_are_told_apart(self) -> None:
        plan, lists = BatchLoader(Numbers(N), ShufflePlan(N, 4)), BatchLoader(Numbers(N), LISTS)
        with pytest.raises(InvalidRequest, match="not a state of a list"):
            lists.load_state_dict(plan.state_dict())
        for state in (lists.state_dict(), {}, {"version": 1}):
            with pytest.raises(InvalidRequest, match=r"not a state of a plan|state of version 1"):
                plan.load_state_dict(state)
        with pytest.raises(InvalidRequest, match="'list', here 'Steps'"):
            BatchLoader(Numbers(N), Steps(LISTS)).load_state_dict(lists.state_dict())

    def test_the_state_of_a_sampler_is_its_own(self) -> None:
        loader = BatchLoader(Numbers(N), Steps(LISTS), in_flight=5)
        list(islice(loader, 4))
        loader.close()
        assert loader.state_dict() == {"at": 4}


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_requests_to_nodes_are_sent_ahead_of_the_threads(parts: int) -> None:
    go = threading.Event()

    def decode(item: Item) -> bytes:
        assert go.wait(180)
        return item.tobytes()

    objects = {str(at): str(at).encode() for at in range(8)}
    with throwaway_node(objects, bucket="b") as node, connect(node.url) as client:
        entries = [f"ais://b/{at}" for at in range(8)]
        batches = [[at, at + 1] for at in range(0, 8, 2)]
        sent = []
        transport = client._transport
        open_batch = transport.open_batch
        transport.open_batch = lambda *given, **options: sent.append(1) or open_batch(*given, **options)  # type: ignore[method-assign]
        dataset: Any = MapDataset(client, entries, decode)
        if parts == 2:  # of which each batch has one of each
            order = [0, 2, 4, 6, 1, 3, 5, 7]
            batches = [[at, at + 4] for at in range(4)]
            dataset = concat(
                [MapDataset(client, [entries[at] for at in half], decode) for half in (order[:4], order[4:])]
            )
        loader = BatchLoader(dataset, batches, threads=1, in_flight=3)
        loader.start_prefetch()
        eventually(lambda: len(sent) == 3)
        go.set()
        assert list(loader) == [[str(at).encode(), str(at + 1).encode()] for at in range(0, 8, 2)]

"""Reserve: substitutes for denied samples, the same for any number of ranks and workers, and after a resume."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loading_kit import Broken, Numbers

from ais_loader import BatchLoader, BatchSampler, Item, MapDataset, ShufflePlan
from ais_loader.errors import EntryFailed, InvalidRequest, ObjectDenied
from ais_loader.plans import BucketPlan, PackPlan
from ais_loader.testing import throwaway_store
from ais_loader.training.ledger import ledger

N, HELD = 60, 8
DENIED = {3, 7, 8, 21, 22, 40, 59, N + 2}
"""Two in a row, and one of the reserve."""
Step = tuple[int, int]


def number_of(item: Item, rng: Any) -> tuple[int, int]:
    """The sample's number, and a random number of its place."""
    return int(bytes(item.data)), int(rng.integers(1 << 30))


def denied_ones() -> Broken:
    """Numbers, of which some are denied."""
    return Broken(N + HELD, DENIED, ObjectDenied)


PLANS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: ShufflePlan(N, batch_size=6, seed=5),
    "blocks": lambda: ShufflePlan(N, batch_size=7, seed=9, block=10, tail="drop"),
    "buckets": lambda: BucketPlan([1 + at % 3 for at in range(N)], [1.5, 2.5, 3.5], [4, 3, 2], seed=2, group=30),
    "epoch steps": lambda: ShufflePlan(N, batch_size=6, seed=5, epoch_steps=30, group=30),
}


def steps_of(loader: BatchLoader, rank: int, world_size: int, epochs: int) -> Iterator[tuple[Step, list[int]]]:
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for at, batch in enumerate(loader):
            yield (epoch, at * world_size + rank), batch


def oracle(plan: Any, dataset: Any, epochs: int) -> dict[Step, list[int]]:
    """One process, one thread, all steps."""
    with BatchLoader(dataset, plan, rank=0, world_size=1, threads=1, in_flight=1, reserve=HELD) as loader:
        return dict(steps_of(loader, 0, 1, epochs))


@pytest.mark.parametrize("kind", PLANS)
def test_substitutes_are_the_same_for_any_number_of_ranks_and_workers(kind: str) -> None:
    plan, dataset = PLANS[kind](), denied_ones()
    wanted = oracle(plan, dataset, 2)
    taken = 0
    for (epoch, step), batch in wanted.items():
        planned = [int(number) for number in plan.batch(epoch, step)]
        for number, found in zip(planned, batch, strict=True):
            assert found == number if number not in DENIED else found >= N
            taken += number in DENIED
    assert taken >= 14
    for world_size, workers in ((2, 2 if kind == "shuffle" else 0), (3, 0), (5, 0)):
        for rank in range(world_size):
            with BatchLoader(dataset, plan, rank=rank, world_size=world_size, workers=workers, reserve=HELD) as loader:
                for step, batch in steps_of(loader, rank, world_size, 2):
                    if step in wanted:  # others are repeated at the end of the epoch
                        assert batch == wanted[step], (world_size, rank, workers, step)


def test_a_resumed_run_has_the_same_substitutes() -> None:
    plan, dataset = PLANS["shuffle"](), denied_ones()
    wanted = [batch for _, batch in sorted(oracle(plan, dataset, 1).items())]
    for stop in (1, 4, 9):
        first = BatchLoader(dataset, plan, reserve=HELD)
        had = list(itertools.islice(first, stop))
        state = first.state_dict()
        first.close()
        second = BatchLoader(dataset, plan, workers=2, reserve=HELD)
        second.load_state_dict(state)
        assert had + list(second) == wanted


def test_denied_samples_are_counted_and_others_still_raise() -> None:
    dataset = denied_ones()
    loader = BatchLoader(dataset, [[1, 3], [7, 8]], reserve=[50, 51])
    batches = list(loader)
    assert batches[0][0] == 1 and {batches[0][1], *batches[1]} <= {50, 51}
    assert dict(loader.bad.counts) == {"ObjectDenied": 3}
    with pytest.raises(ValueError, match="sample 6"):
        list(BatchLoader(Broken(10, [6]), [[5, 6]], reserve=[1]))
    assert list(BatchLoader(Broken(10, [6]), [[6, 5]], on_bad="substitute", reserve=[1])) == [[1, 5]]
    with pytest.raises(ObjectDenied):
        list(BatchLoader(dataset, [[1, 3]]))
    with pytest.raises(EntryFailed, match="none of the 2 samples of the reserve is good"):
        list(BatchLoader(dataset, [[1, 3]], reserve=[7, 8]))


def test_a_batch_sampler_draws_beside_a_reserve_as_its_plan_does() -> None:
    plan, dataset = PLANS["shuffle"](), denied_ones()
    sampler = BatchSampler(plan, 0, 1)
    with BatchLoader(dataset, sampler, reserve=HELD) as loader:
        assert list(loader) == [batch for _, batch in sorted(oracle(plan, dataset, 1).items())]
        assert len(ledger(loader, loader.state_dict(), 0)) == 6
    with pytest.raises(InvalidRequest, match=r"the plan has n=60 numbers, for 68 samples$"):
        BatchLoader(dataset, sampler)
    with pytest.raises(InvalidRequest, match="for 68 samples, of which reserve= holds 7 back"):
        BatchLoader(dataset, sampler, reserve=HELD - 1)


def test_wrong_reserves_are_refused() -> None:
    dataset = Numbers(N)
    for reserve, batches in (
        (5, ShufflePlan(N, batch_size=6, seed=1)),
        (-1, ShufflePlan(N, batch_size=6, seed=1)),
        (N + 1, ShufflePlan(N, batch_size=6, seed=1)),
        ("name", ShufflePlan(N, batch_size=6, seed=1)),
        (5, [[1, 2]]),
        ([1], PackPlan([2] * N, tokens=4, batch_size=2)),
    ):
        with pytest.raises(InvalidRequest):
            BatchLoader(dataset, batches, reserve=reserve)
    with throwaway_store({"a": b"1"}) as client, pytest.raises(InvalidRequest):
        BatchLoader(MapDataset(client, client.bucket("data").entries(), on_error="placeholder"), [[0]], reserve=[0])


@pytest.mark.slow
def test_names_and_numbers_substitute_what_a_store_denies() -> None:
    objects = {f"s/{number:03}": str(number).encode() for number in range(N + HELD)}
    with throwaway_store(objects) as client:
        bucket = client.bucket("data")
        dataset = MapDataset(client, bucket.entries(), decode=number_of)
        plan = ShufflePlan(N, batch_size=6, seed=3)
        before = list(BatchLoader(dataset, plan, reserve=HELD))
        bucket.deny([f"s/{number:03}" for number in (4, 5, 50, N + 1)], reason="order")
        after = list(BatchLoader(dataset, plan, reserve=HELD))
        again = list(BatchLoader(dataset, plan, reserve=HELD, workers=2))
        assert after == again
        for old, new in zip(before, after, strict=True):
            for was, now in zip(old, new, strict=True):
                if was[0] in (4, 5, 50):
                    assert now[0] >= N and now[0] != N + 1
                    assert now[1] == was[1]  # augmented as its place is
                else:
                    assert now == was
        with BatchLoader(dataset, plan, rank=0, world_size=1, reserve=HELD) as loader:
            assert len(ledger(loader, loader.state_dict(), 0)) == 6
            assert loader.forecast().epochs[0].entries == N
        named = BatchLoader(dataset, [[4, 6], [5, 7]], reserve=[client.bucket("data").head("s/060").entry()])
        assert [[one[0] for one in batch] for batch in named] == [[N, 6], [N, 7]]

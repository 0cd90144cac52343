"""BatchSampler: torch's own DataLoader reads a plan's steps, and resumes at the batch that the trainer has not had."""

from __future__ import annotations

import json
import sys
import types
from itertools import islice
from typing import Any

import pytest
from datasets_kit import CORPUS, URLS, RecordingTransport, collate_joined, contents
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, BatchSampler, Client, MapDataset, ShufflePlan, concat
from ais_loader.errors import InvalidRequest
from ais_loader.plans import BucketPlan, MixPlan, PackPlan
from tests.table import table

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SIZES = [len(data) for data in CORPUS.values()]
PLAN = ShufflePlan(len(URLS), 4, seed=3, group=4)
STEPS = 12
PLANS = {
    "shuffle": PLAN,
    "mix": MixPlan({"a": 20, "b": 27}, {"a": 1, "b": 2}, batch_size=5, at_end="leave", group=4),
    "bucket": BucketPlan(SIZES, [1000, 2000, 3_000_000], [6, 4, 2], group=4),
    "pack": PackPlan(SIZES, 150_000, 2, group=4),
}


def planned(plan: Any, epoch: int = 0, rank: int = 0, world_size: int = 1) -> list[list[Any]]:
    batches = [plan.batch(epoch, step) for step in range(rank, plan.steps(epoch), world_size)]
    return [batch if isinstance(batch, list) else batch.tolist() for batch in batches]


@table("kind", PLANS)
def test_ranks_have_the_steps_of_the_plan_and_the_next_epoch_has_another_order(kind: str) -> None:
    plan = PLANS[kind]
    ranks = [BatchSampler(plan, rank, 2) for rank in range(2)]
    for epoch in range(2):
        assert [sampler.epoch for sampler in ranks] == [epoch, epoch]
        assert [list(sampler) for sampler in ranks] == [planned(plan, epoch, rank, 2) for rank in range(2)]
        assert [len(sampler) for sampler in ranks] == [plan.steps(epoch) // 2] * 2


def test_a_batch_is_one_request(recording: RecordingTransport) -> None:
    dataset = MapDataset(Client(recording), URLS)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(PLAN), collate_fn=list)
    assert list(loader) == [contents([URLS[at] for at in batch]) for batch in planned(PLAN)]
    assert recording.requests == [4] * 11 + [3]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("joined", [False, True])
def test_packs_are_those_of_a_batch_loader(local_store: Client, num_workers: int, joined: bool) -> None:
    dataset = MapDataset(local_store, URLS)
    if joined:
        dataset = concat([MapDataset(local_store, URLS[:20]), MapDataset(local_store, URLS[20:])])
    plan = PLANS["pack"]
    loader = DataLoader(dataset, batch_sampler=BatchSampler(plan), collate_fn=joined_packs, num_workers=num_workers)
    packs = list(loader)
    assert packs == list(BatchLoader(dataset, plan, collate=joined_packs))
    assert sum(len(pack) for batch in packs for pack in batch) >= sum(SIZES)


def joined_packs(packs: list[list[bytes]]) -> list[bytes]:
    return [collate_joined(pack) for pack in packs]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_goes_on_with_the_next_batch_on_other_ranks(local_store: Client, kind: str, num_workers: int) -> None:
    plan = PLANS[kind]
    dataset, states = MapDataset(local_store, URLS), []
    for rank in range(2):
        sampler = BatchSampler(plan, rank, 2)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=num_workers, collate_fn=list)
        for _ in islice(loader, 2):
            pass
        states.append(json.loads(json.dumps(sampler.state_dict(2))))
        assert num_workers or sampler.state_dict() == states[0]
    assert states[0] == states[1]
    for rank in range(4):
        sampler = BatchSampler(plan, rank, 4)
        sampler.load_state_dict(states[0])
        sampler.set_epoch(0)  # as trainers do at the beginning of an epoch
        assert list(sampler) == planned(plan, 0, rank, 4)[1:]
        assert list(sampler) == planned(plan, 1, rank, 4)


def test_the_position_after_the_last_batch_is_the_next_epoch() -> None:
    sampler = BatchSampler(PLAN)
    assert len(list(islice(sampler, STEPS))) == STEPS
    state = sampler.state_dict()
    assert (state["epoch"], state["step"]) == (1, 0)
    assert sampler.state_dict(STEPS) == state
    assert (sampler.state_dict(5)["epoch"], sampler.state_dict(5)["step"]) == (0, 5)
    assert list(sampler) == planned(PLAN, 1)
    sampler.set_epoch(7)
    assert list(sampler) == planned(PLAN, 7)


def test_an_iteration_that_is_abandoned_begins_again() -> None:
    sampler = BatchSampler(PLAN)
    assert next(iter(sampler)) == next(iter(sampler)) == planned(PLAN)[0]


@pytest.mark.parametrize("begun", [False, True])
def test_a_state_of_other_entries_or_a_dataset_of_another_size_is_refused(local_store: Client, begun: bool) -> None:
    def loader(urls: list[str], plan: ShufflePlan = PLAN) -> DataLoader[Any]:
        return DataLoader(MapDataset(local_store, urls), batch_sampler=BatchSampler(plan), collate_fn=list)

    saved = loader(URLS)
    next(iter(saved))
    state = json.loads(json.dumps(saved.batch_sampler.state_dict()))
    for urls, same in ((URLS, True), (URLS[::-1], False)):
        other = loader(urls)
        if begun:  # the sampler knows its dataset, and refuses the state at once
            next(iter(other))
        if same:
            other.batch_sampler.load_state_dict(state)
            assert next(iter(other)) == contents([urls[at] for at in planned(PLAN)[1]])
            continue
        with pytest.raises(InvalidRequest, match="another plan: it was saved with entries"):
            other.batch_sampler.load_state_dict(state)
            iter(other)
    with pytest.raises(InvalidRequest, match=f"n={len(URLS)} numbers, for {len(URLS) - 1} samples"):
        iter(loader(URLS[1:]))


def test_the_loop_that_goes_on_decides_the_position() -> None:
    sampler = BatchSampler(PLAN)
    loader = DataLoader(list(range(len(URLS))), batch_sampler=sampler, collate_fn=list)
    for count, _ in enumerate(loader, 1):
        next(iter(loader))  # a look at the first batch, which torch's DataLoader allows
        if count == 7:
            break
        assert sampler.state_dict(count)["step"] == count
    again = iter(loader)
    assert next(again) == planned(PLAN)[0]
    assert sampler.state_dict()["step"] == 1


def test_wrong_uses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="BatchSampler: plan is a list; need a plan"):
        BatchSampler([1, 2])  # type: ignore[arg-type]  # the point
    with pytest.raises(InvalidRequest, match="another plan"):
        BatchSampler(ShufflePlan(9, 2)).load_state_dict(BatchSampler(PLAN).state_dict())
    with pytest.raises(InvalidRequest, match="possible world sizes are 1, 2, 4"):
        iter(BatchSampler(PLAN, 0, 3))

    class BatchSamplerShard:
        num_processes = 2

        def first(self, sampler: BatchSampler) -> Any:
            return next(iter(sampler))

    loaders = types.SimpleNamespace(BatchSamplerShard=BatchSamplerShard)
    monkeypatch.setitem(sys.modules, "accelerate.data_loader", loaders)
    with pytest.raises(InvalidRequest, match="do not pass a DataLoader with a BatchSampler to prepare"):
        BatchSamplerShard().first(BatchSampler(PLAN, 0, 2))
    assert BatchSamplerShard().first(BatchSampler(PLAN, 0, 1)) == planned(PLAN)[0]

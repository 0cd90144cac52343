"""Resuming: a saved position goes on with exactly the batches that the trainer has not had."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
import torch
from datasets_kit import URLS, CountUp, EntryPlan, contents

from ais_loader import BatchLoader, Client, MapDataset
from ais_loader.errors import Closed, InvalidRequest, ObjectNotFound
from tests.table import table

PLAN = EntryPlan(URLS, 4, seed=9)
STEPS = PLAN.steps(0)


def planned(epoch: int) -> list[list[bytes]]:
    return [contents(PLAN.batch(epoch, step)) for step in range(STEPS)]


def loader_of(client: Client, **options: Any) -> BatchLoader:
    return BatchLoader(MapDataset(client), PLAN, **options)


def state_after(loader: BatchLoader, batches: int) -> dict[str, Any]:
    """As a checkpoint would hold it."""
    for _ in islice(loader, batches):
        pass
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


class TestLoader:
    @pytest.mark.slow
    @table("batches", range(STEPS + 1))
    def test_a_new_loader_goes_on_with_the_very_next_batch(self, local_store: Client, batches: int) -> None:
        state = state_after(loader_of(local_store), batches)
        resumed = loader_of(local_store)
        resumed.load_state_dict(state)
        rest = planned(0)[batches:]
        if rest:
            assert list(resumed) == rest
        assert list(resumed) == planned(1)

    @pytest.mark.parametrize("batches", [1, STEPS, *(pytest.param(at, marks=pytest.mark.slow) for at in (0, 5))])
    @pytest.mark.sampled(1)
    def test_threads_that_read_ahead_do_not_move_the_position(self, store: Client, batches: int) -> None:
        state = state_after(loader_of(store, threads=3, in_flight=5), batches)
        assert (state["epoch"], state["step"]) == ((0, batches) if batches < STEPS else (1, 0))
        resumed = loader_of(store, threads=1)
        resumed.load_state_dict(state)
        assert list(resumed) == (planned(0)[batches:] or planned(1))

    def test_the_loader_that_was_broken_off_can_itself_go_back(self, local_store: Client) -> None:
        loader = loader_of(local_store)
        states = []
        for _ in islice(loader, 6):
            states.append(loader.state_dict())
        for state in (states[4], states[1]):
            loader.load_state_dict(state)
            assert list(loader) == planned(0)[state["step"] :]

    def test_positions_go_on_counting_after_a_resume_and_over_epochs(self, local_store: Client) -> None:
        loader = loader_of(local_store)
        loader.load_state_dict(state_after(loader_of(local_store), 5))
        assert state_after(loader, 3)["step"] == 8
        assert len(list(loader)) == STEPS - 5
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 0)
        assert state_after(loader, 2)["step"] == 2

    def test_set_epoch_keeps_the_place_restored_in_that_epoch_and_begins_another(self, local_store: Client) -> None:
        state = state_after(loader_of(local_store), 5)
        for epoch, expected in ((0, planned(0)[5:]), (2, planned(2))):
            loader = loader_of(local_store)
            loader.load_state_dict(state)
            loader.set_epoch(epoch)
            assert list(loader) == expected

    def test_an_older_iteration_does_not_count_for_a_newer_one(self, local_store: Client) -> None:
        loader = loader_of(local_store)
        older = iter(loader)
        next(older)
        newer = iter(loader)
        next(newer)
        with pytest.raises(Closed, match=r"ended by iter\(loader\)"):
            next(older)
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, 1)

    def test_a_plan_without_an_end_resumes(self, local_store: Client) -> None:
        plan = CountUp()
        loaders = [BatchLoader(MapDataset(local_store), plan) for _ in range(2)]
        loaders[1].load_state_dict(state_after(loaders[0], 31))
        assert next(iter(loaders[1])) == contents(plan.batch(0, 31))

    def test_the_batch_that_failed_is_the_one_to_go_on_with(self, local_store: Client) -> None:
        urls = [*URLS[:8], "ais://speech/missing", *URLS[8:11]]
        plan = EntryPlan(urls, 4, shuffle=False)
        loader = BatchLoader(MapDataset(local_store), plan)
        with pytest.raises(ObjectNotFound):
            list(loader)
        patient = BatchLoader(MapDataset(local_store, on_error="placeholder"), plan)
        patient.load_state_dict(loader.state_dict())
        assert list(patient) == [[None, *contents(URLS[8:11])]]


class TestEndOfEpoch:
    """The position after the last batch is the beginning of the next epoch."""

    def test_a_trainer_that_counts_batches_and_never_asks_for_the_end_gets_the_next_epoch(
        self, local_store: Client
    ) -> None:
        loader = loader_of(local_store)
        for epoch in range(3):
            assert loader.epoch == epoch
            assert list(islice(loader, len(loader))) == planned(epoch)

    def test_the_state_after_the_last_batch_is_that_of_the_next_epoch_s_beginning(self, local_store: Client) -> None:
        counted, exhausted = loader_of(local_store), loader_of(local_store)
        state_after(counted, STEPS)
        list(exhausted)
        assert counted.state_dict() == exhausted.state_dict()
        assert (counted.state_dict()["epoch"], counted.state_dict()["step"]) == (1, 0)

    def test_a_state_saved_after_the_last_step_loads_as_the_next_epoch(self, local_store: Client) -> None:
        state = state_after(loader_of(local_store), 1) | {"step": STEPS}
        loader = loader_of(local_store)
        loader.load_state_dict(state)
        assert loader.epoch == 1
        assert list(loader) == planned(1)

    def test_set_epoch_after_the_last_batch_can_repeat_the_epoch(self, local_store: Client) -> None:
        loader = loader_of(local_store)
        state_after(loader, STEPS)
        loader.set_epoch(0)
        assert list(loader) == planned(0)

    def test_ranks_that_count_their_batches_stay_in_the_same_epoch(self, local_store: Client) -> None:
        loaders = [loader_of(local_store, rank=rank, world_size=5) for rank in range(5)]
        for epoch in range(3):
            ranks = [list(islice(loader, len(loader))) for loader in loaders]
            assert [rank[0] for rank in ranks] == planned(epoch)[:5]
            assert [rank[-1] for rank in ranks] == (planned(epoch) * 2)[STEPS // 5 * 5 :][:5]
            assert {json.dumps(loader.state_dict()) for loader in loaders} == {json.dumps(loaders[0].state_dict())}

    @pytest.mark.parametrize("tail", ["drop", "uneven"])
    def test_ranks_without_a_last_batch_go_on_with_the_next_epoch_too(self, local_store: Client, tail: Any) -> None:
        loaders = [loader_of(local_store, rank=rank, world_size=5, tail=tail) for rank in range(5)]
        for epoch in range(2):
            ranks = [list(islice(loader, len(loader))) for loader in loaders]
            kept = planned(epoch)[: STEPS // 5 * 5] if tail == "drop" else planned(epoch)
            assert ranks == [kept[rank::5] for rank in range(5)]

    def test_a_place_where_dropped_batches_are_all_that_is_left_is_the_next_epoch(self, local_store: Client) -> None:
        state = state_after(loader_of(local_store), STEPS // 5 * 5)
        loader = loader_of(local_store, rank=1, world_size=5, tail="drop")
        loader.load_state_dict(state)
        assert list(loader) == planned(1)[1 : STEPS // 5 * 5 : 5]

    def test_an_uneven_rank_without_a_batch_left_waits_for_the_next_epoch(self, local_store: Client) -> None:
        state = state_after(loader_of(local_store), STEPS - 1)
        loaders = [loader_of(local_store, rank=rank, world_size=2, tail="uneven") for rank in range(2)]
        for loader in loaders:
            loader.load_state_dict(state)
        assert [list(loader) for loader in loaders] == [planned(0)[-1:], []]
        assert [next(iter(loader)) for loader in loaders] == planned(1)[:2]


class TestRanks:
    def test_the_state_of_any_rank_stands_for_all_and_for_another_number_of_them(self, local_store: Client) -> None:
        states = [state_after(loader_of(local_store, rank=rank, world_size=2), 3) for rank in range(2)]
        assert states[0] == states[1]
        for world_size in (1, 2, 3):
            rest = []
            for rank in range(world_size):
                loader = loader_of(local_store, rank=rank, world_size=world_size)
                loader.load_state_dict(states[0])
                rest.append(list(loader))
            padded = planned(0) + planned(0)[: -(STEPS - 6) % world_size]
            assert rest == [padded[6 + rank :: world_size] for rank in range(world_size)]

    def test_ranks_saved_at_different_times_each_resume_their_own_part(self, local_store: Client) -> None:
        for rank, batches in ((0, 4), (1, 2)):
            loader = loader_of(local_store, rank=rank, world_size=2)
            loader.load_state_dict(state_after(loader_of(local_store, rank=rank, world_size=2), batches))
            assert list(loader) == planned(0)[rank::2][batches:]


class TestRefused:
    def test_another_plans_state_is_refused_by_name(self, local_store: Client) -> None:
        state = state_after(loader_of(local_store), 2)
        other = BatchLoader(MapDataset(local_store), EntryPlan(URLS, 4, seed=10))
        with pytest.raises(InvalidRequest, match=r'another plan.*"seed": 9.*"seed": 10'):
            other.load_state_dict(state)

    def test_what_is_no_state_is_refused(self, local_store: Client) -> None:
        with pytest.raises(InvalidRequest, match="not a state"):
            loader_of(local_store).load_state_dict({"epoch": 1})


def test_a_state_survives_torch_save(local_store: Client, tmp_path: Any) -> None:
    torch.save(state_after(loader_of(local_store), 3), tmp_path / "checkpoint.pt")
    loader = loader_of(local_store)
    loader.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert list(loader) == planned(0)[3:]

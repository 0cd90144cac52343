"""BatchLoader and BatchLoader: the plan's batches, in the plan's order, divided without loss or repeat."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from datasets_kit import (
    BUCKET,
    DEADLINE_S,
    URLS,
    CountUp,
    EntryPlan,
    RecordingTransport,
    collate_joined,
    contents,
    decode_recording,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, RandomSampler

from ais_loader import BatchLoader, Client, MapDataset
from ais_loader.errors import InvalidRequest

# Three workers on two cores are what some tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
PLAN = EntryPlan(URLS, 4, seed=9)
STEPS = PLAN.steps(0)


def planned(epoch: int, steps: range = range(STEPS)) -> list[list[bytes]]:
    return [contents(PLAN.batch(epoch, step)) for step in steps]


class TestOrder:
    @pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
    @pytest.mark.sampled(4)
    def test_batches_come_in_the_plans_order_from_any_number_of_workers(self, store: Client, num_workers: int) -> None:
        loader = BatchLoader(store, PLAN, num_workers=num_workers)
        assert list(loader) == planned(0)

    def test_a_plain_dataloader_delivers_the_same(self, local_store: Client) -> None:
        dataset = BatchLoader(local_store, PLAN)
        assert list(DataLoader(dataset, batch_size=None, num_workers=2)) == planned(0)
        assert list(dataset) == planned(0)

    @pytest.mark.sampled(1)
    def test_ranks_and_workers_together_have_every_sample_once(self, store: Client) -> None:
        ranks = [
            list(BatchLoader(store, PLAN, rank=rank, world_size=2, tail="uneven", num_workers=2)) for rank in range(2)
        ]
        assert ranks == [planned(0, range(0, STEPS, 2)), planned(0, range(1, STEPS, 2))]
        seen = Counter(sample for rank in ranks for batch in rank for sample in batch)
        assert seen == Counter(contents(URLS))

    def test_the_tail_of_an_epoch_is_repeated_dropped_or_uneven(self, local_store: Client) -> None:
        assert STEPS % 5 == 2
        expected = {
            "repeat": [[*range(rank, STEPS, 5), *([rank - 2] if rank >= 2 else [])] for rank in range(5)],
            "drop": [list(range(rank, STEPS - 2, 5)) for rank in range(5)],
            "uneven": [list(range(rank, STEPS, 5)) for rank in range(5)],
        }
        for tail, ranks in expected.items():
            for rank, steps in enumerate(ranks):
                dataset = BatchLoader(local_store, PLAN, rank=rank, world_size=5, tail=tail)
                assert list(dataset) == [planned(0)[step] for step in steps]
                assert len(dataset) == len(steps)
        dataset = BatchLoader(local_store, PLAN, rank=3, world_size=5)
        assert list(BatchLoader(dataset, num_workers=2)) == [planned(0)[step] for step in expected["repeat"][3]]

    def test_a_tail_that_does_not_exist_is_refused(self, local_store: Client) -> None:
        with pytest.raises(InvalidRequest, match="tail='keep': need 'repeat', 'drop' or 'uneven'"):
            BatchLoader(local_store, PLAN, tail="keep")  # type: ignore[arg-type]  # the point

    def test_work_is_done_in_the_workers(self, local_store: Client) -> None:
        loader = BatchLoader(local_store, PLAN, decode_recording, num_workers=2)
        batches = list(loader)
        assert [[sample.data for sample in batch] for batch in batches] == planned(0)
        workers = [{sample.pid for sample in batch} for batch in batches]
        assert workers == [workers[step % 2] for step in range(STEPS)]
        assert len(workers[0] | workers[1]) == 2

    def test_collate_makes_the_batch(self, local_store: Client) -> None:
        dataset = BatchLoader(local_store, PLAN, collate=collate_joined)
        assert list(BatchLoader(dataset)) == [b"".join(batch) for batch in planned(0)]

    def test_a_plan_without_an_end_goes_on(self, local_store: Client) -> None:
        plan = CountUp()
        loader = BatchLoader(local_store, plan, num_workers=2)
        taken = list(itertools.islice(loader, 60))
        assert taken == [contents(plan.batch(0, step)) for step in range(60)]

    def test_an_empty_batch_of_a_plan_is_an_empty_batch(self, local_store: Client) -> None:
        class Sparse:
            def steps(self, epoch: int) -> int:
                return 3

            def batch(self, epoch: int, step: int) -> list[str]:
                return URLS[:2] if step == 1 else []

        assert list(BatchLoader(local_store, Sparse())) == [[], contents(URLS[:2]), []]

    def test_a_placeholder_keeps_the_others_in_their_places(self, store: Client) -> None:
        urls = [URLS[0], f"ais://{BUCKET}/missing", URLS[1]]
        dataset = BatchLoader(store, EntryPlan(urls, 3, shuffle=False), on_error="placeholder")
        assert list(dataset) == [[*contents(URLS[:1]), None, *contents(URLS[1:2])]]


class TestRequests:
    def test_each_batch_is_one_request_and_in_flight_are_ahead(self, recording: RecordingTransport) -> None:
        batches = iter(BatchLoader(Client(recording), PLAN, in_flight=4))
        assert recording.requests == []
        for delivered in range(1, STEPS + 1):
            next(batches)
            assert len(recording.requests) == min(delivered + 3, STEPS)
        assert recording.requests == [4] * (STEPS - 1) + [len(URLS) - 4 * (STEPS - 1)]


def _move_on(dataset: BatchLoader) -> None:
    BatchLoader(dataset).set_epoch(5)


class TestEpochs:
    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_an_epoch_read_to_its_end_is_followed_by_the_next(self, local_store: Client, num_workers: int) -> None:
        loader = BatchLoader(local_store, PLAN, num_workers=num_workers)
        assert [list(loader), list(loader)] == [planned(0), planned(1)]
        assert loader.epoch == 2

    def test_workers_that_stay_follow_the_epoch_too(self, local_store: Client) -> None:
        dataset = BatchLoader(local_store, PLAN, decode_recording)
        loader = BatchLoader(dataset, num_workers=2, persistent_workers=True)
        pids = set()
        for epoch in (0, 1, 7):
            if epoch == 7:
                loader.set_epoch(7)
            batches = list(loader)
            assert [[sample.data for sample in batch] for batch in batches] == planned(epoch)
            pids |= {sample.pid for batch in batches for sample in batch}
        assert len(pids) == 2

    def test_a_plain_dataloader_whose_workers_stay_follows_set_epoch(self, local_store: Client) -> None:
        dataset = BatchLoader(local_store, PLAN)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
        epochs = []
        for epoch in (0, 0, 3):
            dataset.set_epoch(epoch)
            epochs.append(list(loader))
        assert epochs == [planned(0), planned(0), planned(3)]

    def test_an_iteration_broken_off_starts_anew(self, local_store: Client) -> None:
        for num_workers in (0, 2):
            loader = BatchLoader(local_store, PLAN, num_workers=num_workers)
            assert next(iter(loader)) == planned(0)[0]
            assert list(loader) == planned(0)

    def test_two_iterations_of_one_loader_do_not_disturb_each_other(self, local_store: Client) -> None:
        loader = BatchLoader(local_store, PLAN, num_workers=1)
        assert list(zip(loader, loader, strict=True)) == [(batch, batch) for batch in planned(0)]

    def test_set_epoch_does_not_touch_an_iteration_under_way(self, local_store: Client) -> None:
        loader = BatchLoader(local_store, PLAN)
        batches = iter(loader)
        first = next(batches)
        loader.set_epoch(5)
        assert [first, *batches] == planned(0)
        assert list(loader) == planned(5)

    def test_a_process_that_was_given_the_dataset_moves_only_its_own_position(self, local_store: Client) -> None:
        dataset = BatchLoader(local_store, PLAN)
        loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
        assert list(loader) == planned(0)
        rank = multiprocessing.get_context("fork").Process(target=_move_on, args=(dataset,))
        rank.start()
        rank.join(DEADLINE_S)
        assert rank.exitcode == 0
        assert list(loader) == planned(0)

    @pytest.mark.parametrize("epoch", [-1, 2**63])
    def test_an_epoch_that_is_no_count_is_refused(self, local_store: Client, epoch: int) -> None:
        with pytest.raises(InvalidRequest):
            BatchLoader(local_store, PLAN).set_epoch(epoch)


class TestLength:
    def test_the_length_is_this_ranks_batches_of_a_whole_epoch(self, local_store: Client) -> None:
        dataset = BatchLoader(local_store, PLAN, rank=1, world_size=5, tail="uneven")
        assert len(dataset) == len(BatchLoader(dataset)) == len(list(dataset)) == len(range(1, STEPS, 5))

    def test_a_plan_without_an_end_has_no_length(self, local_store: Client) -> None:
        with pytest.raises(TypeError, match="no end"):
            len(BatchLoader(local_store, CountUp()))


@pytest.fixture
def fake_process_group() -> Iterator[None]:
    """torch.distributed as the second of three ranks, alone."""
    torch.distributed.init_process_group("fake", rank=1, world_size=3, store=FakeStore())
    yield
    torch.distributed.destroy_process_group()


class TestPlace:
    """Which rank this process is."""

    def test_alone_it_reads_everything(self, local_store: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RANK", raising=False)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        assert BatchLoader(local_store, PLAN).place() == (0, 1)

    def test_the_environment_of_a_launcher_says(self, local_store: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = BatchLoader(local_store, PLAN)
        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert list(BatchLoader(dataset, num_workers=2)) == planned(0, range(2, STEPS, 4))

    @pytest.mark.parametrize("rank, world_size", [("1", ""), ("", "2"), ("one", "2"), ("2", "2")])
    def test_half_an_environment_is_refused(
        self, local_store: Client, monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str
    ) -> None:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world_size)
        with pytest.raises(InvalidRequest, match=r"(?i)rank"):
            list(BatchLoader(local_store, PLAN))

    def test_a_process_group_says_even_when_it_is_set_up_later_and_to_forked_workers(
        self, local_store: Client, request: pytest.FixtureRequest
    ) -> None:
        dataset = BatchLoader(local_store, PLAN)
        request.getfixturevalue("fake_process_group")
        assert list(BatchLoader(dataset, num_workers=2)) == planned(0, range(1, STEPS, 3))

    def test_the_caller_says_before_anybody_else(
        self, local_store: Client, monkeypatch: pytest.MonkeyPatch, fake_process_group: None
    ) -> None:
        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert BatchLoader(local_store, PLAN, rank=0, world_size=2).place() == (0, 2)
        assert BatchLoader(local_store, PLAN).place() == (1, 3)


class TestArguments:
    @pytest.mark.parametrize(
        "options",
        [
            {"rank": 1},
            {"world_size": 2},
            {"rank": 2, "world_size": 2},
            {"in_flight": 0},
            {"ordered": False},
            {"on_error": "skip"},
        ],
    )
    def test_options_that_make_no_sense_are_refused_at_once(self, local_store: Client, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest):
            BatchLoader(local_store, PLAN, **options)

    def test_a_sampler_is_no_plan(self, local_store: Client) -> None:
        with pytest.raises(TypeError, match="sampler goes with MapDataset"):
            BatchLoader(local_store, RandomSampler(URLS))

    @pytest.mark.parametrize(
        "options",
        [
            {"batch_size": 4},
            {"shuffle": True},
            {"sampler": range(3)},
            {"batch_sampler": [[1]]},
            {"drop_last": True},
            {"in_order": False},
        ],
    )
    def test_a_loader_refuses_what_would_change_the_plans_batches(
        self, local_store: Client, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidRequest):
            BatchLoader(local_store, PLAN, **options)

    def test_a_loader_takes_no_other_dataset(self, local_store: Client) -> None:
        with pytest.raises(TypeError, match="MapDataset"):
            BatchLoader(MapDataset(local_store, URLS))

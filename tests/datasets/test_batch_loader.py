"""BatchLoader: the plan's batches, in the plan's order, divided without loss or repeat."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from datasets_kit import (
    BUCKET,
    URLS,
    CountUp,
    EntryPlan,
    RecordingTransport,
    collate_joined,
    contents,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from ais_loader import BatchLoader, Client, MapDataset
from ais_loader.errors import InvalidRequest
from ais_loader.testing import eventually
from tests.table import table

PLAN = EntryPlan(URLS, 4, seed=9)
STEPS = PLAN.steps(0)


def planned(epoch: int, steps: range = range(STEPS)) -> list[list[bytes]]:
    return [contents(PLAN.batch(epoch, step)) for step in steps]


class TestOrder:
    @pytest.mark.parametrize("threads", [1, 2, 5])
    @pytest.mark.sampled(3)
    def test_batches_come_in_the_plans_order_from_any_number_of_threads(self, store: Client, threads: int) -> None:
        loader = BatchLoader(MapDataset(store), PLAN, threads=threads, in_flight=4)
        assert list(loader) == planned(0)

    @pytest.mark.sampled(1)
    def test_ranks_and_workers_together_have_every_sample_once(self, store: Client) -> None:
        ranks = [
            list(BatchLoader(MapDataset(store), PLAN, rank=rank, world_size=2, tail="uneven")) for rank in range(2)
        ]
        assert ranks == [planned(0, range(0, STEPS, 2)), planned(0, range(1, STEPS, 2))]
        seen = Counter(sample for rank in ranks for batch in rank for sample in batch)
        assert seen == Counter(contents(URLS))

    @pytest.mark.slow
    def test_the_tail_of_an_epoch_is_repeated_dropped_or_uneven(self, local_store: Client) -> None:
        assert STEPS % 5 == 2
        expected = {
            "repeat": [[*range(rank, STEPS, 5), *([rank - 2] if rank >= 2 else [])] for rank in range(5)],
            "drop": [list(range(rank, STEPS - 2, 5)) for rank in range(5)],
            "uneven": [list(range(rank, STEPS, 5)) for rank in range(5)],
        }
        for tail, ranks in expected.items():
            for rank, steps in enumerate(ranks):
                dataset = BatchLoader(MapDataset(local_store), PLAN, rank=rank, world_size=5, tail=tail)
                assert list(dataset) == [planned(0)[step] for step in steps]
                assert len(dataset) == len(steps)

    def test_a_tail_that_does_not_exist_is_refused(self, local_store: Client) -> None:
        with pytest.raises(InvalidRequest, match="tail='keep': need 'repeat', 'drop' or 'uneven'"):
            BatchLoader(MapDataset(local_store), PLAN, tail="keep")  # type: ignore[arg-type]  # the point

    def test_collate_makes_the_batch(self, local_store: Client) -> None:
        loader = BatchLoader(MapDataset(local_store), PLAN, collate=collate_joined)
        assert list(loader) == [b"".join(batch) for batch in planned(0)]

    def test_a_plan_without_an_end_goes_on(self, local_store: Client) -> None:
        plan = CountUp()
        loader = BatchLoader(MapDataset(local_store), plan)
        taken = list(itertools.islice(loader, 60))
        assert taken == [contents(plan.batch(0, step)) for step in range(60)]

    def test_an_empty_batch_of_a_plan_is_an_empty_batch(self, local_store: Client) -> None:
        class Sparse:
            def steps(self, epoch: int) -> int:
                return 3

            def batch(self, epoch: int, step: int) -> list[str]:
                return URLS[:2] if step == 1 else []

        assert list(BatchLoader(MapDataset(local_store), Sparse())) == [[], contents(URLS[:2]), []]

    def test_a_placeholder_keeps_the_others_in_their_places(self, store: Client) -> None:
        urls = [URLS[0], f"ais://{BUCKET}/missing", URLS[1]]
        dataset = BatchLoader(MapDataset(store, on_error="placeholder"), EntryPlan(urls, 3, shuffle=False))
        assert list(dataset) == [[*contents(URLS[:1]), None, *contents(URLS[1:2])]]


class TestRequests:
    def test_each_batch_is_one_request_and_in_flight_are_ahead(self, recording: RecordingTransport) -> None:
        loader = BatchLoader(MapDataset(Client(recording)), PLAN, in_flight=4)
        batches = iter(loader)
        assert recording.requests == []
        for delivered in range(1, STEPS + 1):
            next(batches)
            under_way = min(delivered + 4, STEPS)
            eventually(lambda: len(recording.requests) == under_way)  # noqa: B023 - called in this round
        assert recording.requests == [4] * (STEPS - 1) + [len(URLS) - 4 * (STEPS - 1)]


class TestEpochs:
    def test_an_epoch_read_to_its_end_is_followed_by_the_next(self, local_store: Client) -> None:
        loader = BatchLoader(MapDataset(local_store), PLAN)
        assert [list(loader), list(loader)] == [planned(0), planned(1)]
        assert loader.epoch == 2

    def test_an_iteration_broken_off_starts_anew(self, local_store: Client) -> None:
        loader = BatchLoader(MapDataset(local_store), PLAN)
        assert next(iter(loader)) == planned(0)[0]
        assert list(loader) == planned(0)

    def test_two_loaders_of_one_dataset_do_not_disturb_each_other(self, local_store: Client) -> None:
        dataset = MapDataset(local_store.url)
        loaders = [BatchLoader(dataset, PLAN) for _ in range(2)]
        assert list(zip(*loaders, strict=True)) == [(batch, batch) for batch in planned(0)]

    def test_set_epoch_does_not_touch_an_iteration_under_way(self, local_store: Client) -> None:
        loader = BatchLoader(MapDataset(local_store), PLAN)
        batches = iter(loader)
        first = next(batches)
        loader.set_epoch(5)
        assert [first, *batches] == planned(0)
        assert list(loader) == planned(5)

    @pytest.mark.parametrize("epoch", [-1, 2**63])
    def test_an_epoch_that_is_no_count_is_refused(self, local_store: Client, epoch: int) -> None:
        with pytest.raises(InvalidRequest):
            BatchLoader(MapDataset(local_store), PLAN).set_epoch(epoch)


class TestLength:
    def test_the_length_is_this_ranks_batches_of_a_whole_epoch(self, local_store: Client) -> None:
        dataset = BatchLoader(MapDataset(local_store), PLAN, rank=1, world_size=5, tail="uneven")
        assert len(dataset) == len(list(dataset)) == len(range(1, STEPS, 5))

    def test_a_plan_without_an_end_has_no_length(self, local_store: Client) -> None:
        with pytest.raises(TypeError, match="no end"):
            len(BatchLoader(MapDataset(local_store), CountUp()))


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
        assert BatchLoader(MapDataset(local_store), PLAN).position.place() == (0, 1)

    def test_the_environment_of_a_launcher_says(self, local_store: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = BatchLoader(MapDataset(local_store), PLAN)
        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert list(dataset) == planned(0, range(2, STEPS, 4))

    @table("rank, world_size", [("1", ""), ("", "2"), ("one", "2"), ("2", "2")])
    def test_half_an_environment_is_refused(
        self, local_store: Client, monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str
    ) -> None:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world_size)
        with pytest.raises(InvalidRequest, match=r"(?i)rank"):
            list(BatchLoader(MapDataset(local_store), PLAN))

    def test_a_process_group_says_even_when_it_is_set_up_later(
        self, local_store: Client, request: pytest.FixtureRequest
    ) -> None:
        dataset = BatchLoader(MapDataset(local_store), PLAN)
        request.getfixturevalue("fake_process_group")
        assert list(dataset) == planned(0, range(1, STEPS, 3))

    def test_the_caller_says_before_anybody_else(
        self, local_store: Client, monkeypatch: pytest.MonkeyPatch, fake_process_group: None
    ) -> None:
        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert BatchLoader(MapDataset(local_store), PLAN, rank=0, world_size=2).position.place() == (0, 2)
        assert BatchLoader(MapDataset(local_store), PLAN).position.place() == (1, 3)


class TestArguments:
    @table(
        "options",
        [
            {"rank": 1},
            {"world_size": 2},
            {"rank": 2, "world_size": 2},
            {"in_flight": 0},
            {"threads": 0},
            {"on_bad": "ignore"},
            {"on_stall": "restart"},
            {"stall_s": 0},
            {"stall_s": float("nan")},
            {"stall_s": float("inf")},
            {"expect_steps": 1001},
        ],
    )
    def test_options_that_make_no_sense_are_refused_at_once(self, local_store: Client, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest):
            BatchLoader(MapDataset(local_store), PLAN, **options)

    @table("batches", ["ais://speech/", 5, None, {"a": 1}])
    def test_what_is_neither_plan_nor_sampler_is_refused(self, local_store: Client, batches: Any) -> None:
        with pytest.raises(TypeError, match=r"batches is a .*; need a plan"):
            BatchLoader(MapDataset(local_store, URLS), batches)

    def test_a_sampler_decides_about_ranks_by_itself(self, local_store: Client) -> None:
        with pytest.raises(InvalidRequest, match="a sampler decides by itself"):
            BatchLoader(MapDataset(local_store, URLS), [[1]], rank=0, world_size=2)

    def test_a_loader_needs_a_dataset(self) -> None:
        with pytest.raises(TypeError, match="need a MapDataset"):
            BatchLoader(5, PLAN)

"""Positions of samplers: wherever a run stops, and however its loop ends, it resumes as one that never stopped."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from loading_kit import N, Numbers
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ais_loader import BatchLoader
from ais_loader.errors import InvalidRequest
from ais_loader.loading.records import BatchRecord
from tests.table import table

BATCH = 3
BATCHES = -(-N // BATCH)
MIDDLE = 5


class Counting(Sampler[list[int]]):
    """A batch sampler whose state counts what it has drawn, as those of torchdata do."""

    def __init__(self) -> None:
        self.drawn = 0
        self.resumes = False

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        if not self.resumes:
            self.drawn = 0
        self.resumes = False
        for at in range(self.drawn, BATCHES):
            self.drawn += 1
            yield list(range(at * BATCH, min((at + 1) * BATCH, N)))

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.drawn, self.resumes = state["drawn"], True


class CountingBatches(BatchSampler):
    """A batch sampler whose state counts its batches, and says nothing about the sampler that it draws from."""

    drawn = skipped = 0

    def __iter__(self) -> Iterator[list[int]]:
        first, self.skipped = self.skipped, 0
        self.drawn = first
        for batch in islice(super().__iter__(), first, None):
            self.drawn += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skipped = state["drawn"]


def drawing(sampler: Any) -> BatchSampler:
    return BatchSampler(sampler, BATCH, drop_last=False)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "no state": lambda: drawing(SequentialSampler(range(N))),
    "own state": Counting,
    "inner set_epoch": lambda: drawing(DistributedSampler(range(N), num_replicas=1, rank=0, seed=3)),
    "inner generator": lambda: drawing(RandomSampler(range(N), generator=seeded())),
    "own state without its inner generator": lambda: CountingBatches(
        RandomSampler(range(N), generator=seeded()), BATCH, drop_last=False
    ),
    "inner generator of a subset": lambda: drawing(SubsetRandomSampler(range(N), generator=seeded())),
    "inner generator with replacement": lambda: drawing(WeightedRandomSampler([1.0] * N, N, generator=seeded())),
}


def set_epoch(loader: BatchLoader, kind: str, epoch: int) -> None:
    if kind == "inner set_epoch":
        loader.set_epoch(epoch)


def epochs_of(kind: str) -> list[list[list[int]]]:
    """The batches of four epochs of torch's own loop over the sampler."""
    sampler = SAMPLERS[kind]()
    found = []
    for epoch in range(4):
        if kind == "inner set_epoch":
            sampler.sampler.set_epoch(epoch)
        found.append([list(batch) for batch in sampler])
    return found


@pytest.mark.slow
@table("epoch", [0, 1, 2])
@table("stop", ["middle", "end by StopIteration", "end by count"])
@table("kind", SAMPLERS)
def test_a_run_resumes_with_the_batches_that_it_has_not_had(kind: str, stop: str, epoch: int) -> None:
    expected = epochs_of(kind)
    loader = BatchLoader(Numbers(N), SAMPLERS[kind](), in_flight=4)
    for at in range(epoch):
        set_epoch(loader, kind, at)
        assert list(loader if stop != "end by count" else islice(loader, BATCHES)) == expected[at]
    set_epoch(loader, kind, epoch)
    running = iter(loader)
    had = (
        list(running)
        if stop == "end by StopIteration"
        else list(islice(running, MIDDLE if stop == "middle" else BATCHES))
    )
    assert had == expected[epoch][: len(had)]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    assert set(loader.state_dict()) == set(state)

    resumed = BatchLoader(Numbers(N), SAMPLERS[kind](), in_flight=2)
    resumed.load_state_dict(state)
    if stop == "middle":
        set_epoch(resumed, kind, epoch)
        assert list(resumed) == expected[epoch][MIDDLE:]
    set_epoch(resumed, kind, epoch + 1)
    assert list(resumed) == expected[epoch + 1]


@table("kind", SAMPLERS)
def test_a_state_of_an_epochs_end_resumes_to_an_epoch_with_batches_without_set_epoch(kind: str) -> None:
    loader, goes_on = (BatchLoader(Numbers(N), SAMPLERS[kind]()) for _ in range(2))
    list(loader)
    goes_on.load_state_dict(loader.state_dict())
    assert list(goes_on) == list(loader)


def test_loops_that_count_give_the_order_of_those_that_ask_for_the_end() -> None:
    counting, asking = (BatchLoader(Numbers(N), SAMPLERS["inner generator"]()) for _ in range(2))
    for _ in range(4):
        assert list(islice(counting, BATCHES)) == list(asking)


def test_set_epoch_reaches_the_sampler_that_has_it_or_is_refused() -> None:
    loader = BatchLoader(Numbers(N), SAMPLERS["inner set_epoch"]())
    for epoch, expected in enumerate(epochs_of("inner set_epoch")):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert list(loader) == expected
    assert loader.batch_sampler.sampler is loader
    for kind in ("no state", "own state", "inner generator"):
        loader = BatchLoader(Numbers(N), SAMPLERS[kind]())
        with pytest.raises(InvalidRequest, match=r"set_epoch\(1\): neither .* has set_epoch"):
            loader.set_epoch(1)
        assert not hasattr(loader, "batch_sampler")


@table(
    "sampler",
    [RandomSampler(range(N)), SubsetRandomSampler(range(N)), WeightedRandomSampler([1.0] * N, N)],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_random_order_without_a_generator_is_read_and_has_no_state(sampler: Any) -> None:
    loader = BatchLoader(Numbers(N), drawing(sampler))
    assert sum(map(len, loader)) == N
    running = iter(loader)
    next(running)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=f"{type(sampler).__name__} draws at random without a torch.Generator"):
            loader.state_dict()
        loader.close()


@table(
    "other, told",
    [
        (lambda: drawing(SequentialSampler(range(N))), "generator=True, here False"),
        (lambda: BatchSampler(RandomSampler(range(N), generator=seeded()), 4, False), "batch_size=3, here 4"),
        (lambda: BatchSampler(RandomSampler(range(N), generator=seeded()), BATCH, True), "drop_last=False, here True"),
    ],
)
def test_a_state_of_another_chain_is_refused(other: Callable[[], Any], told: str) -> None:
    state = BatchLoader(Numbers(N), SAMPLERS["inner generator"]()).state_dict()
    with pytest.raises(InvalidRequest, match=told):
        BatchLoader(Numbers(N), other()).load_state_dict(state)


def test_a_state_of_another_number_of_replicas_is_refused() -> None:
    state = BatchLoader(Numbers(N), SAMPLERS["inner set_epoch"]()).state_dict()
    halves = BatchLoader(Numbers(N), drawing(DistributedSampler(range(N), num_replicas=2, rank=0, seed=3)))
    with pytest.raises(InvalidRequest, match="num_replicas=1, here 2"):
        halves.load_state_dict(state)


def test_a_part_of_an_epoch_that_is_repeated_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for tells_epochs in (False, True):
        loader = BatchLoader(Numbers(N), SAMPLERS["inner set_epoch"]())
        for epoch in range(3):
            if tells_epochs:
                loader.set_epoch(epoch)
            list(islice(loader, MIDDLE))
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert "begins at the beginning of epoch 0 once more" in told[0] and "set_epoch" in told[0]


@pytest.mark.parametrize("new", [Counting, lambda: drawing(SequentialSampler(range(N)))])
def test_a_last_batch_that_the_trainer_did_not_receive_is_not_counted(new: Callable[[], Any]) -> None:
    """The end is known by then. `on_batch` raises, as a loader does that has met too many bad samples."""
    received: list[Any] = []

    def note(record: BatchRecord) -> None:
        if record.step == BATCHES - 1:
            raise OSError("no space left for the log")

    loader = BatchLoader(Numbers(N), new(), on_batch=note)
    with pytest.raises(OSError, match="no space left"):
        received.extend(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = BatchLoader(Numbers(N), new())
    resumed.load_state_dict(state)
    received.extend(resumed)
    assert received == list(BatchLoader(Numbers(N), new()))


@table("same_epoch", [False, True])
def test_an_iteration_that_is_abandoned_after_a_resume_begins_where_it_began(
    caplog: pytest.LogCaptureFixture, same_epoch: bool
) -> None:
    """Not at the beginning of its epoch: its first batches would be read once more."""
    caplog.clear()

    def loader() -> BatchLoader:
        sampler = DistributedSampler(Numbers(N), num_replicas=1, rank=0, seed=3)
        return BatchLoader(Numbers(N), drawing(sampler), workers=0)

    whole = loader()
    whole.set_epoch(2)
    expected = list(whole)
    stopped = loader()
    stopped.set_epoch(2)
    list(islice(stopped, MIDDLE))
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    assert list(islice(resumed, 2)) == expected[MIDDLE : MIDDLE + 2]
    if same_epoch:
        resumed.set_epoch(2)
    assert list(resumed) == expected[MIDDLE:]
    assert ("the loaded place in epoch 2" in caplog.text) == (not same_epoch)
    assert list(resumed) == expected  # nobody has called set_epoch
    resumed.set_epoch(3)
    assert next(iter(resumed)) != expected[MIDDLE]

"""accelerate's ways to lose or repeat batches of a plan: refused with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from accelerate import Accelerator
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, MapDataset, ShufflePlan
from ais_loader.errors import InvalidRequest
from ais_loader.testing import throwaway_store

PLAN = ShufflePlan(16, 2, seed=1)


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with throwaway_store({str(at): b"data" for at in range(16)}, bucket="b") as client:
        yield client.url


def dataset(store: str, **options: Any) -> BatchLoader:
    return BatchLoader(MapDataset(store, "ais://b/"), PLAN, **options)


def test_prepare_returns_a_batch_loader_as_it_is(store: str) -> None:
    loader = BatchLoader(dataset(store, rank=0, world_size=2))
    assert Accelerator(cpu=True).prepare(loader) is loader
    assert len(list(loader)) == 4


@pytest.mark.parametrize("num_workers, start_method", [(0, None), (1, "fork"), (1, "spawn")])
def test_a_dataloader_whose_batches_would_be_divided_is_refused(
    store: str, num_workers: int, start_method: str | None
) -> None:
    plain = DataLoader(
        dataset(store, rank=0, world_size=2),
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=start_method,
    )
    with pytest.raises(InvalidRequest, match="pass BatchLoader"):
        next(iter(Accelerator(cpu=True).prepare(plain)))


def test_skipping_without_knowing_the_epoch_is_refused(store: str) -> None:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(BatchLoader(dataset(store), num_workers=1))
    with pytest.raises(InvalidRequest, match="load_state_dict"):
        next(iter(accelerator.skip_first_batches(loader, 2)))

"""accelerate's ways to lose or repeat batches of a plan: refused with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from accelerate import Accelerator

from ais_loader import BatchLoader, MapDataset, ShufflePlan
from ais_loader.testing import throwaway_store

PLAN = ShufflePlan(16, 2, seed=1)


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with throwaway_store({str(at): b"data" for at in range(16)}, bucket="b") as client:
        yield client.url


def loader_of(store: str, **options: Any) -> BatchLoader:
    return BatchLoader(MapDataset(store, "ais://b/"), PLAN, **options)


def test_prepare_returns_a_batch_loader_as_it_is(store: str) -> None:
    loader = loader_of(store, rank=0, world_size=2)
    assert Accelerator(cpu=True).prepare(loader) is loader
    assert len(list(loader)) == 4


def test_skipping_without_knowing_the_epoch_is_refused(store: str) -> None:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(loader_of(store))
    with pytest.raises(AttributeError, match="load_state_dict"):
        next(iter(accelerator.skip_first_batches(loader, 2)))

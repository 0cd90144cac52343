"""Batches as one array of their entries' bytes, by threads and by worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ais_loader import BatchLoader, Entry, Item, MapDataset, PackedBatch, ShufflePlan, connect
from ais_loader.errors import InvalidRequest, ObjectNotFound
from ais_loader.plans import PackPlan
from ais_loader.testing import throwaway_node

N = 50
CONTENT = [bytes([at]) * (1 + at * 37 % 3000) for at in range(N)]


@pytest.fixture(scope="module", params=["embedded", "node"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "node":
        with throwaway_node() as node:
            _fill(node.url)
            yield node.url
    else:
        path = str(tmp_path_factory.mktemp("packed") / "store")
        _fill(path)
        yield path


def _fill(store: str) -> None:
    with connect(store) as client:
        client.create_bucket("b").put_many((f"{at:03}", data) for at, data in enumerate(CONTENT))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_its_entries_end_to_end(store: str, workers: int) -> None:
    plan = ShufflePlan(N, 8, seed=2)
    loader = BatchLoader(MapDataset(store, "ais://b/"), plan, workers=workers, output="packed", rank=0, world_size=1)
    batches = list(loader)
    assert len(batches) == plan.steps(0)
    for step, batch in enumerate(batches):
        assert isinstance(batch, PackedBatch)
        assert [bytes(one) for one in batch] == [CONTENT[at] for at in plan.batch(0, step)]
    assert loader.summary().payload_bytes == sum(map(len, CONTENT))


@pytest.mark.parametrize("workers", [0, 1])
def test_collate_gets_the_array(store: str, workers: int) -> None:
    loader = BatchLoader(MapDataset(store, "ais://b/"), [[0, 3, 3]], workers=workers, output="packed", collate=_sizes)
    assert next(iter(loader)).tolist() == [len(CONTENT[at]) for at in (0, 3, 3)]


def _sizes(batch: PackedBatch) -> np.ndarray:
    return np.diff(batch.offsets)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_entry_that_fails_is_raised_in_the_place_of_its_batch(store: str, workers: int) -> None:
    dataset = MapDataset(store, [Entry("b", "000"), Entry("b", "none"), Entry("b", "002")])
    batches = iter(BatchLoader(dataset, [[0, 2], [0, 1]], workers=workers, output="packed"))
    assert [bytes(one) for one in next(batches)] == [CONTENT[0], CONTENT[2]]
    with pytest.raises(ObjectNotFound, match="none"):
        next(batches)


def _length(item: Item) -> int:
    return len(item.data)


def test_what_has_no_place_in_one_array_is_refused(store: str) -> None:
    plain = MapDataset(store, "ais://b/")
    for dataset, options in (
        (MapDataset(store, "ais://b/", _length), {}),
        (CONTENT, {}),
        (plain, {"on_bad": "skip"}),
    ):
        with pytest.raises(InvalidRequest, match="output='packed': it needs a MapDataset"):
            BatchLoader(dataset, [[0]], output="packed", **options)
    with pytest.raises(InvalidRequest, match="output='arrow': need one of samples, packed"):
        BatchLoader(plain, [[0]], output="arrow")
    pairs = MapDataset(store, [(Entry("b", "000"), Entry("b", "001"))])
    for dataset, batches in ((pairs, [[0]]), (plain, PackPlan([len(one) for one in CONTENT], 4096, 2))):
        with pytest.raises(InvalidRequest, match="has no place in one array"):
            next(iter(BatchLoader(dataset, batches, output="packed")))

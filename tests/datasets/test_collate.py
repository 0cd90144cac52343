"""drop_placeholders: batches without the samples of entries that failed."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from ais_loader import (
    BatchLoader,
    Client,
    Item,
    MapDataset,
    ShufflePlan,
    decoders,
    drop_placeholders,
)
from ais_loader.errors import EntryFailed
from ais_loader.testing import throwaway_store

URLS = [f"ais://n/{at}" for at in range(4)]
MISSING = "ais://n/none"


@pytest.fixture(scope="module")
def numbers() -> Iterator[Client]:
    with throwaway_store({str(at): str(at).encode() for at in range(4)}, bucket="n") as client:
        yield client


def labelled(item: Item) -> tuple[Any, int]:
    return decoders.json(item), 7


def named(item: Item) -> dict[str, Any]:
    return {"number": decoders.json(item), "name": item.entry.name}


@pytest.mark.slow
def test_a_failed_entry_is_left_out_of_its_batch(numbers: Client) -> None:
    dataset = MapDataset(numbers, [URLS[0], MISSING, *URLS[1:]], decoders.json, on_error="placeholder")
    with pytest.raises((TypeError, RuntimeError), match="NoneType"):  # torch's collation
        next(iter(DataLoader(dataset, batch_size=3)))
    batches = list(DataLoader(dataset, batch_size=3, collate_fn=drop_placeholders, num_workers=1))
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_a_sample_with_a_placeholder_in_it_is_left_out_whole(numbers: Client) -> None:
    entries = [URLS[1], MISSING, URLS[2]]
    pairs = MapDataset(numbers, entries, labelled, on_error="placeholder")[:]
    numbers_of_pairs, labels = drop_placeholders(pairs)
    assert (numbers_of_pairs.tolist(), labels.tolist()) == ([1, 2], [7, 7])
    by_name = drop_placeholders(MapDataset(numbers, entries, named, on_error="placeholder")[:])
    assert (by_name["number"].tolist(), by_name["name"]) == ([1, 2], ["1", "2"])


def test_another_collation_can_follow_and_it_goes_with_a_plan(numbers: Client) -> None:
    plan = ShufflePlan(2, 2, shuffle=False)
    collate = pickle.loads(pickle.dumps(functools.partial(drop_placeholders, collate=torch.tensor)))
    samples = MapDataset(numbers, [URLS[3], MISSING], decoders.json, on_error="placeholder")
    loader = BatchLoader(samples, plan, collate=collate)
    assert [batch.tolist() for batch in loader] == [[3]]


def test_values_that_are_false_are_no_placeholders() -> None:
    assert drop_placeholders([0, 0]).tolist() == [0, 0]
    assert drop_placeholders([torch.zeros(2), torch.zeros(2)]).tolist() == [[0, 0], [0, 0]]


def test_a_batch_of_placeholders_alone_is_an_error() -> None:
    with pytest.raises(EntryFailed, match="all 2 samples of a batch are placeholders"):
        drop_placeholders([None, (None, 3)])

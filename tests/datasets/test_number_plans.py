"""Plans over numbers with a store: the numbers stand for entries, or for the samples of a dataset."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from datasets_kit import CORPUS, URLS, collate_joined, contents
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, BatchSampler, Client, Entry, Item, MapDataset, concat
from ais_loader.errors import InvalidRequest
from ais_loader.plans import BucketPlan, MixPlan, NumberPlan, PackPlan, ShufflePlan
from tests.table import table

PLAN = ShufflePlan(len(URLS), 4, seed=3)


def planned(plan: Any, epoch: int = 0) -> list[list[bytes]]:
    return [contents([URLS[at] for at in plan.batch(epoch, step)]) for step in range(plan.steps(epoch))]


def test_entries_of_a_client(store: Client) -> None:
    loader = BatchLoader(MapDataset(store, URLS), PLAN)
    assert list(loader) == planned(PLAN)
    assert list(loader) == planned(PLAN, 1)


def test_names_of_a_bucket_and_the_url_of_a_prefix(local_store: Client) -> None:
    names = list(CORPUS)
    assert list(BatchLoader(MapDataset(local_store, names, bucket="speech"), PLAN)) == planned(PLAN)
    ordered = ShufflePlan(len(URLS), 5, shuffle=False)
    listed = BatchLoader(MapDataset(local_store, "ais://speech/en/"), ordered)
    assert list(listed) == [contents(sorted(URLS)[first : first + 5]) for first in range(0, len(URLS), 5)]


def test_a_map_dataset_keeps_its_decoder_and_options(store: Client) -> None:
    samples = MapDataset(store, [*URLS[:-1], "ais://speech/missing"], decode_length, on_error="placeholder")
    dataset = BatchLoader(samples, PLAN, collate=tuple)
    expected = [tuple(length_of(at) for at in PLAN.batch(0, step)) for step in range(PLAN.steps(0) or 0)]
    assert list(dataset) == expected
    assert "ShufflePlan(47" in repr(dataset)


def decode_length(item: Any) -> int | None:
    return len(item.data) if item.ok else None


def length_of(at: int) -> int | None:
    return len(contents([URLS[at]])[0]) if at < len(URLS) - 1 else None


def test_a_mixture_of_concatenated_datasets(store: Client) -> None:
    parts = [MapDataset(store, URLS[:30]), MapDataset(store, URLS[30:])]
    plan = MixPlan({"first": 30, "second": 17}, {"first": 1, "second": 2}, batch_size=6, at_end="leave")
    loader = BatchLoader(concat(parts), plan)
    state = None
    found = []
    for batch in islice(loader, 3):
        found.append(batch)
        state = loader.state_dict()
    assert state is not None
    resumed = BatchLoader(concat(parts), plan)
    resumed.load_state_dict(state)
    assert [*found, *resumed] == planned(plan)
    assert sorted(one for batch in planned(plan) for one in batch) == sorted(contents(URLS))


def test_buckets_by_size_and_packs_of_bytes(store: Client) -> None:
    sizes = [len(CORPUS[name]) for name in CORPUS]
    buckets = BucketPlan(sizes, [1000, 2000, 3000], [8, 4, 2], group=2)
    assert buckets.left_out.tolist() == [46]
    assert list(BatchLoader(MapDataset(store, URLS), buckets, rank=0, world_size=1)) == planned(buckets)
    packs = PackPlan(sizes[:40], 4096, 2, seed=1)
    dataset = BatchLoader(MapDataset(store, URLS[:40]), packs, collate=collate_packs)
    expected = [
        [b"".join(contents([URLS[at]])[0][start : start + length] for at, start, length in pack) for pack in batch]
        for batch in (packs.batch(0, step) for step in range(packs.steps(0)))
    ]
    assert list(dataset) == expected
    assert sum(len(pack) for batch in expected for pack in batch) == sum(sizes[:40])


@table("how", ["plan", "sampler", "concat", "mixture"])
def test_packs_request_only_the_bytes_of_their_pieces(local_store: Client, how: str) -> None:
    counts = [len(CORPUS[name]) // 4 for name in CORPUS][:40]
    packs: NumberPlan = PackPlan(counts, 500, 2, seed=1, item_bytes=4)
    fetched: list[int] = []

    def decode(item: Item) -> bytes:
        fetched.append(len(item.data))
        return item.tobytes()

    samples: Any = MapDataset(local_store, URLS[:40], decode)
    if how == "mixture":
        packs = MixPlan({"one": packs}, {"one": 1})
    if how == "concat":  # takes the pieces from whole samples, each item of which has to be a token
        samples = concat([MapDataset(local_store, URLS[:40], in_tokens)])
    if how == "sampler":
        loader: Any = DataLoader(samples, batch_sampler=BatchSampler(packs, 0, 1), collate_fn=list)
    else:
        loader = BatchLoader(samples, packs, rank=0, world_size=1)
    steps = [packs.batch(0, step) for step in range(packs.steps(0) or 0)]
    for batch, wanted in zip(loader, steps, strict=False):
        found = [[b"".join(piece) if how == "concat" else piece for piece in pack] for pack in batch]
        assert found == [
            [contents([URLS[at]])[0][4 * start : 4 * (start + length)] for at, start, length in pack] for pack in wanted
        ]
        if how == "mixture" and len(fetched) > 100:
            break
    assert how != "plan" or sum(fetched) == 4 * sum(counts)


def in_tokens(item: Item) -> list[bytes]:
    data = item.tobytes()
    return [data[at : at + 4] for at in range(0, len(data) - 3, 4)]


def test_pieces_of_what_has_no_bytes_of_its_own_are_refused(local_store: Client) -> None:
    plan = PackPlan([100], 100, 1, item_bytes=4)
    entry = Entry("speech", next(iter(CORPUS)), length=300)
    with pytest.raises(InvalidRequest, match="its 300 bytes end before byte 400 of the plan"):
        list(BatchLoader(MapDataset(local_store, [entry]), plan, rank=0, world_size=1))
    with pytest.raises(InvalidRequest, match="item_bytes=0"):
        PackPlan([1], 5, 2, item_bytes=0)


def collate_packs(packs: list[list[bytes]]) -> list[bytes]:
    return [collate_joined(pack) for pack in packs]


def test_a_state_is_refused_if_an_entry_has_changed(local_store: Client) -> None:
    loader = BatchLoader(MapDataset(local_store, URLS), PLAN)
    next(iter(loader))
    state = loader.state_dict()
    same = BatchLoader(MapDataset(local_store, tuple(URLS)), PLAN)
    same.load_state_dict(state)
    assert list(same) == planned(PLAN)[1:]
    other = BatchLoader(MapDataset(local_store, [*URLS[:-1], URLS[0]]), PLAN)
    with pytest.raises(InvalidRequest, match="another plan"):
        other.load_state_dict(state)


def test_a_state_of_a_mixture_depends_on_the_entries_of_its_past_only(local_store: Client) -> None:
    def loader_of(urls: list[list[str]], weights: Any) -> BatchLoader:
        plan = MixPlan({str(at): len(part) for at, part in enumerate(urls)}, weights, batch_size=4)
        return BatchLoader(concat({str(at): MapDataset(local_store, part) for at, part in enumerate(urls)}), plan)

    parts = [URLS[:20], URLS[20:40]]
    loader = loader_of(parts, {"0": 1})
    for _ in islice(loader, 2):
        pass
    state = loader.state_dict()
    changed = [URLS[:20], URLS[21:41]]
    resumed = loader_of([*changed, URLS[41:]], [(0, {"0": 1}), (2, {"2": 1})])
    resumed.load_state_dict(state)
    assert set(next(iter(resumed))) <= set(contents(URLS[41:]))
    for other in (loader_of([URLS[1:21], URLS[20:40]], {"0": 1}), loader_of(changed, {"0": 1, "1": 1})):
        with pytest.raises(InvalidRequest, match="another plan"):
            other.load_state_dict(state)


def test_numbers_need_samples(local_store: Client) -> None:
    with pytest.raises(InvalidRequest, match="n=47 numbers, for 46 samples"):
        BatchLoader(MapDataset(local_store, URLS[:-1]), PLAN)
    with pytest.raises(InvalidRequest, match="n=47 numbers, for 0 samples"):
        BatchLoader(MapDataset(local_store), PLAN)
    with pytest.raises(TypeError, match="need a MapDataset"):
        BatchLoader(local_store, PLAN)

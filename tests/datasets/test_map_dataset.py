"""MapDataset: any sampler's batch is one request, and its samples are the stored bytes in the sampler's order."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets_kit import BUCKET, CORPUS, URLS, RecordingTransport, collate_joined, contents, decode_badly
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from ais_loader import (
    BatchLoader,
    Client,
    ClusterOptions,
    Entry,
    Item,
    MapDataset,
    ShufflePlan,
    Status,
)
from ais_loader.errors import BucketNotFound, InvalidRequest, NodeUnavailable, ObjectNotFound, StoreNotFound
from tests.table import table

MISSING = f"ais://{BUCKET}/en/missing.wav"


class TestIndices:
    """A dataset is indexed as a list is."""

    def test_a_sample_is_the_bytes_of_the_entry_with_that_index(self, store: Client) -> None:
        dataset = MapDataset(store, URLS)
        assert len(dataset) == len(URLS)
        assert [dataset[at] for at in (0, 5, len(URLS) - 1)] == contents([URLS[0], URLS[5], URLS[-1]])

    def test_it_says_what_it_is(self, local_store: Client) -> None:
        shown = repr(MapDataset(local_store, URLS))
        assert shown == f"<MapDataset of {len(URLS)} entries, {local_store.url!r}>"
        loader = BatchLoader(MapDataset("/data/store", URLS), ShufflePlan(len(URLS), batch_size=2))
        assert repr(loader).startswith("<BatchLoader of ShufflePlan(")
        assert repr(loader).endswith(", '/data/store'>>")

    def test_negative_numpy_and_torch_integers_count_like_pythons(self, local_store: Client) -> None:
        dataset = MapDataset(local_store, URLS)
        mixed: list[Any] = [np.int64(3), torch.tensor(4), -2]
        assert dataset[-1] == contents(URLS[-1:])[0]
        assert dataset.__getitems__(mixed) == contents([URLS[3], URLS[4], URLS[-2]])
        assert dataset.__getitems__(np.array([7, 6])) == contents([URLS[7], URLS[6]])
        assert dataset.__getitems__(torch.tensor([7, -1])) == contents([URLS[7], URLS[-1]])

    def test_no_indices_are_no_samples(self, local_store: Client) -> None:
        assert MapDataset(local_store, URLS).__getitems__([]) == []

    @table("index", [len(URLS), -len(URLS) - 1, 10**20])
    def test_an_index_that_the_dataset_does_not_have_is_an_index_error(self, local_store: Client, index: int) -> None:
        with pytest.raises(IndexError, match=f"dataset of {len(URLS)} entries"):
            MapDataset(local_store, URLS)[index]

    @table("index", [1.0, "1", None])
    def test_an_index_that_is_no_integer_is_a_type_error(self, local_store: Client, index: Any) -> None:
        with pytest.raises(TypeError):
            MapDataset(local_store, URLS)[index]

    def test_iterating_ends_with_the_last_entry(self, local_store: Client) -> None:
        assert list(MapDataset(local_store, URLS[:3])) == contents(URLS[:3])


class TestRequests:
    """What is asked of the store."""

    def test_a_batch_of_any_sampler_is_one_request(self, recording: RecordingTransport) -> None:
        dataset = MapDataset(Client(recording), URLS)
        batches = list(DataLoader(dataset, batch_size=20, shuffle=True))
        assert recording.requests == [20, 20, 7]
        assert sorted(sample for batch in batches for sample in batch) == sorted(CORPUS.values())

    def test_a_subset_passes_its_batches_on_whole(self, recording: RecordingTransport) -> None:
        subset = Subset(MapDataset(Client(recording), URLS), [4, 2, 9, 2])
        assert list(DataLoader(subset, batch_size=3)) == [contents([URLS[4], URLS[2], URLS[9]]), contents([URLS[2]])]
        assert recording.requests == [3, 1]

    def test_ranges_and_several_buckets_go_in_one_request_too(self, recording: RecordingTransport) -> None:
        whole = CORPUS["en/007.wav"]
        entries: list[Entry | str] = [Entry(BUCKET, "en/007.wav", start=10, length=20), Entry("nowhere", "x"), URLS[7]]
        dataset = MapDataset(Client(recording), entries, on_error="placeholder")
        assert dataset.__getitems__([2, 0, 1]) == [whole, whole[10:30], None]
        assert recording.requests == [3]

    def test_a_sequence_is_asked_only_for_what_is_read(self, local_store: Client) -> None:
        asked: list[int] = []

        class Endless(Sequence[str]):
            def __len__(self) -> int:
                return 10**15

            def __getitem__(self, at: Any) -> Any:
                asked.append(at)
                return URLS[at % len(URLS)]

        dataset = MapDataset(local_store, Endless())
        assert dataset.__getitems__([10**14, -1]) == contents([URLS[at % len(URLS)] for at in (10**14, 10**15 - 1)])
        assert asked == [10**14, 10**15 - 1]

    def test_nothing_is_opened_before_the_first_read(self, tmp_path: Path) -> None:
        dataset = MapDataset(tmp_path / "store", URLS)
        assert not (tmp_path / "store").exists()
        with pytest.raises(StoreNotFound):
            dataset[0]

    def test_a_url_reads_beside_the_writer_in_each_process_that_unpickles_it(self, local_store: Client) -> None:
        dataset = MapDataset(local_store.url, URLS)
        assert dataset[1] == contents([URLS[1]])[0]
        assert pickle.loads(pickle.dumps(dataset))[2] == contents([URLS[2]])[0]


class _EveryThird(Sampler[int]):  # type: ignore[misc]  # torch is not type-checked here
    def __iter__(self) -> Iterator[int]:
        return iter(range(0, len(URLS), 3))


class TestSamplers:
    """Samplers are torch's or the trainer's own, unchanged; each is drawn twice from equal seeds and compared."""

    @pytest.mark.slow
    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_random_weighted_distributed_and_home_made_samplers_decide_the_order(
        self, store: Client, num_workers: int
    ) -> None:
        dataset = MapDataset(store, URLS)

        def samplers() -> list[Sampler[int]]:
            seeded = [torch.Generator().manual_seed(11) for _ in range(2)]
            weights = [1.0 + at for at in range(len(URLS))]
            return [
                RandomSampler(dataset, generator=seeded[0]),
                WeightedRandomSampler(weights, 30, generator=seeded[1]),
                DistributedSampler(dataset, num_replicas=3, rank=1, seed=4),
                _EveryThird(),
            ]

        for mine, theirs in zip(samplers(), samplers(), strict=True):
            if num_workers and not isinstance(mine, (RandomSampler, DistributedSampler)):
                continue  # what the workers get is numbers all the same
            indices = list(mine)
            loader = DataLoader(dataset, batch_size=8, sampler=theirs, num_workers=num_workers)
            assert [sample for batch in loader for sample in batch] == contents([URLS[at] for at in indices])

    def test_a_batch_sampler_decides_the_batches(self, recording: RecordingTransport) -> None:
        dataset = MapDataset(Client(recording), URLS)
        sampler = BatchSampler(RandomSampler(dataset, generator=torch.Generator().manual_seed(3)), 9, drop_last=True)
        again = BatchSampler(RandomSampler(dataset, generator=torch.Generator().manual_seed(3)), 9, drop_last=True)
        batches = list(DataLoader(dataset, batch_sampler=sampler))
        assert batches == [contents([URLS[at] for at in batch]) for batch in again]
        assert recording.requests == [9] * 5

    def test_a_distributed_sampler_divides_the_entries_among_ranks(self, local_store: Client) -> None:
        dataset = MapDataset(local_store, URLS[:46])
        samplers = [DistributedSampler(dataset, num_replicas=2, rank=rank, seed=4) for rank in range(2)]
        batches = [batch for sampler in samplers for batch in DataLoader(dataset, 10, sampler=sampler)]
        assert sorted(sample for batch in batches for sample in batch) == sorted(contents(URLS[:46]))


class TestSamples:
    """What an entry becomes, and what a failed one."""

    def test_decode_gets_items_with_their_entries_in_the_order_asked(self, store: Client) -> None:
        entries: list[Entry | str] = [Entry(BUCKET, name, opaque={"label": at}) for at, name in enumerate(CORPUS)]

        def decode(item: Item) -> tuple[int, int, bytes]:
            assert isinstance(item.entry, Entry)
            return item.index, item.entry.opaque["label"], item.tobytes()

        samples = MapDataset(store, entries, decode).__getitems__([4, 46, 4])
        assert samples == [(0, 4, CORPUS["en/004.wav"]), (1, 46, CORPUS["en/large.wav"]), (2, 4, CORPUS["en/004.wav"])]

    def test_collate_joins_the_samples_of_a_batch(self, local_store: Client) -> None:
        loader = DataLoader(MapDataset(local_store, URLS), batch_size=5, collate_fn=collate_joined)
        assert next(iter(loader)) == b"".join(contents(URLS[:5]))

    @pytest.mark.parametrize("urls", [[URLS[1], MISSING], [URLS[1], "ais://nowhere/x"]])
    def test_a_missing_entry_raises_its_own_error(self, store: Client, urls: list[str]) -> None:
        expected = ObjectNotFound if urls[1] == MISSING else BucketNotFound
        with pytest.raises(expected, match=urls[1].rpartition("/")[2]):
            MapDataset(store, urls).__getitems__([0, 1])

    def test_a_placeholder_stands_where_the_missing_entry_was_asked(self, store: Client) -> None:
        dataset = MapDataset(store, [MISSING, *URLS[:3]], on_error="placeholder")
        assert dataset.__getitems__([1, 0, 2]) == [*contents(URLS[:1]), None, *contents(URLS[1:2])]

    def test_decode_sees_the_status_of_a_failed_entry_and_decides(self, store: Client) -> None:
        dataset = MapDataset(store, [MISSING, URLS[1]], lambda item: (item.status, item.ok), on_error="placeholder")
        assert dataset.__getitems__([0, 1]) == [(Status.NOT_FOUND, False), (Status.OK, True)]

    def test_an_error_of_decode_comes_out_with_the_name_of_the_entry(self, local_store: Client) -> None:
        with pytest.raises(ArithmeticError, match="no samples") as caught:
            MapDataset(local_store, URLS, decode_badly)[5]
        assert caught.value.__notes__ == [f"raised by decode() for sample 5 of its dataset, {URLS[5]}"]


class TestArguments:
    @table("entries", [b"ais://b/n", {URLS[0]: 1}, set(URLS), None, 5])
    def test_entries_that_have_no_order_are_a_type_error(self, local_store: Client, entries: Any) -> None:
        with pytest.raises(TypeError, match="sequence"):
            MapDataset(local_store, entries)

    def test_what_is_no_entry_is_refused_at_once(self, local_store: Client) -> None:
        with pytest.raises(TypeError, match="int"):
            MapDataset(local_store, [URLS[0], 5])  # type: ignore[list-item]
        with pytest.raises(InvalidRequest, match="s3"):
            MapDataset(local_store, ["s3://b/n"])

    @table("options", [{"on_error": "skip"}, {"timeout_s": 0}, {"ordered": False}, {"assembly": "?"}])
    def test_options_that_make_no_sense_are_refused_at_once(self, local_store: Client, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest):
            MapDataset(local_store, URLS, **options)

    @pytest.mark.parametrize("entries", [URLS, f"ais://{BUCKET}/"])
    def test_a_url_of_nodes_is_tried_for_as_long_as_retry_s_says(self, entries: Any) -> None:

        def takes_s() -> float:
            began_s = time.monotonic()
            with pytest.raises(NodeUnavailable):
                MapDataset("grpc://127.0.0.1:1", entries, retry_s=0)[0]
            return time.monotonic() - began_s

        assert any(takes_s() < ClusterOptions().retry_s for _ in range(5))  # a machine may stand still for as long
        dataset = pickle.loads(pickle.dumps(MapDataset("grpc://127.0.0.1:1", URLS, retry_s=0)))
        with pytest.raises(NodeUnavailable):
            next(iter(BatchLoader(dataset, ShufflePlan(len(URLS), 4))))

    @pytest.mark.parametrize("retry_s", [-1, "soon"])
    def test_a_retry_s_that_makes_no_sense_is_refused(self, local_store: Client, retry_s: Any) -> None:
        for store in ("grpc://127.0.0.1:1", local_store.url, local_store):
            with pytest.raises(InvalidRequest, match="retry_s"):
                MapDataset(store, URLS, retry_s=retry_s)

    def test_what_is_no_store_is_a_type_error(self) -> None:
        with pytest.raises(TypeError, match="int"):
            MapDataset(5, URLS)  # type: ignore[arg-type]

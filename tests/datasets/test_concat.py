"""Concatenated datasets: one request per store and batch, samples in the order of the indices."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from datasets_kit import BUCKET, CORPUS, URLS, RecordingTransport, contents, decode_badly
from torch.utils.data import ConcatDataset as TorchConcatDataset
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import ais_loader
from ais_loader import (
    BatchLoader,
    BatchTiming,
    Client,
    EmbeddedOptions,
    Entry,
    Item,
    MapDataset,
    ShufflePlan,
    concat,
)
from ais_loader.errors import Closed, ObjectNotFound
from ais_loader.testing import throwaway_store

FIRST, SECOND, THIRD = URLS[:20], URLS[20:21], URLS[21:]
MISSING = f"ais://{BUCKET}/none"


def first_byte(item: Item) -> tuple[str, bytes]:
    return "first", item.tobytes()[:1]


def length(item: Item) -> tuple[str, int]:
    return "length", len(item.data)


@pytest.fixture
def other() -> Iterator[RecordingTransport]:
    """Another store, with the same names and other bytes."""
    with throwaway_store({name: b"other " + data[:9] for name, data in CORPUS.items()}, bucket=BUCKET) as client:
        transport = RecordingTransport(client.url.removeprefix("file://"))
        yield transport
        transport.close()


def test_a_sum_has_the_samples_of_both_in_their_order(store: Client) -> None:
    both = MapDataset(store, FIRST) + MapDataset(store, THIRD)
    assert len(both) == len(FIRST) + len(THIRD)
    assert [both[at] for at in range(len(both))] == both[:] == contents([*FIRST, *THIRD])
    assert both[-1] == contents(THIRD[-1:])[0]
    assert both[18:24] == contents([*FIRST, *THIRD])[18:24]
    assert both[24:18:-2] == contents([*FIRST, *THIRD])[24:18:-2]
    assert both.__getitems__([]) == []


def test_a_batch_of_any_sampler_is_one_request(recording: RecordingTransport) -> None:
    client = Client(recording)
    joined = concat([MapDataset(client, FIRST), MapDataset(client, SECOND), MapDataset(client, THIRD)])
    batches = list(DataLoader(joined, batch_size=20, shuffle=True, collate_fn=list))
    assert recording.requests == [20, 20, 7]
    assert sorted(sample for batch in batches for sample in batch) == sorted(CORPUS.values())


def test_the_samples_come_in_the_order_of_the_indices_however_these_are_mixed(store: Client) -> None:
    joined = concat([MapDataset(store, FIRST), MapDataset(store, SECOND), MapDataset(store, THIRD)])
    draw = random.Random(3)
    for _ in range(5):
        indices = [draw.randrange(-len(URLS), len(URLS)) for _ in range(30)]
        assert joined.__getitems__(indices) == contents([URLS[at] for at in indices])
        assert joined.__getitems__(torch.tensor(indices)) == contents([URLS[at] for at in indices])


def test_each_source_keeps_its_decoder_bucket_and_transform(recording: RecordingTransport) -> None:
    client = Client(recording)
    names = ["en/003.wav", "en/004.wav"]
    joined = concat(
        [
            MapDataset(client, FIRST[:2], first_byte),
            MapDataset(client, names, length, bucket=BUCKET),
            MapDataset(client, URLS[5:7], transform=len),
            MapDataset(client, URLS[7:8]),
        ]
    )
    data = contents([*FIRST[:2], URLS[3], URLS[4], *URLS[5:8]])
    expected: list[Any] = [("first", one[:1]) for one in data[:2]] + [("length", len(one)) for one in data[2:4]]
    expected += [len(data[4]), len(data[5]), data[6]]
    order = [6, 2, 0, 5, 3, 1, 4]
    assert joined.__getitems__(order) == [expected[at] for at in order]
    assert recording.requests == [7]


def test_nested_sums_are_one_request_too(recording: RecordingTransport) -> None:
    client = Client(recording)
    parts = [MapDataset(client, urls) for urls in (FIRST, SECOND, THIRD)]
    for nested in (
        parts[0] + parts[1] + parts[2],
        parts[0] + (parts[1] + parts[2]),
        concat([concat(parts[:2]), parts[2]]),
        concat([TorchConcatDataset(parts[:2]), parts[2]]),
    ):
        recording.requests.clear()
        assert nested.__getitems__([40, 20, 0]) == contents([URLS[40], URLS[20], URLS[0]])
        assert recording.requests == [3]
        assert len(nested) == len(URLS)


def test_two_stores_are_one_request_each(recording: RecordingTransport, other: RecordingTransport) -> None:
    here, there = Client(recording), Client(other)
    joined = concat([MapDataset(here, FIRST), MapDataset(there, FIRST), MapDataset(here, THIRD)])
    indices = [45, 20, 0, 21, 1, 44, 39]
    from_there = [b"other " + one[:9] for one in contents(FIRST)]
    expected = [*contents(FIRST), *from_there, *contents(THIRD)]
    assert joined.__getitems__(indices) == [expected[at] for at in indices]
    assert (recording.requests, other.requests) == ([4], [3])


def test_a_client_and_its_address_are_the_same_store(recording: RecordingTransport) -> None:
    client = Client(recording)
    path = client.url.removeprefix("file://")
    joined = concat([MapDataset(client, FIRST), MapDataset(client.url, SECOND), MapDataset(path, THIRD)])
    assert joined.__getitems__([0, 20, 21]) == contents(URLS[:1] + URLS[20:22])
    assert recording.requests == [3]


def test_clients_with_different_options_have_requests_of_their_own(recording: RecordingTransport) -> None:
    other = RecordingTransport(recording.url.removeprefix("file://"))
    other.options = EmbeddedOptions(open_shards=7)
    here, there = Client(recording), Client(other)
    joined = concat([MapDataset(here, FIRST), MapDataset(there, SECOND), MapDataset(here, THIRD)])
    assert joined.__getitems__([0, 20, 21]) == contents(URLS[:1] + URLS[20:22])
    assert (recording.requests, other.requests) == ([2], [1])
    other.close()


def test_sources_with_different_options_are_requested_separately(store: Client) -> None:
    patient = MapDataset(store, [MISSING, *FIRST], on_error="placeholder")
    joined = patient + MapDataset(store, [*SECOND, MISSING])
    assert joined.__getitems__([21, 0, 1]) == [contents(SECOND)[0], None, contents(FIRST)[0]]
    with pytest.raises(ObjectNotFound):
        joined.__getitems__([0, 22])


def test_placeholders_reach_the_decoder_of_their_own_source(store: Client) -> None:
    def say(item: Item) -> Any:
        return item.status.name

    joined = concat(
        [
            MapDataset(store, [MISSING], say, on_error="placeholder"),
            MapDataset(store, [MISSING], on_error="placeholder"),
        ]
    )
    assert joined[:] == ["NOT_FOUND", None]


class _FalseDecoder:
    """A decoder that is false, as an empty `torch.nn.Sequential` is."""

    def __call__(self, item: Item) -> str:
        return f"decoded {item.index}"

    def __len__(self) -> int:
        return 0


def test_a_decoder_that_is_false_still_decodes(store: Client) -> None:
    decoder = _FalseDecoder()
    joined = concat([MapDataset(store, FIRST, decoder), MapDataset(store, SECOND, decoder)])
    assert joined.__getitems__([0, 20]) == ["decoded 0", "decoded 1"]


def test_an_error_of_a_decoder_names_the_entry(local_store: Client) -> None:
    joined = MapDataset(local_store, FIRST) + MapDataset(local_store, THIRD, decode_badly)
    with pytest.raises(ArithmeticError) as caught:
        joined.__getitems__([0, 25])
    assert caught.value.__notes__ == [f"raised by decode() for sample 5 of its dataset, {THIRD[5]}"]


def test_on_batch_is_called_once_for_each_request(local_store: Client) -> None:
    timings: list[BatchTiming] = []
    joined = concat([MapDataset(local_store, urls, on_batch=timings.append) for urls in (FIRST, THIRD)])
    joined.__getitems__([0, 25])
    assert [timing.entries for timing in timings] == [2]


def test_other_map_style_datasets_may_be_among_them(recording: RecordingTransport) -> None:
    client = Client(recording)
    numbers = TensorDataset(torch.arange(3))
    subset = Subset(MapDataset(client, THIRD), [4, 2])
    joined = MapDataset(client, FIRST) + numbers + subset
    samples = joined.__getitems__([24, 1, 21, 23, 22])
    assert samples == [contents(THIRD)[2], contents(FIRST)[1], (1,), contents(THIRD)[4], (2,)]
    assert recording.requests == [1, 2] or recording.requests == [2, 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_read_it(store: Client, num_workers: int) -> None:
    joined = concat([MapDataset(store, urls, length) for urls in (FIRST, SECOND, THIRD)])
    samples = [one for batch in DataLoader(joined, 8, num_workers=num_workers, collate_fn=list) for one in batch]
    assert samples == [("length", len(data)) for data in contents(URLS)]


def test_it_pickles(local_store: Client) -> None:
    joined = MapDataset(local_store.url, FIRST) + MapDataset(local_store.url, THIRD)
    assert pickle.loads(pickle.dumps(joined)).__getitems__([30, 0]) == contents([THIRD[10], FIRST[0]])


def test_it_is_torch_s_concat_dataset_for_libraries_that_look(local_store: Client) -> None:
    joined = MapDataset(local_store, FIRST) + MapDataset(local_store, THIRD)
    assert isinstance(joined, TorchConcatDataset)
    assert joined.cumulative_sizes == [len(FIRST), len(FIRST) + len(THIRD)]
    assert repr(joined).startswith("<2 datasets of 46 entries: <MapDataset of 20 entries")


@pytest.mark.parametrize("index", [len(URLS), -len(URLS) - 1])
def test_an_index_that_it_does_not_have_is_an_index_error(local_store: Client, index: int) -> None:
    with pytest.raises(IndexError, match=f"dataset of {len(URLS)} entries"):
        (MapDataset(local_store, FIRST) + MapDataset(local_store, URLS[20:]))[index]


def test_what_cannot_be_concatenated_is_refused(local_store: Client) -> None:
    mapped = MapDataset(local_store, FIRST)
    loader = BatchLoader(mapped, ShufflePlan(len(FIRST), 4))
    with pytest.raises(TypeError, match="concat: BatchLoader has no indices; need map-style datasets"):
        concat([mapped, loader])
    with pytest.raises(TypeError, match="concat: str has no indices"):
        mapped + "more"
    with pytest.raises(TypeError, match="concat: MapDataset is one dataset; pass a list"):
        concat(mapped)
    with pytest.raises(ais_loader.errors.InvalidRequest, match="concat: no datasets"):
        concat([])


class _Unbatched(Dataset[int]):  # type: ignore[misc]  # torch is not type-checked here
    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> int:
        return at * 10


def test_a_dataset_without_batches_is_asked_for_one_sample_after_another(local_store: Client) -> None:
    joined = MapDataset(local_store, [Entry(BUCKET, "en/003.wav")]) + _Unbatched()
    assert joined.__getitems__([2, 0, 1]) == [10, CORPUS["en/003.wav"], 0]


class TestAhead:
    """Requests that are sent before their samples are taken."""

    def test_each_store_has_its_request_before_samples_are_taken(
        self, node_store: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent: list[int] = []
        open_batch = node_store._transport.open_batch

        def recorded(request: Any, **options: Any) -> Any:
            sent.append(len(request.name))
            return open_batch(request, **options)

        monkeypatch.setattr(node_store._transport, "open_batch", recorded)
        patient = MapDataset(node_store, THIRD, length, timeout_s=180)
        joined = concat(
            [MapDataset(node_store, FIRST, first_byte), MapDataset(node_store, SECOND), patient, _Unbatched()]
        )
        pending = joined.begin([21, 0, 20, 22, 48])
        assert sent == [2, 2]
        assert pending.finish() == [
            ("length", len(contents(THIRD)[0])),
            ("first", contents(FIRST)[0][:1]),
            contents(SECOND)[0],
            ("length", len(contents(THIRD)[1])),
            10,
        ]
        assert sent == [2, 2]
        joined.begin([1, 30]).close()

    def test_an_error_of_one_request_abandons_the_others(self, node_store: Client) -> None:
        joined = concat([MapDataset(node_store, [MISSING]), MapDataset(node_store, FIRST, timeout_s=180)])
        pending = joined.begin([0, 1])
        other = pending._pending[1]._batch[0]
        with pytest.raises(ObjectNotFound):
            pending.finish()
        with pytest.raises(Closed):
            next(other)

    @pytest.mark.slow
    def test_a_part_with_a_way_of_its_own_is_read_by_it(self, node_store: Client) -> None:
        class Doubled(MapDataset):
            def __getitems__(self, indices: Any) -> list[Any]:
                return [2 * one for one in super().__getitems__(indices)]

        joined = concat([MapDataset(node_store, FIRST), Doubled(node_store, THIRD)])
        assert joined.begin([20, 1]).finish() == [2 * contents(THIRD)[0], contents(FIRST)[1]]

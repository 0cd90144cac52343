"""Grain over the store: its order, threads, worker processes and checkpoints, with few requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
import pytest

from ais_loader import Client, Item, Lines, MapDataset
from ais_loader.integrations.grain import Source
from ais_loader.testing import throwaway_node, throwaway_store
from ais_loader.transport.embedded import EmbeddedTransport
from ais_loader.wire.frame import FrameStream
from ais_loader.wire.generated import ais_batch_pb2 as pb

COUNT = 200
OBJECTS = {f"{at:03}": b"%d" % at for at in range(COUNT)} | {
    "text.jsonl": b"".join(b'{"at": %d}\n' % at for at in range(COUNT))
}
URLS = [f"ais://b/{at:03}" for at in range(COUNT)]


class CountingTransport(EmbeddedTransport):
    """An embedded transport that keeps the number of entries of every batch request."""

    def __init__(self, path: str) -> None:
        super().__init__([path], mode="r")
        self.requests: list[int] = []

    def open_batch(self, request: pb.BatchRequest, *, timeout_s: float, **options: str) -> FrameStream:
        self.requests.append(len(request.name))
        return super().open_batch(request, timeout_s=timeout_s, **options)


def decode(item: Item) -> int | None:
    return int(item.tobytes()) if item.ok else None


@pytest.fixture(scope="module")
def local() -> Iterator[str]:
    with throwaway_store(OBJECTS, bucket="b") as client:
        yield client.url


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    with throwaway_node(OBJECTS, bucket="b") as running:
        yield running.url


@pytest.fixture(params=["local", "node"])
def store(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.fixture
def counting(local: str) -> Iterator[CountingTransport]:
    transport = CountingTransport(local.removeprefix("file://"))
    yield transport
    transport.close()


def options(threads: int) -> Any:
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=64)


@pytest.mark.parametrize("threads", [0, 16])
def test_threads_read_in_grains_order(store: str, threads: int) -> None:
    def shuffled(source: Any) -> list[int]:
        return list(grain.MapDataset.source(source).shuffle(seed=3).to_iter_dataset(options(threads)))

    assert shuffled(Source(MapDataset(store, URLS, decode))) == shuffled(list(range(COUNT)))


def test_what_threads_request_at_the_same_time_is_one_request(counting: CountingTransport) -> None:
    source = Source(MapDataset(Client(counting), URLS, decode))
    read = list(grain.MapDataset.source(source).repeat(10).to_iter_dataset(options(16)))
    assert read == list(range(COUNT)) * 10
    assert sum(counting.requests) == 10 * COUNT
    assert len(counting.requests) < 10 * COUNT  # how many depends on the machine


def test_a_batch_of_numbers_is_one_request(counting: CountingTransport) -> None:
    source = Source(MapDataset(Client(counting), URLS, decode))
    numbers = grain.MapDataset.range(len(source)).seed(1).shuffle().batch(32)
    read = list(numbers.map(source.__getitems__).to_iter_dataset(options(4)))
    assert read == [batch.tolist() for batch in numbers.to_iter_dataset(options(0))]
    assert sorted(counting.requests) == [8, 32, 32, 32, 32, 32, 32]


def test_a_release_that_passes_batches_on_makes_one_request_of_each(
    counting: CountingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    batching = "grain._src.python.dataset.transformations.batch._is_batch_map_pushdown_experiment_enabled"
    monkeypatch.setattr(batching, lambda: True)
    source = Source(MapDataset(Client(counting), URLS, decode))
    read = list(grain.MapDataset.source(source).batch(50))
    assert np.concatenate(read).tolist() == list(range(COUNT))
    assert counting.requests == [50] * 4


def test_a_pipeline_resumes_where_it_was(store: str) -> None:
    def pipeline() -> Any:
        source = Source(Lines(store, ["ais://b/text.jsonl"], json.loads))
        return iter(
            grain.MapDataset.source(source).shuffle(seed=4).to_iter_dataset(options(8)).batch(16, batch_fn=list)
        )

    whole = list(pipeline())
    first = pipeline()
    head = [next(first) for _ in range(5)]
    state = first.get_state()
    again = pipeline()
    again.set_state(state)
    assert [*head, *again] == whole
    assert sorted(sample["at"] for batch in whole for sample in batch) == list(range(COUNT))


def data_loader(store: str, urls: list[str] = URLS, workers: int = 0) -> Any:
    sampler = grain.samplers.IndexSampler(COUNT, shuffle=True, seed=5, num_epochs=1)
    source = Source(MapDataset(store, urls, decode))
    batch = grain.transforms.Batch(16)
    return iter(grain.DataLoader(data_source=source, sampler=sampler, operations=[batch], worker_count=workers))


def test_a_data_loader_resumes_and_refuses_other_entries(store: str) -> None:
    whole = [batch.tolist() for batch in data_loader(store)]
    assert sorted(sample for batch in whole for sample in batch) == list(range(COUNT))
    first = data_loader(store)
    head = [next(first).tolist() for _ in range(4)]
    state = first.get_state()
    again = data_loader(store)
    again.set_state(state)
    assert [*head, *(batch.tolist() for batch in again)] == whole
    with pytest.raises(ValueError, match="data source"):
        data_loader(store, [*URLS[:-1], URLS[0]]).set_state(state)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_worker_processes_of_a_data_loader_read(local: str) -> None:
    read = [batch.tolist() for batch in data_loader(local, workers=2)]
    assert sorted(sample for batch in read for sample in batch) == list(range(COUNT))


def test_failed_entries_are_skipped_as_placeholders(store: str) -> None:
    dataset = MapDataset(store, [*URLS[:9], "ais://b/none", *URLS[9:20]], decode, on_error="placeholder")
    assert list(grain.MapDataset.source(Source(dataset)).to_iter_dataset(options(4))) == list(range(20))

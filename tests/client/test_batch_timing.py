"""Where a batch says its time went: orderings between causes, never durations; counts to the byte."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import BatchTiming, Bucket, Client, ShufflePlan, Status, connect, errors
from ais_loader.testing import NodeProcess, eventually
from ais_loader.values.timing import TimingStopwatch
from ais_loader.wire.node_waits import NodeWaits
from tests.faulty_link import FaultyLink
from tests.patience import PATIENT_CLIENT

SIZE_BYTES = 200_000
NAMES = [f"{at:02d}" for at in range(20)]
SLOW_S = 0.4
_never = threading.Event()


def dawdle(seconds: float = SLOW_S) -> None:
    """A consumer or a decoder that takes its time."""
    assert not _never.wait(seconds)


@pytest.fixture
def filled(bucket: Bucket) -> Bucket:
    bucket.put_many((name, name.encode() * (SIZE_BYTES // 2)) for name in NAMES)
    return bucket


@pytest.fixture
def slow_link(node: NodeProcess) -> Iterator[FaultyLink]:
    with FaultyLink(node.url) as link:
        yield link


@pytest.fixture
def behind_slow_link(slow_link: FaultyLink, node: NodeProcess, bucket_name: str) -> Iterator[Bucket]:
    """A filled bucket, seen over a connection that stands already."""
    with connect(node.url) as near, connect(slow_link.url) as far:
        near.create_bucket(bucket_name).put_many((name, bytes(SIZE_BYTES)) for name in NAMES)
        far.bucket(bucket_name).get_batch(NAMES[:2]).tobytes()
        slow_link.latency_s = SLOW_S
        yield far.bucket(bucket_name)
        slow_link.latency_s = 0.0
        near.delete_bucket(bucket_name, force=True)


@pytest.mark.every_transport
def test_what_arrived_is_counted_to_the_byte_however_the_batch_is_taken(filled: Bucket) -> None:
    for take in (list, lambda batch: batch.tobytes(), lambda batch: batch.packed()):
        batch = filled.get_batch(NAMES)
        take(batch)
        timing = batch.timing
        assert (timing.entries, timing.payload_bytes) == (len(NAMES), len(NAMES) * SIZE_BYTES)
        assert (timing.failures, timing.retries) == (0, 0)
        assert min(timing.queue_s, timing.ahead_s, timing.wire_s, timing.consumer_s, timing.decode_s) >= 0
        assert timing.wire_s > 0


def test_a_large_entry_in_pieces_is_one_entry(bucket: Bucket) -> None:
    bucket.put("large", bytes(9 << 20))
    batch = bucket.get_batch(["large"])
    list(batch)
    assert (batch.timing.entries, batch.timing.payload_bytes) == (1, 9 << 20)


@pytest.mark.every_transport
def test_entries_without_their_data_are_failures(filled: Bucket) -> None:
    batch = filled.get_batch([NAMES[0], "missing", NAMES[1]], on_error="placeholder")
    assert [item.status for item in batch] == [Status.OK, Status.NOT_FOUND, Status.OK]
    assert (batch.timing.entries, batch.timing.failures, batch.timing.payload_bytes) == (3, 1, 2 * SIZE_BYTES)


def test_the_record_of_a_consumed_batch_is_final(filled: Bucket) -> None:
    ended, broken, closed = filled.get_batch(NAMES), filled.get_batch(["missing"]), filled.get_batch(NAMES)
    list(ended)
    with pytest.raises(errors.ObjectNotFound):
        list(broken)
    next(closed)
    closed.close()
    for batch in (ended, broken, closed):
        timing = batch.timing
        dawdle(0.01)
        assert batch.timing == timing
    assert broken.timing.failures == 1


@pytest.mark.slow
def test_a_slow_link_is_wire_time(behind_slow_link: Bucket) -> None:
    def is_most() -> bool:
        batch = behind_slow_link.get_batch(NAMES)
        list(batch)
        timing = batch.timing
        assert timing.wire_s > SLOW_S
        return timing.wire_s > timing.queue_s + timing.ahead_s + timing.consumer_s + timing.decode_s

    eventually(is_most)  # of a batch during which this process did not stand still


@pytest.mark.slow
def test_a_slow_consumer_is_consumer_time(filled: Bucket) -> None:
    began_s, dawdled_s = time.perf_counter(), 0.0
    batch = filled.get_batch(NAMES)
    for item in batch:
        if item.index % 10 == 0:
            since_s = time.perf_counter()
            dawdle()
            dawdled_s += time.perf_counter() - since_s
    timing, life_s = batch.timing, time.perf_counter() - began_s
    assert timing.consumer_s > 2 * SLOW_S
    # However long a busy machine makes the rest: none of it was the consumer's.
    assert timing.wire_s + timing.queue_s + timing.ahead_s + timing.decode_s <= life_s - dawdled_s


@pytest.mark.slow
def test_time_before_a_batch_has_its_turn_is_spent_ahead(filled: Bucket) -> None:
    def is_most() -> bool:
        first, second = filled.client.get_batches([[f"ais://{filled.name}/{name}" for name in NAMES]] * 2)
        list(first)
        dawdle()
        list(second)
        assert second.timing.ahead_s > SLOW_S
        return second.timing.ahead_s > second.timing.wire_s + second.timing.consumer_s

    eventually(is_most)  # of a batch during which nobody stood still


@pytest.mark.slow
def test_the_causes_add_up_to_the_life_of_the_batch(behind_slow_link: Bucket) -> None:
    watch = TimingStopwatch()
    batch = behind_slow_link.get_batch(NAMES)
    dawdle()
    for item in batch:
        if item.index == 0:
            dawdle()
    watch.enter("wire")  # the time so far was "queue" to this watch
    timing, life_s = (
        batch.timing,
        watch.read(paused_s=0.0, retries=0, hedged=0, waits=NodeWaits(), request_id="").queue_s,
    )
    assert 3 * SLOW_S < timing.total_s <= life_s
    assert min(timing.ahead_s, timing.consumer_s) > SLOW_S
    assert timing.ahead_s + timing.wire_s > 2 * SLOW_S, "the link's latency, there and back"


@pytest.mark.slow
def test_pauses_before_asking_again_are_queue_time(slow_link: FaultyLink, node: NodeProcess, bucket_name: str) -> None:
    with connect(node.url) as near, connect(slow_link.url, options=PATIENT_CLIENT) as far:
        near.create_bucket(bucket_name).put_many((name, bytes(SIZE_BYTES)) for name in NAMES)

        def is_most() -> bool:
            far.bucket(bucket_name).get_batch(NAMES[:2]).tobytes()
            slow_link.refuse()
            accepting = threading.Timer(SLOW_S, slow_link.accept)
            accepting.start()
            batch = far.bucket(bucket_name).get_batch(NAMES)
            list(batch)
            accepting.join()
            timing = batch.timing
            assert (timing.entries, timing.payload_bytes) == (len(NAMES), len(NAMES) * SIZE_BYTES)
            return timing.retries > 0 and timing.queue_s > timing.consumer_s

        eventually(is_most)  # of a batch during which this process did not stand still
        near.delete_bucket(bucket_name, force=True)


class Recorder:
    """A picklable callback that keeps what it is given in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, timing: BatchTiming) -> None:
        with self._path.open("ab") as file:
            pickle.dump(timing, file)

    def timings(self) -> list[BatchTiming]:
        found = []
        with self._path.open("rb") as file:
            while file.peek(1):
                found.append(pickle.load(file))
        return found


def slow_decode(item: object) -> int:
    dawdle(0.02)
    return 1


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_dataset_hands_the_record_of_each_batch_to_its_callback(
    node: NodeProcess, bucket_name: str, tmp_path: Path, workers: int
) -> None:
    from torch.utils.data import DataLoader

    from ais_loader import MapDataset

    recorder = Recorder(tmp_path / "map")
    with connect(node.url) as client:
        client.create_bucket(bucket_name).put_many((name, bytes(1000)) for name in NAMES)
        urls = [f"ais://{bucket_name}/{name}" for name in NAMES]
        dataset = MapDataset(client, urls, decode=slow_decode, on_batch=recorder)
        context = "spawn" if workers else None
        loader = DataLoader(dataset, batch_size=5, num_workers=workers, multiprocessing_context=context, collate_fn=sum)
        assert list(loader) == [5] * 4
    timings = recorder.timings()
    assert [(timing.entries, timing.payload_bytes) for timing in timings] == [(5, 5000)] * 4
    assert all(timing.decode_s > timing.consumer_s == 0 for timing in timings)


def test_a_planned_dataset_has_the_callback_too(client: Client, filled: Bucket, tmp_path: Path) -> None:
    from ais_loader import BatchLoader, MapDataset

    recorder = Recorder(tmp_path / "planned")
    samples = MapDataset(client, filled, on_batch=recorder)
    assert len(list(BatchLoader(samples, ShufflePlan(len(NAMES), batch_size=10)))) == 2
    assert [timing.payload_bytes for timing in recorder.timings()] == [10 * SIZE_BYTES] * 2

"""Forecasts of epochs over remote buckets, compared with what the cloud was asked and what the trainer waited."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from ais_loader import BatchLoader, Entry, MapDataset, Remote, ShufflePlan, concat, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.plans import BucketPlan, MixPlan, PackPlan
from ais_loader.training.forecast import compared
from tests.datasets.datasets_kit import EntryPlan
from tests.remote.backend_kit import Asked, DecidedServer, Reply, content
from tests.remote.conftest import LARGE_BYTES, RANGE_BYTES, RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.remote.s3_server import S3Server
from tests.tar_kit import packed_tar

pytestmark = pytest.mark.slow

ALONE = pytest.mark.parametrize("url", ["embedded", "grpc"], indirect=True)
DOORS = {"store": (0.001, 1e9), "cloud": (0.001, 1e9)}
SIZES = [4 * (1 + at * 37 % 50) for at in range(48)]


class GivenBatches:
    def __init__(self, batches: list[list[Entry]]) -> None:
        self._batches = batches

    def steps(self, epoch: int) -> int:
        return len(self._batches)

    def batch(self, epoch: int, step: int) -> list[Entry]:
        return self._batches[step]


def put_all(remote_bucket: RemoteBucket, sizes: list[int]) -> list[str]:
    names = [f"en/{at:03}" for at in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        remote_bucket.put(name, random.Random(name).randbytes(size))
    return names


def shuffled(client: Client, bucket: str, names: list[str]) -> tuple[Any, Any]:
    return MapDataset(client, names, bucket=bucket), ShufflePlan(len(names), 5, seed=1, tail="uneven")


def mixed(client: Client, bucket: str, names: list[str]) -> tuple[Any, Any]:
    parts = {"a": MapDataset(client, names[:8], bucket=bucket), "b": MapDataset(client, names[8:], bucket=bucket)}
    plan = MixPlan({"a": 8, "b": 40}, {"a": 1, "b": 1}, batch_size=6, epoch_steps=10)
    return concat(parts), plan


def bucketed(client: Client, bucket: str, names: list[str]) -> tuple[Any, Any]:
    return MapDataset(client, names, bucket=bucket), BucketPlan(SIZES, [80, 160, 400], [6, 4, 3])


def packed(client: Client, bucket: str, names: list[str]) -> tuple[Any, Any]:
    counts = [size // 4 for size in SIZES]
    return MapDataset(client, names, bucket=bucket), PackPlan(counts, 60, 3, item_bytes=4)


def own(client: Client, bucket: str, names: list[str]) -> tuple[Any, Any]:
    entries = [Entry(bucket, name) for name in names]
    return MapDataset(client), EntryPlan([*entries, *entries[:9]], 7, seed=2)  # some are read twice


@pytest.mark.parametrize("made", [shuffled, mixed, bucketed, packed, own], ids=lambda made: made.__name__)
@pytest.mark.parametrize("ahead", [0, 64])
def test_requests_and_bytes_are_those_of_the_epochs_cold_and_warm(
    client: Client,
    cold: Bucket,
    remote_bucket: RemoteBucket,
    proxy: FaultProxy,
    made: Callable[..., tuple[Any, Any]],
    ahead: int,
) -> None:
    names = put_all(remote_bucket, SIZES)
    cold.warm(names[:5])
    dataset, plan = made(client, cold.name, names)
    loader = BatchLoader(dataset, plan, expect_steps=ahead, in_flight=1, rank=0, world_size=1)
    found = loader.forecast(epochs=2, **DOORS)
    proxy.forget()
    for epoch in found.epochs:
        before = loader.summary().payload_bytes, proxy.count("GET"), loader.summary().entries
        assert sum(1 for _ in loader) == epoch.steps == epoch.requests
        now = loader.summary().payload_bytes, proxy.count("GET"), loader.summary().entries
        assert now[0] - before[0] == epoch.payload_bytes
        assert now[1] - before[1] == epoch.gets
        assert now[2] - before[2] == epoch.entries
    if ahead or made is not packed:
        assert [one.heads for one in found.epochs] == [0, 0]
        assert proxy.count("HEAD") == 0 or made is packed  # a part that is read before it is fetched ahead
    if made in (shuffled, own):
        assert found.epochs[0].gets == len(names) - 5 and found.epochs[1].gets == 0
        assert (found.distinct_bytes, found.cache_bytes) == (sum(SIZES), sum(SIZES))
        assert found.epochs[1].hit_rate == 1
    rows = compared(asdict(found), client, asdict(loader.summary()))
    assert all(expected == measured for name, (expected, measured) in rows.items() if name not in ("wait_s", "heads"))
    assert rows["cloud_bytes"][0] > 0


@ALONE
def test_ranges_of_large_objects_are_read_alone_until_much_is_wanted(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    size = LARGE_BYTES + RANGE_BYTES + 5
    remote_bucket.put("large", random.Random(1).randbytes(size))
    remote_bucket.put("other", random.Random(2).randbytes(size))
    remote_bucket.put("small", b"s" * 1000)
    step = size // 10
    other = cold.head("other").version
    pieces = [Entry(cold.name, "large", start=at * step, length=step - at) for at in range(6)]
    small = Entry(cold.name, "small", start=10, length=20)
    # The batch in which an object becomes due reads no other part of it, whose request would race with the fetch.
    batches = [
        pieces[:2],
        [Entry(cold.name, "other", ranges=((5, 100), (9000, 0), (70_000, 100)), version=other)],
        [pieces[2], small, small],
        [Entry(cold.name, "other", start=7)],
        pieces[3:6],
        [pieces[0], small],
    ]
    loader = BatchLoader(MapDataset(client), GivenBatches(batches), expect_steps=0, in_flight=1)
    found = loader.forecast(**DOORS)
    proxy.forget()
    assert sum(1 for _ in loader) == 6
    (epoch,) = found.epochs
    assert (epoch.gets, epoch.heads) == (proxy.count("GET"), proxy.count("HEAD"))
    rows = compared(asdict(found), client, asdict(loader.summary()))
    assert all(expected == measured for name, (expected, measured) in rows.items() if name != "wait_s")
    assert epoch.heads == 3 and epoch.cloud_bytes > 2 * size


@ALONE
def test_members_of_cold_archives_are_read_together_where_they_are_near(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    members = {f"{at:04}.wav": random.Random(at).randbytes(90_000 + 40_000 * (at % 3)) for at in range(120)}
    assert sum(map(len, members.values())) > LARGE_BYTES
    remote_bucket.put("a.tar", packed_tar(members))
    remote_bucket.put("b.tar", packed_tar({"x": b"in a small one"}))
    names = list(members)
    wanted = [names[at] for at in (3, 4, 5, 60, 61, 90, 7, 8, 100, 30, 31, 32)]
    entries = [Entry(cold.name, "a.tar", name) for name in wanted] + [Entry(cold.name, "b.tar", "x")]
    entries += [Entry(cold.name, "a.tar", wanted[0], start=10, length=50)] * 2
    loader = BatchLoader(MapDataset(client), EntryPlan(entries, 5, seed=1), expect_steps=0, in_flight=1)
    found = loader.forecast(**DOORS)
    proxy.forget()
    assert sum(1 for _ in loader) == 3
    (epoch,) = found.epochs
    assert (epoch.gets, epoch.heads) == (proxy.count("GET"), proxy.count("HEAD"))
    rows = compared(asdict(found), client, asdict(loader.summary()))
    assert rows["gets"][0] == rows["gets"][1] and rows["cloud_bytes"][0] == rows["cloud_bytes"][1]
    assert found.unknown == 1 and rows["payload_bytes"][1] - rows["payload_bytes"][0] == len(b"in a small one")


@ALONE
def test_a_loader_that_tells_its_steps_fetches_archives_and_large_objects_whole(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    size = LARGE_BYTES + 3 * RANGE_BYTES + 1
    remote_bucket.put("large", random.Random(1).randbytes(size))
    remote_bucket.put("empty", b"")
    remote_bucket.put("a.tar", packed_tar({"x": b"x" * 10, "y": b"y" * 20}))
    entries = [Entry(cold.name, "large"), Entry(cold.name, "empty"), Entry(cold.name, "a.tar", "x")]
    loader = BatchLoader(MapDataset(client), EntryPlan(entries, 1, seed=1), in_flight=1)
    found = loader.forecast(**DOORS)
    assert sum(1 for _ in loader) == 3
    rows = compared(asdict(found), client)
    assert rows["gets"] == (1 + 4 + 1 + 1, 1 + 4 + 1 + 1) and rows["cloud_bytes"][0] == rows["cloud_bytes"][1]


def test_ranks_are_counted_together(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    names = put_all(remote_bucket, SIZES)
    dataset, plan = MapDataset(client, names, bucket=cold.name), ShufflePlan(len(names), 5, seed=1)
    loaders = [BatchLoader(dataset, plan, rank=rank, world_size=2, in_flight=1) for rank in range(2)]
    batches = [iter(loader) for loader in loaders]
    had = [next(one) for one in batches]
    found = loaders[1].forecast(loaders[0].state_dict(), epochs=2, **DOORS)
    left = [batch for one in batches for batch in one]
    assert [one.steps for one in found.epochs] == [len(left), len(left) + len(had)] == [8, 10]
    assert found.epochs[0].entries == sum(map(len, left)) and found.epochs[1].entries == len(names)
    assert found.epochs[0].payload_bytes == sum(len(sample) for batch in left for sample in batch)


# -- waiting


class SlowCloud:
    """A web server that answers at once, behind a proxy with a latency."""

    def __init__(self, count: int, size: int) -> None:
        self.names = [f"{at:03}" for at in range(count)]
        self.data = bytes(size)

    def answer(self, asked: Asked) -> Reply:
        return content(asked, self.data) if asked.path.rpartition("/")[2] in self.names else Reply(404)


@ALONE
@pytest.mark.parametrize(
    ("options", "step_s"),
    [
        ({"expect_steps": 0, "in_flight": 1}, 0.0),
        ({"expect_steps": 0, "in_flight": 3, "threads": 3}, 0.0),
        ({"expect_steps": 0, "in_flight": 2, "threads": 2}, 0.2),
        ({"expect_steps": 2, "in_flight": 1}, 0.2),
    ],
    ids=["one at a time", "three in flight", "hidden in part", "ahead"],
)
def test_the_waiting_is_that_of_the_delays(
    s3: S3Server, client: Client, bucket_name: str, options: dict[str, Any], step_s: float
) -> None:
    cloud = SlowCloud(14, 1000)

    def forecast_and_measured() -> tuple[float, float]:
        with DecidedServer(cloud.answer) as server, FaultProxy(server.url) as proxy:
            bucket = client.create_bucket(bucket_name, remote=Remote("s3://corpus", endpoint=proxy.url))
            loader = BatchLoader(
                MapDataset(client, cloud.names[:12], bucket=bucket.name), ShufflePlan(12, 3, seed=1), **options
            )
            bucket.get(cloud.names[-1])  # the first request opens the place
            proxy.latency_s = 2.0  # much, so that a busy machine adds little
            began_s = time.monotonic()
            bucket.get(cloud.names[-2])
            latency_s = time.monotonic() - began_s
            found = loader.forecast(step_s=step_s, store=(0.001, 1e9), cloud=(latency_s, 1e8))
            pause = threading.Event()
            for _ in loader:
                pause.wait(step_s)
            again = loader.forecast(step_s=step_s, store=(0.001, 1e9), cloud=(2.0, 1e8))
            assert (again.epochs[0].gets, again.epochs[0].hit_rate) == (0, 1) and again.epochs[0].wait_s < 0.1
            client.delete_bucket(bucket_name, force=True)
            return found.epochs[0].wait_s, loader.summary().wait_s

    # A machine that stands still for a moment waits longer, but not always.
    pairs = (forecast_and_measured() for _ in range(12))
    assert any(forecast_s == pytest.approx(measured_s, rel=0.1) for forecast_s, measured_s in pairs)


@ALONE
def test_latency_and_rate_are_measured_with_the_first_batch(s3: S3Server, client: Client, bucket_name: str) -> None:
    cloud = SlowCloud(16, 200_000)

    def is_measured() -> bool:
        with DecidedServer(cloud.answer) as server, FaultProxy(server.url) as proxy:
            bucket = client.create_bucket(bucket_name, remote=Remote("s3://corpus", endpoint=proxy.url))
            plan = ShufflePlan(16, 4, seed=1)
            loader = BatchLoader(MapDataset(client, cloud.names, bucket=bucket.name), plan, expect_steps=0, in_flight=1)
            proxy.latency_s, proxy.bytes_per_s = 1.0, 1e6
            found = loader.forecast()
            first = {cloud.names[at] for at in plan.batch(0, 0)}
            assert {info.name for info in bucket.head_many(cloud.names) if info is not None and info.is_stored} == first
            for _ in loader:
                pass
            rows = compared(asdict(found), client, asdict(loader.summary()))
            assert rows["gets"] == (12, 12) and rows["cloud_bytes"] == (2_400_000, 2_400_000)
            client.delete_bucket(bucket_name, force=True)
            waited = rows["wait_s"][0] == pytest.approx(rows["wait_s"][1], rel=0.1)
            return bool(waited and 1 <= found.cloud.latency_s < 1.5 and 0.5e6 < found.cloud.bytes_per_s < 1.1e6)

    assert any(is_measured() for _ in range(12)), "a busy machine adds to what is measured, but not always"


# -- caches


@ALONE
@pytest.mark.parametrize("ahead", [0, 64])
def test_a_cache_of_half_the_bytes_costs_about_what_is_forecast(
    client: Client, bucket_name: str, remote_bucket: RemoteBucket, ahead: int
) -> None:
    names = put_all(remote_bucket, [10_000] * 160)
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, cache_bytes=800_000)
    bucket = client.create_bucket(bucket_name, remote=remote)
    loader = BatchLoader(
        MapDataset(client, names, bucket=bucket.name), ShufflePlan(160, 4, seed=1), expect_steps=ahead, in_flight=1
    )
    found = loader.forecast(epochs=3, **DOORS)
    for _ in range(3):
        for _ in loader:
            pass
    expected, measured = compared(asdict(found), client)["gets"]
    assert expected == pytest.approx(measured, rel=0.1)
    assert found.epochs[0].gets == 160 and 0.1 < found.epochs[2].hit_rate < 0.5
    rates = dict(found.hit_rates)
    assert rates[800_000] < rates[1_200_000] < rates[1_600_000] == pytest.approx(2 / 3)
    again = loader.forecast(epochs=2, cache_bytes=1 << 30, **DOORS)
    assert again.epochs[1].gets == 0
    client.delete_bucket(bucket_name, force=True)


def test_objects_that_do_not_exist_are_told(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    names = put_all(remote_bucket, [10, 20])
    dataset = MapDataset(client, [*names, "none"], bucket=cold.name)
    found = BatchLoader(dataset, ShufflePlan(3, 3), in_flight=1).forecast()  # the probe passes over it
    assert found.missing == 1 and found.distinct_bytes == 30
    with pytest.raises(errors.NotFound):
        BatchLoader(MapDataset(client, ["a"], bucket="none-such"), ShufflePlan(1, 1)).forecast()

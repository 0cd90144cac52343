"""Cost of remote storage: requests and bytes by epoch, prices, and the limits of a bucket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ais_loader import Entry, Remote, ShufflePlan, Status, errors
from ais_loader.cli import main
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing import eventually
from ais_loader.transport.base import RemoteUsage
from ais_loader.values.remote_prices import LIST_PRICES, price_of, prices_of
from ais_loader.wire.generated import ais_remote_pb2 as pb
from storage_node.remote.host_limiter import BURST_S, HostLimiter
from storage_node.remote.urgency import Urgency, current_urgency
from storage_node.remote.usage import MAX_EPOCHS, OTHERS, Usage, UsageKey
from tests.node.loop_kit import settle, until
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.remote.test_remote_buckets import data_of, filled
from tests.table import table

ALONE = pytest.mark.parametrize("url", ["embedded", "grpc"], indirect=True)
NODES = pytest.mark.parametrize("url", ["grpc"], indirect=True)


def usage(client: Client, bucket: Bucket) -> list[RemoteUsage]:
    return [row for row in client.remote_usage() if row.bucket == bucket.name]


def gets(rows: list[RemoteUsage], *epochs: int | None) -> int:
    """GETs of these epochs, without second ones for slow answers."""
    return sum(row.requests.get("get", 0) - row.hedged for row in rows if row.epoch in epochs)


@pytest.fixture
def run(url: str) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        result = CliRunner(env={"AIS_LOADER_URL": url}).invoke(main, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result

    return call


# -- epochs


@pytest.mark.slow
def test_requests_for_what_a_loader_has_announced_count_to_its_epoch(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 24)
    for epoch, part in enumerate((names[:8], names[8:20])):
        request = pb.ExpectRequest(loader=b"%16d" % epoch, bucket=[cold.name], lifetime_ms=30_000, epoch=epoch)
        request.step.add(name=part)
        assert client._transport.expect(request)
        # Whether it is fetched ahead or for the reader, it is announced.
        assert [item.data.tobytes() for item in client.get_batch([Entry(cold.name, name) for name in part])] == [
            data_of(int(name[3:6])) for name in part
        ]
    for name in names[20:]:
        cold.get(name)
    rows = usage(client, cold)
    assert [gets(rows, epoch) for epoch in (0, 1, None)] == [8, 12, 4]
    of_epochs = [sum(row.bytes_in for row in rows if row.epoch == epoch) for epoch in (0, 1, None)]
    assert of_epochs == [sum(len(data_of(at)) for at in numbers) for numbers in (range(8), range(8, 20), range(20, 24))]
    assert sum(row.wait_s for row in rows if row.epoch is None) > 0


@pytest.mark.slow
def test_the_time_that_readers_wait_counts_to_the_epoch(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    (name,) = filled(remote_bucket, 1)
    proxy.latency_s = 1.0  # within which the reader comes
    request = pb.ExpectRequest(loader=b"l" * 16, bucket=[cold.name], lifetime_ms=30_000, epoch=3)
    request.step.add(name=[name])
    assert client._transport.expect(request)
    assert cold.get(name) == data_of(0)
    assert 0 < sum(row.wait_s for row in usage(client, cold) if row.epoch == 3) < 10


@pytest.mark.slow
@ALONE
def test_the_epochs_of_a_loader_are_counted_apart(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    from ais_loader import BatchLoader, MapDataset

    names = filled(remote_bucket, 40)
    samples = MapDataset(client, names, bucket=cold.name)
    loader = BatchLoader(samples, ShufflePlan(len(names), 4, seed=3), in_flight=1, expect_steps=10)
    for epoch in range(2):
        batches = iter(loader)
        next(batches)
        # What is read before the first announcement has arrived counts to no epoch.
        eventually(lambda epoch=epoch: gets(usage(client, cold), epoch) > 0)
        assert len(list(batches)) == 9
        rows = usage(client, cold)
        assert gets(rows, 0, 1, None) == 40 * (epoch + 1)
        assert gets(rows, epoch + 1) == 0
        cold.evict()


def test_earlier_epochs_and_further_tenants_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Usage()
    for epoch in range(MAX_EPOCHS + 3):
        counted.note("b", "t", "get", epoch=epoch)
    counted.note("b", "t", "get", epoch=1)
    found = {key: counts.requests["get"] for key, counts in counted.snapshot().items()}
    assert found.pop(UsageKey("b", "t", None)) == 4
    assert sorted(key.epoch or 0 for key in found) == list(range(3, MAX_EPOCHS + 3))
    monkeypatch.setattr("storage_node.remote.usage.MAX_ROWS", MAX_EPOCHS + 2)
    for at in range(5):
        counted.note("b", f"tenant {at}", "put", epoch=at)
    assert counted.snapshot()[UsageKey("b", OTHERS, None)].requests["put"] == 4
    assert counted.by_bucket()["b"].requests == {"get": MAX_EPOCHS + 4, "put": 5}


# -- prices


@pytest.mark.slow
@NODES  # the counters of an embedded store are those of its process
def test_the_cost_is_shown_by_epoch_with_prices_of_the_user(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, run: Callable[..., Result], tmp_path: Path
) -> None:
    names = filled(remote_bucket, 4)
    request = pb.ExpectRequest(loader=b"l" * 16, bucket=[cold.name], lifetime_ms=30_000, epoch=7)
    request.step.add(name=names)
    assert client._transport.expect(request)
    cold.warm(names)
    eventually(lambda: gets(usage(client, cold), 7) == 4)
    prices = tmp_path / "prices.toml"
    prices.write_text("[s3]\nget = 1.0\nbytes_in = 1e6\n")
    shown = run("remote", "cost", "--json", "--prices", str(prices))
    rows = [row for row in map(json.loads, shown.stdout.splitlines()) if row["bucket"] == cold.name]
    assert [row["epoch"] for row in rows] == [7]
    received = sum(len(data_of(at)) for at in range(4))
    assert rows[0]["bytes_in"] == received
    assert rows[0]["price"] == pytest.approx(rows[0]["requests"]["get"] / 1000 + received / 1000)
    table = run("remote", "cost")
    (line,) = [
        line for line in table.stdout.splitlines() if line.split()[-1] == cold.name or f"  {cold.name} (" in line
    ]
    assert " 7  " in line and "0.0000" in line
    assert "list prices" in table.stderr and "Not included" in table.stderr


def test_prices_replace_list_prices() -> None:
    table = prices_of("[gs]\nget = 2\n", "prices.toml")
    assert table["gs"] == LIST_PRICES["gs"] | {"get": 2.0} and table["s3"] == LIST_PRICES["s3"]
    assert price_of({"get": 1000, "list": 2000}, 10**9, 0, table["gs"]) == pytest.approx(2.01)


@table("text", ["get = 1", "[s4]\nget = 1", "[s3]\ngot = 1", "[s3]\nget = -1", "[s3]\nget = '1'", "["])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"prices\.toml"):
        prices_of(text, "prices.toml")


# -- a limit for a day


def limited(cold: Bucket, remote_bucket: RemoteBucket, **limits: float) -> None:
    cold.set(remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, **limits))


@pytest.mark.slow
@ALONE
def test_a_bucket_that_has_received_its_limit_fetches_no_more(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 10)
    cold.warm(names[:4])
    limited(cold, remote_bucket, max_bytes_per_day=3000)
    proxy.forget()
    said = r"max_bytes_per_day=3000; raise it with `ais-loader bucket set"
    with pytest.raises(errors.RemoteLimitReached, match=said) as raised:
        cold.get(names[5])
    assert isinstance(raised.value, errors.RemoteDenied) and not raised.value.retryable
    entries = [Entry(cold.name, name) for name in (names[0], names[6], names[1])]
    items = list(client.get_batch(entries, on_error="placeholder"))
    assert [items[at].data.tobytes() for at in (0, 2)] == [data_of(0), data_of(1)]
    assert items[1].status is Status.UNAVAILABLE and "max_bytes_per_day" in str(items[1].error)
    assert [type(failure.error) for failure in cold.warm(names[7:], on_error="return").failures] == [
        errors.RemoteLimitReached
    ] * 3
    assert proxy.count("GET", "*") == 0
    limited(cold, remote_bucket, max_bytes_per_day=10**6)
    eventually(lambda: cold.warm(names, on_error="return").complete)  # a failure is remembered for a second
    assert [cold.get(name) for name in names] == [data_of(at) for at in range(10)]


def test_a_cluster_refuses_as_well(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    if "," not in client.url:
        pytest.skip("one node")
    names = filled(remote_bucket, 40)
    cold.warm(names[:20])
    limited(cold, remote_bucket, max_bytes_per_day=1)
    eventually(lambda: _refused(cold, names[20:]))


def _refused(bucket: Bucket, names: list[str]) -> bool:
    failures = bucket.warm(names, on_error="return").failures
    bucket.evict(names)
    return bool(failures) and {type(one.error) for one in failures} == {errors.RemoteLimitReached}


def test_a_day_ends_at_midnight_utc() -> None:
    now_s = 86_400.0 * 20_000 - 1
    counted = Usage(lambda: now_s)
    bucket = counted.of_bucket("b")
    bucket.note("bytes_in", 70)
    bucket.note("bytes_in", 30)
    assert (bucket.bytes_today, counted.bytes_today("other")) == (100, 0)
    now_s += 1
    assert bucket.bytes_today == 0
    bucket.note("bytes_in", 5)
    assert bucket.bytes_today == 5


# -- a limit of requests per second


@pytest.mark.slow
@ALONE
def test_requests_wait_for_the_rate_of_their_bucket(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names, rate = filled(remote_bucket, 30), 40.0
    limited(cold, remote_bucket, max_requests_per_s=rate)
    began_s = time.monotonic()
    cold.warm(names)
    took_s = time.monotonic() - began_s
    assert took_s > (30 - 1) / rate - BURST_S - 0.05
    assert proxy.count("GET", "*") == 30


@pytest.mark.slow
def test_a_rate_sends_a_burst_and_then_in_order_of_urgency() -> None:
    async def check() -> list[str]:
        now_s, sent = 100.0, []
        limiter = HostLimiter(100, lambda: now_s, per_s=20.0)

        async def one(name: str, is_urgent: bool) -> None:
            current_urgency.set(Urgency(is_urgent))
            async with limiter.turn():
                sent.append(name)

        ahead = [asyncio.ensure_future(one(f"ahead {at}", False)) for at in range(10)]
        await settle()
        burst = len(sent)
        assert burst in (2, 3) and limiter.is_busy
        urgent = [asyncio.ensure_future(one(f"urgent {at}", True)) for at in range(2)]
        await settle()
        assert len(sent) == burst
        while len(sent) < 12:
            before, now_s = len(sent), now_s + 1 / 20
            await until(lambda before=before: len(sent) > before, 0.005)  # its timer looks again after that time
            assert len(sent) == before + 1
        await asyncio.gather(*ahead, *urgent)
        return sent[burst:]

    sent = asyncio.run(asyncio.wait_for(check(), 60))
    assert sent[:2] == ["urgent 0", "urgent 1"] and all(name.startswith("ahead") for name in sent[2:])


def test_a_waiter_that_is_cancelled_leaves_the_rate_to_others() -> None:
    async def check() -> int:
        limiter, sent = HostLimiter(100, per_s=20.0), 0

        async def one() -> None:
            nonlocal sent
            async with limiter.turn():
                sent += 1

        tasks = [asyncio.ensure_future(one()) for _ in range(8)]
        await settle()
        for task in tasks[3:6]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return sent

    assert asyncio.run(asyncio.wait_for(check(), 60)) == 5


@table("limits", [{"max_requests_per_s": -1}, {"max_requests_per_s": True}, {"max_bytes_per_day": 1.5}])
def test_what_is_no_limit_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(errors.InvalidRequest, match="max_"):
        Remote("s3://b", **limits)  # type: ignore[arg-type]


@NODES
def test_limits_are_set_and_shown(cold: Bucket, run: Callable[..., Result]) -> None:
    changed = run("bucket", "set", cold.name, "max_requests_per_s=2.5", "max_bytes_per_day=2TB")
    assert changed.exit_code == 0, changed.stderr
    assert (
        "max_requests_per_s  2.5" in changed.stdout and "max_bytes_per_day  2000000000000 (1.8 TiB)" in changed.stdout
    )
    found = json.loads(run("bucket", "show", cold.name, "--json").stdout)["remote"]
    assert (found["max_requests_per_s"], found["max_bytes_per_day"]) == (2.5, 2 * 10**12)
    place = cold.info().remote
    assert place is not None and (place.max_requests_per_s, place.max_bytes_per_day) == (2.5, 2 * 10**12)
    assert "max_" not in run("bucket", "set", cold.name, "max_requests_per_s=0", "max_bytes_per_day=0").stdout

"""Requests to remote storage: how they are counted and shown, and the limits of a bucket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from ais_loader import Entry, Remote, Status, errors
from ais_loader.cli import main
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing import eventually
from ais_loader.transport.base import RemoteUsage
from storage_node.limits.single_flight import Urgency, current_urgency
from storage_node.remote.location.host_limiter import BURST_S, HostLimiter
from storage_node.remote.location.usage import OTHERS, Usage, UsageKey
from tests.node.loop_kit import settle, until
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.remote.test_remote_buckets import data_of, filled
from tests.table import table

ALONE = pytest.mark.parametrize("url", ["embedded", "grpc"], indirect=True)
NODES = pytest.mark.parametrize("url", ["grpc"], indirect=True)


def usage(client: Client, bucket: Bucket) -> list[RemoteUsage]:
    return [row for row in client.remote_usage() if row.bucket == bucket.name]


@pytest.fixture
def run(url: str) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        result = CliRunner(env={"AIS_LOADER_URL": url}).invoke(main, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result

    return call


# -- counters


def test_further_tenants_of_a_bucket_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_node.remote.location.usage.MAX_ROWS", 2)
    counted = Usage()
    for at in range(5):
        counted.note("b", f"tenant {at}", "put")
        counted.note("b", "tenant 0", "get")
    assert {key: counts.requests for key, counts in counted.snapshot().items()} == {
        UsageKey("b", "tenant 0"): {"put": 1, "get": 5},
        UsageKey("b", "tenant 1"): {"put": 1},
        UsageKey("b", OTHERS): {"put": 3},
    }
    assert counted.by_bucket()["b"].requests == {"get": 5, "put": 5}


@NODES  # the counters of an embedded store are those of its process
def test_requests_are_shown_by_bucket_and_tenant(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, run: Callable[..., Result]
) -> None:
    names = filled(remote_bucket, 4)
    cold.warm(names)
    (row,) = usage(client, cold)
    assert row.requests["get"] - row.hedged == 4
    assert row.bytes_in == sum(len(data_of(at)) for at in range(4))
    rows = map(json.loads, run("remote", "usage", "--json").stdout.splitlines())
    (shown,) = [one for one in rows if one["bucket"] == cold.name]
    assert (shown["requests"], shown["bytes_in"]) == (row.requests, row.bytes_in)
    assert any(line.split()[-1] == cold.name for line in run("remote", "usage").stdout.splitlines())


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

    sent = asyncio.run(asyncio.wait_for(check(), 180))
    assert sent[:2] == ["urgent 0", "urgent 1"] and all(name.startswith("ahead") for name in sent[2:])


def test_a_waiter_that_is_cancelled_leaves_the_rate_to_others() -> None:
    async def check() -> int:
        now_s, sent = 100.0, 0
        limiter = HostLimiter(100, lambda: now_s, per_s=20.0)

        async def one() -> None:
            nonlocal sent
            async with limiter.turn():
                sent += 1

        tasks = [asyncio.ensure_future(one()) for _ in range(8)]
        await settle()
        for task in tasks[3:6]:
            task.cancel()
        now_s += 10
        await asyncio.gather(*tasks, return_exceptions=True)
        return sent

    assert asyncio.run(asyncio.wait_for(check(), 180)) == 5


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

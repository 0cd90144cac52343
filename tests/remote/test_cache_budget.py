"""Budgets of copies: on every transport the copies stay within them, and every reader gets its bytes."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Entry, Remote, connect, errors
from ais_loader.errors import LoaderError
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing.node import NodeProcess
from ais_loader.testing.waiting import eventually
from storage_node.remote.copies import cache_space
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.remote.backend_kit import ANY_HOST
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy
from tests.remote.s3_server import S3Server
from tests.store.small_drive import small_drive
from tests.table import table

SIZE = 10_000
COPIES = 10
BUDGET = COPIES * SIZE


def data_of(name: str) -> bytes:
    return random.Random(name).randbytes(SIZE)


def fill(remote_bucket: RemoteBucket, count: int) -> list[str]:
    names = [f"{at:03}" for at in range(count)]
    for name in names:
        remote_bucket.put(name, data_of(name))
    return names


def stored(bucket: Bucket) -> dict[str, int]:
    """Sizes of the stored copies, of which a cluster may have more than one."""
    return {info.name: info.size_bytes for info in bucket.objects() if info.is_stored}


def read(bucket: Bucket, client: Client, names: list[str], at_once: int = 4) -> None:
    for at in range(0, len(names), at_once):
        group = names[at : at + at_once]
        items = client.get_batch([Entry(bucket.name, name) for name in group])
        assert [item.data.tobytes() for item in items] == [data_of(name) for name in group]


def nodes_of(client: Client) -> int:
    return 3 if "," in client.url else 1


@pytest.fixture
def small(client: Client, bucket_name: str, remote_bucket: RemoteBucket) -> Iterator[Bucket]:
    """A remote bucket with a budget of COPIES on each node."""
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, cache_bytes=BUDGET)
    yield client.create_bucket(bucket_name, remote=remote)
    with contextlib.suppress(errors.Closed, errors.NotFound):
        client.delete_bucket(bucket_name, force=True)


@pytest.mark.slow
def test_epochs_over_more_than_the_budget_stay_within_it(
    client: Client, small: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    budget_bytes = BUDGET * nodes_of(client)
    names = fill(remote_bucket, 2 * budget_bytes // SIZE)
    most_bytes = 0
    for epoch in range(2):
        random.Random(epoch).shuffle(names)
        for at in range(0, len(names), 10):
            read(small, client, names[at : at + 10], at_once=5)
            most_bytes = max(most_bytes, sum(stored(small).values()))
    assert most_bytes <= budget_bytes + nodes_of(client) * 5 * SIZE  # the copies of one batch
    eventually(lambda: sum(stored(small).values()) <= budget_bytes)
    assert sum(stored(small).values()) > budget_bytes // 2
    assert proxy.count("GET", "*") >= len(names)


@pytest.mark.slow
def test_a_hot_set_survives_a_pass_over_everything(
    client: Client, small: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = fill(remote_bucket, 4 + 3 * COPIES * nodes_of(client))
    hot, others = names[:4], names[4:]
    for _ in range(4):
        read(small, client, hot)
    read(small, client, others)
    proxy.forget()
    read(small, client, hot)
    assert proxy.count("GET", "*") == 0
    read(small, client, others[:COPIES])  # of which most are fetched again
    assert proxy.count("GET", "*") > 0


@pytest.mark.slow
def test_single_reads_keep_a_copy_as_batches_do(
    client: Client, small: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = fill(remote_bucket, 1 + 2 * COPIES * nodes_of(client))
    for _ in range(4):
        assert small.get(names[0]) == data_of(names[0])
    read(small, client, names[1:])
    proxy.forget()
    assert small.get(names[0]) == data_of(names[0])
    assert proxy.count("GET", "*") == 0


@pytest.mark.slow
def test_readers_get_their_bytes_while_copies_are_evicted(
    client: Client, small: Bucket, remote_bucket: RemoteBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_space, "HELD_S", 1.0)  # for which the embedded store keeps what was read alone
    names = fill(remote_bucket, 2 * COPIES * nodes_of(client))
    failures: list[BaseException] = []
    counts = [0] * 4

    def churn(number: int, stop_s: float) -> None:
        draw = random.Random(number)
        try:
            while not counts[number] or time.monotonic() < stop_s:
                if draw.random() < 0.3:
                    name = draw.choice(names)
                    assert small.get(name) == data_of(name)
                else:
                    read(small, client, draw.sample(names, 8), at_once=8)
                counts[number] += 1
        except (LoaderError, AssertionError) as error:
            failures.append(error)

    stop_s = time.monotonic() + 0.5
    threads = [threading.Thread(target=churn, args=(number, stop_s)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert not failures, failures[0]
    assert all(counts)
    eventually(lambda: sum(stored(small).values()) <= BUDGET * nodes_of(client))


@pytest.mark.slow
def test_a_batch_larger_than_the_budget_is_served(client: Client, small: Bucket, remote_bucket: RemoteBucket) -> None:
    names = fill(remote_bucket, 40)
    read(small, client, names, at_once=40)
    eventually(lambda: sum(stored(small).values()) <= BUDGET * nodes_of(client))


@pytest.mark.slow
def test_a_snapshot_keeps_the_versions_that_it_sees(
    client: Client, small: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = fill(remote_bucket, 5 + 2 * COPIES * nodes_of(client))
    read(small, client, names[:5])
    small.snapshot("before")
    read(small, client, names[5:])
    eventually(lambda: not set(names[:5]) <= set(stored(small)))
    proxy.forget()
    snapshot = client.bucket(small.name, snapshot="before")
    assert [snapshot.get(name) for name in names[:5]] == [data_of(name) for name in names[:5]]
    assert proxy.count("GET", "*") == 0
    small.delete_snapshot("before")


@pytest.mark.slow
def test_what_is_no_copy_is_neither_counted_nor_evicted(
    client: Client, bucket: Bucket, remote_bucket: RemoteBucket
) -> None:
    own = {f"own{at}": bytes([at]) * SIZE for at in range(10)}
    bucket.put_many(own.items())
    names = fill(remote_bucket, 2 * COPIES * nodes_of(client))
    bucket.set(remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, cache_bytes=BUDGET))
    read(bucket, client, names)
    eventually(lambda: sum(map(stored(bucket).get, stored(bucket).keys() - own.keys())) <= BUDGET * nodes_of(client))
    assert {name: bucket.get(name) for name in own} == own
    bucket.set(remote="")


@pytest.mark.slow
def test_a_smaller_budget_takes_effect(client: Client, small: Bucket, remote_bucket: RemoteBucket) -> None:
    read(small, client, fill(remote_bucket, COPIES))
    assert len(stored(small)) == COPIES
    small.set(remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, cache_bytes=2 * SIZE))
    eventually(lambda: len(stored(small)) <= 2 * nodes_of(client))
    assert small.info().remote.cache_bytes == 2 * SIZE


@pytest.mark.slow
def test_copies_on_a_drive_that_is_short_of_space_are_evicted(
    s3: S3Server, tmp_path: Path, remote_bucket: RemoteBucket, bucket_name: str
) -> None:
    arguments = [*ANY_HOST, "--set", f"remote_min_free_bytes={1 << 60}"]
    with NodeProcess(tmp_path, arguments=arguments) as node, connect(node.url) as client:
        remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
        bucket = client.create_bucket(bucket_name, remote=remote)
        names = fill(remote_bucket, 5)
        for name in names:
            assert bucket.get(name) == data_of(name)
        eventually(lambda: not stored(bucket))
        assert bucket.get(names[0]) == data_of(names[0])


@pytest.mark.slow
def test_a_full_drive_has_copies_evicted_for_a_fetch(
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    remote_bucket: RemoteBucket,
    bucket_name: str,
) -> None:
    mib = 1 << 20
    contents = {f"{at:02}": bytes([at]) * mib for at in range(24)}
    for name, data in contents.items():
        remote_bucket.put(name, data)
    remote_bucket.put("larger than the drive", bytes(100 * mib))
    with (
        small_drive(tmp_path, monkeypatch) as drive,
        NodeServer([drive.root], ServerConfig(port=0, remote_min_free_bytes=0, remote_hosts=("any",))) as node,
        connect(node.url) as client,
    ):
        bucket = client.create_bucket(bucket_name, remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
        own = client.create_bucket("own")
        own.put("kept", b"k" * mib)
        drive.leave(20 * mib)
        for name, data in contents.items():
            assert bucket.get(name) == data
        assert 0 < len(stored(bucket)) < len(contents)
        names = list(contents)
        for at in range(0, len(names), 4):  # each time, several find the drive full
            items = list(client.get_batch([Entry(bucket_name, name) for name in names[at : at + 4]]))
            assert [item.data.tobytes() for item in items] == [contents[name] for name in names[at : at + 4]]
        entries = [Entry(bucket_name, "00"), Entry(bucket_name, "larger than the drive"), Entry("own", "kept")]
        items = client.get_batch(entries)
        assert [len(item.data) for item in items] == [mib, 100 * mib, mib]  # served without being stored
        assert "larger than the drive" not in stored(bucket)


@pytest.mark.slow
def test_a_restart_keeps_the_budget(
    s3: S3Server, tmp_path: Path, remote_bucket: RemoteBucket, bucket_name: str
) -> None:
    names = fill(remote_bucket, 60)
    with NodeProcess(tmp_path, arguments=ANY_HOST) as node:
        with connect(node.url) as client:
            remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
            bucket = client.create_bucket(bucket_name, remote=remote)
            read(bucket, client, names[:40])
            assert len(stored(bucket)) == 40
            bucket.set(remote=Remote(remote.url, endpoint=remote.endpoint, cache_bytes=30 * SIZE))
        node.kill()
        node.start()
        with connect(node.url) as client:
            bucket = client.bucket(bucket_name)
            eventually(lambda: 20 <= len(stored(bucket)) <= 30)
            read(bucket, client, names[40:])
            eventually(lambda: len(stored(bucket)) <= 30)


@table("cache_bytes", [-1, 1.5, True, 1 << 63, "10"])
def test_what_is_no_budget_is_refused(cache_bytes: object) -> None:
    with pytest.raises(errors.InvalidRequest, match="cache_bytes="):
        Remote("s3://b", cache_bytes=cache_bytes)  # type: ignore[arg-type]

"""Faults of the remote storage: each ends in the entry's place, with a typed error, and nothing is mixed or lost."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ais_loader import Entry, Remote, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing.waiting import eventually
from tests.remote.conftest import LARGE_BYTES, RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_remote_buckets import data_of, filled


def test_many_readers_of_one_cold_object_cause_one_request(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    data = os.urandom(200_000)
    remote_bucket.put("a", data)
    with proxy.held("GET", remote_bucket.path("a")) as held, ThreadPoolExecutor(16) as pool:
        reads = [pool.submit(cold.get, "a") for _ in range(8)]
        batches = [
            pool.submit(lambda: [item.data.tobytes() for item in client.get_batch([Entry(cold.name, "a")] * 3)])
            for _ in range(8)
        ]
        held.wait_for(1)
        held.release()
        assert [read.result(180) for read in reads] == [data] * 8
        assert [one.result(180) for one in batches] == [[data] * 3] * 8
    assert proxy.count("GET", remote_bucket.path("a")) == 1


def test_entries_before_a_cold_one_do_not_wait_for_it(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 6)
    for name in (*names[:3], names[4]):
        cold.get(name)
    with (
        proxy.held("GET", remote_bucket.path(names[3])) as slow,
        proxy.held("GET", remote_bucket.path(names[5])) as last,
    ):
        stream = iter(client.get_batch([Entry(cold.name, name) for name in names]))
        got = [next(stream).data.tobytes() for _ in range(3)]
        assert got == [data_of(at) for at in range(3)]
        slow.wait_for(1)
        last.wait_for(1)  # all cold entries are requested at once
        slow.release()
        assert [next(stream).data.tobytes() for _ in range(2)] == [data_of(3), data_of(4)]
        last.release()
        assert next(stream).data.tobytes() == data_of(5)


@pytest.mark.parametrize(("status", "kind"), [(403, errors.RemoteDenied), (301, errors.RemoteDenied)])
def test_a_refused_entry_fails_in_its_place(
    client: Client,
    cold: Bucket,
    remote_bucket: RemoteBucket,
    proxy: FaultProxy,
    status: int,
    kind: type[errors.LoaderError],
) -> None:
    names = filled(remote_bucket, 4)
    proxy.on("GET", remote_bucket.path(names[1]), Fault(status=status, message="no such luck"))
    items = list(client.get_batch([Entry(cold.name, name) for name in names], on_error="placeholder"))
    assert [item.status.name for item in items] == ["OK", "UNAVAILABLE", "OK", "OK"]
    assert [item.data.tobytes() for item in items if item.error is None] == [data_of(0), data_of(2), data_of(3)]
    assert isinstance(items[1].error, kind) and names[1] in str(items[1].error)
    assert "test-secret" not in str(items[1].error)
    with pytest.raises(kind):
        cold.get(names[1])


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503),
        Fault(status=429),
        Fault(status=500),
        Fault(cut_after=100),
        Fault(cut_after=70_000, is_reset=True),
        Fault(length_delta=50),
        Fault(length_delta=-50),
        Fault(extra=b"x" * 50),
        Fault(delay_s=0.3),
    ],
    ids=["503", "429", "500", "cut", "reset", "truncated", "short-length", "overlong", "slow"],
)
def test_a_fault_that_passes_is_not_noticed(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, fault: Fault
) -> None:
    data = os.urandom(100_000)
    remote_bucket.put("a", data)
    proxy.on("GET", remote_bucket.path("a"), fault, times=2)
    assert cold.get("a") == data
    assert cold.get("a") == data


@pytest.mark.slow
def test_an_object_that_is_replaced_while_it_is_fetched_is_never_a_mix(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    first, second = b"1" * (2 * LARGE_BYTES), b"2" * (2 * LARGE_BYTES)
    remote_bucket.put("a", first)
    replaced = threading.Event()

    def replace() -> None:
        remote_bucket.put("a", second)
        replaced.set()

    proxy.on("GET", remote_bucket.path("a"), Fault(call_after=(1 << 20, replace)), times=1)
    try:
        assert b"".join(cold.reader("a").chunks()) in (first, second)
    except errors.ObjectNotFound as error:
        assert "a" in str(error)  # the version that was opened is gone
    assert replaced.wait(180)

    def is_second() -> bool:
        cold.evict(["a"])  # the first may have been complete before, and may still be being stored
        try:
            found = b"".join(cold.reader("a").chunks())
        except errors.ObjectNotFound:
            return False
        assert found in (first, second)
        return found == second

    eventually(is_second)


@pytest.mark.slow
def test_an_object_that_is_deleted_while_it_is_fetched_is_not_found(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("a", b"1" * (2 * LARGE_BYTES))

    def delete() -> None:
        remote_bucket.delete("a")

    proxy.on("GET", remote_bucket.path("a"), Fault(call_after=(1 << 20, delete)), times=1)
    try:
        assert cold.get("a") == b"1" * (2 * LARGE_BYTES)  # all ranges were answered before
    except errors.ObjectNotFound as error:
        assert "a" in str(error)
        assert list(cold.objects()) == []


@pytest.mark.slow
def test_a_bucket_that_does_not_exist_is_an_error_that_names_it(
    client: Client, bucket_name: str, proxy: FaultProxy
) -> None:
    made = client.create_bucket(bucket_name, remote=Remote("s3://no-such-bucket-here/x", endpoint=proxy.url))
    for call in (lambda: made.get("a"), lambda: list(made.objects()), lambda: made.put("a", b"1")):
        with pytest.raises(errors.LoaderError) as raised:
            call()
        assert "no-such-bucket-here" in str(raised.value), raised.value
    client.delete_bucket(bucket_name, force=True)


def test_a_profile_that_the_node_does_not_have(client: Client, bucket_name: str, remote_bucket: RemoteBucket) -> None:
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, profile="absent")
    made = client.create_bucket(bucket_name, remote=remote)
    with pytest.raises(errors.LoaderError, match="absent"):
        made.get("a")
    client.delete_bucket(bucket_name, force=True)


def test_a_put_that_the_remote_storage_refuses_changes_nothing(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    cold.put("a", b"before")
    with proxy.on("PUT", "*", Fault(status=403)):
        with pytest.raises(errors.RemoteDenied):
            cold.put("a", b"after")
        summary = cold.put_many([("a", b"after"), ("b", b"after")], on_error="return")
        assert summary.failed == 2
    assert cold.get("a") == b"before" and remote_bucket.get("a") == b"before"
    with proxy.on("DELETE", "*", Fault(status=403)), pytest.raises(errors.RemoteDenied):
        cold.delete("a")
    assert cold.get("a") == b"before"


def test_an_abandoned_batch_leaves_the_fetch_to_others(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 2)
    with proxy.held("GET", remote_bucket.path(names[1])) as held:
        stream = client.get_batch([Entry(cold.name, name) for name in names])
        assert next(iter(stream)).data.tobytes() == data_of(0)
        held.wait_for(1)
        found: list[bytes] = []
        waiting = threading.Thread(target=lambda: found.append(cold.get(names[1])))
        waiting.start()
        stream.close()
        held.release()
        waiting.join(180)
    assert found == [data_of(1)]


def test_a_deletion_is_not_undone_by_a_fetch_in_progress(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("a", b"1" * 100_000)
    with proxy.held("GET", remote_bucket.path("a"), after=1000) as held, ThreadPoolExecutor(2) as pool:
        reading = pool.submit(cold.get, "a")
        held.wait_for(1)
        deleting = pool.submit(cold.delete, "a")
        eventually(lambda: proxy.count("DELETE", remote_bucket.path("a")) == 1)
        held.release()
        deleting.result(180)
        assert reading.exception(180) is None or isinstance(reading.exception(), errors.ObjectNotFound)
    with pytest.raises(errors.ObjectNotFound):
        cold.get("a")
    assert list(cold.objects()) == []


@pytest.mark.slow
@pytest.mark.parametrize("sent_bytes", [0, 100_000])
def test_a_fetch_that_a_put_has_overtaken_is_not_stored_once_the_copy_is_evicted(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, sent_bytes: int
) -> None:
    old, new = os.urandom(200_000), os.urandom(200_000)
    remote_bucket.put("a", old)
    with ThreadPoolExecutor(1) as pool:
        with proxy.held("GET", remote_bucket.path("a"), after=sent_bytes) as held:
            reading = pool.submit(cold.get, "a")
            held.wait_for(1)
            cold.put("a", new)
            cold.evict(["a"])
        assert reading.result(180) in (old, new)
    assert cold.get("a") == new

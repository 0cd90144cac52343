"""Remote buckets on every transport: reads, listings, puts and deletions, and the number of requests that they cost."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from ais_loader import Entry, Remote, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from tests.remote.conftest import LARGE_BYTES, RemoteBucket
from tests.remote.fault_proxy import FaultProxy


def data_of(number: int, size_bytes: int = 1000) -> bytes:
    return bytes([number % 251]) * (size_bytes + number)


def filled(remote_bucket: RemoteBucket, count: int, prefix: str = "en/") -> list[str]:
    names = [f"{prefix}{number:03}.bin" for number in range(count)]
    for number, name in enumerate(names):
        remote_bucket.put(name, data_of(number))
    return names


@pytest.mark.parametrize("size_bytes", [0, 1, 5000, 3 << 20], ids=["empty", "1", "5000", "3 MiB"])
def test_a_cold_object_leaves_the_cloud_once(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, size_bytes: int
) -> None:
    data = os.urandom(size_bytes)
    remote_bucket.put("a", data, lang="en")
    assert cold.get("a") == data
    assert cold.get("a") == data
    # A range of an empty object is refused, and the object then requested as a whole.
    assert proxy.count("GET", remote_bucket.path("a")) == (1 if size_bytes else 2)
    info = cold.head("a")
    assert info.size_bytes == size_bytes and info.is_stored and info.metadata["lang"] == "en"
    assert info.metadata["ais.remote-etag"] == remote_bucket.s3.head(remote_bucket.name, "a")["ETag"]


@pytest.mark.slow
def test_a_large_object_is_fetched_in_ranges_of_one_version(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    data = os.urandom(LARGE_BYTES + (1 << 20) + 17)
    etag = remote_bucket.put("large", data)
    assert b"".join(cold.reader("large").chunks()) == data
    requests = [one for one in proxy.requests if one.matches("GET", remote_bucket.path("large"))]
    assert len(requests) >= 2 and sum(one.sent_bytes for one in requests if one.status in (200, 206)) >= len(data)
    assert {one.headers["if-match"] for one in requests if "if-match" in one.headers} == {etag}


@pytest.mark.slow
def test_cold_entries_of_a_batch_keep_their_places(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    names = filled(remote_bucket, 40)
    for name in names[::3]:
        cold.get(name)
    wanted = [*names[::-1], "absent", names[5], names[5]]
    entries = [Entry(cold.name, name) for name in wanted]
    items = list(client.get_batch(entries, on_error="placeholder"))
    expected = [data_of(int(name[3:6])) if name != "absent" else b"" for name in wanted]
    assert [item.data.tobytes() for item in items] == expected
    assert [item.status.name for item in items] == ["OK"] * 40 + ["NOT_FOUND"] + ["OK"] * 2
    assert isinstance(items[40].error, errors.ObjectNotFound)
    assert all(proxy.count("GET", remote_bucket.path(name)) == 1 for name in names)
    proxy.forget()
    assert [item.data.tobytes() for item in client.get_batch(entries, on_error="placeholder")] == expected
    assert proxy.count("GET", "*") <= 2  # the one that does not exist


@pytest.mark.slow
def test_an_unordered_and_a_collected_batch_get_cold_entries_too(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket
) -> None:
    names = filled(remote_bucket, 12)
    cold.get(names[7])
    unordered = client.get_batch([Entry(cold.name, name) for name in names[:8]], ordered=False)
    assert {item.index: item.data.tobytes() for item in unordered} == {at: data_of(at) for at in range(8)}
    collected = client.get_batch([Entry(cold.name, name) for name in names], streaming=False)
    assert [item.data.tobytes() for item in collected] == [data_of(at) for at in range(12)]


def test_ranges_and_members_of_cold_objects(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("plain", bytes(range(250)))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in (("a.txt", b"first"), ("b.txt", b"second")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    remote_bucket.put("shard.tar", packed.getvalue())
    entries = [
        Entry(cold.name, "plain", start=10, length=5),
        Entry(cold.name, "shard.tar", "b.txt"),
        Entry(cold.name, "shard.tar", "none.txt"),
        Entry(cold.name, "plain", start=300),
    ]
    items = list(client.get_batch(entries, on_error="placeholder"))
    assert [item.data.tobytes() for item in items] == [bytes(range(10, 15)), b"second", b"", b""]
    assert [item.status.name for item in items] == ["OK", "OK", "MEMBER_NOT_FOUND", "RANGE"]
    assert cold.open("plain").read() == bytes(range(250))


def test_listings_merge_stored_and_remote_objects(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    names = filled(remote_bucket, 7) + filled(remote_bucket, 3, "fr/")
    cold.get(names[2])
    listed = list(cold.objects())
    assert [info.name for info in listed] == sorted(names)
    assert [info.name for info in listed if info.is_stored] == [names[2]]
    assert [info.size_bytes for info in listed] == [len(data_of(int(name[3:6]))) for name in sorted(names)]
    assert [info.name for info in cold.objects("fr/")] == names[7:]


def test_a_cold_object_is_described_without_being_fetched(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("a", b"12345", speaker="anna")
    info = cold.head("a")
    assert (info.size_bytes, info.is_stored, info.metadata["speaker"]) == (5, False, "anna")
    assert proxy.count("GET", remote_bucket.path("a")) == 0
    found = cold.head_many(["a", "none"])
    assert found[0] is not None and found[0].size_bytes == 5 and found[1] is None
    with pytest.raises(errors.ObjectNotFound):
        cold.head("none")


@pytest.mark.slow
def test_a_put_is_in_both_places_when_it_returns(cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    info = cold.put("new/x", b"hello", metadata={"a": "b"})
    assert remote_bucket.get("new/x") == b"hello"
    assert remote_bucket.s3.head(remote_bucket.name, "new/x")["x-amz-meta-a"] == "b"
    assert cold.get("new/x") == b"hello" and cold.head("new/x").version == info.version
    assert proxy.count("GET", remote_bucket.path("new/x")) == 0
    stored = cold.put_many([(f"many/{at}", data_of(at)) for at in range(20)])
    assert stored.stored == 20
    assert [remote_bucket.get(f"many/{at}") for at in range(20)] == [data_of(at) for at in range(20)]
    assert [cold.get(f"many/{at}") for at in range(20)] == [data_of(at) for at in range(20)]


def test_conditions_of_a_put_hold_in_the_remote_storage(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a", b"theirs")
    with pytest.raises(errors.VersionConflict):
        cold.put("a", b"mine", if_absent=True)  # it is not stored here, but there
    assert remote_bucket.get("a") == b"theirs" and cold.get("a") == b"theirs"
    version = cold.head("a").version
    cold.put("a", b"mine", if_version=version)
    assert remote_bucket.get("a") == b"mine" and cold.get("a") == b"mine"
    with pytest.raises(errors.VersionConflict):
        cold.put("a", b"late", if_version=version)
    assert remote_bucket.get("a") == b"mine"


def test_a_put_over_what_others_have_changed_is_a_conflict(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    version = cold.put("a", b"mine").version
    remote_bucket.put("a", b"theirs")
    with pytest.raises(errors.VersionConflict):
        cold.put("a", b"again", if_version=version)
    assert remote_bucket.get("a") == b"theirs"


def test_deletions_reach_the_remote_storage(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    names = filled(remote_bucket, 5)
    cold.get(names[0])
    cold.delete(names[0])
    cold.delete(names[1])  # a cold one
    cold.delete_many(names[2:4])
    assert remote_bucket.keys() == [names[4]]
    assert [info.name for info in cold.objects()] == [names[4]]
    with pytest.raises(errors.ObjectNotFound):
        cold.get(names[0])


def test_a_deletion_on_a_condition_compares_the_remote_object_too(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a", b"first")
    assert cold.get("a") == b"first"
    stored = cold.head("a").version
    remote_bucket.put("a", b"theirs")
    with pytest.raises(errors.VersionConflict):
        cold.delete("a", if_version=stored)
    assert remote_bucket.get("a") == b"theirs"
    cold.evict(["a"])
    with pytest.raises(errors.ObjectNotFound):
        cold.delete("a", if_version=stored)  # of a copy that is not here any more
    assert remote_bucket.keys() == ["a"]
    cold.delete("a")
    version = cold.put("b", b"mine").version
    cold.delete("b", if_version=version)
    assert remote_bucket.keys() == [] and list(cold.objects()) == []


@pytest.mark.slow
def test_the_version_of_a_cold_object_is_a_condition(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a", b"first")
    seen = cold.head("a")
    assert not seen.is_stored
    remote_bucket.put("a", b"theirs")
    for refused in (lambda: cold.put("a", b"mine", if_version=seen.version), lambda: _delete(cold, seen.version)):
        with pytest.raises(errors.VersionConflict, match=r"a: .*(its tag is no longer|the remote ETag is)"):
            refused()
    assert remote_bucket.get("a") == b"theirs" and not cold.head("a").is_stored
    cold.put("a", b"mine", if_version=cold.head("a").version)
    assert remote_bucket.get("a") == b"mine" and cold.get("a") == b"mine"
    cold.evict(["a"])
    etag = cold.head("a").version
    assert cold.get("a") == b"mine"  # stored meanwhile, which changes nothing about the remote object
    cold.put("a", b"newer", if_version=etag)
    assert remote_bucket.get("a") == b"newer" and cold.get("a") == b"newer"
    cold.evict(["a"])
    etag = cold.head("a").version
    assert cold.get("a") == b"newer"
    cold.delete("a", if_version=etag)
    assert remote_bucket.keys() == [] and list(cold.objects()) == []
    with pytest.raises(errors.VersionConflict, match=r"it is gone|its tag is no longer"):
        cold.put("a", b"mine", if_version=etag)
    with pytest.raises(errors.ObjectNotFound):
        cold.delete("a", if_version=etag)
    assert remote_bucket.keys() == []


def _delete(bucket: Bucket, version: str) -> None:
    bucket.delete("a", if_version=version)


def test_an_etag_that_is_no_condition_says_what_to_do(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket
) -> None:
    bucket = client.create_bucket(f"{cold.name}-plain")
    remote_bucket.put("a", b"first")
    bucket.put("a", b"here")
    etag = cold.head("a").version
    with pytest.raises(errors.InvalidRequest, match="`warm` the object, and take the version"):
        cold.set_metadata("a", {"x": "y"}, if_version=etag)
    with pytest.raises(errors.InvalidRequest, match="the ETag is missing"):
        cold.put("a", b"mine", if_version="etag:")
    for refused in (lambda: bucket.put("a", b"1", if_version=etag), lambda: _delete(bucket, etag)):
        with pytest.raises(errors.InvalidRequest, match="this bucket has no remote storage"):
            refused()
    assert bucket.get("a") == b"here" and remote_bucket.get("a") == b"first"
    client.delete_bucket(bucket.name, force=True)


@pytest.mark.slow
def test_warm_and_evict(cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    names = filled(remote_bucket, 30)
    seen: list[int] = []
    done = cold.warm(prefix="en/00", progress=lambda progress: seen.append(progress.done))
    assert (done.warmed, done.skipped, seen) == (10, 0, list(range(1, 11)))
    done = cold.warm(names)
    assert done.warmed == 30
    assert sum(proxy.count("GET", remote_bucket.path(name)) for name in names) == 30
    missing = cold.warm([names[0], "none"], on_error="return")
    assert (missing.warmed, [failure.name for failure in missing.failures]) == (1, ["none"])
    assert cold.evict(names[:10]).copies >= 10
    assert [info.name for info in cold.objects() if info.is_stored] == names[10:]
    freed = cold.evict(prefix="en/")
    assert freed.copies >= 20 and freed.size_bytes >= sum(len(data_of(at)) for at in range(10, 30))
    assert remote_bucket.keys() == names
    assert cold.get(names[3]) == data_of(3)


def test_what_was_stored_before_the_bucket_was_a_remote_one_is_not_evicted(
    client: Client, bucket: Bucket, remote_bucket: RemoteBucket
) -> None:
    bucket.put("own", b"only here")
    remote_bucket.put("theirs", b"there")
    bucket.set(remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
    assert [info.name for info in bucket.objects()] == ["own", "theirs"]
    assert bucket.get("theirs") == b"there"
    bucket.set(remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, validate="always"))
    assert bucket.get("own") == b"only here"
    assert bucket.evict().copies == 1
    assert bucket.get("own") == b"only here"
    bucket.set(remote="")
    assert bucket.info().remote is None
    with pytest.raises(errors.ObjectNotFound):
        bucket.get("theirs")


def test_a_bucket_keeps_its_remote_and_refuses_another(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket
) -> None:
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
    assert cold.info().remote == remote and remote in [info.remote for info in client.buckets()]
    client.create_bucket(cold.name, remote=remote, exist_ok=True)
    with pytest.raises(errors.BucketExists, match="exists with remote="):
        client.create_bucket(cold.name, remote="s3://other", exist_ok=True)
    with pytest.raises(errors.InvalidRequest):
        client.create_bucket(cold.name + "2", remote="ftp://x/y")


def test_warm_and_evict_need_a_remote_bucket(bucket: Bucket) -> None:
    for call in (lambda: bucket.warm(["a"]), lambda: bucket.evict(["a"])):
        with pytest.raises(errors.InvalidRequest, match="remote"):
            call()


def test_requests_are_counted_by_bucket(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    names = filled(remote_bucket, 6)
    for name in names:
        cold.get(name)
    cold.put("x", b"12345")
    rows = [row for row in client.remote_usage() if row.bucket == cold.name]
    assert sum(row.requests.get("get", 0) for row in rows) == 6
    assert sum(row.requests.get("put", 0) for row in rows) == 1
    assert sum(row.bytes_in for row in rows) == sum(len(data_of(at)) for at in range(6))
    assert sum(row.bytes_out for row in rows) == 5 and sum(row.wait_s for row in rows) > 0


def test_names_that_are_invalid_here_are_left_out_and_named(
    cold: Bucket, remote_bucket: RemoteBucket, caplog: pytest.LogCaptureFixture
) -> None:
    remote_bucket.put("good name é%25.txt", b"1")
    for key in ("a//b", "x" * 1024 + "y"):
        try:
            remote_bucket.put(key, b"2")
        except RuntimeError:
            continue  # the server does not take it either
    with caplog.at_level("WARNING", "ais_loader"):
        assert [info.name for info in cold.objects()] == ["good name é%25.txt"]
    assert "a//b" in caplog.text and "left out" in caplog.text
    assert cold.get("good name é%25.txt") == b"1"

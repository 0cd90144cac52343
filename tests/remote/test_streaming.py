"""Cold objects that are read while they arrive: first bytes early, one request, one version, nothing seen too early."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import Entry, Remote, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing.waiting import eventually
from ais_loader.wire.frame import Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from tests.cluster_processes import ClusterProcesses
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.test_cluster_faults import first_owner

MIB = 1 << 20
SIZE_BYTES = (7 << 20) + 17
HELD_BYTES = 5 << 20
FIRST_BYTES = 4 << 20


@pytest.fixture(scope="module")
def data() -> bytes:
    return os.urandom(SIZE_BYTES)


@pytest.fixture(scope="module")
def changed(data: bytes) -> bytes:
    return data[::-1]


def frames_of(client: Client, bucket: Bucket, *names: str, **fields: object) -> Iterator[Frame]:
    request = pb.BatchRequest(bucket=[bucket.name], name=names, ordered=True, **fields)  # type: ignore[arg-type]
    return iter(client._transport.open_batch(request, timeout_s=180.0))


def take(frames: Iterator[Frame], least_bytes: int) -> bytes:
    """Take frames until they have this many bytes together."""
    got = b""
    while len(got) < least_bytes:
        frame = next(frames)
        assert not frame.status.any(), frame.errors
        got += bytes(frame.payload)
    return got


@pytest.mark.slow
def test_a_batch_gets_first_bytes_while_the_rest_is_not_sent(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes
) -> None:
    remote_bucket.put("a", data)
    with proxy.held("GET", remote_bucket.path("a"), after=HELD_BYTES) as held:
        frames = frames_of(client, cold, "a")
        got = take(frames, FIRST_BYTES)
        held.wait_for(1)
        assert not cold.head("a").is_stored
        assert [info.is_stored for info in cold.objects()] == [False]
        held.release()
        got += b"".join(bytes(frame.payload) for frame in frames)
    assert got == data
    assert cold.head("a").is_stored and cold.get("a") == data
    assert proxy.count("GET", remote_bucket.path("a")) == 1


@pytest.mark.slow
def test_a_file_gets_first_bytes_while_the_rest_is_not_sent(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes
) -> None:
    remote_bucket.put("a", data)
    with (
        proxy.held("GET", remote_bucket.path("a"), after=HELD_BYTES) as held,
        cold.open("a", read_ahead_bytes=0) as file,
    ):
        first = file.read(MIB)
        held.wait_for(1)
        held.release()
        assert first + file.read() == data
    assert proxy.count("GET", remote_bucket.path("a")) == 1


@pytest.mark.slow
def test_readers_that_come_later_join(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes
) -> None:
    remote_bucket.put("a", data)

    def read(_: int) -> int:
        return zlib.crc32(b"".join(bytes(frame.payload) for frame in frames_of(client, cold, "a")))

    def get(_: int) -> int:
        return zlib.crc32(cold.get("a"))

    with ThreadPoolExecutor(64) as pool, proxy.held("GET", remote_bucket.path("a"), after=HELD_BYTES) as held:
        early = pool.map(read, range(24))
        held.wait_for(1)
        frames = frames_of(client, cold, "a")
        got = take(frames, FIRST_BYTES)  # joins in the middle
        late = pool.map(get, range(39))
        held.release()
        got += b"".join(bytes(frame.payload) for frame in frames)
        assert got == data
        assert {*early, *late} == {zlib.crc32(data)}
    assert proxy.count("GET", remote_bucket.path("a")) == 1


@pytest.mark.parametrize("is_reset", [False, True], ids=["cut", "reset"])
def test_a_connection_that_breaks_is_continued(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes, is_reset: bool
) -> None:
    etag = remote_bucket.put("a", data)
    proxy.on("GET", remote_bucket.path("a"), Fault(cut_after=HELD_BYTES, is_reset=is_reset), times=1)
    assert take(frames_of(client, cold, "a"), SIZE_BYTES) == data
    requests = [one for one in proxy.requests if one.matches("GET", remote_bucket.path("a"))]
    assert [one.headers.get("if-match") for one in requests] == [None, etag]


@pytest.mark.slow
def test_an_object_that_is_replaced_after_first_bytes_is_an_error_in_its_place_or_begins_again(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes, changed: bytes
) -> None:
    remote_bucket.put("a", data)
    remote_bucket.put("b", b"b")
    fault = Fault(cut_after=HELD_BYTES)
    with (
        proxy.on("GET", remote_bucket.path("a"), fault, times=1),
        proxy.held("GET", remote_bucket.path("a"), times=1) as held,
    ):
        frames = frames_of(client, cold, "a", "b")
        got = take(frames, FIRST_BYTES)
        held.wait_for(1)
        remote_bucket.put("a", changed)
        held.release()
        rest = list(frames)
    stop = next(at for at, frame in enumerate(rest) if frame.status.any() or frame.begins_again)
    got += b"".join(bytes(frame.payload) for frame in rest[:stop])
    assert data.startswith(got) and len(got) < len(data)
    after = b"".join(bytes(frame.payload) for frame in rest[stop:])
    if rest[stop].begins_again:  # by another owner
        assert after == changed + b"b"
    else:
        failed = rest[stop]
        assert failed.status[0] in (pb.UNAVAILABLE, pb.NOT_FOUND)
        assert failed.errors[0].kind == errors.ObjectReplaced.kind and after == b"b"
    assert cold.get("a") == changed


@pytest.mark.slow
def test_an_object_that_is_replaced_before_its_entry_is_due_comes_in_its_new_version(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes, changed: bytes
) -> None:
    remote_bucket.put("a", data)
    remote_bucket.put("b", b"b")
    with (
        proxy.held("GET", remote_bucket.path("b")) as before,
        proxy.on("GET", remote_bucket.path("a"), Fault(cut_after=HELD_BYTES), times=1),
        proxy.held("GET", remote_bucket.path("a"), times=1) as held,
        ThreadPoolExecutor(1) as pool,
    ):
        entries = [Entry(cold.name, "b"), Entry(cold.name, "a")]
        reading = pool.submit(lambda: [item.data.tobytes() for item in client.get_batch(entries)])
        held.wait_for(1)
        remote_bucket.put("a", changed)
        held.release()
        eventually(lambda: cold.head("a").is_stored)
        before.release()
        if isinstance(reading.exception(180), errors.ObjectReplaced):
            assert "," in client.url  # another node than that of "b" has sent its first bytes already
        else:
            assert reading.result() == [b"b", changed]


@pytest.mark.slow
def test_objects_that_are_stored_before_their_entries_are_due_are_read_from_the_store(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes
) -> None:
    names = ["a", "c", "d"]
    for name in names:
        remote_bucket.put(name, name.encode() + data[: 5 << 20])
    remote_bucket.put("b", b"b")
    with proxy.held("GET", remote_bucket.path("b")) as before, ThreadPoolExecutor(1) as pool:
        entries = [Entry(cold.name, "b"), *(Entry(cold.name, name) for name in names), Entry(cold.name, "c", start=4)]
        reading = pool.submit(lambda: [item.data.tobytes() for item in client.get_batch(entries)])
        eventually(lambda: all(cold.head(name).is_stored for name in names))
        before.release()
        whole = [name.encode() + data[: 5 << 20] for name in names]
        assert reading.result(180) == [b"b", *whole, whole[1][4:]]
    assert [proxy.count("GET", remote_bucket.path(name)) for name in names] == [1, 1, 1]


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_the_fetch(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes
) -> None:
    remote_bucket.put("a", data)
    with proxy.held("GET", remote_bucket.path("a"), after=HELD_BYTES) as held, ThreadPoolExecutor(1) as pool:
        leaving = client._transport.open_batch(
            pb.BatchRequest(bucket=[cold.name], name=["a"], ordered=True), timeout_s=180.0
        )
        take(iter(leaving), MIB)
        held.wait_for(1)
        staying = frames_of(client, cold, "a")
        got = take(staying, MIB)
        leaving.close()
        late = pool.submit(cold.get, "a")
        held.release()
        got += b"".join(bytes(frame.payload) for frame in staying)
        assert got == late.result(180) == data
    assert proxy.count("GET", remote_bucket.path("a")) == 1


def test_an_answer_that_broke_off_goes_on_after_the_object_was_stored(
    tmp_path: Path, remote_bucket: RemoteBucket, proxy: FaultProxy, data: bytes
) -> None:
    remote_bucket.put("a", data)
    with connect(tmp_path) as client:
        remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
        cold = client.create_bucket("train", remote=remote)
        first = next(frames_of(client, cold, "a"))
        assert first.piece is not None and first.piece.version.startswith("etag:")
        assert cold.get("a") == data
        offset, checksum, version = len(first.payload), int(first.checksum[0]), first.piece.version
        resume = {"resume_offset": offset, "resume_checksum": checksum, "resume_version": version}
        rest = list(frames_of(client, cold, "a", **resume))
        assert bytes(first.payload) + b"".join(bytes(frame.payload) for frame in rest) == data
        assert {frame.piece.version for frame in rest if frame.piece is not None} == {version}
    assert proxy.count("GET", remote_bucket.path("a")) == 1


def test_an_answer_that_broke_off_begins_again_after_the_object_was_replaced(
    tmp_path: Path, remote_bucket: RemoteBucket, data: bytes
) -> None:
    newer = data[::-1]
    with connect(tmp_path) as client:
        cold = client.create_bucket("train", remote=Remote(remote_bucket.url, endpoint=remote_bucket.endpoint))
        remote_bucket.put("a", data)
        first = next(frames_of(client, cold, "a"))
        assert first.piece is not None and cold.get("a") == data
        remote_bucket.put("a", newer)
        cold.evict(["a"])
        offset, checksum, version = len(first.payload), int(first.checksum[0]), first.piece.version
        resume = {"resume_offset": offset, "resume_checksum": checksum, "resume_version": version}
        again = list(frames_of(client, cold, "a", **resume))
        assert again[0].begins_again
        assert b"".join(bytes(frame.payload) for frame in again) == newer
        assert version not in {frame.piece.version for frame in again if frame.piece is not None}


@pytest.mark.slow
def test_hot_entries_of_an_unordered_batch_do_not_wait_for_another_node(
    shared_cluster: ClusterProcesses, remote_bucket: RemoteBucket, proxy: FaultProxy, bucket_name: str, data: bytes
) -> None:
    with connect(shared_cluster.url) as client:
        remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint)
        bucket = client.create_bucket(bucket_name, remote=remote, copies=1)
        names = [f"hot-{at}" for at in range(24)]
        hot = [
            name for name in names if first_owner(client, bucket_name, name) != first_owner(client, bucket_name, "a")
        ]
        assert hot
        remote_bucket.put("a", data)
        for name in hot:
            remote_bucket.put(name, name.encode())
        bucket.warm(hot)
        with proxy.held("GET", remote_bucket.path("a"), after=HELD_BYTES) as held:
            items = iter(client.get_batch([Entry(bucket_name, name) for name in ["a", *hot]], ordered=False))
            first = [next(items).data.tobytes() for _ in hot]
            held.wait_for(1)
            assert sorted(first) == sorted(name.encode() for name in hot)
            held.release()
            assert [item.data.tobytes() for item in items] == [data]
        client.delete_bucket(bucket_name, force=True)

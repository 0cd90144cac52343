"""Write-back: a write is acknowledged by the store, uploaded afterwards, and is never lost, doubled or undone."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import Entry, Remote, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing.waiting import eventually
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy

DOWN = Fault(status=503)


@pytest.fixture
def back(client: Client, bucket_name: str, remote_bucket: RemoteBucket, proxy: FaultProxy) -> Iterator[Bucket]:
    """A bucket whose writes are uploaded later, over `remote_bucket`."""
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write="back")
    yield client.create_bucket(bucket_name, remote=remote, copies=2 if "," in client.url else 1)
    proxy.clear()
    with contextlib.suppress(errors.Closed, errors.NotFound, errors.BucketNotEmpty):
        for found in client.bucket(bucket_name).objects():
            client.bucket(bucket_name).delete(found.name)
        client.bucket(bucket_name).flush(timeout_s=120)
        client.delete_bucket(bucket_name, force=True)


def test_a_put_is_uploaded_and_becomes_a_copy(back: Bucket, remote_bucket: RemoteBucket) -> None:
    put = back.put("a", b"one", metadata={"kind": "first"})
    back.flush(timeout_s=120)
    assert remote_bucket.get("a") == b"one"
    there = remote_bucket.s3.head(remote_bucket.name, "a")
    assert there["x-amz-meta-kind"] == "first"
    assert back.head("a").version == put.version  # the upload is no new version
    assert back.get("a") == b"one"
    assert back.evict().copies >= 1
    assert back.get("a") == b"one"
    assert {key: value for key, value in back.head("a").metadata.items() if not key.startswith("ais.")} == {
        "kind": "first"
    }


def test_a_name_that_cannot_be_uploaded_is_refused(back: Bucket) -> None:
    with pytest.raises(errors.InvalidName, match="control character"):
        back.put("a\x01b", b"one")
    assert [failure.name for failure in back.put_many([("a\x01b", b"1"), ("c", b"2")], on_error="return").failures] == [
        "a\x01b"
    ]
    assert [info.name for info in back.objects()] == ["c"]


@pytest.mark.slow
def test_writes_are_acknowledged_while_the_remote_storage_is_down(
    client: Client, back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    down = proxy.on("*", "*", DOWN)
    for round_ in range(4):
        for at in range(10):
            back.put(f"{at}", b"%d of %d" % (round_, at))
    back.put_many([(f"many/{at}", b"%d" % at) for at in range(20)])
    assert remote_bucket.keys() == []
    assert [item.data.tobytes() for item in client.get_batch([Entry(back.name, f"{at}") for at in range(10)])] == [
        b"3 of %d" % at for at in range(10)
    ]
    rows = [row for row in client.pending_uploads() if row.bucket == back.name]
    assert sum(row.count for row in rows) >= 30 and all(row.oldest_s >= 0 for row in rows)
    assert back.evict().copies == 0  # nothing that is not uploaded
    with pytest.raises(errors.RemoteUnavailable, match="not uploaded"):
        back.flush(timeout_s=0.2)
    with pytest.raises(errors.BucketNotEmpty, match="not uploaded"):
        client.delete_bucket(back.name, force=True)
    with pytest.raises(errors.BucketNotEmpty, match="not uploaded"):
        back.set(remote="")
    down.remove()
    back.flush(timeout_s=120)
    assert [remote_bucket.get(f"{at}") for at in range(10)] == [b"3 of %d" % at for at in range(10)]
    assert [remote_bucket.get(f"many/{at}") for at in range(20)] == [b"%d" % at for at in range(20)]
    assert not [row for row in client.pending_uploads() if row.bucket == back.name]


def test_the_deletion_of_a_name_that_the_cloud_cannot_have_is_refused(client: Client, back: Bucket) -> None:
    back.put("a", b"a")
    with pytest.raises(errors.InvalidName, match="control character"):
        back.delete("no\x01")
    summary = back.delete_many(["no\x01", "a"], on_error="return")
    assert [(failure.name, type(failure.error)) for failure in summary.failures] == [("no\x01", errors.InvalidName)]
    back.flush(timeout_s=180)
    assert not [row for row in client.pending_uploads() if row.bucket == back.name]
    assert list(back.objects()) == []


@pytest.mark.slow
def test_a_deletion_is_not_undone_while_it_is_pending(
    back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("cold", b"cold")
    remote_bucket.put("kept", b"kept")
    back.put("a", b"one")
    back.flush(timeout_s=120)
    with proxy.held("DELETE", "*"):
        back.delete("a")
        back.delete("cold")
        for name in ("a", "cold"):
            with pytest.raises(errors.ObjectNotFound):
                back.get(name)
            with pytest.raises(errors.ObjectNotFound):
                back.head(name)
            with pytest.raises(errors.ObjectNotFound):
                back.get(name, start=1, length=1)
        assert [found.name for found in back.objects()] == ["kept"]
        assert set(remote_bucket.keys()) == {"a", "cold", "kept"}
        assert back.get("kept") == b"kept"
    back.flush(timeout_s=120)
    assert remote_bucket.keys() == ["kept"]
    assert [found.name for found in back.objects()] == ["kept"]
    with pytest.raises(errors.ObjectNotFound):
        back.get("a")


def test_a_put_after_a_pending_deletion_and_the_other_way_round(
    back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("a", b"cold")
    with proxy.held("*", "*"):
        back.delete("a")
        back.put("a", b"new", if_absent=True)
        back.put("b", b"short-lived")
        back.delete("b")
        assert back.get("a") == b"new"
    back.flush(timeout_s=120)
    assert remote_bucket.get("a") == b"new"
    assert remote_bucket.keys() == ["a"]


@pytest.mark.parametrize("stored", [b"mine", None])
def test_a_change_by_others_is_a_conflict_of_a_conditional_write(
    client: Client, back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy, stored: bytes | None
) -> None:
    version = None
    if stored is not None:
        version = back.put("a", stored).version
        back.flush(timeout_s=120)
    with proxy.held("HEAD", remote_bucket.path("a")):
        if version is None:
            back.put("a", b"next", if_absent=True)
        else:
            back.put("a", b"next", if_version=version)
        remote_bucket.put("a", b"theirs")
    with pytest.raises(errors.VersionConflict, match=r"a: .*changed by others"):
        back.flush(timeout_s=120)
    assert remote_bucket.get("a") == b"theirs"
    assert back.get("a") == b"next"  # nothing is lost here
    assert sum(row.conflicts for row in client.pending_uploads() if row.bucket == back.name) >= 1
    back.put("a", b"last")
    back.flush(timeout_s=120)
    assert remote_bucket.get("a") == b"last"


def test_the_last_unconditional_writer_wins(back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    with proxy.held("HEAD", remote_bucket.path("a")):
        back.put("a", b"ours")
        remote_bucket.put("a", b"theirs")
    back.flush(timeout_s=120)
    assert remote_bucket.get("a") == b"ours"


def test_conditional_writes_of_one_name_follow_each_other(
    back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    info = back.put("a", b"0", if_absent=True)
    for at in range(1, 20):
        info = back.put("a", b"%d" % at, if_version=info.version)
    with pytest.raises(errors.VersionConflict):
        back.put("a", b"x", if_absent=True)
    back.flush(timeout_s=120)
    assert remote_bucket.get("a") == b"19"
    back.delete("a", if_version=info.version)
    back.flush(timeout_s=120)
    assert remote_bucket.keys() == []


def test_a_lost_answer_is_not_uploaded_over_what_others_have_put_since(
    back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    proxy.on(
        "PUT",
        remote_bucket.path("a"),
        Fault(call_after=(0, lambda: remote_bucket.put("a", b"theirs")), cut_after=0),
        times=1,
    )
    back.put("a", b"ours")
    back.flush(timeout_s=120)
    assert remote_bucket.get("a") == b"theirs"


def test_a_lost_answer_is_resolved_by_the_stamp(back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy) -> None:
    proxy.on("PUT", remote_bucket.path("a"), Fault(cut_after=0), times=1)
    put = back.put("a", b"ours", if_absent=True)
    back.flush(timeout_s=120)
    assert remote_bucket.get("a") == b"ours"
    assert back.head("a").version == put.version


def test_what_is_pending_is_read_from_the_store(
    client: Client, bucket_name: str, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("a", b"old")
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write="back", validate="always")
    bucket = client.create_bucket(bucket_name, remote=remote)
    assert bucket.get("a") == b"old"
    with proxy.held("PUT", "*"):
        bucket.put("a", b"new")
        for _ in range(3):
            assert bucket.get("a") == b"new"
            assert [item.data.tobytes() for item in client.get_batch([Entry(bucket_name, "a")])] == [b"new"]
    bucket.flush(timeout_s=120)
    assert bucket.get("a") == b"new"
    remote_bucket.put("a", b"theirs")
    assert bucket.get("a") == b"theirs"
    client.delete_bucket(bucket_name, force=True)


def test_a_fetch_in_progress_does_not_bring_back_what_is_deleted(
    back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("a", os.urandom(100_000))
    with proxy.held("GET", remote_bucket.path("a")) as fetch, proxy.held("DELETE", "*"):
        reading = threading.Thread(target=_try, args=(back,))
        reading.start()
        fetch.wait_for(1)
        back.delete("a")
        fetch.release()
        reading.join(180)
        with pytest.raises(errors.ObjectNotFound):
            back.get("a")
    back.flush(timeout_s=120)
    assert remote_bucket.keys() == []
    with pytest.raises(errors.ObjectNotFound):
        back.get("a")


def _try(bucket: Bucket) -> None:
    with contextlib.suppress(errors.LoaderError):
        bucket.get("a")


def test_a_copy_of_what_is_pending_is_not_pending_elsewhere(
    client: Client, back: Bucket, proxy: FaultProxy, bucket_name: str
) -> None:
    if client.url.startswith("file:"):
        pytest.skip("an embedded store does not copy out of a remote bucket")
    ordinary = client.create_bucket(f"{bucket_name}-copies")
    with proxy.held("*", "*"):
        back.put("a", b"one", metadata={"kind": "first"})
        back.copy("a", "b", to_bucket=ordinary.name)
        assert ordinary.get("b") == b"one"
        assert ordinary.head("b").metadata == {"kind": "first"}
    back.flush(timeout_s=120)
    client.delete_bucket(ordinary.name, force=True)


def test_places_that_keep_no_metadata_are_refused(client: Client) -> None:
    for url in ("file:///tmp/x", "https://example.org/x"):
        with pytest.raises(errors.InvalidRequest, match="write"):
            Remote(url, write="back")
    with pytest.raises(errors.InvalidRequest, match="write"):
        Remote("s3://b", write="later")  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_embedded_store_resumes_its_uploads(remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path) -> None:
    from storage_node.remote import embedded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "CLOSE_S", 0.2)
        with connect(tmp_path / "store") as client:
            remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write="back")
            bucket = client.create_bucket("b", remote=remote)
            down = proxy.on("*", "*", DOWN)
            for at in range(3):
                bucket.put(f"{at}", b"%d" % at)
            bucket.delete("1")
        assert remote_bucket.keys() == []
    down.remove()
    with connect(tmp_path / "store"):
        eventually(lambda: sorted(remote_bucket.keys()) == ["0", "2"])


@pytest.mark.slow
def test_the_version_of_a_cold_object_is_a_condition(back: Bucket, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a", b"theirs")
    version = back.head("a").version
    back.put("a", b"ours", if_version=version)
    back.flush(timeout_s=120)
    assert remote_bucket.get("a") == b"ours"
    remote_bucket.put("b", b"first")
    version = back.head("b").version
    remote_bucket.put("b", b"second")
    for call in (lambda: back.put("b", b"ours", if_version=version), lambda: back.delete("b", if_version=version)):
        with pytest.raises(errors.VersionConflict):
            call()
    back.delete("b", if_version=back.head("b").version)
    back.flush(timeout_s=120)
    assert remote_bucket.keys() == ["a"]


def test_one_of_several_conditional_writes_replaces_a_cold_object(
    back: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("a", b"theirs")
    version = back.head("a").version
    with ThreadPoolExecutor(3) as pool:
        with proxy.held("HEAD", remote_bucket.path("a")) as held:
            running = [pool.submit(back.put, "a", b"%d" % at, if_version=version) for at in range(3)]
            held.wait_for(len(running))
        failures = [one.exception(180) for one in running]
    won = failures.index(None)
    assert [type(error) for at, error in enumerate(failures) if at != won] == [errors.VersionConflict] * 2
    back.flush(timeout_s=120)
    assert back.get("a") == remote_bucket.get("a") == b"%d" % won

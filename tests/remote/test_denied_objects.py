"""Takedowns in remote buckets: nothing of a denied object is fetched, kept, or sent to the cloud any more."""

from __future__ import annotations

import pytest

from ais_loader import Bucket, Client, Entry, Remote, Status, errors
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy

DATA = {"cold": b"cold " * 900, "warm": b"warm " * 900, "large": b"large" * 400_000}


def test_denied_objects_are_not_fetched_from_the_cloud(
    cold: Bucket, client: Client, remote_bucket: RemoteBucket
) -> None:
    for name, data in DATA.items():
        remote_bucket.put(name, data)
    assert cold.get("warm") == DATA["warm"]
    cold.deny(["cold", "warm", "large"], reason="order")
    for name in DATA:
        for read in (
            lambda name=name: cold.get(name),
            lambda name=name: cold.get(name, start=3, length=5),
            lambda name=name: cold.head(name),
        ):
            with pytest.raises(errors.ObjectDenied):
                read()
    items = list(client.get_batch([Entry(cold.name, name) for name in DATA], on_error="placeholder"))
    assert {item.status for item in items} == {Status.OBJECT_DENIED}
    assert {type(one.error) for one in cold.warm(list(DATA), on_error="return").failures} == {errors.ObjectDenied}
    for name in DATA:
        with pytest.raises(errors.ObjectDenied):
            cold.get(name)
        with pytest.raises(errors.ObjectDenied):
            cold.put(name, b"new")
    [failed] = cold.put_many([("warm", b"new")], on_error="return").failures
    assert isinstance(failed.error, errors.ObjectDenied)
    assert {name: remote_bucket.get(name) for name in DATA} == DATA  # what is in the cloud is not the store's
    assert cold.allow(["cold"]) == 1
    assert cold.get("cold") == DATA["cold"]


def test_denied_contents_are_not_sent_to_the_cloud(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    digest = cold.put("first", b"content").digest
    cold.deny(digests=[digest], reason="order")
    for name in ("second", "first"):
        with pytest.raises(errors.ObjectDenied):
            cold.put(name, b"content")
    assert remote_bucket.keys() == ["first"]


def test_an_upload_that_is_still_to_be_done_is_dropped(
    client: Client, bucket_name: str, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote = Remote(remote_bucket.url, endpoint=remote_bucket.endpoint, write="back")
    bucket = client.create_bucket(bucket_name, remote=remote, copies=2 if "," in client.url else 1)
    try:
        proxy.on("*", "*", Fault(status=503))
        for name in ("denied", "other"):
            bucket.put(name, b"to be uploaded")
        bucket.deny(["denied"], reason="order")
        proxy.clear()
        bucket.flush(timeout_s=120)
        assert remote_bucket.keys() == ["other"]
        with pytest.raises(errors.ObjectDenied):
            bucket.get("denied")
    finally:
        proxy.clear()
        client.delete_bucket(bucket_name, force=True)

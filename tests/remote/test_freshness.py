"""Freshness: when a stored copy is compared with the remote object, and what a reader gets then."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ais_loader import Command, Entry, Remote, connect, errors
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.testing.waiting import eventually
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import FaultProxy


def validate(cold: Bucket, rule: str | float) -> None:
    remote = cold.info().remote
    assert remote is not None
    cold.set(remote=Remote(remote.url, remote.endpoint, validate=rule))  # type: ignore[arg-type]


def batch(client: Client, cold: Bucket, *names: str) -> list[bytes]:
    return [item.data.tobytes() for item in client.get_batch([Entry(cold.name, name) for name in names])]


def test_a_changed_object_is_a_new_version_under_always(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    validate(cold, "always")
    remote_bucket.put("a", b"first")
    remote_bucket.put("b", b"other")
    assert batch(client, cold, "a", "b") == [b"first", b"other"]
    before = cold.head("a").version
    remote_bucket.put("a", b"second")
    assert batch(client, cold, "a", "b") == [b"second", b"other"]
    assert cold.get("a") == b"second" and cold.head("a").version != before
    proxy.forget()
    assert batch(client, cold, "b") == [b"other"]
    validation = [one for one in proxy.requests if one.matches("GET", remote_bucket.path("b"))]
    assert [one.status for one in validation] == [304]  # compared, not fetched


def test_a_changed_object_is_transformed_anew_under_always(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    validate(cold, "always")
    cold.client.etl.init("cat", Command(["cat"]))
    remote_bucket.put("a", b"first")
    assert [cold.get("a", etl="cat") for _ in range(2)] == [b"first", b"first"]
    remote_bucket.put("a", b"second")
    assert cold.get("a", etl="cat") == b"second"
    remote_bucket.delete("a")
    with pytest.raises(errors.ObjectNotFound):
        cold.get("a", etl="cat")


def test_a_file_is_opened_in_the_new_version_under_always(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    validate(cold, "always")
    remote_bucket.put("a", b"first")
    assert cold.get("a") == b"first"
    with cold.open("a") as file:
        assert file.read() == b"first"
    remote_bucket.put("a", b"second")
    if not cold.client.url.startswith("grpc"):  # an embedded store does not compare what it only looks up
        with cold.open("a") as file, pytest.raises(errors.ObjectNotFound):
            file.read()
    with cold.open("a") as file:
        assert file.read() == b"second"
    remote_bucket.delete("a")
    if cold.client.url.startswith("grpc"):
        with pytest.raises(errors.ObjectNotFound):
            cold.open("a")


def test_a_deleted_object_is_deleted_here_under_always(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket
) -> None:
    validate(cold, "always")
    remote_bucket.put("a", b"first")
    assert cold.get("a") == b"first"
    remote_bucket.delete("a")
    with pytest.raises(errors.ObjectNotFound):
        cold.get("a")
    items = list(client.get_batch([Entry(cold.name, "a")], on_error="placeholder"))
    assert [item.status.name for item in items] == ["NOT_FOUND"]
    remote_bucket.put("a", b"again")
    assert cold.get("a") == b"again"


def test_a_copy_is_read_without_a_request_under_never(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    remote_bucket.put("a", b"first")
    assert cold.get("a") == b"first"
    remote_bucket.put("a", b"second")
    proxy.forget()
    assert cold.get("a") == b"first" and batch(client, cold, "a") == [b"first"] and proxy.count() == 0
    cold.evict(["a"])
    assert cold.get("a") == b"second"


def test_a_copy_is_compared_when_it_is_older_than_its_age(
    cold: Bucket, remote_bucket: RemoteBucket, proxy: FaultProxy
) -> None:
    validate(cold, 3600.0)
    remote_bucket.put("a", b"first")
    assert cold.get("a") == b"first"
    remote_bucket.put("a", b"second")
    proxy.forget()
    assert cold.get("a") == b"first" and proxy.count() == 0
    validate(cold, 0.05)
    eventually(lambda: cold.get("a") == b"second")


@pytest.mark.parametrize("url", ["embedded"], indirect=True)
@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_a_clock_that_is_set_changes_nothing_for_copies_that_were_compared(
    cold: Bucket,
    remote_bucket: RemoteBucket,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    ahead_s: int,
) -> None:
    """Their age is of the monotonic clock."""
    validate(cold, 600.0)
    remote_bucket.put("a", b"first")
    assert cold.get("a") == b"first"
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + ahead_s * 10**9)
    remote_bucket.put("a", b"second")
    proxy.forget()
    assert cold.get("a") == b"first" and proxy.count() == 0


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_a_copy_of_before_a_start_is_compared_if_the_clock_was_set(
    remote_bucket: RemoteBucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """Its age is unknown: it may be older than it seems, and never counts as younger than it is by a clock set back."""
    with connect(tmp_path) as client:
        remote = Remote(remote_bucket.url, remote_bucket.endpoint, validate=600.0)
        bucket = client.create_bucket("train", remote=remote)
        remote_bucket.put("a", b"first")
        assert bucket.get("a") == b"first"
    remote_bucket.put("a", b"second")
    now_ns = time.time_ns
    with connect(tmp_path) as client, monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now_ns() + ahead_s * 10**9)
        proxy.forget()
        assert client.bucket("train").get("a") == b"second" and proxy.count() > 0


@pytest.mark.slow
def test_two_stores_over_one_remote_bucket_each_follow_their_own_rule(
    remote_bucket: RemoteBucket, tmp_path: Path
) -> None:
    with connect(tmp_path / "one") as here, connect(tmp_path / "two") as there:
        place = remote_bucket.url, remote_bucket.endpoint
        writer = here.create_bucket("b", remote=Remote(*place))
        strict = there.create_bucket("strict", remote=Remote(*place, validate="always"))
        relaxed = there.create_bucket("relaxed", remote=Remote(*place, validate=600.0))
        writer.put("a", b"first")
        assert [bucket.get("a") for bucket in (writer, strict, relaxed)] == [b"first"] * 3
        writer.put("a", b"second")
        assert [bucket.get("a") for bucket in (writer, strict, relaxed)] == [b"second", b"second", b"first"]
        with pytest.raises(errors.VersionConflict):  # what it saw is gone, by whatever rule
            relaxed.put("a", b"third", if_version=there.bucket("relaxed").head("a").version)
        writer.delete("a")
        with pytest.raises(errors.ObjectNotFound):
            strict.get("a")
        assert relaxed.get("a") == b"first"
        relaxed.evict()
        with pytest.raises(errors.ObjectNotFound):
            relaxed.get("a")


def test_an_entry_pinned_to_a_version_is_not_replaced_by_a_newer_one(
    client: Client, cold: Bucket, remote_bucket: RemoteBucket
) -> None:
    validate(cold, "always")
    remote_bucket.put("a", b"first")
    cold.get("a")
    pinned = cold.head("a").entry(pinned=True)
    remote_bucket.put("a", b"second")
    assert cold.get("a") == b"second"
    items = list(client.get_batch([pinned], on_error="placeholder"))
    assert [item.data.tobytes() for item in items] == [b""] and items[0].error is not None
    assert "a" in str(items[0].error)


def test_a_snapshot_keeps_what_it_names(client: Client, cold: Bucket, remote_bucket: RemoteBucket) -> None:
    validate(cold, "always")
    remote_bucket.put("a", b"first")
    cold.get("a")
    cold.snapshot("s")
    remote_bucket.put("a", b"second")
    assert cold.get("a") == b"second"
    cold.evict()
    assert client.bucket(cold.name, snapshot="s").get("a") == b"first"
    cold.delete_snapshot("s")

"""Buckets: names, making, listing, deleting. The same on every transport."""

from __future__ import annotations

import pytest

from ais_loader import Bucket, Client, errors


@pytest.mark.parametrize("suffix", ["", "A-z_0.9", ".", "-"])
def test_bucket_names_of_letters_digits_and_three_signs_are_accepted(
    client: Client, bucket_name: str, suffix: str
) -> None:
    name = bucket_name + suffix
    assert client.create_bucket(name).info().name == name


def test_a_bucket_name_of_63_characters_is_accepted_and_one_of_64_refused(client: Client, bucket_name: str) -> None:
    longest = bucket_name.ljust(63, "x")
    client.create_bucket(longest)
    with pytest.raises(errors.InvalidName):
        client.create_bucket(longest + "x")


@pytest.mark.parametrize("name", ["", ".hidden", "..", "a/b", "a b", "é", "a\0", "a\n", "x" * 64, "\ud800"])
def test_other_bucket_names_are_refused(client: Client, name: str) -> None:
    with pytest.raises(errors.InvalidName):
        client.create_bucket(name)


def test_a_bucket_that_exists_is_refused_unless_that_is_ok(client: Client, bucket: Bucket) -> None:
    uuid = bucket.info().uuid
    with pytest.raises(errors.BucketExists):
        client.create_bucket(bucket.name)
    assert client.create_bucket(bucket.name, exist_ok=True).info().uuid == uuid


def test_buckets_are_listed_by_name(client: Client, bucket_name: str) -> None:
    mine = [bucket_name + suffix for suffix in ("-b", "-a", "-c")]
    for name in mine:
        client.create_bucket(name)
    listed = [info.name for info in client.buckets()]
    assert listed == sorted(listed)
    assert set(mine) <= set(listed)


@pytest.mark.parametrize("name", ["no-such-bucket", "not/a/name", "\ud800", ""])
def test_a_bucket_that_does_not_exist_is_reported_by_every_call(client: Client, name: str) -> None:
    missing = client.bucket(name)
    for call in (
        missing.info,
        lambda: missing.put("a", b""),
        lambda: missing.put_many([("a", b"")]),
        lambda: missing.get("a"),
        lambda: missing.head("a"),
        lambda: missing.delete("a"),
        lambda: list(missing.objects()),
        lambda: client.delete_bucket(name),
    ):
        with pytest.raises(errors.BucketNotFound):
            call()


def test_a_bucket_with_objects_is_deleted_only_by_force(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    bucket.put("b", b"2")
    with pytest.raises(errors.BucketNotEmpty):
        client.delete_bucket(bucket.name)
    assert bucket.get("a") == b"1"
    assert client.delete_bucket(bucket.name, force=True) == 2
    assert bucket.name not in [info.name for info in client.buckets()]
    with pytest.raises(errors.BucketNotFound):
        bucket.get("a")


def test_an_empty_bucket_is_deleted(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    bucket.delete("a")
    assert client.delete_bucket(bucket.name) == 0


def test_a_bucket_made_again_is_another_one_and_empty(client: Client, bucket: Bucket) -> None:
    uuid = bucket.info().uuid
    bucket.put("a", b"1")
    client.delete_bucket(bucket.name, force=True)
    again = client.create_bucket(bucket.name)
    assert again.info().uuid != uuid
    assert list(again.objects()) == []


def test_more_copies_than_the_store_can_keep_are_refused(client: Client, bucket_name: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        client.create_bucket(bucket_name, copies=4)

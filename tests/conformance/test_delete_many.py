"""Many objects deleted at once, by their names or by the beginning of them. The same on every transport."""

from __future__ import annotations

import pytest
from conformance_kit import fill, names_in, samples

from ais_loader import Bucket, Client, errors


def test_each_name_has_a_result_in_its_place_and_what_failed_stops_nothing(client: Client, bucket: Bucket) -> None:
    objects = samples(50, 10)
    fill(bucket, {**objects, "keep": b"k", "päth/ñ": b"p"})
    names = list(objects)
    asked = [*names[:20], "none", "a//b", "\ud800", names[3], "päth/ñ", *names[20:]]
    results = list(bucket.delete_many(asked, on_error="yield"))
    failed = {20: "none", 21: "a//b", 22: "\ud800", 23: names[3]}
    for at, (name, result) in enumerate(zip(asked, results, strict=True)):
        if at in failed:
            assert isinstance(result, errors.ObjectNotFound), (name, result)
        else:
            assert result == name
    assert names_in(client, bucket.name) == ["keep"]
    for name in ("päth/ñ", names[0], names[-1]):
        with pytest.raises(errors.ObjectNotFound):
            bucket.get(name)
    assert bucket.get("keep") == b"k"


def test_the_first_failure_is_raised_in_its_turn(bucket: Bucket) -> None:
    fill(bucket, {"a": b"1", "b": b"2", "c": b"3"})
    deleting = bucket.delete_many(["a", "none", "c"])
    assert bucket.get("a") == b"1"  # lazy
    assert next(deleting) == "a"
    with pytest.raises(errors.ObjectNotFound, match="none"):
        next(deleting)
    assert bucket.get("b") == b"2"
    with pytest.raises(TypeError):
        list(bucket.delete_many([b"b"]))  # type: ignore[list-item]
    assert list(bucket.delete_many([])) == []


def test_thousands_go_in_order_and_can_be_put_again(client: Client, bucket: Bucket) -> None:
    objects = {f"{at:05d}": b"%d" % at for at in range(4300)}
    fill(bucket, objects)
    backwards = list(objects)[::-1]
    assert list(bucket.delete_many(backwards)) == backwards
    assert names_in(client, bucket.name) == []
    assert all(
        isinstance(result, errors.ObjectNotFound) for result in bucket.delete_many(backwards[:5], on_error="yield")
    )
    bucket.put("00007", b"again")
    assert bucket.get("00007") == b"again"
    assert names_in(client, bucket.name) == ["00007"]


def test_what_begins_with_a_prefix_goes_and_nothing_else(client: Client, bucket: Bucket) -> None:
    fill(bucket, {**samples(2100, 5, prefix="en"), "en": b"1", "english": b"2", "es/a": b"3"})
    assert bucket.delete_prefix("en/") == 2100
    assert names_in(client, bucket.name) == ["en", "english", "es/a"]
    assert bucket.delete_prefix("en/") == 0
    with pytest.raises(errors.InvalidRequest, match="everything"):
        bucket.delete_prefix("")
    assert bucket.delete_prefix("", everything=True) == 3
    assert names_in(client, bucket.name) == []


def test_a_bucket_that_is_not_there_is_said_of_each_name_and_of_a_prefix(client: Client, bucket_name: str) -> None:
    missing = client.bucket(bucket_name)
    results = list(missing.delete_many(["a", "b"], on_error="yield"))
    assert [type(result) for result in results] == [errors.BucketNotFound] * 2
    for call in (lambda: list(missing.delete_many(["a"])), lambda: missing.delete_prefix("a")):
        with pytest.raises(errors.BucketNotFound):
            call()

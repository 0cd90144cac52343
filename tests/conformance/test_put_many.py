"""put_many: many objects, few requests, one result for each, in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from conformance_kit import MiB, contents, names_in, samples

from ais_loader import Bucket, Client, ObjectInfo, errors
from ais_loader.testing import seeded_bytes


def test_every_object_is_acknowledged_in_order_and_can_be_read(bucket: Bucket) -> None:
    objects = samples(1500, size_bytes=3000)
    infos = list(bucket.put_many(objects.items()))
    assert [(info.name, info.size_bytes) for info in infos] == [(name, len(data)) for name, data in objects.items()]
    assert bucket.get_batch(list(objects)).tobytes() == list(objects.values())


def test_nothing_is_put_of_nothing(bucket: Bucket) -> None:
    assert list(bucket.put_many([])) == []


def test_large_objects_among_small_ones_keep_their_place(bucket: Bucket) -> None:
    objects = {f"{at:02d}": seeded_bytes((5 * MiB if at % 5 == 2 else 1000) + at, seed=at) for at in range(20)}
    assert [info.name for info in bucket.put_many(objects.items())] == list(objects)
    assert contents(bucket.get_batch(list(objects))) == list(objects.values())


def test_a_name_put_twice_in_one_call_ends_with_the_later_bytes(bucket: Bucket) -> None:
    infos = list(bucket.put_many([("a", b"first"), ("b", b""), ("a", b"second")]))
    assert [info.size_bytes for info in infos] == [5, 0, 6]
    assert bucket.get("a") == b"second"
    assert bucket.head("a") == infos[2]


def test_failures_are_yielded_in_their_place_and_stop_nothing(bucket: Bucket) -> None:
    objects = [("a", b"1"), ("/bad", b"2"), ("c", b"3"), ("d", bytes(5 * MiB)), ("bad/", bytes(5 * MiB)), ("f", b"6")]
    results = list(bucket.put_many(objects, on_error="yield"))
    assert [type(result) for result in results] == [
        ObjectInfo,
        errors.InvalidName,
        ObjectInfo,
        ObjectInfo,
        errors.InvalidName,
        ObjectInfo,
    ]
    assert [info.name for info in bucket.objects()] == ["a", "c", "d", "f"]


def test_the_first_failure_is_raised_after_the_acknowledgements_before_it(bucket: Bucket) -> None:
    stored = []
    with pytest.raises(errors.InvalidName):
        for info in bucket.put_many([("a", b""), ("b", b""), ("c//d", b""), ("e", b"")]):
            stored.append(info.name)
    assert stored == ["a", "b"]
    assert bucket.get("b") == b""


def test_a_missing_bucket_fails_every_object(client: Client) -> None:
    results = list(client.bucket("no-such-bucket").put_many([("a", b""), ("b", bytes(5 * MiB))], on_error="yield"))
    assert [type(result) for result in results] == [errors.BucketNotFound, errors.BucketNotFound]


def test_objects_are_taken_from_the_iterable_as_they_are_needed(bucket: Bucket) -> None:
    taken = 0

    def endless() -> Iterator[tuple[str, bytes]]:
        nonlocal taken
        for taken in itertools.count(1):
            yield f"{taken:08d}", b"x" * 10_000

    storing = bucket.put_many(endless())
    acknowledged = [info.name for info in itertools.islice(storing, 300)]
    storing.close()  # type: ignore[attr-defined]
    assert acknowledged == [f"{at:08d}" for at in range(1, 301)]
    assert taken < 5000
    assert set(acknowledged) <= set(names_in(bucket.client, bucket.name))


def test_an_iterable_that_raises_ends_the_call_with_its_own_error(bucket: Bucket) -> None:
    def breaking() -> Iterator[tuple[str, bytes]]:
        yield "a", b"1"
        raise RuntimeError("out of tape")

    with pytest.raises(RuntimeError, match="out of tape"):
        list(bucket.put_many(breaking()))


def test_putting_while_objects_are_read_from_the_same_store(bucket: Bucket) -> None:
    objects = samples(600)
    list(bucket.put_many(objects.items()))
    reading = bucket.get_batch(list(objects))
    copying = bucket.put_many((f"copy/{item.entry.name}", item.data) for item in reading)
    assert sum(1 for _ in copying) == 600
    assert bucket.get_batch([f"copy/{name}" for name in objects]).tobytes() == list(objects.values())

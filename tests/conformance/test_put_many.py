"""put_many: many objects, few requests, done when the call returns; iter_put_many, the same step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from conformance_kit import Heard, MiB, contents, names_in, samples

from ais_loader import Bucket, Client, Failure, ObjectInfo, Progress, PutSummary, errors
from ais_loader.testing import seeded_bytes

MIXED = [("a", b"1"), ("/bad", b"2"), ("c", b"3"), ("d", bytes(5 * MiB)), ("bad/", bytes(5 * MiB)), ("f", b"6")]


@pytest.mark.slow
def test_every_object_is_stored_when_the_call_returns_and_its_info_is_in_its_place(bucket: Bucket) -> None:
    objects = samples(1500, size_bytes=3000)
    put = bucket.put_many(objects.items())
    assert [(info.name, info.size_bytes) for info in put.infos] == [(name, len(data)) for name, data in objects.items()]
    assert (put.stored, put.size_bytes) == (1500, sum(map(len, objects.values())))
    assert (put.failed, put.failures, put.complete) == (0, (), True)
    assert put.infos[700] == bucket.head(put.infos[700].name)
    assert bucket.get_batch(list(objects)).tobytes() == list(objects.values())


def test_nothing_is_put_of_nothing(bucket: Bucket) -> None:
    heard = Heard()
    for nothing in ([], iter([])):
        assert bucket.put_many(nothing, progress=heard).stored == 0
    assert bucket.put_many([]).infos == ()
    assert list(bucket.iter_put_many([])) == []
    assert heard.steps == [] and names_in(bucket.client, bucket.name) == []


def test_large_objects_among_small_ones_keep_their_place(bucket: Bucket) -> None:
    sizes = [1000, 300_000, 5 * MiB, 300_000, 300_000]
    objects = {f"{at:02d}": seeded_bytes(sizes[at % 5] + at, seed=at) for at in range(20)}
    assert [info.name for info in bucket.put_many(objects.items()).infos] == list(objects)
    assert contents(bucket.get_batch(list(objects))) == list(objects.values())


def test_a_name_put_twice_in_one_call_ends_with_the_later_bytes(bucket: Bucket) -> None:
    infos = bucket.put_many([("a", b"first"), ("b", b""), ("a", b"second")]).infos
    assert [info.size_bytes for info in infos] == [5, 0, 6]
    assert bucket.get("a") == b"second"
    assert bucket.head("a") == infos[2]


@pytest.mark.slow
def test_a_name_put_again_and_again_ends_with_the_last_bytes_whatever_their_sizes(bucket: Bucket) -> None:
    sizes = [300_000, 10, 300_001, 300_002, 20, 5 * MiB, 300_003, 30]
    for last in range(1, len(sizes) + 1):
        for others in (0, 3):
            objects = [("a", seeded_bytes(size, seed=at)) for at, size in enumerate(sizes[:last])]
            objects += [(f"{at}", b"other") for at in range(others)]
            infos = bucket.put_many(objects).infos
            assert [info.size_bytes for info in infos] == [len(data) for _, data in objects]
            assert bucket.get("a") == objects[last - 1][1]
            assert bucket.head("a") == infos[last - 1]


def test_failures_are_returned_with_their_places_and_stop_nothing(bucket: Bucket) -> None:
    heard = Heard()
    put = bucket.put_many(MIXED, on_error="return", progress=heard)
    assert (put.stored, put.size_bytes, put.failed, put.complete) == (4, 5 * MiB + 3, 2, False)
    assert [info.name for info in put.infos] == ["a", "c", "d", "f"] == names_in(bucket.client, bucket.name)
    assert [(one.index, one.name, type(one.error)) for one in put.failures] == [
        (1, "/bad", errors.InvalidName),
        (4, "bad/", errors.InvalidName),
    ]
    assert [(step.done, step.failed) for step in heard.steps] == [(1, 0), (1, 1), (2, 1), (3, 1), (3, 2), (4, 2)]
    assert heard.steps[-1] == Progress(done=4, failed=2, size_bytes=5 * MiB + 3)


def test_failures_are_yielded_in_their_places_and_stop_nothing(bucket: Bucket) -> None:
    results = list(bucket.iter_put_many(MIXED, on_error="yield"))
    assert [isinstance(result, ObjectInfo) for result in results] == [True, False, True, True, False, True]
    assert [type(results[1]), type(results[4])] == [errors.InvalidName] * 2
    assert names_in(bucket.client, bucket.name) == ["a", "c", "d", "f"]


def test_the_first_failure_is_raised_and_what_came_before_it_is_stored(bucket: Bucket) -> None:
    objects = [("a", b"1"), ("b", b"2"), ("c//d", b"3"), ("e", b"4")]
    with pytest.raises(errors.InvalidName, match="c//d") as caught:
        bucket.put_many(objects)
    assert caught.value.__notes__ == ["before this error: 2 done, 0 skipped, 0 failed"]
    assert bucket.get_batch(["a", "b"]).tobytes() == [b"1", b"2"]
    stored = []
    with pytest.raises(errors.InvalidName):
        for info in bucket.iter_put_many(objects):
            stored.append(info.name)
    assert stored == ["a", "b"]


def test_a_missing_bucket_fails_every_object(client: Client) -> None:
    missing, objects = client.bucket("no-such-bucket"), [("a", b""), ("b", bytes(5 * MiB))]
    put = missing.put_many(objects, on_error="return")
    assert (put.stored, put.infos) == (0, ())
    assert [(one.name, type(one.error)) for one in put.failures] == [
        ("a", errors.BucketNotFound),
        ("b", errors.BucketNotFound),
    ]
    assert [type(one) for one in missing.iter_put_many(objects, on_error="yield")] == [errors.BucketNotFound] * 2
    with pytest.raises(errors.BucketNotFound):
        missing.put_many(objects)


@pytest.mark.slow
def test_of_an_iterator_counts_and_the_first_thousand_failures_are_kept(bucket: Bucket) -> None:
    objects = [(f"/{at}", b"") for at in range(1100)] + [("good", b"1")]
    put = bucket.put_many(iter(objects), on_error="return")
    assert (put.stored, put.failed) == (1, 1100)
    assert [(one.index, one.name) for one in put.failures] == [(at, f"/{at}") for at in range(1000)]
    with pytest.raises(errors.InvalidRequest, match="iter_put_many"):
        put.infos  # noqa: B018  # it raises
    whole = bucket.put_many(objects, on_error="return")
    assert ([info.name for info in whole.infos], len(whole.failures)) == (["good"], 1100)


def test_objects_are_taken_from_the_iterable_as_they_are_needed(bucket: Bucket) -> None:
    taken = 0

    def endless() -> Iterator[tuple[str, bytes]]:
        nonlocal taken
        for taken in itertools.count(1):
            yield f"{taken:08d}", b"x" * 10_000

    storing = bucket.iter_put_many(endless())
    assert taken == 0  # lazy
    acknowledged = [info.name for info in itertools.islice(storing, 300)]
    storing.close()
    assert acknowledged == [f"{at:08d}" for at in range(1, 301)]
    assert taken < 5000
    assert set(acknowledged) <= set(names_in(bucket.client, bucket.name))


@pytest.mark.slow
def test_progress_is_told_of_each_object_and_its_error_ends_the_call(bucket: Bucket) -> None:
    taken = 0

    def endless() -> Iterator[tuple[str, bytes]]:
        nonlocal taken
        for taken in itertools.count(1):
            yield f"{taken:08d}", b"x" * 100

    heard = Heard(until=300)
    with pytest.raises(RuntimeError, match="enough: 300") as caught:
        bucket.put_many(endless(), progress=heard)
    assert caught.value.__notes__ == ["before this error: 300 done, 0 skipped, 0 failed"]
    assert heard.steps == [Progress(done=at, size_bytes=100 * at) for at in range(1, 301)]
    assert taken < 20_000
    assert names_in(bucket.client, bucket.name)[:300] == [f"{at:08d}" for at in range(1, 301)]


@pytest.mark.slow
def test_an_iterable_that_raises_ends_the_call_with_its_own_error_and_what_was_told_is_stored(bucket: Bucket) -> None:
    def breaking() -> Iterator[tuple[str, bytes]]:
        yield from ((f"{at:04d}", b"%d" % at) for at in range(1500))
        raise RuntimeError("out of tape")

    heard = Heard()
    with pytest.raises(RuntimeError, match="out of tape") as caught:
        bucket.put_many(breaking(), on_error="return", progress=heard)
    done = len(heard.steps)
    assert caught.value.__notes__ == [f"before this error: {done:,} done, 0 skipped, 0 failed"]
    assert set(names_in(bucket.client, bucket.name)) >= {f"{at:04d}" for at in range(done)}
    with pytest.raises(RuntimeError, match="out of tape"):
        list(bucket.iter_put_many(breaking()))


@pytest.mark.slow
def test_putting_while_objects_are_read_from_the_same_store(bucket: Bucket) -> None:
    objects = samples(600)
    bucket.put_many(objects.items())
    reading = bucket.get_batch(list(objects))
    assert bucket.put_many((f"copy/{item.entry.name}", item.data) for item in reading).stored == 600
    assert bucket.get_batch([f"copy/{name}" for name in objects]).tobytes() == list(objects.values())


def test_summaries_are_values(bucket: Bucket) -> None:
    put = bucket.put_many([("a", b"1"), ("/", b"2")], on_error="return")
    (failure,) = put.failures
    assert put == PutSummary(
        stored=1, size_bytes=1, failed=1, failures=(Failure("/", failure.error, 1),), _infos=(bucket.head("a"),)
    )
    assert repr(put).startswith("PutSummary(failed=1, failures=(Failure(name='/', error=InvalidName(")

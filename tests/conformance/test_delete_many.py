"""Many objects deleted at once, by their names or by the beginning of them. The same on every transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance_kit import Heard, fill, names_in, samples

from ais_loader import Bucket, Client, DeleteSummary, Progress, errors


def test_each_name_is_answered_for_in_its_place_and_what_failed_stops_nothing(client: Client, bucket: Bucket) -> None:
    objects = samples(50, 10)
    names = list(objects)
    asked = [*names[:20], "none", "a//b", "\ud800", names[3], "päth/ñ", *names[20:]]
    failed = {20: "none", 21: "a//b", 22: "\ud800", 23: names[3]}
    fill(bucket, {**objects, "keep": b"k", "päth/ñ": b"p"})
    deleted = bucket.delete_many(asked, on_error="return")
    assert (deleted.deleted, deleted.failed, deleted.complete) == (51, 4, False)
    assert {one.index: one.name for one in deleted.failures} == failed
    assert {type(one.error) for one in deleted.failures} == {errors.ObjectNotFound}
    assert names_in(client, bucket.name) == ["keep"]
    for name in ("päth/ñ", names[0], names[-1]):
        with pytest.raises(errors.ObjectNotFound):
            bucket.get(name)
    assert bucket.get("keep") == b"k"
    fill(bucket, {**objects, "päth/ñ": b"p"})
    for at, (name, result) in enumerate(zip(asked, bucket.iter_delete_many(asked, on_error="yield"), strict=True)):
        if at in failed:
            assert isinstance(result, errors.ObjectNotFound), (name, result)
        else:
            assert result == name
    assert names_in(client, bucket.name) == ["keep"]


def test_the_first_failure_is_raised_and_what_came_before_it_is_gone(client: Client, bucket: Bucket) -> None:
    fill(bucket, {"a": b"1", "b": b"2", "c": b"3"})
    with pytest.raises(errors.ObjectNotFound, match="none") as caught:
        bucket.delete_many(["a", "none", "c"])
    assert caught.value.__notes__ == ["before this error: 1 done, 0 skipped, 0 failed"]
    with pytest.raises(errors.ObjectNotFound):
        bucket.get("a")
    assert bucket.get("b") == b"2"
    for wrong in ([b"b"], ["b", 5]):
        with pytest.raises(TypeError):
            bucket.delete_many(wrong)  # type: ignore[arg-type]
    assert bucket.get("b") == b"2"
    assert bucket.delete_many([]) == DeleteSummary() == bucket.delete_many(iter([]))


def test_step_by_step_nothing_is_deleted_before_the_first_name_is_taken(bucket: Bucket) -> None:
    fill(bucket, {"a": b"1", "b": b"2", "c": b"3"})
    deleting = bucket.iter_delete_many(["a", "none", "c"])
    assert bucket.get("a") == b"1"
    assert next(deleting) == "a"
    with pytest.raises(errors.ObjectNotFound, match="none"):
        next(deleting)
    assert bucket.get("b") == b"2"
    assert list(bucket.iter_delete_many([])) == []


@pytest.mark.slow
def test_thousands_go_in_order_and_can_be_put_again(client: Client, bucket: Bucket) -> None:
    objects = {f"{at:05d}": b"%d" % at for at in range(4300)}
    fill(bucket, objects)
    backwards = list(objects)[::-1]

    def breaking() -> Iterator[str]:
        yield from backwards[:4100]
        raise RuntimeError("out of tape")

    with pytest.raises(RuntimeError, match="out of tape") as caught:
        bucket.delete_many(breaking(), on_error="return")
    assert caught.value.__notes__ == ["before this error: 4,000 done, 0 skipped, 0 failed"]
    assert names_in(client, bucket.name) == list(objects)[:300]
    assert list(bucket.iter_delete_many(backwards[4000:])) == backwards[4000:]
    assert names_in(client, bucket.name) == []
    again = bucket.delete_many(iter(backwards[:1100]), on_error="return")
    assert (again.deleted, again.failed) == (0, 1100)
    assert [(one.index, one.name) for one in again.failures] == list(enumerate(backwards[:1000]))
    bucket.put("00007", b"again")
    assert bucket.get("00007") == b"again"
    assert names_in(client, bucket.name) == ["00007"]


@pytest.mark.slow
def test_progress_is_told_of_each_object_and_its_error_ends_the_call(client: Client, bucket: Bucket) -> None:
    objects = samples(1100, 5, prefix="en")
    fill(bucket, {**objects, "es": b"1"})
    names, heard = list(objects), Heard()
    assert bucket.delete_many([*names[:2], "none", names[2]], on_error="return", progress=heard).deleted == 3
    assert [(step.done, step.failed) for step in heard.steps] == [(1, 0), (2, 0), (2, 1), (3, 1)]
    heard = Heard(until=900)
    with pytest.raises(RuntimeError, match="enough: 900") as caught:
        bucket.delete_prefix("en/", progress=heard)
    assert caught.value.__notes__ == ["before this error: 900 done, 0 skipped, 0 failed"]
    assert heard.steps == [Progress(done=at) for at in range(1, 901)]
    assert names_in(client, bucket.name) == [*names[1003:], "es"]  # a page goes with one request


@pytest.mark.slow
def test_what_begins_with_a_prefix_goes_and_nothing_else(client: Client, bucket: Bucket) -> None:
    fill(bucket, {**samples(2100, 5, prefix="en"), "en": b"1", "english": b"2", "es/a": b"3"})
    assert bucket.delete_prefix("en/") == DeleteSummary(deleted=2100)
    assert names_in(client, bucket.name) == ["en", "english", "es/a"]
    heard = Heard()
    assert bucket.delete_prefix("en/", progress=heard).deleted == 0
    assert heard.steps == []
    with pytest.raises(errors.InvalidRequest, match="everything"):
        bucket.delete_prefix("")
    assert bucket.delete_prefix("", everything=True).deleted == 3
    assert names_in(client, bucket.name) == []


def test_a_bucket_that_is_not_there_is_said_of_each_name_and_of_a_prefix(client: Client, bucket_name: str) -> None:
    missing = client.bucket(bucket_name)
    deleted = missing.delete_many(["a", "b"], on_error="return")
    assert [type(one.error) for one in deleted.failures] == [errors.BucketNotFound] * 2
    results = list(missing.iter_delete_many(["a", "b"], on_error="yield"))
    assert [type(result) for result in results] == [errors.BucketNotFound] * 2
    for call in (
        lambda: missing.delete_many(["a"]),
        lambda: missing.delete_prefix("a"),
        lambda: missing.delete_prefix("a", on_error="return"),
    ):
        with pytest.raises(errors.BucketNotFound):
            call()

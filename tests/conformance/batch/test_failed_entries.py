"""Entries that cannot be had: typed, in their place, and no harm to their neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from conformance_kit import MiB, contents, fill

from ais_loader import Bucket, Client, Entry, Item, Status, errors
from ais_loader.testing import seeded_bytes


@pytest.fixture
def filled(bucket: Bucket) -> Bucket:
    fill(bucket, {"a": b"first", "b": b"second", "empty": b"", "large": seeded_bytes(5 * MiB)})
    return bucket


def failing(bucket: str) -> list[tuple[Entry, Status, type[errors.LoaderError]]]:
    return [
        (Entry(bucket, "nope"), Status.NOT_FOUND, errors.ObjectNotFound),
        (Entry(bucket, "a/"), Status.NOT_FOUND, errors.ObjectNotFound),
        (Entry(bucket, ""), Status.NOT_FOUND, errors.ObjectNotFound),
        (Entry("no-such-bucket", "a"), Status.NOT_FOUND, errors.BucketNotFound),
        (Entry("", "a"), Status.NOT_FOUND, errors.BucketNotFound),
        (Entry(bucket, "a", version="99.99.99"), Status.NOT_FOUND, errors.ObjectNotFound),
        (Entry(bucket, "a", start=6), Status.RANGE, errors.RangeError),
        (Entry(bucket, "a", start=5, length=1), Status.RANGE, errors.RangeError),
        (Entry(bucket, "a", length=6), Status.RANGE, errors.RangeError),
        (Entry(bucket, "a", start=2**63), Status.RANGE, errors.RangeError),
        (Entry(bucket, "empty", start=1), Status.RANGE, errors.RangeError),
        (Entry(bucket, "large", start=5 * MiB + 1), Status.RANGE, errors.RangeError),
        (Entry(bucket, "a", member="x"), Status.FAILED, errors.NotAnArchive),
    ]


def test_each_failure_has_its_status_and_its_error_in_its_place(client: Client, filled: Bucket) -> None:
    cases = failing(filled.name)
    good = Entry(filled.name, "b")
    entries = [entry for case in cases for entry in (good, case[0])]
    items = list(client.get_batch(entries, on_error="placeholder"))
    assert [item.index for item in items] == list(range(len(entries)))
    assert contents(items[0::2]) == [b"second"] * len(cases)
    for item, (entry, status, error) in zip(items[1::2], cases, strict=True):
        assert (item.entry, item.status, type(item.error), item.tobytes()) == (entry, status, error, b""), entry


def test_under_raise_each_failure_raises_its_error_and_items_before_it_stay_valid(
    client: Client, filled: Bucket
) -> None:
    before = [Entry(filled.name, "a"), Entry(filled.name, "large")]
    for entry, _, error in failing(filled.name):
        received: list[Item] = []
        with pytest.raises(error) as caught:
            for item in client.get_batch([*before, entry, Entry(filled.name, "b")]):
                received.append(item)
        assert type(caught.value) is error
        assert "entry 2" in str(caught.value)
        assert [len(item.data) for item in received] == [5, 5 * MiB]
        assert received[0].tobytes() == b"first"


def test_a_batch_that_has_raised_is_over(filled: Bucket) -> None:
    batch = filled.get_batch(["a", "nope", "b"])
    assert next(batch).tobytes() == b"first"
    with pytest.raises(errors.ObjectNotFound):
        next(batch)
    assert list(batch) == []


def test_a_failure_ends_neither_other_batches_nor_the_client(filled: Bucket) -> None:
    other = filled.get_batch(["a", "large", "b"])
    assert next(other).tobytes() == b"first"
    with pytest.raises(errors.ObjectNotFound):
        list(filled.get_batch(["nope"]))
    assert [len(item.data) for item in other] == [5 * MiB, 6]
    assert contents(filled.get_batch(["b"])) == [b"second"]


@pytest.mark.parametrize("form", ["iterate", "tobytes", "packed"])
def test_every_form_of_answer_raises_and_gives_places_to_failures(filled: Bucket, form: str) -> None:
    def answer(names: Sequence[str], on_error: str) -> list[bytes | None]:
        batch = filled.get_batch(names, on_error=on_error)
        if form == "iterate":
            return [item.tobytes() if item.ok else None for item in batch]
        if form == "tobytes":
            return batch.tobytes()
        packed = batch.packed()
        return [None if packed.status[at] else packed[at].tobytes() for at in range(len(packed))]

    names = ["a", "nope", "large", "missing", "empty", "b"]
    found = answer(names, "placeholder")
    assert found[:2] == [b"first", None]
    assert found[3:] == [None, b"", b"second"]
    assert found[2] == seeded_bytes(5 * MiB)
    with pytest.raises(errors.ObjectNotFound, match=r"entry 1\b.*nope"):
        answer(names, "raise")


@pytest.mark.slow
def test_a_batch_of_failures_alone_yields_all_of_them(filled: Bucket) -> None:
    items = list(filled.get_batch([f"nope-{at}" for at in range(5000)], on_error="placeholder"))
    assert len(items) == 5000
    assert {item.status for item in items} == {Status.NOT_FOUND}
    assert all(f"nope-{item.index}'" in str(item.error) for item in items)


def test_a_pinned_version_is_delivered_or_not_found_but_never_replaced(client: Client, filled: Bucket) -> None:
    old = filled.head("a").version
    pinned = [Entry(filled.name, "a", version=old)]
    assert contents(client.get_batch(pinned)) == [b"first"]
    new = filled.put("a", b"changed").version
    [item] = client.get_batch(pinned, on_error="placeholder")
    assert item.status == Status.NOT_FOUND
    now = [Entry(filled.name, "a", version=new), Entry(filled.name, "a")]
    assert contents(client.get_batch(now)) == [b"changed"] * 2


def test_an_object_deleted_between_two_batches_is_not_found(filled: Bucket) -> None:
    assert contents(filled.get_batch(["a"])) == [b"first"]
    filled.delete("a")
    [item] = filled.get_batch(["a"], on_error="placeholder")
    assert item.status == Status.NOT_FOUND


def test_a_bucket_deleted_between_two_batches_is_not_found(client: Client, filled: Bucket) -> None:
    assert contents(filled.get_batch(["a"])) == [b"first"]
    client.delete_bucket(filled.name, force=True)
    with pytest.raises(errors.BucketNotFound):
        list(filled.get_batch(["a"]))
    client.create_bucket(filled.name)
    with pytest.raises(errors.ObjectNotFound):
        list(filled.get_batch(["a"]))


@pytest.mark.parametrize(
    "entry",
    [Entry("\ud800", "a"), Entry("b", "\ud800"), Entry("b", "a", version="\ud800"), Entry("b", "a", member="\ud800")],
    ids=["bucket", "name", "version", "member"],
)
def test_text_without_a_utf8_form_is_refused_before_anything_is_sent(client: Client, entry: Entry) -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        client.get_batch([entry])

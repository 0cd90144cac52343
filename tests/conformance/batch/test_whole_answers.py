"""Batches taken whole (`tobytes`, `packed`) or collected by the store first (`streaming=False`)."""

from __future__ import annotations

import numpy as np
import pytest
from conformance_kit import MiB, contents, fill, samples

from ais_loader import Bucket, Client, Entry, errors
from ais_loader.testing import seeded_bytes


def test_tobytes_gives_bytes_of_their_own_in_order(client: Client, bucket: Bucket) -> None:
    objects = samples(300, size_bytes=10_000)
    fill(bucket, objects)
    found = bucket.get_batch(list(objects)).tobytes()
    assert found == list(objects.values())
    assert {type(each) for each in found} == {bytes}
    entries = [Entry(bucket.name, name, start=5, length=10) for name in objects]
    assert client.get_batch(entries).tobytes() == [data[5:15] for data in objects.values()]


def test_packed_has_values_offsets_and_statuses(bucket: Bucket) -> None:
    objects = samples(100, size_bytes=20_000) | {"empty": b""}
    fill(bucket, objects)
    order = [*objects, *list(objects)[:3]]
    packed = bucket.get_batch(order).packed()
    assert (packed.values.dtype, packed.offsets.dtype, packed.status.dtype) == (np.uint8, np.int64, np.uint8)
    assert packed.offsets.shape == (len(order) + 1,)
    assert (packed.offsets[0], packed.offsets[-1]) == (0, len(packed.values))
    assert packed.values.tobytes() == b"".join(objects[name] for name in order)
    assert [packed[at].tobytes() for at in (0, -1, 100)] == [objects[order[at]] for at in (0, -1, 100)]
    assert not packed.values.flags.writeable
    with pytest.raises(IndexError):
        packed[len(order)]


def test_packed_of_one_item_and_of_empty_items(bucket: Bucket) -> None:
    bucket.put("a", b"123")
    bucket.put("empty", b"")
    assert bucket.get_batch(["a"]).packed().values.tobytes() == b"123"
    packed = bucket.get_batch(["empty", "empty"]).packed()
    assert (len(packed), packed.offsets.tolist(), packed[1].tobytes()) == (2, [0, 0, 0], b"")


def test_packed_becomes_tensors_of_the_same_bytes(bucket: Bucket) -> None:
    objects = samples(10)
    fill(bucket, objects)
    packed = bucket.get_batch(list(objects)).packed()
    tensors = packed.torch()
    assert tensors.values.numpy().tobytes() == packed.values.tobytes()
    assert tensors.offsets.tolist() == packed.offsets.tolist()
    assert len(tensors) == 10


@pytest.mark.parametrize("form", ["iterate", "tobytes", "packed"])
def test_an_answer_collected_first_is_the_same_answer(bucket: Bucket, form: str) -> None:
    objects = samples(30, size_bytes=100_000) | {"large": seeded_bytes(9 * MiB), "empty": b""}
    fill(bucket, objects)
    order = [*objects, "large", "empty"]
    batch = bucket.get_batch(order, streaming=False)
    if form == "iterate":
        found: object = contents(batch)
    elif form == "tobytes":
        found = batch.tobytes()
    else:
        packed = batch.packed()
        found = [packed[at].tobytes() for at in range(len(packed))]
    assert found == [objects[name] for name in order]


def test_an_answer_collected_first_still_fails_in_place(bucket: Bucket) -> None:
    fill(bucket, {"a": b"1", "b": b"2"})
    items = list(bucket.get_batch(["a", "nope", "b"], streaming=False, on_error="placeholder"))
    assert [item.status.name for item in items] == ["OK", "NOT_FOUND", "OK"]
    with pytest.raises(errors.ObjectNotFound):
        list(bucket.get_batch(["a", "nope", "b"], streaming=False))


def test_a_batch_is_taken_whole_or_item_by_item(bucket: Bucket) -> None:
    fill(bucket, {"a": b"1", "b": b"2"})
    batch = bucket.get_batch(["a", "b"])
    next(batch)
    with pytest.raises(errors.InvalidRequest):
        batch.packed()
    with pytest.raises(errors.InvalidRequest):
        batch.tobytes()


def test_a_closed_batch_gives_nothing(bucket: Bucket) -> None:
    bucket.put("a", b"1")
    with bucket.get_batch(["a", "a"]) as batch:
        assert next(batch).tobytes() == b"1"
    closed = bucket.get_batch(["a"])
    closed.close()
    closed.close()
    for take in (closed.packed, closed.tobytes, lambda: next(closed), lambda: list(closed)):
        with pytest.raises(errors.Closed):
            take()

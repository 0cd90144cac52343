"""A batch yields every entry once, in request order, with the bytes that were put."""

from __future__ import annotations

import random

import pytest
from conformance_kit import MiB, contents, fill, samples

from ais_loader import Batch, Bucket, Client, Entry, Status, errors
from ais_loader.testing import seeded_bytes


def test_an_empty_batch_yields_nothing(client: Client, bucket: Bucket) -> None:
    for batch in (client.get_batch([]), bucket.get_batch([])):
        assert len(batch) == 0
        assert list(batch) == []
    assert bucket.get_batch([]).tobytes() == []
    assert len(bucket.get_batch([]).packed()) == 0


def test_items_carry_index_entry_status_and_bytes(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1234")
    entries = [Entry(bucket.name, "a", opaque={"mine": object()}), Entry(bucket.name, "a", start=1, length=2)]
    items = list(client.get_batch(entries))
    assert [(item.index, item.entry, item.status, item.tobytes(), item.error, item.ok) for item in items] == [
        (0, entries[0], Status.OK, b"1234", None, True),
        (1, entries[1], Status.OK, b"23", None, True),
    ]
    assert items[0].entry.opaque is entries[0].opaque  # type: ignore[union-attr]


def test_items_of_the_short_form_carry_index_and_entry(bucket: Bucket) -> None:
    bucket.put("ais", b"1")
    [item] = bucket.get_batch(["ais"])
    assert (item.entry, item.index, item.tobytes()) == (Entry(bucket.name, "ais"), 0, b"1")


def test_data_is_a_read_only_view(bucket: Bucket) -> None:
    bucket.put("a", b"1234")
    [item] = bucket.get_batch(["a"])
    assert isinstance(item.data, memoryview)
    assert item.data.readonly


@pytest.mark.parametrize("size", [0, 1, 100, 10_240, 200_000])
def test_items_come_in_request_order_whatever_their_size(bucket: Bucket, size: int) -> None:
    objects = samples(60, size_bytes=size)
    fill(bucket, objects)
    order = random.Random(size).sample(list(objects), 60)
    assert contents(bucket.get_batch(order)) == [objects[name] for name in order]


def test_sizes_from_nothing_to_megabytes_mix_in_one_batch(bucket: Bucket) -> None:
    sizes = [0, 1, 1000, 65_535, 65_536, 262_144, 262_145, MiB - 1, MiB, MiB + 1, 2 * MiB, 4 * MiB, 4 * MiB + 1, 0, 7]
    objects = {f"{at:02d}": seeded_bytes(size, seed=at) for at, size in enumerate(sizes)}
    fill(bucket, objects)
    for seed in range(3):
        order = random.Random(seed).choices(list(objects), k=40)
        assert contents(bucket.get_batch(order)) == [objects[name] for name in order]


def test_a_repeated_entry_is_delivered_each_time(client: Client, bucket: Bucket) -> None:
    objects = samples(3, size_bytes=50_000)
    fill(bucket, objects)
    order = [*objects, *objects, next(iter(objects))] * 10
    assert contents(bucket.get_batch(order)) == [objects[name] for name in order]
    assert contents(client.get_batch([Entry(bucket.name, order[0])] * 100)) == [objects[order[0]]] * 100


def test_a_repeated_entry_with_different_ranges_gets_each_of_them(client: Client, bucket: Bucket) -> None:
    data = seeded_bytes(1000)
    bucket.put("a", data)
    entries = [Entry(bucket.name, "a", start=at * 7, length=5) for at in range(100)] * 2 + [Entry(bucket.name, "a")] * 2
    assert contents(client.get_batch(entries)) == [data[at * 7 : at * 7 + 5] for at in range(100)] * 2 + [data] * 2


def test_entries_of_several_buckets_share_a_batch(client: Client, bucket: Bucket) -> None:
    buckets = [bucket, *(client.create_bucket(f"{bucket.name}-{at}") for at in range(3))]
    for at, each in enumerate(buckets):
        fill(each, {f"{number}": f"{at}/{number}".encode() for number in range(10)})
    picks = [(at, number) for number in range(10) for at in (2, 0, 3, 1)]
    entries = [Entry(buckets[at].name, f"{number}") for at, number in picks]
    assert contents(client.get_batch(entries)) == [f"{at}/{number}".encode() for at, number in picks]


@pytest.mark.slow
def test_a_hundred_thousand_entries_are_one_ordered_answer(bucket: Bucket) -> None:
    objects = samples(500, size_bytes=20)
    fill(bucket, objects)
    order = random.Random(1).choices(list(objects), k=100_000)
    batch = bucket.get_batch(order)
    assert len(batch) == 100_000
    for at, item in enumerate(batch):
        assert item.index == at
        assert item.tobytes() == objects[order[at]]
    assert at == 99_999


@pytest.mark.parametrize("count", [9_999, 10_000, 10_001, 20_000])
def test_batches_around_the_size_of_a_request_are_whole(client: Client, bucket: Bucket, count: int) -> None:
    fill(bucket, {"a": b"x", "b": b"yz"})
    entries = [Entry(bucket.name, "ab"[at % 2]) for at in range(count)]
    assert client.get_batch(entries).tobytes() == [(b"x", b"yz")[at % 2] for at in range(count)]


@pytest.mark.slow
def test_an_item_of_a_later_part_has_its_index_in_the_whole_batch(bucket: Bucket) -> None:
    bucket.put("a", b"x")
    items = list(bucket.get_batch(["a"] * 10_000 + ["missing"] + ["a"] * 10, on_error="placeholder"))
    assert [item.index for item in items] == list(range(10_011))
    assert [item.index for item in items if not item.ok] == [10_000]
    with pytest.raises(errors.ObjectNotFound, match=r"entry 10000\b"):
        list(bucket.get_batch(["a"] * 10_000 + ["missing"]))


def test_a_batch_is_consumed_once(bucket: Bucket) -> None:
    bucket.put("a", b"1")
    batch = bucket.get_batch(["a", "a"])
    assert contents(batch) == [b"1", b"1"]
    for again in (list, Batch.tobytes):
        with pytest.raises(errors.InvalidRequest, match="this batch has been read"):
            again(batch)


@pytest.mark.parametrize("names", ["a name", b"bytes", [1], [None], ["a", None]], ids=repr)
def test_names_that_are_not_a_list_of_strings_are_refused_at_once(bucket: Bucket, names: object) -> None:
    with pytest.raises((errors.InvalidRequest, TypeError)):
        bucket.get_batch(names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore"},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": float("inf")},
        {"timeout_s": float("nan")},
        {"assembly": "x"},
        {"colocation": "x"},
    ],
    ids=repr,
)
def test_options_that_mean_nothing_are_refused_at_once(bucket: Bucket, options: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidRequest):
        bucket.get_batch([], **options)

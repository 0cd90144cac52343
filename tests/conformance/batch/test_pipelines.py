"""get_batches: several batches under way, each whole, whatever becomes of the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from conformance_kit import contents, fill, samples

from ais_loader import Bucket, Client, Entry, errors


@pytest.fixture
def filled(bucket: Bucket) -> dict[str, bytes]:
    objects = samples(200, size_bytes=30_000)
    fill(bucket, objects)
    return objects


def batches_of(bucket: Bucket, names: list[str], size: int) -> list[list[Entry]]:
    return [[Entry(bucket.name, name) for name in names[at : at + size]] for at in range(0, len(names), size)]


@pytest.mark.parametrize("in_flight", [1, 2, 3, 10, 100])
def test_batches_come_in_order_and_whole(
    client: Client, bucket: Bucket, filled: dict[str, bytes], in_flight: int
) -> None:
    batches = batches_of(bucket, list(filled), 16)
    found = [contents(batch) for batch in client.get_batches(batches, in_flight=in_flight)]
    assert found == [[filled[entry.name] for entry in batch] for batch in batches]


def test_no_batches_and_empty_batches(client: Client) -> None:
    assert list(client.get_batches([])) == []
    assert [list(batch) for batch in client.get_batches([[], []])] == [[], []]


def test_an_endless_plan_is_drawn_only_as_far_as_is_in_flight(
    client: Client, bucket: Bucket, filled: dict[str, bytes]
) -> None:
    drawn = 0

    def endless() -> Iterator[list[Entry]]:
        nonlocal drawn
        for batch in itertools.cycle(batches_of(bucket, list(filled), 10)):
            drawn += 1
            yield batch

    running = client.get_batches(endless(), in_flight=4)
    for at, batch in enumerate(itertools.islice(running, 30)):
        assert len(contents(batch)) == 10
        assert drawn <= at + 4
    running.close()
    assert drawn <= 34
    with pytest.raises(errors.InvalidRequest, match="in_flight"):
        client.get_batches([], in_flight=0)


def test_a_batch_left_half_read_does_no_harm_to_the_next(
    client: Client, bucket: Bucket, filled: dict[str, bytes]
) -> None:
    batches = batches_of(bucket, list(filled), 40)
    for at, batch in enumerate(client.get_batches(batches, in_flight=3)):
        expected = [filled[entry.name] for entry in batches[at]]
        if at % 2:
            assert next(batch).tobytes() == expected[0]
        else:
            assert contents(batch) == expected


def test_a_batch_that_fails_does_no_harm_to_the_next(client: Client, bucket: Bucket, filled: dict[str, bytes]) -> None:
    batches = batches_of(bucket, list(filled), 20)
    batches[1][7] = Entry(bucket.name, "nope")
    batches[4][0] = Entry("no-such-bucket", "nope")
    failed = []
    for at, batch in enumerate(client.get_batches(batches, in_flight=3)):
        try:
            assert contents(batch) == [filled[entry.name] for entry in batches[at]]
        except errors.NotFound as error:
            failed.append((at, type(error)))
    assert failed == [(1, errors.ObjectNotFound), (4, errors.BucketNotFound)]


def test_batches_can_be_kept_and_read_later_in_any_order(
    client: Client, bucket: Bucket, filled: dict[str, bytes]
) -> None:
    batches = batches_of(bucket, list(filled), 20)
    kept = list(client.get_batches(batches, in_flight=3))
    for at in reversed(range(len(kept))):
        assert contents(kept[at]) == [filled[entry.name] for entry in batches[at]]


@pytest.mark.slow
def test_many_batches_are_read_in_turns(bucket: Bucket, filled: dict[str, bytes]) -> None:
    names = list(filled)
    orders = [names[at:] + names[:at] for at in range(0, 200, 10)]
    reading = [bucket.get_batch(order) for order in orders]
    for at in range(200):
        for batch, order in zip(reading, orders, strict=True):
            assert next(batch).tobytes() == filled[order[at]]


@pytest.mark.parametrize("in_flight", [0, -1])
def test_fewer_than_one_in_flight_is_refused(client: Client, in_flight: int) -> None:
    with pytest.raises(errors.InvalidRequest):
        next(client.get_batches([[]], in_flight=in_flight))


def test_an_entry_that_cannot_be_parsed_raises_where_the_batch_is_begun(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    running = client.get_batches([[f"ais://{bucket.name}/a"], ["nonsense"]], in_flight=1)
    assert contents(next(running)) == [b"1"]
    with pytest.raises(errors.InvalidRequest):
        next(running)

"""Entries of several ranges: one item each, of one version of the object, whichever way its frames come."""

from __future__ import annotations

import pytest
from conformance_kit import MiB, contents

from ais_loader import Bucket, Client, Entry, Status, WithOpaque, errors
from ais_loader.testing import seeded_bytes
from tests.tar_kit import packed_tar

DATA = seeded_bytes(5 * MiB + 11)
SMALL = seeded_bytes(3000, seed=1)
RANGES: tuple[tuple[int, int | None], ...] = ((0, 44), (1000, 500), (999, 3), (2990, None))


def cut(data: bytes, ranges: tuple[tuple[int, int | None], ...]) -> bytes:
    return b"".join(data[start:] if length is None else data[start : start + length] for start, length in ranges)


@pytest.mark.parametrize("ordered", [True, False])
def test_ranges_of_an_entry_are_joined_in_their_order(client: Client, bucket: Bucket, ordered: bool) -> None:
    bucket.put("large", DATA)
    bucket.put("small", SMALL)
    bucket.put("s.tar", packed_tar({"m": SMALL}))
    large = ((5 * MiB, None), (0, 44), (7, 4 * MiB))  # of several frames, and in pieces
    entries = [
        Entry(bucket.name, "small", ranges=RANGES),
        Entry(bucket.name, "large", ranges=large),
        Entry(bucket.name, "small"),
        Entry(bucket.name, "s.tar", "m", ranges=RANGES),
        Entry(bucket.name, "small", ranges=((3, 5),)),
        Entry(bucket.name, "small", ranges=((3000, None), (0, 0))),
    ]
    wanted = [cut(SMALL, RANGES), cut(DATA, large), SMALL, cut(SMALL, RANGES), SMALL[3:8], b""]
    batch = client.get_batch(entries, ordered=ordered)
    assert {item.index: (item.entry.name, item.tobytes()) for item in batch} == {
        at: (entry.name, data) for at, (entry, data) in enumerate(zip(entries, wanted, strict=True))
    }
    assert client.get_batch(entries, ordered=ordered).tobytes() == wanted
    packed = client.get_batch(entries, ordered=ordered).packed()
    assert [packed[at].tobytes() for at in range(len(packed))] == wanted


def test_an_entry_fails_as_the_first_of_its_ranges_does_and_the_others_come(client: Client, bucket: Bucket) -> None:
    bucket.put("a", SMALL)
    entries = [
        Entry(bucket.name, "a", ranges=((0, 1), (3001, 1), (0, 2))),
        Entry("no-such-bucket", "nothing", ranges=((0, 1), (1, 1))),
        Entry(bucket.name, "a", ranges=((0, 1), (2999, 1))),
    ]
    items = list(client.get_batch(entries, on_error="placeholder"))
    assert [item.status for item in items] == [Status.RANGE, Status.NOT_FOUND, Status.OK]
    assert items[2].data == SMALL[:1] + SMALL[-1:]
    batch = client.get_batch(entries, on_error="placeholder")
    assert batch.tobytes() == [None, None, SMALL[:1] + SMALL[-1:]]
    assert {index: type(error) for index, error in batch.failures.items()} == {
        0: errors.RangeError,
        1: errors.BucketNotFound,
    }
    with pytest.raises(errors.RangeError, match="entry 0"):
        list(client.get_batch(entries))


def test_ranges_of_one_entry_are_never_of_two_versions(client: Client, bucket: Bucket) -> None:
    old, new = bytes(2 * MiB), b"\x01" * (2 * MiB)
    first = bucket.put("a", old)
    entry = Entry(bucket.name, "a", ranges=((0, MiB), (MiB, None)))
    batch = client.get_batch([entry] * 8, on_error="placeholder")
    bucket.put("a", new)
    for item in batch:
        assert item.tobytes() == old or isinstance(item.error, errors.ObjectNotFound), item.error
    assert contents(client.get_batch([entry])) == [new]
    pinned = Entry(bucket.name, "a", version=first.version, ranges=entry.ranges)
    with pytest.raises(errors.ObjectNotFound):
        client.get_batch([pinned]).tobytes()


def test_a_range_beside_ranges_is_refused(client: Client, bucket: Bucket) -> None:
    for wrong in (Entry("b", "a", start=1, ranges=((0, 1),)), Entry("b", "a", ranges=())):
        with pytest.raises(errors.InvalidRequest, match="ranges"):
            client.get_batch([wrong])


def test_a_value_rides_with_each_batch_of_a_pipeline(client: Client, bucket: Bucket) -> None:
    bucket.put_many([("a", b"1"), ("b", b"2")])
    asked = [WithOpaque([Entry(bucket.name, name)], {"mine": name}) for name in "ab"]
    found = [(batch.opaque, batch.tobytes()) for batch in client.get_batches([*asked, [Entry(bucket.name, "a")]])]
    assert found == [({"mine": "a"}, [b"1"]), ({"mine": "b"}, [b"2"]), (None, [b"1"])]


def test_bytes_of_a_whole_batch_leave_the_errors_of_what_is_missing(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    batch = bucket.get_batch(["a", "b", "a"], on_error="placeholder")
    assert batch.tobytes() == [b"1", None, b"1"]
    [(index, error)] = batch.failures.items()
    assert (index, type(error)) == (1, errors.ObjectNotFound)

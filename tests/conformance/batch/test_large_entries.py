"""Entries larger than a frame, and the limit on what one entry of a batch may be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from conformance_kit import MiB, contents, fill

from ais_loader import Bucket, Client, Entry, Status, errors
from ais_loader.testing import SeededObjects

SIZES = [5 * MiB, 10, 20 * MiB + 1, 0, 8 * MiB, 100_000, 4 * MiB + 1, 6 * MiB, 3]
MIXED = SeededObjects({f"{at}": (size, at) for at, size in enumerate(SIZES)})


@pytest.fixture
def mixed(bucket: Bucket) -> Mapping[str, bytes]:
    fill(bucket, MIXED)
    return MIXED


@pytest.mark.slow
def test_large_entries_arrive_whole_among_small_ones(bucket: Bucket, mixed: Mapping[str, bytes]) -> None:
    order = random.Random(5).choices(list(mixed), k=14)
    for item, name in zip(bucket.get_batch(order), order, strict=True):
        assert item.tobytes() == mixed[name]


@pytest.mark.slow
def test_large_entries_can_be_taken_as_bytes_or_packed(bucket: Bucket, mixed: Mapping[str, bytes]) -> None:
    assert bucket.get_batch(list(mixed)).tobytes() == list(mixed.values())
    packed = bucket.get_batch(list(mixed)).packed()
    assert [packed[at].tobytes() for at in range(len(packed))] == list(mixed.values())


def test_a_batch_can_be_left_in_the_middle_of_large_entries(bucket: Bucket, mixed: Mapping[str, bytes]) -> None:
    batch = bucket.get_batch(["2", "7", "0"])
    assert next(batch).tobytes() == mixed["2"]
    batch.close()
    assert list(batch) == []
    assert contents(bucket.get_batch(["1", "4"])) == [mixed["1"], mixed["4"]]


@pytest.mark.slow
def test_a_large_entry_that_is_replaced_while_it_is_read_is_one_version_or_the_other(
    client: Client, bucket: Bucket
) -> None:
    versions = [bytes([number]) * (12 * MiB) for number in range(3)]
    bucket.put("a", versions[0])
    batch = bucket.get_batch(["a"] * 6)
    seen = [next(batch).tobytes()]
    for version in versions[1:]:
        bucket.put("a", version)
        seen.append(next(batch).tobytes())
    seen += contents(batch)
    assert set(seen) <= set(versions)
    assert seen[0] == versions[0]
    assert bucket.get("a") == versions[2]


@pytest.mark.slow
@pytest.mark.sampled(3)
def test_an_entry_over_256_mib_fails_in_a_batch_and_is_read_in_ranges_or_by_get(
    client: Client, bucket: Bucket, tmp_path: Path
) -> None:
    size = 257 * MiB
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(size)
        for at in (0, 100 * MiB, size - 4):
            file.seek(at)
            file.write(b"mark")
    bucket.put("huge", tmp_path / "sparse")
    bucket.put("small", b"beside")
    names = ["small", "huge", "small"]
    items = list(bucket.get_batch(names, on_error="placeholder"))
    assert [item.status for item in items] == [Status.OK, Status.FAILED, Status.OK]
    assert isinstance(items[1].error, errors.ItemTooLarge)
    assert "range" in str(items[1].error)
    with pytest.raises(errors.ItemTooLarge):
        list(bucket.get_batch(names))
    too_long = Entry(bucket.name, "huge", start=0, length=256 * MiB + 1)
    [item] = client.get_batch([too_long], on_error="placeholder")
    assert isinstance(item.error, errors.ItemTooLarge)
    ranges = [
        Entry(bucket.name, "huge", start=100 * MiB, length=4),
        Entry(bucket.name, "huge", start=size - 4),
        Entry(bucket.name, "huge", start=0, length=256 * MiB),
        Entry(bucket.name, "huge", start=MiB),
    ]
    found = [(bytes(item.data[:4]), len(item.data)) for item in client.get_batch(ranges)]
    assert found == [(b"mark", 4), (b"mark", 4), (b"mark", 256 * MiB), (bytes(4), 256 * MiB)]
    whole = bucket.get("huge")
    assert len(whole) == size
    assert [whole[at : at + 4] for at in (0, 100 * MiB, size - 4)] == [b"mark"] * 3
    assert whole.count(0) == size - 12
    assert bucket.get("huge", start=1, length=size - 2, verify=True) == whole[1:-1]


@pytest.mark.slow
def test_pieces_of_one_batch_do_not_mix_with_those_of_another(bucket: Bucket, mixed: Mapping[str, bytes]) -> None:
    batches = [bucket.get_batch([name] * 2) for name in ("0", "4", "7")]
    for items in itertools.zip_longest(*batches):
        assert [item.tobytes() for item in items] == [mixed["0"], mixed["4"], mixed["7"]]

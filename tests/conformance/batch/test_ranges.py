"""Byte ranges in batches: exact, verified when asked, and cheap beside whole entries."""

from __future__ import annotations

import random

import pytest
from conformance_kit import MiB, contents

from ais_loader import Bucket, Client, Entry
from ais_loader.testing import seeded_bytes


def cut(data: bytes, start: int, length: int | None) -> bytes:
    return data[start:] if length is None else data[start : start + length]


@pytest.mark.parametrize("verify_ranges", [False, True])
@pytest.mark.parametrize("size", [0, 1, 5, 262_143, 262_144, 262_145, 3 * MiB + 7])
def test_edges_of_ranges_are_exact(client: Client, bucket: Bucket, size: int, verify_ranges: bool) -> None:
    data = seeded_bytes(size)
    bucket.put("a", data)
    near = (0, 1, 262_143, 262_144, 262_145, size // 2, size - 1, size)
    edges = sorted({edge for edge in near if 0 <= edge <= size})
    ranges: list[tuple[int, int | None]] = [(start, None) for start in edges]
    ranges += [(start, stop - start) for start in edges for stop in edges if start <= stop]
    entries = [Entry(bucket.name, "a", start=start, length=length) for start, length in ranges]
    found = contents(client.get_batch(entries, verify_ranges=verify_ranges))
    assert found == [cut(data, *each) for each in ranges]


def test_a_range_that_starts_at_the_end_is_empty(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"12345")
    bucket.put("empty", b"")
    entries = [
        Entry(bucket.name, "a", start=5),
        Entry(bucket.name, "a", start=5, length=0),
        Entry(bucket.name, "empty", start=0),
        Entry(bucket.name, "empty", start=0, length=0),
        Entry(bucket.name, "a", start=2, length=0),
    ]
    assert contents(client.get_batch(entries)) == [b""] * 5


@pytest.mark.parametrize("verify_ranges", [False, True])
def test_ranges_and_whole_entries_mix(client: Client, bucket: Bucket, verify_ranges: bool) -> None:
    rng = random.Random(7)
    data = {f"{at}": seeded_bytes(rng.choice([10, 3000, 300_000, 2 * MiB, 5 * MiB]), seed=at) for at in range(12)}
    for name, content in data.items():
        bucket.put(name, content)
    entries = []
    for _ in range(60):
        name = rng.choice(list(data))
        start = rng.choice([0, rng.randint(0, len(data[name]))])
        length = rng.choice([None, rng.randint(0, len(data[name]) - start)])
        entries.append(Entry(bucket.name, name, start=start, length=length))
    found = contents(client.get_batch(entries, verify_ranges=verify_ranges))
    assert found == [cut(data[entry.name], entry.start, entry.length) for entry in entries]


@pytest.mark.slow
def test_a_large_range_travels_in_pieces_and_arrives_whole(client: Client, bucket: Bucket) -> None:
    data = seeded_bytes(12 * MiB)
    bucket.put("a", data)
    entries = [
        Entry(bucket.name, "a", start=1, length=10 * MiB),
        Entry(bucket.name, "a", start=12 * MiB - 5),
        Entry(bucket.name, "a", start=MiB + 3),
    ]
    for verify_ranges in (False, True):
        assert contents(client.get_batch(entries, verify_ranges=verify_ranges)) == [
            data[1 : 1 + 10 * MiB],
            data[-5:],
            data[MiB + 3 :],
        ]


def test_many_small_ranges_of_one_large_object(client: Client, bucket: Bucket) -> None:
    data = seeded_bytes(8 * MiB)
    bucket.put("shard", data)
    starts = random.Random(3).sample(range(8 * MiB - 10_000), 500)
    entries = [Entry(bucket.name, "shard", start=start, length=10_000) for start in starts]
    assert client.get_batch(entries).tobytes() == [data[start : start + 10_000] for start in starts]

"""Single reads, head and delete: ranges to the byte, nothing silently shorter."""

from __future__ import annotations

import pytest
from conformance_kit import MiB

from ais_loader import Bucket, errors
from ais_loader.testing import seeded_bytes

SIZES = [0, 1, 1000, 300_000, 6 * MiB + 3]


def ranges_of(size: int) -> list[tuple[int, int | None]]:
    """Every kind of range that lies within `size` bytes, the edges above all."""
    found: list[tuple[int, int | None]] = [(0, None), (0, 0), (0, size), (size, None), (size, 0)]
    if size:
        found += [(0, 1), (size - 1, 1), (size - 1, None), (size // 2, size - size // 2), (size // 3, size // 3)]
    return found


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_ranges_are_exact(bucket: Bucket, size: int, verify: bool) -> None:
    data = seeded_bytes(size)
    bucket.put("a", data)
    for start, length in ranges_of(size):
        stop = size if length is None else start + length
        assert bucket.get("a", start=start, length=length, verify=verify) == data[start:stop], (start, length)


@pytest.mark.parametrize("size", SIZES)
def test_ranges_that_leave_the_object_are_refused_and_never_shortened(bucket: Bucket, size: int) -> None:
    bucket.put("a", seeded_bytes(size))
    for start, length in [
        (size + 1, None),
        (size + 1, 0),
        (size, 1),
        (0, size + 1),
        (1, size),
        (-1, None),
        (-1, 1),
        (0, -1),
        (0, -5),
        (2**63, None),
        (2**70, 1),
        (0, 2**63),
        (1, 2**80),
    ]:
        with pytest.raises(errors.RangeError):
            bucket.get("a", start=start, length=length)


def test_a_whole_object_past_a_range_check_is_still_whole(bucket: Bucket) -> None:
    bucket.put("a", b"0123456789")
    assert bucket.get("a", start=0, length=10) == bucket.get("a") == b"0123456789"


def test_an_object_that_is_not_there_is_not_found(bucket: Bucket) -> None:
    bucket.put("a", b"")
    for call in (bucket.get, bucket.head, bucket.delete):
        with pytest.raises(errors.ObjectNotFound, match="nope"):
            call("nope")
    with pytest.raises(errors.ObjectNotFound):
        bucket.get("nope", start=5, length=1)


def test_a_deleted_object_is_gone_for_every_call(bucket: Bucket) -> None:
    bucket.put("a", b"1")
    bucket.delete("a")
    for call in (bucket.get, bucket.head, bucket.delete):
        with pytest.raises(errors.ObjectNotFound):
            call("a")
    assert list(bucket.objects()) == []
    bucket.put("a", b"2")
    assert bucket.get("a") == b"2"


def test_a_member_is_never_answered_with_the_archive(bucket: Bucket) -> None:
    bucket.put("a.tar", b"not really")
    bucket.put("a.bin", b"nor this")
    with pytest.raises(errors.ArchiveDamaged, match="byte 10"):
        bucket.get("a.tar", member="x")
    with pytest.raises(errors.NotAnArchive, match=r"'a\.bin' has no members"):
        bucket.get("a.bin", member="x")


def test_an_error_says_which_object_in_which_bucket(bucket: Bucket) -> None:
    with pytest.raises(errors.ObjectNotFound) as caught:
        bucket.head("some/name")
    assert "some/name" in str(caught.value)
    assert bucket.name in str(caught.value)


def test_an_error_about_a_very_long_name_arrives_as_itself(bucket: Bucket) -> None:
    for name in ("x" * 100_000, "é" * 20_000):
        with pytest.raises(errors.ObjectNotFound):
            bucket.head(name)
        with pytest.raises(errors.InvalidName):
            bucket.put(name, b"")

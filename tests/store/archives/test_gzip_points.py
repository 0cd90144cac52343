"""Reading a gzip file from its middle: at every bit that a block may begin at, across members, and by any plan."""

from __future__ import annotations

import gzip
import random
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.store.archives.errors import ArchiveDamaged, IndexDamaged
from storage_node.store.archives.gzip_points import GzipPoints, _aligned, build_gzip_points
from storage_node.store.archives.member import DEFAULT_LIMITS
from storage_node.store.archives.source import BytesSource
from tests.store.archives.archive_kit import content


def text(seed: int, size: int) -> bytes:
    """Packs to a third: its blocks begin at any bit."""
    source = random.Random(seed)
    words = [bytes(source.choices(b"abcdefgh ", k=source.randrange(2, 9))) for _ in range(3000)]
    return b" ".join(source.choices(words, k=size // 4))[:size]


CONTENT = text(1, 5_000_000) + content(2, 3_000_000) + bytes(3_000_000) + text(3, 9_000_000)
THIRD = len(CONTENT) // 3
PACKED = b"".join(gzip.compress(CONTENT[at : at + THIRD], 1) for at in range(0, len(CONTENT), THIRD)) + bytes(20)
PLAN = build_gzip_points(BytesSource(PACKED), len(CONTENT))
HEAD_BYTES, POINT_BYTES = 35, 18
POINTS = struct.unpack_from("<I", PLAN, HEAD_BYTES - 4)[0]


def points(plan: bytes = PLAN, packed: bytes = PACKED) -> GzipPoints:
    return GzipPoints(BytesSource(packed), memoryview(plan), len(CONTENT), DEFAULT_LIMITS)


@pytest.mark.parametrize("bits", range(1, 8))
def test_data_that_begins_at_any_bit_is_brought_into_place(bits: int) -> None:
    deflater = zlib.compressobj(wbits=-15)
    data = deflater.compress(CONTENT[:5000]) + deflater.flush()
    before = random.Random(bits).getrandbits(8 - bits)  # of another block
    shifted = (int.from_bytes(data, "little") << 8 - bits | before).to_bytes(len(data) + 1, "little")
    assert zlib.decompressobj(-15).decompress(_aligned(bits, shifted[0]) + shifted[1:]) == CONTENT[:5000]


def test_points_begin_at_odd_and_even_bits_and_lie_near_each_other() -> None:
    bits = {PLAN[HEAD_BYTES + POINT_BYTES * number + 16] for number in range(POINTS)}
    assert {octet % 2 for octet in bits} == {0, 1}
    assert points().stretch_bytes < 4 << 20  # points lie between blocks, and zeros make long ones


def test_what_begins_at_a_point_is_read_from_there() -> None:
    view = points()
    for number in range(POINTS):
        at = struct.unpack_from("<Q", PLAN, HEAD_BYTES + POINT_BYTES * number + 8)[0]
        for start in (max(0, at - 1), at, min(at + 1, len(CONTENT))):
            assert b"".join(view.pieces(start, min(start + 50, len(CONTENT)))) == CONTENT[start : start + 50]


@settings(max_examples=30, deadline=None)
@given(start=st.integers(0, len(CONTENT)), length=st.integers(0, 200_000))
def test_any_range_is_that_of_the_content(start: int, length: int) -> None:
    stop = min(start + length, len(CONTENT))
    assert b"".join(points().pieces(start, stop)) == CONTENT[start:stop]


def test_all_of_it_may_be_read_from_the_first_point_on() -> None:
    assert b"".join(points().pieces(0, len(CONTENT))) == CONTENT


def test_a_file_that_ends_too_early_is_told() -> None:
    with pytest.raises(IndexDamaged):
        points(packed=PACKED[: len(PACKED) // 2])
    view = points()
    view._source = BytesSource(PACKED[: len(PACKED) // 2])
    with pytest.raises(ArchiveDamaged, match="ends"):
        list(view.pieces(len(CONTENT) - 10, len(CONTENT)))
    with pytest.raises(ArchiveDamaged, match="ends within its data"):
        list(view.pieces(THIRD, len(CONTENT)))


@settings(max_examples=100, deadline=None)
@given(
    flips=st.lists(
        st.tuples(st.integers(0, HEAD_BYTES + POINT_BYTES * POINTS - 1), st.integers(1, 255)), min_size=1, max_size=3
    ),
    start=st.integers(0, len(CONTENT) - 1000),
)
def test_a_plan_that_lies_gives_a_typed_error_or_as_many_bytes_as_were_asked_for(
    flips: list[tuple[int, int]], start: int
) -> None:
    plan = bytearray(PLAN)
    for at, mask in flips:
        plan[at] ^= mask
    try:
        got = b"".join(points(bytes(plan)).pieces(start, start + 1000))
    except (IndexDamaged, ArchiveDamaged):
        return
    assert len(got) == 1000

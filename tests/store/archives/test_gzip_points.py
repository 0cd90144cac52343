"""Reading a gzip file from its middle: at every bit that a block may begin at, across members, and by any plan."""

from __future__ import annotations

import gzip
import random
import struct
import threading
import zlib
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.errors import ArchiveDamaged, ArchiveIndexError
from storage_node.store.archives import gzip_points
from storage_node.store.archives.gzip_points import GzipPoints, _aligned, build_gzip_points
from storage_node.store.archives.source import BytesSource
from tests.example_count import examples
from tests.store.archives.archive_kit import content
from tests.table import table


def text(seed: int, size: int) -> bytes:
    """Packs to a third: its blocks begin at any bit."""
    source = random.Random(seed)
    words = [bytes(source.choices(b"abcdefgh ", k=source.randrange(2, 9))) for _ in range(3000)]
    chosen = np.random.default_rng(seed).integers(len(words), size=size // 4)  # each collection of tests waits for it
    return b" ".join(map(words.__getitem__, chosen.tolist()))[:size]


CONTENT = text(1, 5_000_000) + content(2, 3_000_000) + bytes(3_000_000) + text(3, 9_000_000)
THIRD = len(CONTENT) // 3
PACKED = b"".join(gzip.compress(CONTENT[at : at + THIRD], 1) for at in range(0, len(CONTENT), THIRD)) + bytes(20)
PLAN = build_gzip_points(BytesSource(PACKED), len(CONTENT))
POINTS = struct.unpack_from("<Q", PLAN)[0]
COLUMNS_BYTES = 8 + 25 * POINTS


def points(plan: bytes = PLAN, packed: bytes = PACKED, content_bytes: int = len(CONTENT)) -> GzipPoints:
    return GzipPoints(BytesSource(packed), memoryview(plan), content_bytes)


@table("bits", range(1, 8))
def test_data_that_begins_at_any_bit_is_brought_into_place(bits: int) -> None:
    deflater = zlib.compressobj(wbits=-15)
    data = deflater.compress(CONTENT[:5000]) + deflater.flush()
    before = random.Random(bits).getrandbits(8 - bits)  # of another block
    shifted = (int.from_bytes(data, "little") << 8 - bits | before).to_bytes(len(data) + 1, "little")
    assert zlib.decompressobj(-15).decompress(_aligned(bits, shifted[0]) + shifted[1:]) == CONTENT[:5000]


def test_points_begin_at_odd_and_even_bits_and_lie_near_each_other() -> None:
    bits = set(PLAN[COLUMNS_BYTES - POINTS : COLUMNS_BYTES])
    assert {octet % 2 for octet in bits} == {0, 1}
    assert points().stretch_bytes < 4 << 20  # points lie between blocks, and zeros make long ones


def test_what_begins_at_a_point_is_read_from_there() -> None:
    view = points()
    for number in range(POINTS):
        at = struct.unpack_from("<Q", PLAN, 8 + 8 * (POINTS + number))[0]
        for start in (max(0, at - 1), at, min(at + 1, len(CONTENT))):
            # Behind 32 KiB nothing reaches what was before the point.
            assert b"".join(view.pieces(start, min(start + 40_000, len(CONTENT)))) == CONTENT[start : start + 40_000]


def test_a_point_keeps_only_what_is_needed_of_the_bytes_before_it() -> None:
    sound = content(7, 4 << 20)
    plan = build_gzip_points(BytesSource(gzip.compress(sound, 6)), len(sound))
    assert len(plan) < 8 + 26 * struct.unpack_from("<Q", plan)[0]  # nothing in it repeats
    assert len(PLAN) < POINTS * (16 << 10)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    copies=st.lists(
        st.tuples(st.integers(3, 32_768), st.integers(3, 300), st.integers(0, 400)), min_size=1, max_size=60
    ),
    level=st.integers(1, 9),
)
def test_histories_hold_whatever_the_data_refers_to(copies: list[tuple[int, int, int]], level: int) -> None:
    """Copies from any distance, of any length, with fresh bytes between; small gaps, so that there are many points."""
    data = bytearray(content(5, 33_000))
    while len(data) < 250_000:
        for distance, length, fresh in copies:
            data += data[-distance:][:length] + content(len(data), fresh)
    whole = bytes(data)
    packed = gzip.compress(whole, level)
    with patch.object(gzip_points, "GAP_BYTES", 33 << 10):
        plan = build_gzip_points(BytesSource(packed), len(whole))
    view = GzipPoints(BytesSource(packed), memoryview(plan), len(whole))
    count = struct.unpack_from("<Q", plan)[0]
    for at in struct.unpack_from(f"<{count}Q", plan, 8 + 8 * count):
        stop = min(at + 40_000, len(whole))
        assert b"".join(view.pieces(at, stop)) == whole[at:stop]


def test_points_are_the_same_however_many_are_looked_for_at_once() -> None:
    with patch.object(gzip_points, "_POINTS_AT_ONCE", 5):
        assert build_gzip_points(BytesSource(PACKED), len(CONTENT)) == PLAN


def test_what_unpacks_to_nothing_counts_as_a_stretch_too() -> None:
    data = content(1, 1000)
    head, trailer = gzip.compress(b"")[:10], struct.pack("<LL", zlib.crc32(2 * data), 2000)
    stored = struct.pack("<HH", 1000, 1000 ^ 0xFFFF) + data
    empty = b"\0\0\0\xff\xff" * 100_000  # stored blocks
    packed = head + b"\0" + stored + empty + b"\1" + stored + trailer
    view = points(build_gzip_points(BytesSource(packed), 2000), packed, 2000)
    assert b"".join(view.pieces(0, 2000)) == data + data == gzip.decompress(packed)
    assert view.stretch_bytes >= len(empty)


def test_empty_gzip_members_take_no_points() -> None:
    data = content(1, 1000)
    packed = (gzip.compress(b"") * 3000).join([gzip.compress(data)] * 3)
    plan = build_gzip_points(BytesSource(packed), 3000)
    assert struct.unpack_from("<Q", plan) == (3,)
    view = points(plan, packed, 3000)
    assert [b"".join(view.pieces(at, at + 1000)) for at in (2000, 0, 1000)] == [data] * 3


class CountingSource(BytesSource):
    read_bytes = 0

    def pread(self, length: int, offset: int) -> bytes:
        data = super().pread(length, offset)
        self.read_bytes += len(data)
        return data


def test_what_is_asked_for_in_order_is_unpacked_once() -> None:
    source = CountingSource(PACKED)
    view = GzipPoints(source, memoryview(PLAN), len(CONTENT))
    for at in range(0, len(CONTENT), 10_000):
        stop = min(at + 9_000, len(CONTENT))
        assert b"".join(view.pieces(at, stop)) == CONTENT[at:stop]
    assert source.read_bytes < 1.1 * len(PACKED)


def test_readers_who_go_on_where_others_stopped_read_the_same() -> None:
    view = points()
    chosen = random.Random(4)
    ats = [at for start in (0, THIRD - 40_000, 12_000_000) for at in range(start, start + 90_000, 3_000)]
    failures: list[int] = []

    def read(mine: list[int]) -> None:
        failures.extend(at for at in mine if b"".join(view.pieces(at, at + 3_500)) != CONTENT[at : at + 3_500])

    threads = [threading.Thread(target=read, args=(chosen.sample(ats, len(ats)) + ats,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    assert failures == []


@settings(max_examples=30, deadline=None)
@given(start=st.integers(0, len(CONTENT)), length=st.integers(0, 200_000))
def test_any_range_is_that_of_the_content(start: int, length: int) -> None:
    stop = min(start + length, len(CONTENT))
    assert b"".join(points().pieces(start, stop)) == CONTENT[start:stop]


def test_all_of_it_may_be_read_from_the_first_point_on() -> None:
    assert b"".join(points().pieces(0, len(CONTENT))) == CONTENT


def test_a_file_that_ends_too_early_is_told() -> None:
    with pytest.raises(ArchiveIndexError):
        points(packed=PACKED[: len(PACKED) // 2])
    view = points()
    view._source = BytesSource(PACKED[: len(PACKED) // 2])  # as a file that has shrunk since
    with pytest.raises(ArchiveDamaged, match="ends"):
        list(view.pieces(len(CONTENT) - 10, len(CONTENT)))
    with pytest.raises(ArchiveDamaged, match="ends within its data"):
        list(view.pieces(THIRD, len(CONTENT)))


@settings(max_examples=examples(100), deadline=None)
@given(
    flips=st.lists(
        st.tuples(st.integers(0, COLUMNS_BYTES - 1) | st.integers(0, len(PLAN) - 1), st.integers(1, 255)),
        min_size=1,
        max_size=3,
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
    except (ArchiveIndexError, ArchiveDamaged):
        return
    assert len(got) == 1000

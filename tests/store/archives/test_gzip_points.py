"""Reading a gzip file from its middle: at every bit that a block may begin at, across members, and by any plan."""

from __future__ import annotations

import gzip
import random
import struct
import threading
import zlib
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.errors import ArchiveDamaged, ArchiveIndexError
from storage_node.store.archives import gzip_points
from storage_node.store.archives.gzip_points import GzipPoints, _aligned, build_gzip_points
from tests.example_count import examples
from tests.store.archives.archive_kit import BytesSource, content
from tests.table import table


def text(seed: int, size: int) -> bytes:
    """Packs to a third: its blocks begin at any bit."""
    source = random.Random(seed)
    words = [bytes(source.choices(b"abcdefgh ", k=source.randrange(2, 9))) for _ in range(3000)]
    chosen = np.random.default_rng(seed).integers(len(words), size=size // 4)
    return b" ".join(map(words.__getitem__, chosen.tolist()))[:size]


CONTENT_BYTES = 20_000_000
THIRD = CONTENT_BYTES // 3


@cache
def whole_content() -> bytes:
    return text(1, 5_000_000) + content(2, 3_000_000) + bytes(3_000_000) + text(3, 9_000_000)


@cache
def packed_content() -> bytes:
    data = whole_content()
    return b"".join(gzip.compress(data[at : at + THIRD], 1) for at in range(0, CONTENT_BYTES, THIRD)) + bytes(20)


@cache
def kept_plan() -> bytes:
    return build_gzip_points(BytesSource(packed_content()), CONTENT_BYTES)


def point_count() -> int:
    (count,) = struct.unpack_from("<Q", kept_plan())
    return int(count)


def columns_bytes() -> int:
    return 8 + 25 * point_count()


def points(plan: bytes | None = None, packed: bytes | None = None, content_bytes: int = CONTENT_BYTES) -> GzipPoints:
    source = BytesSource(packed_content() if packed is None else packed)
    return GzipPoints(source, memoryview(kept_plan() if plan is None else plan), content_bytes)


@pytest.mark.slow
@table("bits", range(1, 8))
def test_data_that_begins_at_any_bit_is_brought_into_place(bits: int) -> None:
    deflater = zlib.compressobj(wbits=-15)
    data = deflater.compress(whole_content()[:5000]) + deflater.flush()
    before = random.Random(bits).getrandbits(8 - bits)  # of another block
    shifted = (int.from_bytes(data, "little") << 8 - bits | before).to_bytes(len(data) + 1, "little")
    assert zlib.decompressobj(-15).decompress(_aligned(bits, shifted[0]) + shifted[1:]) == whole_content()[:5000]


@pytest.mark.slow
def test_points_begin_at_odd_and_even_bits_and_lie_near_each_other() -> None:
    bits = set(kept_plan()[columns_bytes() - point_count() : columns_bytes()])
    assert {octet % 2 for octet in bits} == {0, 1}
    assert points().stretch_bytes < 4 << 20  # points lie between blocks, and zeros make long ones


def test_what_begins_at_a_point_is_read_from_there() -> None:
    view = points()
    for number in range(point_count()):
        at = struct.unpack_from("<Q", kept_plan(), 8 + 8 * (point_count() + number))[0]
        for start in (max(0, at - 1), at, min(at + 1, CONTENT_BYTES)):
            # Behind 32 KiB nothing reaches what was before the point.
            assert (
                b"".join(view.pieces(start, min(start + 40_000, CONTENT_BYTES)))
                == whole_content()[start : start + 40_000]
            )


def test_a_point_keeps_only_what_is_needed_of_the_bytes_before_it() -> None:
    sound = content(7, 4 << 20)
    plan = build_gzip_points(BytesSource(gzip.compress(sound, 6)), len(sound))
    assert len(plan) < 8 + 26 * struct.unpack_from("<Q", plan)[0]  # nothing in it repeats
    assert len(kept_plan()) < point_count() * (16 << 10)


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


@pytest.mark.slow
def test_points_are_the_same_however_many_are_looked_for_at_once() -> None:
    with patch.object(gzip_points, "_POINTS_AT_ONCE", 5):
        assert build_gzip_points(BytesSource(packed_content()), CONTENT_BYTES) == kept_plan()


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
    source = CountingSource(packed_content())
    view = GzipPoints(source, memoryview(kept_plan()), CONTENT_BYTES)
    for at in range(0, CONTENT_BYTES, 10_000):
        stop = min(at + 9_000, CONTENT_BYTES)
        assert b"".join(view.pieces(at, stop)) == whole_content()[at:stop]
    assert source.read_bytes < 1.1 * len(packed_content())


def test_readers_who_go_on_where_others_stopped_read_the_same() -> None:
    view = points()
    chosen = random.Random(4)
    ats = [at for start in (0, THIRD - 40_000, 12_000_000) for at in range(start, start + 90_000, 3_000)]
    failures: list[int] = []

    def read(mine: list[int]) -> None:
        failures.extend(at for at in mine if b"".join(view.pieces(at, at + 3_500)) != whole_content()[at : at + 3_500])

    threads = [threading.Thread(target=read, args=(chosen.sample(ats, len(ats)) + ats,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
        assert not thread.is_alive()
    assert failures == []


@settings(max_examples=30, deadline=None)
@given(start=st.integers(0, CONTENT_BYTES), length=st.integers(0, 200_000))
def test_any_range_is_that_of_the_content(start: int, length: int) -> None:
    stop = min(start + length, CONTENT_BYTES)
    assert b"".join(points().pieces(start, stop)) == whole_content()[start:stop]


def test_all_of_it_may_be_read_from_the_first_point_on() -> None:
    assert b"".join(points().pieces(0, CONTENT_BYTES)) == whole_content()


def test_a_file_that_ends_too_early_is_told() -> None:
    with pytest.raises(ArchiveIndexError):
        points(packed=packed_content()[: len(packed_content()) // 2])
    view = points()
    view._source = BytesSource(packed_content()[: len(packed_content()) // 2])  # as a file that has shrunk since
    with pytest.raises(ArchiveDamaged, match="ends"):
        list(view.pieces(CONTENT_BYTES - 10, CONTENT_BYTES))
    with pytest.raises(ArchiveDamaged, match="ends within its data"):
        list(view.pieces(THIRD, CONTENT_BYTES))


@settings(max_examples=examples(100), deadline=None)
@given(
    flips=st.lists(
        st.tuples(st.booleans(), st.integers(0, 1 << 32), st.integers(1, 255)),
        min_size=1,
        max_size=3,
    ),
    start=st.integers(0, CONTENT_BYTES - 1000),
)
def test_a_plan_that_lies_gives_a_typed_error_or_as_many_bytes_as_were_asked_for(
    flips: list[tuple[bool, int, int]], start: int
) -> None:
    plan = bytearray(kept_plan())
    for in_columns, at, mask in flips:
        plan[at % (columns_bytes() if in_columns else len(plan))] ^= mask
    try:
        got = b"".join(points(bytes(plan)).pieces(start, start + 1000))
    except (ArchiveIndexError, ArchiveDamaged):
        return
    assert len(got) == 1000

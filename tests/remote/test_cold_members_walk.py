"""Walks of cold archives: they find what indexing the whole archive finds, from few bytes, and refuse the same."""

from __future__ import annotations

import io
import random
import struct
import tarfile
import zipfile
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ais_loader.errors import LoaderError, RangeError
from ais_loader.wire.cold_reads import near_ranges
from storage_node.remote.archives.cold_archives import hints_in
from storage_node.remote.archives.cold_index import ColdIndex, IndexSource
from storage_node.remote.archives.sparse_source import MissingBytes, SparseSource
from storage_node.remote.archives.tar_walk import TarWalk, index_directory
from storage_node.store.archives.archive import Archive, index_shard
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.kinds import ArchiveKind, kind_of_name
from tests.store.archives.archive_kit import BytesSource
from tests.store.archives.mutations import HARMS, Harm, harmed, tars, zips
from tests.table import table
from tests.tar_kit import packed_tar

NO_LIMIT = 1e6
"""Share of an archive that a walk may cost, for archives so small that every walk would cost too much."""


def walked(tar: bytes, *, share: float = 0.25, hints: Sequence[int] = (), name: str = "a.tar") -> tuple[TarWalk, int]:
    """Walk a tar; return the walk, and how often it had to wait for the remote storage."""
    walk, waits = TarWalk(name, len(tar), share=share, hints=hints), 0
    while ranges := walk.wanted():
        waits += 1
        for start, stop in ranges:
            assert 0 <= start < stop <= len(tar)
            walk.add(start, tar[start:stop])
        walk.advance()
    return walk, waits


def directory_of(data: bytes) -> MemberIndex:
    source, start, stop = SparseSource(len(data)), max(0, len(data) - 40), len(data)
    while True:
        source.add(start, data[start:stop])
        try:
            return index_directory(source)
        except MissingBytes as missing:
            start, stop = missing.start, missing.start + missing.length


def places(index: MemberIndex) -> list[tuple[str, int, int]]:
    return [(member.name, member.offset_bytes, member.size_bytes) for member in index]


def tar_of(sizes: Sequence[int], tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    return packed_tar(
        [(f"{at:06}.bin", random.randbytes(size)) for at, size in enumerate(sizes)], tar_format=tar_format
    )


def read_by_range(found: ColdIndex, data: bytes) -> dict[str, bytes]:
    """Return all members as the store reads them by range. Raises LoaderError."""
    read = {}
    for member in found.members:
        start, stop = found.range_of(member, 0, member.size_bytes)
        read[member.name] = bytes(found.taken(member, 0, member.size_bytes, memoryview(data)[start:stop]))
    return read


def members_of(data: bytes, name: str) -> dict[str, bytes]:
    index = index_shard(BytesSource(data), name)
    archive = Archive(BytesSource(data), index)
    return {member.name: b"".join(archive.pieces(member)) for member in index}


@table("name", tars())
def test_a_walk_finds_what_indexing_finds(name: str) -> None:
    tar = tars()[name]
    walk, _ = walked(tar, share=NO_LIMIT)
    assert places(walk.finish()) == places(index_shard(BytesSource(tar), "a.tar"))


@table("name", zips())
def test_the_directory_of_a_zip_is_enough(name: str) -> None:
    data = zips()[name]
    assert read_by_range(ColdIndex(directory_of(data), IndexSource.DIRECTORY), data) == members_of(data, "a.zip")


@given(harm=HARMS)
def test_a_harmed_archive_never_gives_other_bytes_than_a_stored_one(harm: Harm) -> None:
    name, data = harmed(harm)
    kind = kind_of_name(name)
    if kind not in (ArchiveKind.TAR, ArchiveKind.ZIP) or not data:
        return
    try:
        expected: dict[str, bytes] | None = members_of(data, name)
    except LoaderError:
        expected = None
    try:
        if kind is ArchiveKind.TAR:
            walk, _ = walked(data, share=NO_LIMIT, name=name)
            found = ColdIndex(walk.finish(), IndexSource.HEADERS)
        else:
            found = ColdIndex(directory_of(data), IndexSource.DIRECTORY)
        read = read_by_range(found, data)
    except LoaderError:
        read = None
    if kind is ArchiveKind.TAR:
        assert read == expected
    elif read is not None:
        # A zip is refused as a whole for one bad member when it is stored. Each member by itself is right, by its CRC.
        assert expected is None or read == expected


@given(st.lists(st.integers(0, 9000), max_size=60), st.integers(0, 1 << 32), st.sampled_from([0.05, 0.25, NO_LIMIT]))
@example([100_000] * 50, 0, 0.25)
def test_a_walk_is_complete_or_too_dear(sizes: list[int], seed: int, share: float) -> None:
    tar = tar_of(sizes, [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT][seed % 2])
    hints = sorted(random.Random(seed).sample(range(0, len(tar), 512), k=min(9, len(tar) // 512))) if seed % 3 else []
    walk, _ = walked(tar, share=share, hints=hints)
    if walk.is_complete:
        assert places(walk.finish()) == places(index_shard(BytesSource(tar), "a.tar"))
    else:
        assert walk.is_too_dear and share < NO_LIMIT


@pytest.mark.slow
@table(
    "sizes, most_share, most_waits",
    [
        ([100 << 10] * 640, 0.04, 45),
        ([1 << 20] * 64, 0.06, 35),
        ([7 << 20] * 9, 0.001, 12),
        ([size for _ in range(300) for size in (150_000, 300, 40)], 0.09, 50),
    ],
    ids=["640 x 100 KiB", "64 x 1 MiB", "9 x 7 MiB", "300 samples"],
)
def test_a_walk_costs_little_of_a_tar_of_large_members(sizes: list[int], most_share: float, most_waits: int) -> None:
    tar = tar_of(sizes)
    walk, waits = walked(tar)
    assert len(walk.finish()) == len(sizes)
    assert walk.read_bytes < most_share * len(tar)
    assert waits <= most_waits
    assert walk.requests <= 1.3 * len(sizes) + 10


@pytest.mark.slow
def test_a_tar_of_small_members_is_given_up_early() -> None:
    tar = tar_of([2000] * 8000)
    walk, _ = walked(tar)
    assert not walk.is_complete and walk.read_bytes < 0.05 * len(tar) and walk.requests < 200


def test_a_member_that_looks_like_a_tar_does_not_mislead() -> None:
    inner = tar_of([60_000] * 40)
    tar = packed_tar([(f"{at}.tar", inner) for at in range(30)])
    walk, _ = walked(tar)
    assert places(walk.finish()) == places(index_shard(BytesSource(tar), "a.tar"))


@pytest.mark.slow
def test_an_index_of_lhotse_saves_waiting() -> None:
    random.seed(5)
    tar = tar_of([size for _ in range(200) for size in (random.randrange(150_000, 250_000), 700)])
    index = index_shard(BytesSource(tar), "a.tar")
    offsets = [member.offset_bytes - 512 for member in index][::2]
    written = struct.pack(f"<{len(offsets) + 1}Q", *offsets, len(tar))
    hints = hints_in(written, len(tar))
    assert list(hints) == offsets
    walk, waits = walked(tar, hints=hints)
    assert places(walk.finish()) == places(index) and waits <= 20 and walk.read_bytes < 0.03 * len(tar)
    assert hints_in(written, len(tar) + 512) == () == hints_in(written[:-3], len(tar)) == hints_in(b"", len(tar))
    assert hints_in(struct.pack("<3Q", 512, 512, 2000), 2000) == () == hints_in(struct.pack("<2Q", 5, 2000), 2000)


def test_wrong_hints_are_dropped() -> None:
    tar = tar_of([100 << 10] * 200)
    walk, waits = walked(tar, hints=range(1024, len(tar), 100 << 10))
    assert len(walk.finish()) == 200 and walk.requests < 400 and waits < 60


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 900)), max_size=30),
    st.integers(0, 500),
    st.integers(1, 3000),
)
def test_near_ranges_hold_each_range_once(pairs: list[tuple[int, int]], gap_bytes: int, most_bytes: int) -> None:
    ranges = [(start, start + length) for start, length in pairs]
    groups = near_ranges(ranges, gap_bytes=gap_bytes, most_bytes=most_bytes)
    assert sorted(at for group in groups for at in group.of) == list(range(len(ranges)))
    for group in groups:
        assert group.start == min(ranges[at][0] for at in group.of)
        assert group.stop == max(ranges[at][1] for at in group.of)
        assert len(group.of) == 1 or group.stop - group.start <= most_bytes


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 80)), max_size=12), st.integers(0, 330), st.integers(0, 90)
)
def test_a_sparse_source_has_what_was_added_and_nothing_else(
    parts: list[tuple[int, int]], offset: int, length: int
) -> None:
    data = bytes(random.Random(1).randbytes(320))
    source = SparseSource(len(data))
    known: set[int] = set()
    for start, size in parts:
        source.add(start, data[start : start + size])
        known.update(range(start, min(start + size, len(data))))
    wanted = range(offset, min(offset + length, len(data)))
    if known.issuperset(wanted):
        assert source.pread(length, offset) == data[offset : offset + length]
    else:
        with pytest.raises(MissingBytes) as missing:
            source.pread(length, offset)
        assert missing.value.start == next(at for at in wanted if at not in known)


@pytest.mark.slow
def test_a_zip_of_many_members_takes_few_reads() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        for at in range(5000):
            made.writestr(f"en/{at:06}.txt", b"word " * (at % 50))
    data = packed.getvalue()
    assert read_by_range(ColdIndex(directory_of(data), IndexSource.DIRECTORY), data) == members_of(data, "a.zip")


def test_a_range_of_a_member_is_cut_out() -> None:
    data = zips()["zip, deflated"]
    found = ColdIndex(directory_of(data), IndexSource.DIRECTORY)
    member = found.members.find("last")
    start, stop = found.range_of(member, 10, 20)
    assert bytes(found.taken(member, 10, 20, memoryview(data)[start:stop])) == b"x" * 20
    with pytest.raises((LoaderError, RangeError)):
        found.taken(member, 10, 20, memoryview(data)[start : start + 20])

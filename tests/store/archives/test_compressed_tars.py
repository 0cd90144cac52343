"""Compressed tars: the same members as in the tar inside, at the cost of a stretch; damage and bombs are told."""

from __future__ import annotations

import gzip
import io
import itertools
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lz4.frame
import pytest
import xxhash
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ais_loader.errors import (
    ArchiveDamaged,
    ArchiveIndexError,
    ArchiveTooLarge,
    ArchiveUnsupported,
    LoaderError,
    MemberCorrupt,
    NotAnArchive,
    RangeError,
)
from ais_loader.extras import install_command
from storage_node.store.archives.archive import MAX_STRETCH_BYTES, Archive, ShardIndexer, index_shard, unpacked
from storage_node.store.archives.kinds import MAGIC_BYTES, ArchiveKind, recognise
from storage_node.store.archives.member import ArchiveLimits
from storage_node.store.archives.source import chunks_of
from storage_node.store.archives.zstd_frames import MAX_BLOCK_BYTES
from storage_node.store.checksum import crc32c
from tests.example_count import examples
from tests.store.archives.archive_kit import (
    NAMES,
    PACKERS,
    BytesSource,
    content,
    lz4_frame,
    make_tar,
    members_of,
    open_archive,
    packed_in_every_way,
    read_member,
    served,
    tar_members,
)
from tests.store.archives.seekable_zstd import SEEKABLE_MAGIC, SKIPPABLE_MAGIC, reframe
from tests.table import table

SIZES = (0, 1, 30_000, 700_000) * 5
FILES = [(name, content(i, size)) for i, (name, size) in enumerate(zip(NAMES, SIZES, strict=False))]
FILES.append(("text", b"compressible " * 60_000))
TAR = make_tar(FILES)


@cache
def ways() -> dict[str, tuple[str, bytes]]:
    """TAR as every packer packs it."""
    return packed_in_every_way(TAR)


@cache
def small() -> dict[str, tuple[str, bytes]]:
    return packed_in_every_way(make_tar([("a", content(1, 40_000)), ("b", b"text" * 2000), ("c", b"")]))


each_way = table("way", PACKERS)


@pytest.mark.slow
@each_way
def test_members_and_their_ranges_are_those_of_the_tar_inside(way: str) -> None:
    name, data = ways()[way]
    archive = open_archive(BytesSource(data), name)
    assert members_of(archive) == tar_members(TAR) == dict(FILES)
    for start, length in ((0, 10), (350_000, 70_000), (699_999, 1), (700_000, None), (123, None)):
        stop = None if length is None else start + length
        assert read_member(archive, NAMES[3], start, length) == FILES[3][1][start:stop]
    for start, length in ((700_001, None), (-1, 2), (0, -1), (699_999, 2)):
        with pytest.raises(RangeError, match="of a member of 700000 bytes"):
            read_member(archive, NAMES[3], start, length)


@pytest.mark.slow
@each_way
def test_the_index_made_as_bytes_pass_by_is_the_one_made_from_the_file(way: str) -> None:
    name, data = ways()[way]
    indexer = ShardIndexer(name)
    for start in range(0, len(data), 99_991):
        indexer.feed(memoryview(data)[start : start + 99_991])
    passed, made = indexer.finish(BytesSource(data)), index_shard(BytesSource(data), name)
    assert (list(passed), passed.content_bytes, passed.kind) == (list(made), made.content_bytes, made.kind)
    assert bytes(passed.plan) == bytes(made.plan)


class CountingSource(BytesSource):
    read_bytes = 0

    def pread(self, length: int, offset: int) -> bytes:
        data = super().pread(length, offset)
        self.read_bytes += len(data)
        return data


@pytest.mark.slow
@pytest.mark.parametrize("way", ["gzip", "zstd, seekable", "lz4, independent"])
def test_a_member_costs_about_itself_and_not_the_shard(way: str) -> None:
    name, pack = PACKERS[way]
    tar = make_tar([(f"{i:04}", content(i, 40_000)) for i in range(250)])
    source = CountingSource(pack(tar))
    index = index_shard(source, name)
    archive = Archive(source, index)
    source.read_bytes = 0
    assert read_member(archive, "0240") == content(240, 40_000)
    assert not archive.needs_copy
    assert archive.stretch_bytes < 2 << 20
    assert source.read_bytes < 3 << 20  # of 10 MB


class LargestRead(BytesSource):
    most = total = 0

    def pread(self, length: int, offset: int) -> bytes:
        data = super().pread(length, offset)
        self.most, self.total = max(self.most, len(data)), self.total + len(data)
        return data


@pytest.mark.parametrize("way", ["zstd, frames", "lz4, frames"])
def test_frames_that_are_skipped_cost_a_reader_nothing(way: str) -> None:
    """The table of a seekable file may have many MiB, and what others put between frames as many as they like."""
    name, pack = PACKERS[way]
    members = {f"{i}": content(i, 1000) for i in range(5)}
    one_by_one = make_tar(list(members.items()))
    borders = [*range(0, 5 * 1536, 1536), len(one_by_one)]
    parts = [pack(one_by_one[start:stop]) for start, stop in itertools.pairwise(borders)]
    skipped = struct.pack("<II", SKIPPABLE_MAGIC, 20 << 20) + bytes(20 << 20)
    source = LargestRead(skipped.join([*parts, b""]))
    index = index_shard(source, name)
    source.total = source.most = 0
    archive = Archive(source, index)
    for member, data in members.items():
        assert read_member(archive, member) == data
    assert source.most <= 2 << 20
    assert source.total <= 5 * 3 << 20


@pytest.mark.parametrize("way", ["zstd, one frame", "lz4, linked"])
def test_what_has_no_restart_points_is_read_through_a_copy(way: str) -> None:
    tar = make_tar([("a", content(1, 1000)), ("b", bytes(MAX_STRETCH_BYTES)), ("c", content(2, 1000))])
    name, data = PACKERS[way][0], PACKERS[way][1](tar)
    archive = open_archive(BytesSource(data), name, limits=ArchiveLimits(expansion=100_000))
    assert (archive.needs_copy, archive.stretch_bytes) == (True, len(tar))
    copy = BytesSource(b"".join(archive.content()))
    assert read_member(archive.on_copy(copy), "c") == content(2, 1000) == read_member(archive, "c")
    assert archive.on_copy(copy).file_range(archive.index.find("a")) == (tar.index(content(1, 1000)), 1000)


def test_a_small_shard_in_one_frame_needs_no_copy() -> None:
    name, data = ways()["zstd, one frame"]
    assert not open_archive(BytesSource(data), name).needs_copy


def test_threads_may_share_an_archive() -> None:
    for way in ("gzip", "zstd, seekable", "lz4, independent"):
        name, data = ways()[way]
        archive = open_archive(BytesSource(data), name)
        failures: list[str] = []

        def read(archive: Archive = archive, failures: list[str] = failures) -> None:
            failures += [name for name, data in FILES if read_member(archive, name) != data]

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
            assert not thread.is_alive()
        assert not failures


def bombs() -> Iterator[tuple[str, bytes]]:
    tar = make_tar([("zeros", bytes(40_000_000))])
    yield "s.tar.zst", zstandard.ZstdCompressor().compress(tar)
    yield "s.tar.gz", gzip.compress(tar, 9)
    yield "s.tar.lz4", bytes(lz4.frame.compress(tar, block_size=lz4.frame.BLOCKSIZE_MAX4MB))


@pytest.mark.slow
def test_a_bomb_is_stopped_long_before_it_has_unpacked() -> None:
    for name, bomb in bombs():
        pieces = 0
        with pytest.raises(ArchiveTooLarge, match="a bomb"):
            for piece in unpacked(
                recognise(name, bomb[:MAGIC_BYTES]), [bomb], ArchiveLimits(expansion=20, free_bytes=1 << 20)
            ):
                assert len(piece) <= 4 << 20
                pieces += len(piece)
        assert pieces <= (1 << 20) + 20 * len(bomb) < 9_000_000
        with pytest.raises(ArchiveTooLarge, match="a bomb"):
            index_shard(BytesSource(bomb), name, ArchiveLimits(expansion=20, free_bytes=1 << 20))


@pytest.mark.slow
def test_pieces_stay_small_whatever_a_block_claims() -> None:
    tar = make_tar([("zeros", bytes(20_000_000))])
    for name, data in packed_in_every_way(tar).values():
        kind = recognise(name, data[:MAGIC_BYTES])
        largest = max(len(piece) for piece in unpacked(kind, [data], ArchiveLimits(expansion=100_000)))
        assert largest <= (2 * MAX_BLOCK_BYTES if kind is ArchiveKind.TAR_ZST else 4 << 20)


@table("cut", [0, 3, 9, 200, 20_000, -1])
@table("way", PACKERS)
def test_a_stream_cut_short_is_told(way: str, cut: int) -> None:
    name, data = small()[way]
    data = data.rstrip(b"\0") if name.lower().endswith("tgz") else data
    with pytest.raises((ArchiveDamaged, NotAnArchive)):
        served(data[:cut], name)


def test_junk_between_frames_is_told() -> None:
    for way in ("gzip", "zstd, one frame", "lz4, linked"):
        name, data = small()[way]
        with pytest.raises(ArchiveDamaged, match="byte"):
            served(data + b"junk", name)


def test_variants_that_are_not_read_are_refused_by_name() -> None:
    dictionary = zstandard.train_dictionary(2000, [content(i % 7, 100) + b"common text" * 9 for i in range(300)])
    odd = bytes([0x80, 0x40])
    cases = {
        "needs a dictionary": zstandard.ZstdCompressor(dict_data=dictionary).compress(TAR),
        "legacy lz4": b"\x02\x21\x4c\x18" + bytes(100),
        "another version": b"\x04\x22\x4d\x18" + odd + bytes([xxhash.xxh32_intdigest(odd) >> 8 & 255]) + bytes(99),
    }
    for message, data in cases.items():
        name = "s.tar.zst" if "dictionary" in message else "s.tar.lz4"
        kind = ArchiveKind.TAR_ZST if "dictionary" in message else ArchiveKind.TAR_LZ4
        with pytest.raises(ArchiveUnsupported, match=message):
            list(unpacked(kind, [data]))
        with pytest.raises(LoaderError):
            served(data, name)
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    )
    stream = wide.compressobj()
    with pytest.raises(ArchiveTooLarge, match="needs a window of 134217728 bytes"):
        list(
            unpacked(ArchiveKind.TAR_ZST, [stream.compress(TAR) + stream.flush()], ArchiveLimits(window_bytes=1 << 20))
        )


@table("header", [b"\x00\xff", b"\x00\xa0", b"\xe0" + b"\xff" * 8, b"\xa0\0\0\0\x10"])
def test_a_frame_that_claims_a_huge_window_is_refused(header: bytes) -> None:
    with pytest.raises(ArchiveTooLarge, match="needs a window of"):
        list(unpacked(ArchiveKind.TAR_ZST, [b"\x28\xb5\x2f\xfd" + header + bytes(100)]))


@settings(max_examples=examples(250), deadline=None)
@given(
    way=st.sampled_from(sorted(PACKERS)),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_a_damaged_stream_gives_a_typed_error_or_bytes_of_the_checksum(way: str, flips: list[tuple[int, int]]) -> None:
    name, whole = small()[way]
    data = bytearray(whole)
    for at, mask in flips:
        data[at % len(data)] ^= mask
    try:
        archive = open_archive(BytesSource(bytes(data)), name)
    except LoaderError:
        return
    for member in archive.index:
        assert crc32c(read_member(archive, member)) == member.checksum


@settings(max_examples=examples(150), deadline=None)
@example(way="zstd, by its own tool, of unknown size", flips=[(4, 1)])  # now names a dictionary
@example(way="zstd, by its own tool, of unknown size", flips=[(4, 8)])  # now has a reserved bit
@example(way="zstd, by its own tool, of unknown size", flips=[(5, 0xF0)])  # now needs a large window
@given(
    way=st.sampled_from(sorted(PACKERS)),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_a_shard_that_changed_under_its_index_never_gives_wrong_members(way: str, flips: list[tuple[int, int]]) -> None:
    name, whole = small()[way]
    index = index_shard(BytesSource(whole), name)
    expected = members_of(Archive(BytesSource(whole), index))
    data = bytearray(whole)
    for at, mask in flips:
        data[at % len(data)] ^= mask
    archive = Archive(BytesSource(bytes(data)), index)
    for member in index:
        try:
            assert read_member(archive, member) == expected[member.name]
        except (ArchiveDamaged, MemberCorrupt):
            continue


def test_restart_points_that_lie_are_refused_and_never_lead_astray() -> None:
    for way in ("zstd, seekable", "lz4, independent", "gzip"):
        name, data = ways()[way]
        archive = open_archive(BytesSource(data), name)
        plan = bytes(archive.index.plan)
        for bad in (b"", plan[:7], plan[:-1], b"\xff" * 8 + plan[8:], plan[: len(plan) // 2]):
            with pytest.raises(ArchiveIndexError):
                Archive(BytesSource(data), archive.index.with_plan(archive.index.kind, bad))
        if way != "gzip":
            count = struct.unpack_from("<Q", plan)[0]
            moved = plan[:8] + struct.pack("<Q", 1) * count + plan[8 + 8 * count :]
            lying = Archive(BytesSource(data), archive.index.with_plan(archive.index.kind, moved))
            with pytest.raises((ArchiveDamaged, MemberCorrupt)):
                read_member(lying, "text")


def test_reframed_shards_are_what_standard_tools_read_and_their_table_is_right() -> None:
    once = b"".join(reframe(unpacked(ArchiveKind.TAR_GZ, chunks_of(BytesSource(gzip.compress(TAR, 1))))))
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(once), read_across_frames=True) as reader:
        assert reader.read() == TAR
    frames, flags, magic = struct.unpack("<IBI", once[-9:])
    assert (flags, magic) == (0, SEEKABLE_MAGIC)
    table = once[-9 - 8 * frames - 8 :]
    assert struct.unpack_from("<II", table) == (SKIPPABLE_MAGIC, 8 * frames + 9)
    packed_at, tar = 0, b""
    for number in range(frames):
        packed_bytes, size_bytes = struct.unpack_from("<II", table, 8 + 8 * number)
        tar += zstandard.ZstdDecompressor().decompress(once[packed_at : packed_at + packed_bytes])
        packed_at += packed_bytes
        assert size_bytes <= 256 << 10
    assert (tar, packed_at) == (TAR, len(once) - len(table))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=30),
    least=st.integers(1, 4000),
    more=st.integers(0, 9000),
    step=st.integers(1, 20_000),
)
@example(sizes=[30, 87, 513], least=1025, more=1032, step=1)  # "ustar" of a later frame lies where a tar's would be
def test_reframing_loses_nothing_wherever_it_cuts(sizes: list[int], least: int, more: int, step: int) -> None:
    tar = make_tar([(str(i), content(i, size)) for i, size in enumerate(sizes)])
    chunks = [tar[start : start + step] for start in range(0, len(tar), step)]
    shard = b"".join(reframe(chunks, min_frame_bytes=least, max_frame_bytes=least + more))
    assert b"".join(unpacked(ArchiveKind.TAR_ZST, [shard])) == tar
    assert served(shard, "s.tar.zst") == tar_members(tar)


def test_reframing_refuses_what_is_no_tar() -> None:
    with pytest.raises(ArchiveDamaged, match="no tar header"):
        list(reframe([b"no tar" * 1000]))
    with pytest.raises(ArchiveDamaged, match="the tar ends"):
        list(reframe([TAR[:90_000]]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "name"), [("zstandard", "s.tar.zst"), ("lz4", "s.tar.lz4"), ("indexed_gzip", "s.tar.gz")]
)
def test_a_missing_library_is_named_with_the_way_to_get_it(package: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(next(data for other, data in small().values() if other == name))
    code = (
        "import sys; sys.modules[sys.argv[1]] = None\n"
        "from storage_node.store.archives.archive import index_shard\n"
        "from ais_loader.errors import LibraryMissing\n"
        "from storage_node.store.archives.source import FdSource\n"
        "try: index_shard(FdSource(sys.stdin.fileno()), sys.argv[2])\n"
        "except LibraryMissing as error: print(error.kind, error)\n"
    )
    with (tmp_path / name).open("rb") as data:
        told = subprocess.run([sys.executable, "-c", code, package, name], stdin=data, capture_output=True, timeout=180)
    assert told.stdout.decode().startswith("library-missing"), told.stderr.decode()
    assert package in told.stdout.decode()
    assert install_command("archives") in told.stdout.decode()


def test_frames_of_lz4_hold_what_their_header_says() -> None:
    packed = bytes(lz4.frame.compress(TAR, store_size=True, block_linked=False))
    assert b"".join(unpacked(ArchiveKind.TAR_LZ4, [packed])) == TAR
    joined = lz4_frame(TAR, linked=True) + struct.pack("<II", 0x184D2A53, 5) + b"12345" + lz4_frame(b"", linked=False)
    assert b"".join(unpacked(ArchiveKind.TAR_LZ4, [joined])) == TAR

"""The file of an index: what is found in it, and that nothing but what was written is believed."""

from __future__ import annotations

import os
import random
import resource
import struct
import threading
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.errors import ArchiveIndexError, ArchiveIndexStale, MemberNotFound
from storage_node.store.archives import table as table_module
from storage_node.store.archives.archive import index_shard
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.index_format import HEADER_BYTES, ShardState
from storage_node.store.archives.kinds import ArchiveKind
from storage_node.store.archives.member import ArchiveLimits, Member
from storage_node.store.archives.table import MemberTable
from storage_node.store.archives.tar_index import TarIndexer
from storage_node.store.checksum import crc32c
from storage_node.store.format import Version
from tests.example_count import examples
from tests.store.archives.archive_kit import NAMES, BytesSource, content, in_zip, index_of, make_tar, served
from tests.table import table

SHARD = ShardState(Version(3, 77, 2), 123_456, 0xDEADBEEF)
BODY_CHECKSUM_AT, HEADER_CHECKSUM_AT = 44, 124


def saved(path: Path, names: tuple[str, ...] = NAMES) -> MemberIndex:
    index = index_of(make_tar([(name, content(i, 100 * i)) for i, name in enumerate(names)]))
    index.save(path, SHARD)
    return index


def with_right_checksums(data: bytes) -> bytes:
    """What a liar who knows the format would write."""
    data = data[:BODY_CHECKSUM_AT] + struct.pack("<I", crc32c(data[HEADER_BYTES:])) + data[BODY_CHECKSUM_AT + 4 :]
    return data[:HEADER_CHECKSUM_AT] + struct.pack("<I", crc32c(data[:HEADER_CHECKSUM_AT])) + data[HEADER_BYTES:]


def test_a_saved_index_answers_as_the_one_in_memory(tmp_path: Path) -> None:
    made = saved(tmp_path / "index")
    opened = MemberIndex.open(tmp_path / "index", SHARD)
    assert list(opened) == list(made)
    assert [opened.find(name) for name in NAMES] == list(made)
    assert (len(opened), opened.kind, opened.content_bytes) == (len(made), made.kind, made.content_bytes)
    assert (tmp_path / "index").stat().st_size == opened.file_bytes
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_many_names_are_answered_in_their_order_repeated_and_missing_ones_too(tmp_path: Path) -> None:
    index = saved(tmp_path / "index")
    asked = [*NAMES, "nobody", NAMES[3], "", "a.wa", "a.wav\0", NAMES[0], "\udcff"]
    answers = index.find_many(asked)
    for i, name in enumerate(asked):
        assert answers.found[i] == (name in index) == (name in NAMES)
        if name in NAMES:
            member = index.find(name)
            assert (answers.offsets[i], answers.sizes[i], answers.checksums[i]) == member[1:4]
        else:
            assert (answers.offsets[i], answers.sizes[i], answers.checksums[i]) == (0, 0, 0)
    # Few names are looked up one by one, many at once.
    places = [index.find(name)[1:4] if name in index else None for name in asked]
    assert index.places(asked * 3) == places * 3
    assert [index.places([name]) for name in asked] == [[place] for place in places]


def test_an_index_without_members_answers_that_there_are_none(tmp_path: Path) -> None:
    index = index_of(bytes(10240))
    index.save(tmp_path / "index", SHARD)
    opened = MemberIndex.open(tmp_path / "index", SHARD)
    assert (list(opened), "a" in opened, opened.find_many(["a"]).found.tolist()) == ([], False, [False])
    with pytest.raises(MemberNotFound, match="no member 'a'"):
        opened.find("a")


def test_names_below_a_prefix_are_listed_in_the_order_of_the_archive() -> None:
    index = index_of(make_tar([(name, b"") for name in ("z/1", "b", "z/0", "a", "zz")]))
    assert list(index.names("z/")) == ["z/1", "z/0"]
    assert list(index.names()) == ["z/1", "b", "z/0", "a", "zz"]
    assert [(place, member.name) for place, member in index.listed("z", 1)] == [(2, "z/0"), (4, "zz")]


def test_names_of_one_hash_are_told_apart() -> None:
    with patch.object(xxhash, "xxh3_64_intdigest", lambda name, seed: len(name) % 2):
        assert table_module.xxhash is xxhash
        tar = make_tar([("aa", b"1"), ("bb", b"2"), ("c", b"3"), ("aa", b"4"), ("dd", b"5"), ("bb", b"6")])
        assert served(tar) == {"c": b"3", "aa": b"4", "dd": b"5", "bb": b"6"}
        answers = index_of(tar).find_many(["dd", "aa", "ee", "bb", "c", "ccc"])
        assert answers.found.tolist() == [True, True, False, True, True, False]
        table = MemberTable(ArchiveLimits())
        for name in (b"one", b"two", b"six"):
            table.add_file(name, len(table), 0, 0)
        table.add_link(b"link", b"two")
        assert table.finish().offsets.tolist().count(1) == 2


@pytest.mark.slow
def test_a_name_written_and_linked_to_a_hundred_thousand_times_takes_no_longer_than_as_many_names() -> None:
    table = MemberTable(ArchiveLimits())
    for at in range(130_000):
        table.add_file(b"a", at, 1, 1)
    for _ in range(130_000):
        table.add_link(b"b", b"a")
    columns = table.finish()
    assert sorted(columns.offsets.tolist()) == [129_999, 129_999]


@settings(max_examples=examples(80), deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from("flo"), st.sampled_from("abcd"), st.sampled_from("abcd")), max_size=25))
def test_the_last_entry_of_a_name_wins_as_a_dictionary_would_have_it(steps: list[tuple[str, str, str]]) -> None:
    table, model = MemberTable(ArchiveLimits()), dict[str, int]()
    for number, (kind, name, target) in enumerate(steps):
        if kind == "f":
            table.add_file(name.encode(), number, 0, 0)
            model.pop(name, None)
            model[name] = number
        elif kind == "l":
            table.add_link(name.encode(), target.encode())
            found = model.get(target)
            model.pop(name, None)
            if found is not None:
                model[name] = found
        else:
            table.add_other(name.encode())
            model.pop(name, None)
    columns = table.finish()
    names = [columns.names[a:b].decode() for a, b in zip(columns.name_at, columns.name_at[1:], strict=False)]
    assert [(names[row], columns.offsets[row]) for row in columns.listing] == list(model.items())
    assert (np.diff(columns.hashes.astype(object)) >= 0).all()


def test_an_index_of_another_state_of_the_shard_is_stale(tmp_path: Path) -> None:
    saved(tmp_path / "index")
    others = [SHARD._replace(version=Version(3, 78, 2)), SHARD._replace(size_bytes=1), SHARD._replace(checksum=1)]
    for other in others:
        with pytest.raises(ArchiveIndexStale, match=r"version 3\.77\.2"):
            MemberIndex.open(tmp_path / "index", other)
    with pytest.raises(FileNotFoundError):
        MemberIndex.open(tmp_path / "none", SHARD)


def test_every_flipped_octet_and_every_cut_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "index"
    saved(path, ("a", "b"))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises(ArchiveIndexError):
            MemberIndex.open(path, SHARD)
    for size in (*range(0, len(whole), 7), len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ArchiveIndexError):
            MemberIndex.open(path, SHARD)
    path.write_bytes(whole + bytes(8))
    with pytest.raises(ArchiveIndexError):
        MemberIndex.open(path, SHARD)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(8, HEADER_BYTES + 400), st.integers(1, 255)), min_size=1, max_size=4),
    zipped=st.booleans(),
)
def test_a_liar_with_right_checksums_never_leads_a_reader_outside(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], zipped: bool
) -> None:
    path = tmp_path_factory.mktemp("index") / "index"
    files = {"a": content(1, 100), "b": b"", "c": b"x" * 1000}
    if zipped:
        index_shard(BytesSource(in_zip(files)), "s.zip").save(path, SHARD)
    else:
        index_of(make_tar(list(files.items()))).save(path, SHARD)
    data = bytearray(path.read_bytes())
    for at, mask in flips:
        data[at % len(data)] ^= mask
    path.write_bytes(with_right_checksums(bytes(data)))
    try:
        index = MemberIndex.open(path, SHARD)
        members = list(index)
    except (ArchiveIndexError, ArchiveIndexStale):
        return
    for member in members:
        assert 0 <= member.offset_bytes <= member.offset_bytes + member.packed_bytes <= index.content_bytes
    index.find_many(["a", "b", "c", "d"])


LIES = {
    "rows are not sorted": lambda d: d[:128] + d[136:144] + d[128:136] + d[144:],
    "begins after the end": lambda d: d[:144] + b"\xff" * 8 + d[152:],
    "ends after the end": lambda d: d[:160] + b"\xff" * 8 + d[168:],
    "names overlap": lambda d: d[:184] + b"\xff" + d[185:],
    "the listing": lambda d: d[:208] + d[208:212] * 2 + d[216:],
    "of format 1;": lambda d: d[:8] + b"\1" + d[9:],
    "of format 3;": lambda d: d[:8] + b"\3" + d[9:],
    "kind 9": lambda d: d[:12] + b"\x09" + d[13:],
    "announces": lambda d: d[:48] + b"\3" + d[49:],
    "no text": lambda d: d[:216] + b"\xff" + d[217:],
}


@table("lie", LIES)
def test_a_lie_is_told_for_what_it_is(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "index"
    saved(path, ("a", "b"))
    path.write_bytes(with_right_checksums(LIES[lie](path.read_bytes())))
    with pytest.raises(ArchiveIndexError, match=lie):
        list(MemberIndex.open(path, SHARD))


def test_saving_replaces_the_file_and_readers_of_the_old_one_go_on(tmp_path: Path) -> None:
    path = tmp_path / "index"
    saved(path, ("old",))
    old = MemberIndex.open(path, SHARD)
    new_shard = SHARD._replace(size_bytes=5)
    index_of(make_tar([("new", b"")])).save(path, new_shard, sync=True)
    assert (list(old.names()), list(MemberIndex.open(path, new_shard).names())) == (["old"], ["new"])


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "index"
    saved(path, ("old",))
    with patch.object(os, "fsync", side_effect=OSError(28, "no space")), pytest.raises(OSError, match="no space"):
        index_of(make_tar([("new", b"")])).save(path, SHARD, sync=True)
    assert list(MemberIndex.open(path, SHARD).names()) == ["old"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_threads_may_share_an_open_index(tmp_path: Path) -> None:
    saved(tmp_path / "index")
    index = MemberIndex.open(tmp_path / "index", SHARD)
    expected = [index.find(name) for name in NAMES]
    found: list[list[Member]] = []
    threads = [
        threading.Thread(target=lambda: found.extend([index.find(name) for name in NAMES] for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert found == [expected] * 200


def empty_members(first: int, stop: int) -> bytes:
    """Headers of empty files `en/0000000.wav` and on, made by columns: one by one takes longer than the test."""
    count = stop - first
    blocks = np.zeros((count, 512), np.uint8)
    blocks[:, :512] = np.frombuffer(make_tar([("en/0000000.wav", b"")])[:512], np.uint8)
    numbers = np.arange(first, stop)
    for place in range(7):
        blocks[:, 9 - place] = ord("0") + numbers // 10**place % 10
    blocks[:, 148:156] = ord(" ")
    sums = blocks.sum(axis=1, dtype=np.int64)
    for place in range(6):
        blocks[:, 153 - place] = ord("0") + sums // 8**place % 8
    blocks[:, 154] = 0
    return blocks.tobytes()


@pytest.mark.slow
def test_a_million_members_are_indexed_and_found_in_bounded_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    indexer = TarIndexer()
    for start in range(0, 1_000_000, 1000):
        indexer.feed(empty_members(start, start + 1000))
    index = indexer.finish()
    index.save(tmp_path / "index", SHARD)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    opened = MemberIndex.open(tmp_path / "index", SHARD)
    asked = [f"en/{i:07d}.wav" for i in range(0, 1_000_000, 997)]
    answers = opened.find_many(asked)
    assert len(opened) == 1_000_000
    assert answers.found.all()
    assert answers.offsets.tolist() == [512 * i + 512 for i in range(0, 1_000_000, 997)]
    assert opened.find("en/0999999.wav").offset_bytes == 512 * 1_000_000
    assert grown_mib < 500


@pytest.mark.slow
@table("prefix", ["", "a", "ab", "é", "日本", "zzz/", "a\0", "name that is longer than all the others"])
def test_a_prefix_finds_what_comparing_each_name_finds(prefix: str) -> None:
    draw = random.Random(prefix)
    names = [
        *NAMES,
        *("".join(draw.choices(["a", "b", "é", "日", "本", "zzz/"], k=draw.randrange(1, 6))) for _ in range(500)),
    ]
    index = index_of(make_tar([(name, b"1") for name in dict.fromkeys(names)]))
    everything = [member.name for member in index]
    assert list(index.names(prefix)) == [name for name in everything if name.startswith(prefix)]
    listed = list(index.listed(prefix))
    assert [list(index.listed(prefix, start)) for start in (0, 7, len(index))] == [
        [pair for pair in listed if pair[0] >= start] for start in (0, 7, len(index))
    ]


def test_a_prefix_is_found_over_more_members_than_are_compared_at_once() -> None:
    table = MemberTable(ArchiveLimits())
    for at in range(40_000):
        table.add_file(b"%02d/%05d" % (at % 64, at), at * 512, 5, 0)
    index = MemberIndex.of(table.finish(), ArchiveKind.TAR, 40_000 * 512)
    assert list(index.names("63/")) == [f"63/{at:05}" for at in range(63, 40_000, 64)]

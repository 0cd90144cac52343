"""What the batch reader delivers, and how it fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from storage_node.store import _native
from storage_node.store.native import read_frame, read_list
from storage_node.store.read.batch_reader import FailureCode
from tests.store.batch_read_kit import (
    FILE_SYSTEMS,
    Folder,
    both,
    columns,
    content,
    crc,
    folder_on,
    whole_files,
)
from tests.table import table

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT


@pytest.fixture(params=FILE_SYSTEMS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    with folder_on(request.param, tmp_path) as opened:
        yield opened


def test_the_failure_codes_are_those_of_the_native_module() -> None:
    assert {code.name: getattr(_native, code.name) for code in FailureCode} == dict(FailureCode.__members__)


# ---- Bytes and order ---------------------------------------------------------------------------------


def test_a_frame_is_the_prefix_and_then_every_piece_in_request_order(folder: Folder) -> None:
    paths, contents = folder.add_many(50, 700)
    order = np.random.default_rng(0).permutation(50).tolist()
    args = whole_files(folder, [paths[i] for i in order], [contents[i] for i in order])
    assert read_frame(b"head", -1, *args) == b"head" + b"".join(contents[i] for i in order)


def test_a_list_holds_every_piece_in_request_order(folder: Folder) -> None:
    paths, contents = folder.add_many(50, 700)
    assert read_list(*whole_files(folder, paths[::-1], contents[::-1])) == contents[::-1]


def test_offsets_and_lengths_cut_pieces_out_of_files(folder: Folder) -> None:
    data = content(1, 100_000)
    path = folder.add("shard", data)
    spans = [(0, 10), (99_990, 10), (5, 0), (40_000, 50_000), (100_000, 0), (7, 1)]
    args = columns(folder.fd, [path] * 6, [start for start, _ in spans], [length for _, length in spans])
    assert read_list(*args) == [data[start : start + length] for start, length in spans]
    assert read_frame(b"", -1, *args) == b"".join(data[start : start + length] for start, length in spans)


def test_a_piece_of_several_read_steps_arrives_whole_and_verified(folder: Folder) -> None:
    data = content(2, (3 << 20) + 17)
    path = folder.add("large", data)
    piece = data[11:-5]
    folder.chill()
    args = columns(folder.fd, [path], [11], [len(piece)], [crc(piece)])
    assert read_list(*args) == [piece]
    assert read_frame(bytes(4), 0, *args) == crc(piece).to_bytes(4, "little") + piece


def test_an_empty_batch_gives_the_prefix_or_an_empty_list() -> None:
    assert read_frame(b"prefix", 6, *columns(0, [], [], [])) == b"prefix"
    assert read_frame(b"", -1, *columns(0, [], [], [])) == b""
    assert read_list(*columns(0, [], [], [])) == []


def test_an_empty_file_is_an_empty_piece_with_the_checksum_zero(folder: Folder) -> None:
    path = folder.add("empty", b"")
    assert read_frame(b"\xff" * 4, 0, *columns(folder.fd, [path], [0], [0], [0])) == bytes(4)


def test_computed_checksums_replace_their_bytes_of_the_prefix_and_no_others(folder: Folder) -> None:
    paths, contents = folder.add_many(3, 333)
    args = columns(folder.fd, paths, [0] * 3, [333] * 3)
    sums = b"".join(crc(data).to_bytes(4, "little") for data in contents)
    assert read_frame(b"a" * 20, 5, *args) == b"aaaaa" + sums + b"aaa" + b"".join(contents)


def test_checksums_may_fill_the_prefix_to_its_last_byte(folder: Folder) -> None:
    data = content(1, 10)
    args = columns(folder.fd, [folder.add("f", data)], [0], [10])
    assert read_frame(b"aaaa", 0, *args) == crc(data).to_bytes(4, "little") + data


def test_the_prefix_itself_is_never_written_to(folder: Folder) -> None:
    prefix = bytearray(b"a" * 8)
    read_frame(prefix, 0, *columns(folder.fd, [folder.add("f", b"data")], [0], [4]))
    assert prefix == b"a" * 8


def test_entries_may_lie_in_different_folders(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with Folder(tmp_path / "a") as a, Folder(tmp_path / "b") as b:
        a.add("same-name", b"from a")
        b.add("same-name", b"from b")
        args = columns([a.fd, b.fd, a.fd], [b"same-name"] * 3, [0] * 3, [6] * 3)
        assert read_list(*args) == [b"from a", b"from b", b"from a"]


def test_paths_reach_into_subfolders(folder: Folder) -> None:
    (folder.path / "ab" / "cd").mkdir(parents=True)
    folder.add("ab/cd/object", b"deep")
    assert read_list(*columns(folder.fd, [b"ab/cd/object"], [0], [4])) == [b"deep"]
    (folder.path / "ab" / "cd" / "object").unlink()
    (folder.path / "ab" / "cd").rmdir()
    (folder.path / "ab").rmdir()


def test_an_empty_path_reads_the_descriptor_itself_and_leaves_it_open(folder: Folder) -> None:
    data = content(3, 5000)
    name = folder.add("shard", data)
    other = folder.add("other", b"other")
    fd = os.open(folder.path / name.decode(), os.O_RDONLY)
    try:
        args = columns([fd, fd, folder.fd, fd], [b"", b"", other, b""], [0, 4000, 0, 17], [9, 1000, 5, 1])
        assert read_list(*args) == [data[:9], data[4000:], b"other", data[17:18]]
        assert os.pread(fd, 4, 0) == data[:4]
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
    finally:
        os.close(fd)


def test_duplicates_are_delivered_each_time(folder: Folder) -> None:
    paths, contents = folder.add_many(3, 100)
    order = [0, 0, 0, 1, 0, 2, 2, 1, 1, 1]
    # Equal paths both as one object and as several: neither may change the answer.
    names = [bytes(bytearray(paths[i])) if n % 2 else paths[i] for n, i in enumerate(order)]
    args = whole_files(folder, names, [contents[i] for i in order])
    assert read_list(*args) == [contents[i] for i in order]


@table("cold", [False, True])
def test_five_thousand_entries_arrive_in_one_call(folder: Folder, cold: bool) -> None:
    paths, contents = folder.add_many(100, 64)
    order = np.random.default_rng(5).integers(0, 100, 5000).tolist()
    if cold:
        folder.chill()
    args = whole_files(folder, [paths[i] for i in order], [contents[i] for i in order])
    frame = read_frame(bytes(20_000), 0, *args)
    assert frame == b"".join(crc(contents[i]).to_bytes(4, "little") for i in order) + b"".join(
        contents[i] for i in order
    )


def test_data_that_is_no_longer_cached_is_read_from_the_drive(folder: Folder) -> None:
    paths, contents = folder.add_many(60, 9000)
    args = whole_files(folder, paths, contents)
    folder.chill()
    assert read_list(*args) == contents
    folder.chill()
    assert read_frame(b"", -1, *args) == b"".join(contents)


def test_cold_duplicates_share_a_descriptor_across_the_look_ahead(folder: Folder) -> None:
    paths, contents = folder.add_many(3, 6000)
    order = [0] * 40 + [1] + [2] * 70 + [0]
    folder.chill()
    args = whole_files(folder, [paths[i] for i in order], [contents[i] for i in order])
    assert read_list(*args) == [contents[i] for i in order]


# ---- Failures ----------------------------------------------------------------------------------------


def test_a_missing_file_fails_with_its_position_and_errno(folder: Folder) -> None:
    paths, contents = folder.add_many(4, 100)
    (folder.path / paths[2].decode()).unlink()
    assert both(whole_files(folder, paths, contents)) == [(2, FailureCode.OPEN, errno.ENOENT)] * 2


def test_a_missing_file_fails_even_when_no_byte_of_it_is_wanted(folder: Folder) -> None:
    args = columns(folder.fd, [b"missing"], [0], [0])
    assert both(args) == [(0, FailureCode.OPEN, errno.ENOENT)] * 2


def test_a_truncated_file_fails_instead_of_giving_fewer_bytes(folder: Folder) -> None:
    paths, contents = folder.add_many(4, 5000)
    os.truncate(folder.path / paths[3].decode(), 4999)
    assert both(whole_files(folder, paths, contents)) == [(3, FailureCode.SHORT, 0)] * 2


def test_a_piece_beyond_the_end_of_its_file_fails_as_short(folder: Folder) -> None:
    path = folder.add("f", b"ten bytes.")
    assert both(columns(folder.fd, [path], [10], [1])) == [(0, FailureCode.SHORT, 0)] * 2
    assert both(columns(folder.fd, [path], [2**62], [1]))[0][:2] == (0, FailureCode.SHORT)


def test_a_flipped_bit_fails_where_it_is_verified(folder: Folder) -> None:
    paths, contents = folder.add_many(3, 300)
    damaged = bytearray(contents[1])
    damaged[299] ^= 0x10
    folder.add("f00001", bytes(damaged))
    args = whole_files(folder, paths, contents)
    assert both(args) == [(1, FailureCode.CHECKSUM, 0)] * 2


def test_a_flipped_bit_is_delivered_where_nobody_asked_to_verify(folder: Folder) -> None:
    paths, contents = folder.add_many(3, 300)
    damaged = bytes([contents[1][0] ^ 1]) + contents[1][1:]
    folder.add("f00001", damaged)
    sums = [crc(data) for data in contents]
    args = columns(folder.fd, paths, [0] * 3, [300] * 3, sums, [1, 0, 1])
    assert read_list(*args) == [contents[0], damaged, contents[2]]
    frame = read_frame(bytes(12), 0, *args)
    assert frame[4:8] == crc(damaged).to_bytes(4, "little")  # what was read, not what was expected


def test_a_symbolic_link_is_not_followed(folder: Folder) -> None:
    folder.add("real", b"data")
    (folder.path / "link").symlink_to("real")
    assert both(columns(folder.fd, [b"link"], [0], [4])) == [(0, FailureCode.OPEN, errno.ELOOP)] * 2
    (folder.path / "link").unlink()


def test_a_folder_in_place_of_a_file_fails_to_read(folder: Folder) -> None:
    assert both(columns(folder.fd, [b"."], [0], [4])) == [(0, FailureCode.READ, errno.EISDIR)] * 2


def test_a_descriptor_that_is_not_open_fails() -> None:
    assert both(columns(-1, [b""], [0], [1])) == [(0, FailureCode.READ, errno.EBADF)] * 2
    assert both(columns(-1, [b"f"], [0], [1])) == [(0, FailureCode.OPEN, errno.EBADF)] * 2


def test_the_first_of_several_failures_is_the_one_reported(folder: Folder) -> None:
    paths, contents = folder.add_many(6, 100)
    sums = [crc(data) for data in contents]
    (folder.path / "f00005").unlink()
    os.truncate(folder.path / "f00004", 3)
    args = columns(folder.fd, paths, [0] * 6, [100] * 6, [*sums[:3], sums[3] ^ 1, *sums[4:]])
    assert both(args) == [(3, FailureCode.CHECKSUM, 0)] * 2


@table("position", [0, 1, 20, 49])
def test_a_failure_among_cold_entries_names_the_right_one(folder: Folder, position: int) -> None:
    paths, contents = folder.add_many(50, 4096)
    (folder.path / paths[position].decode()).unlink()
    folder.chill()
    assert both(whole_files(folder, paths, contents)) == [(position, FailureCode.OPEN, errno.ENOENT)] * 2

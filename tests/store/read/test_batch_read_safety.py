"""What the batch reader must never do: leak, hold others up, or trust arguments."""

from __future__ import annotations

import errno
import gc
import os
import resource
import sys
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.store.native import read_frame, read_list
from storage_node.store.read.batch_reader import Failure, FailureCode
from tests.store.batch_read_kit import (
    FILE_SYSTEMS,
    Folder,
    both,
    columns,
    content,
    crc,
    folder_on,
    open_descriptors,
    whole_files,
)
from tests.table import table

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT


@pytest.fixture(params=FILE_SYSTEMS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    with folder_on(request.param, tmp_path) as opened:
        yield opened


# ---- Descriptors and references ------------------------------------------------------------------------


@pytest.mark.slow
@table("cold", [False, True])
@table("damage", ["none", "missing", "short", "flipped"])
def test_no_descriptor_is_left_open_after(folder: Folder, damage: str, cold: bool) -> None:
    paths, contents = folder.add_many(50, 4096)
    # Runs of one file around the damage: their shared descriptor is the one most easily lost.
    order = [*range(10), 10, 10, 10, 11, 12, 12, *range(13, 50), 49, 49]
    args = whole_files(folder, [paths[i] for i in order], [contents[i] for i in order])
    victim = folder.path / paths[10].decode()
    if damage == "missing":
        victim.unlink()
    elif damage == "short":
        os.truncate(victim, 100)
    elif damage == "flipped":
        folder.add(victim.name, bytes(4096))
    before = open_descriptors(folder)
    assert before
    for _ in range(1 if cold else 3):
        if cold:
            folder.chill()
        answers = both(args)
        assert all(isinstance(answer, tuple) for answer in answers) == (damage != "none")
    assert open_descriptors(folder) == before


@pytest.mark.slow
@pytest.mark.fresh_process  # the limit is the process's: threads that others left behind would take the spare ones
def test_a_cold_batch_finishes_with_hardly_any_descriptor_to_spare(folder: Folder) -> None:
    paths, contents = folder.add_many(50, 4096)
    args = whole_files(folder, paths, contents)
    folder.chill()
    free = os.dup(folder.fd)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, hard))
    try:
        pieces = read_list(*args)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert pieces == contents


@pytest.mark.slow
def test_no_call_leaks_memory_or_references_whatever_its_end(folder: Folder) -> None:
    paths, contents = folder.add_many(5, 2000)
    good = whole_files(folder, paths, contents)
    missing = (good[0], [*paths[:4], b"missing"], *good[2:])
    wrong: list[tuple[Any, ...]] = [
        (good[0], [*paths[:4], "text"], *good[2:]),
        (*good[:3], array("q", [1, 2, 3, 4, -5]), *good[4:]),
        (*good[:4], array("i", [0] * 5), good[5]),
        (*good[:5], bytes(4)),
        (*good[:5], None),
        (*good[:3], array("q", [1 << 60] * 5), *good[4:]),
    ]

    def every_kind_of_call() -> None:
        both(good)
        both(missing)
        for args in wrong:
            with pytest.raises((TypeError, ValueError, MemoryError)):
                read_frame(b"", -1, *args)
            with pytest.raises((TypeError, ValueError, MemoryError)):
                read_list(*args)
        with pytest.raises(ValueError, match="do not fit"):
            read_frame(bytes(19), 0, *good)

    def settled() -> tuple[int, list[int]]:
        gc.collect()
        return sys.getallocatedblocks(), [sys.getrefcount(thing) for thing in (paths, *paths, *good, None)][:-1]

    def growth() -> int:
        blocks_before, references_before = settled()
        for _ in range(200):
            every_kind_of_call()
        blocks_after, references_after = settled()
        assert references_after == references_before
        return blocks_after - blocks_before

    for _ in range(5):
        every_kind_of_call()
    # Half a block per round would show, every time; what threads of other tests take meanwhile does not come again.
    assert any(growth() < 100 for _ in range(5))


# ---- Threads and processes -----------------------------------------------------------------------------


def test_threads_read_different_batches_at_once(folder: Folder) -> None:
    paths, contents = folder.add_many(160, 3000)
    answers: dict[int, list[Any]] = {}

    def read(thread: int) -> None:
        part = slice(40 * thread, 40 * thread + 40)
        args = whole_files(folder, paths[part], contents[part])
        answers[thread] = [read_frame(b"p", -1, *args) for _ in range(20)]

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=180)
    assert answers == {i: [b"p" + b"".join(contents[40 * i : 40 * i + 40])] * 20 for i in range(4)}


def test_other_threads_run_while_a_read_blocks(folder: Folder) -> None:
    # Opening a FIFO blocks until somebody opens its other end, which only a free GIL lets us do.
    os.mkfifo(folder.path / "fifo")
    answers: list[Any] = []
    args = columns(folder.fd, [b"fifo"], [0], [1])
    thread = threading.Thread(target=lambda: answers.append(read_list(*args)))
    thread.start()
    with open(folder.path / "fifo", "wb"):
        thread.join(timeout=180)
    assert answers == [(0, FailureCode.READ, errno.ESPIPE)]


def test_a_list_of_paths_changed_by_another_thread_does_not_change_the_read(folder: Folder) -> None:
    os.mkfifo(folder.path / "fifo")
    path = folder.add("after", b"data")
    names = [b"fifo", bytes(bytearray(path))]
    args = columns(folder.fd, names, [0, 0], [0, 4])  # no byte of the FIFO: it only holds the call up
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(read_list(*args)))
    thread.start()
    with open(folder.path / "fifo", "wb"):  # from here on the call is past its arguments
        names.clear()
        args[3][1] = 1 << 40
        thread.join(timeout=180)
    assert answers == [[b"", b"data"]]


@pytest.mark.slow
@pytest.mark.fresh_process
@pytest.mark.sampled(2)
def test_a_forked_child_reads_as_its_parent_did(folder: Folder) -> None:
    paths, contents = folder.add_many(20, 1000)
    args = whole_files(folder, paths, contents)
    assert read_list(*args) == contents
    child = os.fork()
    if child == 0:
        os._exit(0 if read_list(*args) == contents else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- Arguments -----------------------------------------------------------------------------------------

GOOD = columns(0, [b"a", b"b"], [0, 0], [1, 1])
DIRFDS, PATHS, OFFSETS, LENGTHS, EXPECTED, VERIFY = range(6)


def good_but(column: int, value: object) -> tuple[Any, ...]:
    return (*GOOD[:column], value, *GOOD[column + 1 :])


NOT_FLAT = "offsets must be one-dimensional and contiguous"
NOT_A_RANGE = "are not a range of a file"
WRONG: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    (good_but(PATHS, [b"a", "b"]), TypeError, r"paths\[1\] must be bytes, not <class .str.>"),
    (good_but(PATHS, [b"a\0b", b"b"]), ValueError, r"paths\[0\] contains a NUL byte"),
    (good_but(PATHS, iter([b"a", b"b"])), TypeError, "paths must be a list of bytes"),
    (good_but(PATHS, b"ab"), TypeError, "paths must be a list of bytes, not <class .bytes.>"),
    (good_but(DIRFDS, array("q", [0, 0])), TypeError, "dirfds must hold native int32 items"),
    (good_but(OFFSETS, array("i", [0, 0])), TypeError, "offsets must hold native int64 items"),
    (good_but(OFFSETS, np.zeros(2, ">i8")), TypeError, "offsets must hold native int64 items"),
    (good_but(LENGTHS, array("Q", [1, 1])), TypeError, "lengths must hold native int64 items"),
    (good_but(EXPECTED, array("i", [0, 0])), TypeError, "expected must hold native uint32 items"),
    (good_but(VERIFY, array("I", [0, 0])), TypeError, "verify must hold native uint8 items"),
    (good_but(OFFSETS, [0, 0]), TypeError, "bytes-like object is required, not 'list'"),
    (good_but(OFFSETS, array("q", [0])), ValueError, "offsets has 1 items, and not 2"),
    (good_but(VERIFY, bytes(3)), ValueError, "verify has 3 items, and not 2"),
    (good_but(OFFSETS, np.zeros(4, np.int64)[::2]), ValueError, NOT_FLAT),
    (good_but(OFFSETS, np.zeros((2, 1), np.int64)), ValueError, NOT_FLAT),
    (good_but(OFFSETS, array("q", [0, -1])), ValueError, f"entry 1: offset -1 and length 1 {NOT_A_RANGE}"),
    (good_but(LENGTHS, array("q", [-7, 1])), ValueError, f"entry 0: offset 0 and length -7 {NOT_A_RANGE}"),
    (good_but(OFFSETS, array("q", [0, 2**63 - 1])), ValueError, f"offset {2**63 - 1} and length 1 {NOT_A_RANGE}"),
    (good_but(LENGTHS, array("q", [2**63 - 1] * 2)), ValueError, "lengths add up to more than an object can hold"),
]


@table(("args", "error", "message"), WRONG)
def test_wrong_columns_are_refused_before_anything_is_opened(
    args: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_list(*args)
    with pytest.raises(error, match=message):
        read_frame(b"", -1, *args)


@table("checksum_at", [1, 2, 8, 9, 2**62])
def test_checksums_that_do_not_fit_in_the_prefix_are_refused(checksum_at: int) -> None:
    with pytest.raises(ValueError, match=f"2 checksums at {checksum_at} do not fit in a prefix of 8 bytes"):
        read_frame(bytes(8), checksum_at, *GOOD)


def test_wrong_prefixes_and_argument_counts_are_refused() -> None:
    with pytest.raises(TypeError):
        read_frame("text", -1, *GOOD)
    with pytest.raises(TypeError):
        read_frame(b"", "0", *GOOD)
    with pytest.raises(BufferError):
        read_frame(memoryview(bytes(8))[::2], -1, *GOOD)
    with pytest.raises(TypeError):
        read_frame(b"", *GOOD)
    with pytest.raises(TypeError):
        read_list(b"", *GOOD)


def test_columns_may_be_numpy_arrays_and_paths_a_tuple(folder: Folder) -> None:
    paths, contents = folder.add_many(3, 50)
    args = (
        np.full(3, folder.fd, np.int32),
        tuple(paths),
        np.zeros(3, np.int64),
        np.full(3, 50, np.int64),
        np.array([crc(data) for data in contents], np.uint32),
        np.ones(3, np.bool_),
    )
    assert read_list(*args) == contents


# ---- Both at once -------------------------------------------------------------------------------------

FILE_SIZES = [0, 1, 100, 4096, 10_240]


@pytest.fixture(scope="module", params=FILE_SYSTEMS)
def numbered_files(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Folder, list[int]]]:
    with folder_on(request.param, tmp_path_factory.mktemp("batch")) as folder:
        for i, size in enumerate(FILE_SIZES):
            folder.add(f"f{i}", content(i, size))
        fds = [os.open(folder.path / f"f{i}", os.O_RDONLY) for i in range(len(FILE_SIZES))]
        yield folder, fds
        for fd in fds:
            os.close(fd)


@dataclass(frozen=True)
class Wanted:
    file: int  # len(FILE_SIZES): one that is missing
    by_descriptor: bool
    start: int
    length: int
    verify: bool
    flipped: bool


wanted = st.builds(
    Wanted,
    file=st.sampled_from([*range(len(FILE_SIZES))] * 4 + [len(FILE_SIZES)]),
    by_descriptor=st.booleans(),
    start=st.sampled_from([0, 0, 0, 1, 99, 5000]),
    length=st.sampled_from([0, 1, 100, 3000, 4096]),
    verify=st.booleans(),
    flipped=st.sampled_from([False] * 9 + [True]),
)


def piece_of(entry: Wanted) -> bytes:
    data = content(entry.file, FILE_SIZES[entry.file]) if entry.file < len(FILE_SIZES) else b""
    return data[entry.start : entry.start + entry.length]


def answer_of(entries: list[Wanted], checksum_at: int, prefix: bytes) -> bytes | Failure:
    """What the contract says, from the bytes that the files were made of."""
    frame = bytearray(prefix)
    for i, entry in enumerate(entries):
        if entry.file == len(FILE_SIZES):
            return (i, FailureCode.OPEN, errno.ENOENT)
        piece = piece_of(entry)
        if len(piece) < entry.length:
            return (i, FailureCode.SHORT, 0)
        if entry.verify and entry.flipped:
            return (i, FailureCode.CHECKSUM, 0)
        if checksum_at >= 0:
            frame[checksum_at + 4 * i : checksum_at + 4 * i + 4] = crc(piece).to_bytes(4, "little")
        frame += piece
    return bytes(frame)


@pytest.mark.slow
@given(entries=st.lists(wanted, max_size=60), gap=st.integers(0, 3), with_sums=st.booleans())
def test_frames_are_those_that_the_contract_describes_and_files_are_closed(
    numbered_files: tuple[Folder, list[int]], entries: list[Wanted], gap: int, with_sums: bool
) -> None:
    folder, fds = numbered_files
    missing = len(FILE_SIZES)
    own = [entry.by_descriptor and entry.file != missing for entry in entries]
    args = columns(
        [fds[entry.file] if direct else folder.fd for entry, direct in zip(entries, own, strict=True)],
        [b"" if direct else f"f{entry.file}".encode() for entry, direct in zip(entries, own, strict=True)],
        [entry.start for entry in entries],
        [entry.length for entry in entries],
        [crc(piece_of(entry)) ^ entry.flipped for entry in entries],
        [entry.verify for entry in entries],
    )
    prefix = b"x" * (gap + 4 * len(entries))
    expected = answer_of(entries, gap if with_sums else -1, prefix)
    before = open_descriptors(folder)
    frame = read_frame(prefix, gap if with_sums else -1, *args)
    pieces = read_list(*args)
    assert frame == expected
    if isinstance(frame, tuple) or isinstance(pieces, tuple):
        assert pieces == frame
    else:
        assert b"".join(pieces) == frame[len(prefix) :]
        assert [len(piece) for piece in pieces] == [entry.length for entry in entries]
    assert open_descriptors(folder) == before

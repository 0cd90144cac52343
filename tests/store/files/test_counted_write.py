"""Counted writes: the bytes are written, and what is said of them is what reading them would say."""

from __future__ import annotations

import os
import resource
import signal
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.testing import seeded_bytes
from ais_loader.wire.checksum import crc32c
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.native import write_counted
from tests.table import table

DATA = seeded_bytes(3 * BLOCK_BYTES + 77, seed=15)


def blocks_of(data: bytes) -> list[int]:
    """Checksums of its whole blocks."""
    return [crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES)]


def open_block_of(data: bytes) -> int:
    """Of its last block, whole or not."""
    return crc32c(data[(len(data) - 1) // BLOCK_BYTES * BLOCK_BYTES :]) if data else 0


@contextmanager
def new_file(folder: Path) -> Iterator[int]:
    fd = os.open(folder / "file", os.O_CREAT | os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def on_file(fd: int) -> bytes:
    return os.pread(fd, 1 << 30, 0)


SIZES = st.lists(st.sampled_from([0, 1, 7, 4096, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1]), max_size=6)


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, to_file=st.booleans())
def test_pieces_of_any_size_count_as_the_whole_does(sizes: list[int], to_file: bool) -> None:
    fd = os.memfd_create("file") if to_file else -1
    size_bytes = checksum = open_block = 0
    closed, sent = array("I"), b""
    for size in sizes:
        piece = DATA[len(sent) % 1000 :][:size]
        count, checksum, open_block, ended, number = write_counted(
            fd, size_bytes, checksum, open_block, memoryview(piece)
        )
        assert (count, number) == (size, 0)
        size_bytes += count
        closed.frombytes(ended)
        sent += piece
    if to_file:
        assert on_file(fd) == sent
        os.close(fd)
    assert (size_bytes, checksum, open_block) == (len(sent), crc32c(sent), open_block_of(sent))
    assert closed.tolist() == blocks_of(sent)


@table("data", [DATA, bytearray(DATA), memoryview(DATA), np.frombuffer(DATA, np.uint8), b""])
def test_any_contiguous_bytes_are_taken(data: bytes, tmp_path: Path) -> None:
    with new_file(tmp_path) as file:
        assert write_counted(file, 0, 0, 0, data)[:2] == (len(data), crc32c(data))
        assert on_file(file) == bytes(data)


def test_a_failed_write_says_why_and_counts_nothing() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        assert write_counted(fd, 5, 6, 7, b"data") == (0, 6, 7, b"", 9)
    finally:
        os.close(fd)


def test_what_a_failed_write_wrote_before_is_counted(tmp_path: Path) -> None:
    room = BLOCK_BYTES + 1000
    with new_file(tmp_path) as file:
        before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            count, checksum, open_block, ended, number = write_counted(file, 0, 0, 0, DATA)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        kept = DATA[:room]
        assert on_file(file) == kept
    assert os.strerror(number) == "File too large"
    assert (count, checksum, open_block) == (room, crc32c(kept), open_block_of(kept))
    assert array("I", ended).tolist() == blocks_of(kept)


def test_threads_do_not_disturb_each_other() -> None:
    results: list[tuple[int, int, int, bytes, int]] = []

    def run() -> None:
        fd = os.memfd_create("file")
        results.append(write_counted(fd, 0, 0, 0, DATA))
        assert on_file(fd) == DATA
        os.close(fd)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = array("I", blocks_of(DATA)).tobytes()
    assert results == [(len(DATA), crc32c(DATA), open_block_of(DATA), ended, 0)] * 4


@table(
    ("arguments", "raised"),
    [
        ((-1, -1, 0, 0, b""), ValueError),
        ((-1, 0, 1 << 32, 0, b""), ValueError),
        ((-1, 0, 0, 1 << 32, b""), ValueError),
        ((-1, 0, 0, 0, "text"), TypeError),
        ((-1, 0, 0, 0, memoryview(DATA)[::2]), BufferError),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[object, ...], raised: type) -> None:
    with pytest.raises(raised):
        write_counted(*arguments)  # type: ignore[arg-type]

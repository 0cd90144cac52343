"""Bytes of a request while they arrive: in memory while all requests together have memory, and otherwise in a file."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from ais_loader.integrations.gateway.request import S3Error
from ais_loader.integrations.gateway.spool import AT_ONCE_BYTES, BodyMemory, BodySpool
from ais_loader.values.source import Source
from ais_loader.wire.checksum import crc32c
from tests.table import table

MIB = 1 << 20


def filled(data: bytes, memory: BodyMemory, step: int = 100_000, most_bytes: int = 100 * MIB) -> BodySpool:
    spool = BodySpool(folder=None, most_bytes=most_bytes, memory=memory)
    for at in range(0, len(data), step):
        spool.write(data[at : at + step])
    return spool


@table("limit_bytes", [0, 100 * MIB])
@table("size", [0, 1, AT_ONCE_BYTES, AT_ONCE_BYTES + 1, 3 * MIB])
def test_what_was_written_is_read_in_every_way(size: int, limit_bytes: int) -> None:
    data, memory = random.Random(size).randbytes(size), BodyMemory(limit_bytes)
    spool = filled(data, memory)
    assert spool.is_in_memory == (size <= (AT_ONCE_BYTES if limit_bytes else 0))
    assert (spool.size_bytes, spool.crc32c) == (size, crc32c(data))
    assert spool.read() == spool.file().read() == data
    source = Source(spool.content())
    for _ in range(2):  # a put that is retried
        assert b"".join(source.chunks()) == data
    file = spool.file()
    assert file.read(7) == data[:7]
    assert file.tell() == len(data[:7])
    spool.close()
    spool.close()
    assert memory.free_bytes == limit_bytes
    with pytest.raises(ValueError, match="closed"):
        spool.file()


def test_a_body_that_outgrows_the_memory_moves_to_a_file_and_frees_it(tmp_path: Path) -> None:
    memory, data = BodyMemory(MIB), random.Random(1).randbytes(3 * MIB)
    spool = BodySpool(folder=str(tmp_path), most_bytes=10 * MIB, memory=memory)
    spool.write(data[:MIB])
    assert spool.is_in_memory
    assert memory.free_bytes == 0
    spool.write(data[MIB:])
    assert not spool.is_in_memory
    assert memory.free_bytes == MIB
    assert spool.read() == data
    assert list(tmp_path.iterdir()) == [], "the file has a name"
    spool.close()


@pytest.mark.parametrize(("announced", "is_in_memory"), [(AT_ONCE_BYTES, True), (AT_ONCE_BYTES + 1, False)])
def test_a_body_that_is_announced_as_large_takes_no_memory(announced: int, is_in_memory: bool) -> None:
    memory, data = BodyMemory(8 * MIB), random.Random(3).randbytes(announced)
    spool = BodySpool(folder=None, most_bytes=10 * MIB, memory=memory, announced_bytes=announced)
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    spool.write(*pieces[:700])  # more than one call writes at once
    spool.write(*pieces[700:])
    assert spool.is_in_memory == is_in_memory
    assert memory.free_bytes == 8 * MIB - (announced if is_in_memory else 0)
    assert (spool.size_bytes, spool.crc32c) == (announced, crc32c(data))
    file = spool.file()
    assert file.read(1000) == data[:1000]
    assert file.read() == data[1000:]
    assert spool.read() == data
    spool.close()
    assert memory.free_bytes == 8 * MIB


def test_a_full_folder_of_temporary_files_is_an_error_of_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = BodySpool(folder=None, most_bytes=10 * MIB, memory=BodyMemory(0))

    def full(fd: int, pieces: Sequence[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(S3Error, match="temporary files") as refused:
        spool.write(b"some")
    assert refused.value.status == 503
    spool.close()


def test_a_write_that_takes_a_part_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = BodySpool(folder=None, most_bytes=10 * MIB, memory=BodyMemory(0))
    pieces = [random.Random(number).randbytes(1000 * number) for number in range(5)]

    def partly(fd: int, pieces: Sequence[bytes]) -> int:
        return os.write(fd, b"".join(pieces)[:3500])

    monkeypatch.setattr(os, "writev", partly)
    spool.write(*pieces)
    assert spool.read() == b"".join(pieces)
    spool.close()


def test_requests_share_the_memory() -> None:
    memory = BodyMemory(8 * MIB)
    data = random.Random(2).randbytes(MIB)
    spools: list[BodySpool] = []
    threads = [threading.Thread(target=lambda: spools.append(filled(data, memory))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_memory = [spool for spool in spools if spool.is_in_memory]
    assert 1 <= len(in_memory) <= 8
    assert memory.free_bytes == 8 * MIB - len(in_memory) * MIB
    for spool in spools:
        assert spool.read() == data
        spool.close()
    assert memory.free_bytes == 8 * MIB


def test_a_body_has_at_most_so_many_bytes() -> None:
    memory = BodyMemory(MIB)
    with pytest.raises(S3Error, match="more than 100"):
        filled(bytes(101), memory, most_bytes=100)

"""Contents that another thread changes while they are stored: the write fails, or what it stored is sound."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ais_loader import Bucket, ObjectInfo, errors
from ais_loader.values.options import LaneChoice
from ais_loader.wire.checksum import crc32c

KIB, MIB = 1 << 10, 1 << 20


@contextlib.contextmanager
def changing(buffer: Any) -> Iterator[None]:
    """Each byte of the buffer counts up, over and over, in a thread that does not hold the interpreter meanwhile."""
    stop = threading.Event()

    def work() -> None:
        array = np.frombuffer(buffer, np.uint8)
        while not stop.is_set():
            np.add(array, 1, out=array)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(180)


def put(bucket: Bucket, data: Any) -> list[ObjectInfo]:
    return [bucket.put("put", data)]


def put_many(bucket: Bucket, data: Any) -> list[ObjectInfo]:
    view = memoryview(data)
    pieces = [(f"many/{at}", view[at : at + len(view) // 8]) for at in range(0, len(view), len(view) // 8)]
    summary = bucket.put_many(pieces, on_error="return")
    return [info for info in summary.infos if isinstance(info, ObjectInfo)]


def append(bucket: Bucket, data: Any) -> list[ObjectInfo]:
    bucket.append("append", b"before")
    return [bucket.append("append", data)]


def put_shard(bucket: Bucket, data: Any) -> list[ObjectInfo]:
    """An archive whose members are indexed as it is put; nonsense, as these bytes are."""
    return [bucket.put("nonsense.tar", data), bucket.put("nonsense.tar.zst", data)]


def multipart(bucket: Bucket, data: Any) -> list[ObjectInfo]:
    upload = bucket.multipart("multipart")
    for number in (1, 2):
        upload.put_part(number, data)
    return [upload.complete()]


WRITES: dict[str, Callable[[Bucket, Any], list[ObjectInfo]]] = {
    "put": put,
    "put_many": put_many,
    "append": append,
    "put_shard": put_shard,
    "multipart": multipart,
}


def buffer_of(kind: str, size_bytes: int, path: Path) -> Any:
    if kind == "bytearray":
        return bytearray(size_bytes)
    if kind == "array":
        return np.zeros(size_bytes, np.uint8)
    with path.open("w+b") as file:
        file.truncate(size_bytes)
        return mmap.mmap(file.fileno(), size_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "kind"), [("put", "bytearray"), ("put", "mmap"), *((write, "array") for write in WRITES)]
)
def test_what_is_acknowledged_can_be_read_whatever_happened_to_the_buffer(
    bucket: Bucket, lane: LaneChoice, tmp_path: Path, write: str, kind: str
) -> None:
    for size_bytes in (10 * KIB, 200 * KIB, 9 * MIB):
        buffer = buffer_of(kind, size_bytes, tmp_path / "mapped")
        with changing(buffer):
            for _ in range(8 if size_bytes < MIB else 1):
                infos: list[ObjectInfo] = []
                # By a lane, the node finds out that the bytes it got are not those that the client counted.
                with contextlib.suppress(*[errors.ContentMismatch] if lane == "auto" else []):
                    infos = WRITES[write](bucket, buffer)
                for info in infos:
                    data = bytes(bucket.get(info.name, verify=True))
                    assert (len(data), crc32c(data)) == (info.size_bytes, info.checksum)

"""PUT: what it takes as bytes, what it refuses, and that an object appears whole or not at all."""

from __future__ import annotations

import array
import io
import mmap
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from conformance_kit import MiB

from ais_loader import Bucket, errors
from ais_loader.testing import seeded_bytes

DATA = seeded_bytes(300_000)


class OnlyReads(io.RawIOBase):
    """A binary file that cannot seek and hands out small, odd pieces, as a pipe or a socket does."""

    def __init__(self, data: bytes, piece_bytes: int = 4321) -> None:
        self._left = memoryview(data)
        self._piece_bytes = piece_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = min(self._piece_bytes, size if size >= 0 else len(self._left))
        piece, self._left = self._left[:size], self._left[size:]
        return bytes(piece)


def as_mmap(data: bytes) -> mmap.mmap:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


FORMS: dict[str, Any] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "a view with a step": lambda data: memoryview(np.repeat(np.frombuffer(data, np.uint8), 2))[::2],
    "a numpy array": lambda data: np.frombuffer(data, np.uint8),
    "an array of integers": lambda data: array.array("I", data),
    "mmap": as_mmap,
    "BytesIO": io.BytesIO,
    "a file that cannot seek": OnlyReads,
}


@pytest.mark.parametrize("form", FORMS)
def test_put_takes(bucket: Bucket, form: str) -> None:
    info = bucket.put("a", FORMS[form](DATA))
    assert bucket.get("a") == DATA
    assert (info.bucket, info.name, info.size_bytes) == (bucket.name, "a", len(DATA))
    assert info.checksum == google_crc32c.value(DATA)
    assert bucket.head("a") == info


@pytest.mark.parametrize("form", FORMS)
def test_put_many_takes(bucket: Bucket, form: str) -> None:
    put = bucket.put_many([("a", FORMS[form](DATA)), ("b", FORMS[form](DATA))])
    assert [(info.name, info.size_bytes) for info in put.infos] == [("a", len(DATA)), ("b", len(DATA))]
    assert bucket.get_batch(["a", "b"]).tobytes() == [DATA, DATA]


def test_put_takes_a_path_and_stores_the_contents_of_the_file(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    bucket.put("a", tmp_path / "file")
    assert bucket.get("a") == DATA


def test_put_takes_an_open_file_from_where_it_stands(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with open(tmp_path / "file", "rb") as file:
        file.seek(1000)
        bucket.put("a", file)
    assert bucket.get("a") == DATA[1000:]


def test_put_takes_what_comes_out_of_a_pipe(bucket: Bucket) -> None:
    reading, writing = os.pipe()

    def feed() -> None:
        with open(writing, "wb") as file:
            file.write(DATA)

    feeding = threading.Thread(target=feed)
    feeding.start()
    with open(reading, "rb") as file:
        bucket.put("a", file)
    feeding.join()
    assert bucket.get("a") == DATA


@pytest.mark.parametrize("data", ["text", 5, None, ["x"], object], ids=repr)
def test_put_refuses_what_is_neither_bytes_nor_a_path_nor_a_file(bucket: Bucket, data: Any) -> None:
    with pytest.raises(TypeError):
        bucket.put("a", data)
    with pytest.raises(TypeError):
        bucket.put_many([("a", data)])
    assert list(bucket.objects()) == []


def test_put_refuses_a_file_opened_as_text(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with open(tmp_path / "file") as file, pytest.raises(TypeError, match="rb"):
        bucket.put("a", file)  # type: ignore[arg-type]
    assert list(bucket.objects()) == []


def test_put_refuses_a_path_that_is_no_file(bucket: Bucket, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(errors.InvalidRequest, match=path.name):
            bucket.put("a", path)


@pytest.mark.parametrize("size", [0, 1, 4095, 1 * MiB - 1, 1 * MiB, 1 * MiB + 1, 4 * MiB, 9 * MiB + 5])
def test_an_object_of_any_size_comes_back_as_it_was_put(bucket: Bucket, size: int) -> None:
    data = seeded_bytes(size)
    info = bucket.put("a", data)
    assert (info.size_bytes, info.checksum) == (size, google_crc32c.value(data))
    assert bucket.get("a") == data


def test_putting_a_name_again_replaces_the_object_and_its_version(bucket: Bucket) -> None:
    first = bucket.put("a", b"first", metadata={"k": "1"})
    second = bucket.put("a", b"second")
    assert bucket.get("a") == b"second"
    assert second.version != first.version
    assert bucket.head("a") == second
    assert bucket.head("a").metadata == {}


def test_metadata_comes_back(bucket: Bucket) -> None:
    metadata = {"text": "ein Käse 🧀", "": "empty key", "empty value": "", "newline": "a\nb"}
    info = bucket.put("a", b"", metadata=metadata)
    assert info.metadata == metadata
    assert bucket.head("a").metadata == metadata


@pytest.mark.parametrize(
    "metadata",
    [{"k": 5}, {5: "v"}, {"k": None}, {"k": b"v"}, {"k": "\ud800"}, {"k": "x" * 4096}],
    ids=lambda m: repr(m)[:20],
)
def test_metadata_that_is_not_small_strings_is_refused(bucket: Bucket, metadata: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        bucket.put("a", b"", metadata=metadata)
    assert list(bucket.objects()) == []


def test_bytes_with_the_announced_checksum_are_stored(bucket: Bucket) -> None:
    bucket.put("a", DATA, checksum=google_crc32c.value(DATA))
    assert bucket.get("a") == DATA


@pytest.mark.parametrize("large", [False, True])
def test_bytes_with_another_checksum_are_refused_and_the_old_object_stays(bucket: Bucket, large: bool) -> None:
    bucket.put("a", b"old")
    data = seeded_bytes(6 * MiB) if large else DATA
    with pytest.raises(errors.ContentMismatch):
        bucket.put("a", data, checksum=google_crc32c.value(data) ^ 1)
    assert bucket.get("a") == b"old"


@pytest.mark.parametrize("checksum", [-1, 1 << 32])
def test_a_checksum_that_is_no_32_bit_number_is_refused(bucket: Bucket, checksum: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        bucket.put("a", DATA, checksum=checksum)
    assert list(bucket.objects()) == []


def test_a_file_that_shrinks_while_it_is_put_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(seeded_bytes(3 * MiB))

    class Shrinking(type(path)):  # type: ignore[misc]
        """Its size is asked for first, its bytes are read afterwards."""

        def __fspath__(self) -> str:
            os.truncate(str(self), 1 * MiB)
            return str(self)

    with pytest.raises(errors.ContentMismatch):
        bucket.put("a", Shrinking(path))
    assert list(bucket.objects()) == []


def test_a_file_that_fails_while_it_is_read_raises_its_own_error_and_stores_nothing(bucket: Bucket) -> None:
    class Failing(OnlyReads):
        def read(self, size: int = -1) -> bytes:
            if len(self._left) < 200_000:
                raise OSError("the tape is torn")
            return super().read(size)

    with pytest.raises(OSError, match="the tape is torn"):
        bucket.put("a", Failing(DATA))
    assert list(bucket.objects()) == []

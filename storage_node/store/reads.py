"""Reading one object, or a range of it, as a stream of chunks; what was put whole is verified before it is handed on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from storage_node.store.batch_plan import check_range
from storage_node.store.checksum import crc32c
from storage_node.store.drive import Drive
from storage_node.store.errors import CorruptObject, DriveFailed, InvalidRequest, ObjectNotFound, RangeError
from storage_node.store.format import BLOCK_BYTES, Record
from storage_node.store.raw_files import drive_error
from storage_node.store.store import Store, not_found_message

CHUNK_BYTES = 4 * BLOCK_BYTES
_LOOKUPS_OF_A_MOVING_OBJECT = 10


class ObjectReader(Iterator[bytes]):
    """Chunks of at most CHUNK_BYTES, `length` bytes in all, of one version of one object.

    Its file is open from the start: what is put or deleted meanwhile changes nothing. Exhaust it or close it.
    """

    def __init__(self, drive: Drive, record: Record, fd: int, label: str, start: int, length: int, verify: bool) -> None:
        self.record = record
        self.length = length
        self._drive = drive
        self._fd = fd
        self._label = label
        self._at, self._stop = start, start + length
        # Ranges are only checked when asked: that reads their whole blocks.
        self._verify = verify or (start == 0 and length == record.size_bytes)

    def __next__(self) -> bytes:
        if self._at >= self._stop:
            self.close()
            raise StopIteration
        try:
            chunk = self._next_verified() if self._verify else self._pread(self._at, min(CHUNK_BYTES, self._stop - self._at))
        except BaseException:
            self.close()
            raise
        self._at += len(chunk)
        return chunk

    def _next_verified(self) -> bytes:
        size = self.record.size_bytes
        if size <= BLOCK_BYTES:
            whole = self._pread(0, size)
            self._compare(whole, self.record.checksum)
            return whole[self._at : self._stop]
        first = self._at // BLOCK_BYTES
        end = min((first * BLOCK_BYTES) + CHUNK_BYTES, -(-self._stop // BLOCK_BYTES) * BLOCK_BYTES, size)
        begin, stop = first * BLOCK_BYTES, -(-end // BLOCK_BYTES)
        blocks = self._pread(begin, end - begin)
        for number, checksum in enumerate(self._drive.block_checksums(self.record, first, stop)):
            self._compare(memoryview(blocks)[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES], checksum)
        return blocks[self._at - begin : self._stop - begin]

    def _compare(self, data: bytes | memoryview, expected: int) -> None:
        if crc32c(data) != expected:
            raise CorruptObject(
                f"{self._label}: the bytes on {self._drive.root} do not match the stored checksum; "
                "run `ais-loader doctor`, and put the object again"
            )

    def _pread(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                part = os.pread(self._fd, size, offset)
            except OSError as error:
                raise drive_error(error, self._drive.root, f"reading {self._label}") from error
            if not part:
                raise CorruptObject(f"{self._label}: its file on {self._drive.root} is shorter than what was put")
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._at = self._stop

    def __del__(self) -> None:
        self.close()


def open_object(
    store: Store, bucket: str, name: str, *, start: int = 0, length: int | None = None, member: str = "",
    version: str = "", verify: bool = False,
) -> ObjectReader:  # fmt: skip
    """Open an object for reading.

    Raises BucketNotFound, ObjectNotFound (also when `version` is gone), RangeError, CorruptObject, DriveFailed,
    InvalidRequest.
    """
    label = f"{bucket}/{name}"
    if member:
        raise InvalidRequest(f"{label}: reading members of archives is not supported by this store")
    for _ in range(_LOOKUPS_OF_A_MOVING_OBJECT):
        record = store.head(bucket, name)
        if version and version != str(record.version):
            raise ObjectNotFound(f"{label}: version {version} is gone, the store has {record.version}")
        if length is not None and length < 0:
            raise RangeError(f"{label}: negative range: start={start}, length={length}")
        if fault := check_range(start, -1 if length is None else length, record.size_bytes):
            raise RangeError(f"{label}: {fault}")
        drive = store.drive_at(store.drive_index(store.bucket(bucket).uuid_bytes, name))
        try:
            fd = drive.files.open(record.path)
        except OSError as error:
            if error.errno != errno.ENOENT or not (drive.root / "objects").is_dir():
                raise drive_error(error, drive.root, f"opening {label}") from error
            drive.catch_up()
            if not _is_current(store, bucket, name, record):
                continue
            raise CorruptObject(f"{label}: its file is missing from {drive.root}; see `ais-loader doctor`") from error
        wanted = record.size_bytes - start if length is None else length
        return ObjectReader(drive, record, fd, label, start, wanted, verify)
    raise DriveFailed(f"{label} is replaced faster than it can be opened")


def _is_current(store: Store, bucket: str, name: str, record: Record) -> bool:
    try:
        return store.head(bucket, name).path == record.path
    except ObjectNotFound:
        raise ObjectNotFound(not_found_message(bucket, name)) from None

"""Object reader: an object, or a range of it, in chunks that are verified before they are returned, where possible."""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from ais_loader.errors import CorruptObject, DriveFailed, LoaderError, RangeError
from ais_loader.wire import recycled
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.object_info import has_version
from storage_node.store import native
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.member import Member
from storage_node.store.archives.source import CHUNK_BYTES as ARCHIVE_CHUNK_BYTES
from storage_node.store.buckets import ObjectCoded
from storage_node.store.checksum import crc32c
from storage_node.store.drive.block_checksums import read_blocks
from storage_node.store.drive.drive import Drive
from storage_node.store.files.object_files import drive_error, read_fully
from storage_node.store.files.segment_format import file_of
from storage_node.store.format import BLOCK_BYTES, CatalogEntry, Version
from storage_node.store.native import read_into
from storage_node.store.read.batch_members import MemberPart, find_member, status_of
from storage_node.store.read.batch_reader import Failure, FailureCode
from storage_node.store.read.frame_plan import check_range
from storage_node.store.replica_state import version_gone
from storage_node.store.store import Store

CHUNK_BYTES = 4 * BLOCK_BYTES
_CACHED_BYTES = 128 << 10
"""Objects up to this size are read while other threads wait, which takes less time than to release the GIL."""
_LOOKUPS_OF_A_MOVING_OBJECT = 10
T = TypeVar("T")


class _SlotDamaged(CorruptObject):
    """Probably means that the object was just replaced."""


class StoredObjectReader(Iterator[bytes]):
    """Chunks of at most CHUNK_BYTES, `length` bytes in all, of one version of one object.

    Its file and its checksums are held from the start: later puts and deletions do not affect it. Exhaust it or close
    it. Belongs to one thread at a time.
    """

    def __init__(
        self,
        drive: Drive,
        entry: CatalogEntry,
        fd: int,
        label: str,
        start: int,
        length: int,
        verify: bool,
        damaged: Callable[[Version], None] = lambda version: None,
    ) -> None:
        """Takes ownership of `fd`. Raises CorruptObject if checksums are missing, and then closes it.

        `damaged` is called if the bytes do not match this version.
        """
        self.record = entry
        self.length = length
        self.drive = drive
        self._damaged = damaged
        self._fd = fd
        self._label = label
        self._at, self._stop = start, start + length
        self._first_block = start // BLOCK_BYTES
        self._verify = verify or (start == 0 and length == entry.size_bytes)
        self._blocks: npt.NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._held: bytes | None = None
        if entry.offset:
            try:
                self._held = self._read_from_segment()
            finally:
                os.close(self._fd)
                self._fd = -1
            return
        if self._verify and length and entry.size_bytes > BLOCK_BYTES:
            try:
                stop_block = -(-self._stop // BLOCK_BYTES)
                self._blocks = read_blocks(drive.catalog, entry, self._first_block, stop_block)
            except BaseException:
                self.close()
                raise

    def __next__(self) -> bytes:
        return bytes(self.next_view())

    def next_view(self) -> bytes | memoryview:
        """Return the next chunk without a copy. Its memory is used again once nothing refers to it. Raises
        StopIteration at the end."""
        if self._at >= self._stop:
            self.close()
            raise StopIteration
        chunk: bytes | memoryview
        try:
            if self._held is not None:
                chunk = self._held[self._at : self._stop]
            elif self._verify:
                chunk = self._next_verified()
            else:
                chunk = self._pread(self._at, min(CHUNK_BYTES, self._stop - self._at))
        except BaseException:
            self.close()
            raise
        self._at += len(chunk)
        return chunk

    def views(self) -> Iterator[bytes | memoryview]:
        """Yield the rest of the chunks as `next_view` returns them, and close the reader at the end."""
        with contextlib.closing(self):
            while self._at < self._stop:
                yield self.next_view()

    def _read_from_segment(self) -> bytes:
        """Read the whole object at once: the bytes of a dead object in a segment are freed even while it is open."""
        data = self._pread(self.record.offset, self.record.size_bytes)
        if crc32c(data) != self.record.checksum:
            raise _SlotDamaged(self._damage())
        return data

    def _damage(self) -> str:
        return (
            f"{self._label}: the bytes on {self.drive.root} do not match the stored checksum; "
            "run `ais-loader doctor`, and put the object again"
        )

    def _next_verified(self) -> memoryview:
        size = self.record.size_bytes
        if size <= BLOCK_BYTES:
            begin, checksums = 0, [self.record.checksum]
            lengths = [size]
        else:
            first = self._at // BLOCK_BYTES
            begin = first * BLOCK_BYTES
            end = min(begin + CHUNK_BYTES, -(-self._stop // BLOCK_BYTES) * BLOCK_BYTES, size)
            lengths = [min(BLOCK_BYTES, end - at) for at in range(begin, end, BLOCK_BYTES)]
            at = first - self._first_block
            checksums = self._blocks[at : at + len(lengths)].tolist()
        read = _read_pieces(self._fd, b"", begin, lengths, checksums)
        if isinstance(read, tuple):
            self._raise_failure(read)
        return read[self._at - begin : self._stop - begin]

    def _raise_failure(self, failure: Failure) -> NoReturn:
        _, code, number = failure
        if code == FailureCode.CHECKSUM:
            self.drive.faults.note_checksum()
            self._damaged(self.record.version)
            raise CorruptObject(self._damage())
        if code == FailureCode.SHORT:
            self._damaged(self.record.version)
            raise CorruptObject(f"{self._label}: its file on {self.drive.root} is shorter than what was put")
        error = OSError(number, os.strerror(number))
        self.drive.faults.note(error, f"reading {self._label}")
        raise drive_error(error, self.drive.root, f"reading {self._label}") from error

    def _pread(self, offset: int, size: int) -> bytes:
        try:
            data = read_fully(self._fd, size, offset)
        except OSError as error:
            self.drive.faults.note(error, f"reading {self._label}")
            raise drive_error(error, self.drive.root, f"reading {self._label}") from error
        if len(data) < size:
            self._raise_failure((0, FailureCode.SHORT, 0))
        return data

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        self._at = self._stop
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class MemberReader(Iterator[bytes]):
    """Member of an archive, or `length` bytes of it, in chunks of at most a few MiB; like StoredObjectReader."""

    def __init__(
        self,
        entry: CatalogEntry,
        part: MemberPart,
        *,
        verify: bool,
        unreadable: Callable[[LoaderError], None] = lambda error: None,
    ) -> None:
        """`entry` is the archive's entry. With `verify` each chunk is verified before it is returned, also in a range.

        `unreadable` is called with the reason if the member cannot be delivered. Raises FileNotFoundError if the
        archive was replaced.
        """
        self.record = entry
        self.member = part.member
        self._unreadable = unreadable
        self.length = part.size_bytes
        # A whole member in one chunk is verified by its own checksum, without reading whole blocks.
        by_itself = part.is_whole and part.size_bytes <= ARCHIVE_CHUNK_BYTES
        self._pieces = part.pieces() if by_itself or not (verify or part.is_whole) else part.checked_pieces()

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except LoaderError as error:
            self._unreadable(error)
            raise

    def close(self) -> None:
        self._pieces = iter(())


class MemberPage(NamedTuple):
    version: str
    """Version of the archive."""
    members: list[Member]
    """In the order of the archive."""
    next: int
    """Position at which the next page begins; 0 if this is the last one."""
    hidden: int
    """Number of regular files in the archive that are not members, because a later entry has the same name."""


def open_object(
    store: Store,
    bucket: str,
    name: str,
    *,
    start: int = 0,
    length: int | None = None,
    version: str = "",
    verify: bool = True,
) -> StoredObjectReader:
    """Open an object for reading.

    Raises BucketNotFound, ObjectNotFound (also if `version` is gone), RangeError, CorruptObject, DriveFailed,
    StoreFormatError, Closed.
    """
    label = f"{bucket}/{name}"
    if length is not None and length < 0:
        raise RangeError(f"{label}: negative range: start={start}, length={length}")

    def opened(drive: Drive, entry: CatalogEntry) -> StoredObjectReader:
        if fault := check_range(start, -1 if length is None else length, entry.size_bytes):
            raise RangeError(f"{label}: {fault}")
        wanted = entry.size_bytes - start if length is None else length
        damaged = partial(_note_damage, store, bucket, name)
        return StoredObjectReader(drive, entry, drive.files.open(entry.path), label, start, wanted, verify, damaged)

    return open_current(store, bucket, name, version, opened)


def read_cached(drive: Drive, entry: CatalogEntry) -> bytes | None:
    """Return the bytes of an object that was located before, verified, if no drive has to be waited for."""
    path = file_of(entry.path) if entry.offset else entry.path
    return native.read_cached(b"", ((drive.files.objects_fd, path, entry.offset, entry.size_bytes, entry.checksum),))


def read_located(drive: Drive, entry: CatalogEntry, label: str) -> bytes | memoryview:
    """Return the bytes of an object that was located before, verified. Its memory is used again once nothing refers to
    it.

    Returns none if they cannot be read: another look-up then tells why.
    """
    if not entry.has_file:
        return b""
    size = entry.size_bytes
    if size > _CACHED_BYTES:
        path = file_of(entry.path) if entry.offset else entry.path
        read = _read_pieces(drive.files.objects_fd, path, entry.offset, [size], [entry.checksum])
        if not isinstance(read, tuple):
            return read
    elif (whole := read_cached(drive, entry)) is not None:
        return whole
    try:
        fd = drive.files.open(entry.path)
        return b"".join(StoredObjectReader(drive, entry, fd, label, 0, size, True))
    except (OSError, LoaderError):
        return b""


def _read_pieces(
    folder: int, path: bytes, start: int, lengths: Sequence[int], checksums: Sequence[int]
) -> memoryview | Failure:
    """Return adjacent pieces of a file, each verified, in memory that is used again once nothing refers to it.

    `path` b"": `folder` is itself the file.
    """
    count = len(lengths)
    starts = array("q")
    for length in lengths:
        starts.append(start)
        start += length
    room = recycled.take(sum(lengths))
    failure = read_into(
        room,
        0,
        array("i", [folder]) * count,
        [path] * count,
        starts,
        array("q", lengths),
        array("I", checksums),
        b"\1" * count,
        bytearray(1),
    )
    return room.toreadonly() if failure is None else failure


def _note_damage(store: Store, bucket: str, name: str, version: Version) -> None:
    with contextlib.suppress(LoaderError):  # the bucket was deleted meanwhile
        store.damaged.note(store.bucket(bucket).uuid_bytes, name, version)


def note_suspicion(store: Store, bucket: str, name: str, version: Version, error: LoaderError) -> None:
    """Note an archive as possibly damaged if a member of it cannot be delivered."""
    if status_of(error) == pb.CORRUPT:
        with contextlib.suppress(LoaderError):  # the bucket was deleted meanwhile
            store.damaged.suspect(store.bucket(bucket).uuid_bytes, name, version)


def open_member(
    store: Store,
    bucket: str,
    name: str,
    member: str,
    *,
    start: int = 0,
    length: int | None = None,
    version: str = "",
    verify: bool = True,
) -> MemberReader:
    """Open a member of the archive `name`. Raises MemberNotFound, ArchiveError, and what `open_object` raises."""
    if length is not None and length < 0:
        raise RangeError(f"{bucket}/{name}, member {member!r}: negative range: start={start}, length={length}")

    def opened(drive: Drive, entry: CatalogEntry) -> MemberReader:
        unreadable = partial(note_suspicion, store, bucket, name, entry.version)
        try:
            part = find_member(drive, entry, name, member, start, -1 if length is None else length)
        except LoaderError as error:
            unreadable(error)
            raise
        return MemberReader(entry, part, verify=verify, unreadable=unreadable)

    return open_current(store, bucket, name, version, opened)


def list_members(
    store: Store,
    bucket: str,
    name: str,
    prefix: str = "",
    first: int = 0,
    page_size: int = 1000,
    version: str = "",
    page_bytes: int = 1 << 20,
) -> MemberPage:
    """List members whose names begin with `prefix`, after skipping the first `first` of the archive.

    `page_bytes` is the size of names after which a page ends. Builds the index if there is none. Raises ArchiveError,
    and what `open_object` raises.
    """

    def page(drive: Drive, entry: CatalogEntry) -> MemberPage:
        index = drive.shards.open(entry, name).archive.index
        return page_of(index, str(entry.version), prefix, first, page_size, page_bytes)

    return open_current(store, bucket, name, version, page)


def page_of(
    index: MemberIndex, version: str, prefix: str, first: int, page_size: int, page_bytes: int = 1 << 20
) -> MemberPage:
    """Return one page of `list_members` from the archive's index."""
    found: list[Member] = []
    size_bytes = 0
    for at, member in index.listed(start=first):
        if member.name.startswith(prefix):
            if len(found) == page_size or size_bytes >= page_bytes:
                return MemberPage(version, found, at, index.hidden)
            found.append(member)
            size_bytes += len(member.name)
    return MemberPage(version, found, 0, index.hidden)


def open_current(
    store: Store, bucket: str, name: str, version: str, open_file: Callable[[Drive, CatalogEntry], T]
) -> T:
    """Return the result of `open_file` for the current object. It is called again if the file vanished meanwhile."""
    label = f"{bucket}/{name}"
    gone: tuple[Drive, bytes] | None = None
    for _ in range(_LOOKUPS_OF_A_MOVING_OBJECT):
        drive, entry = store.locate(bucket, name)
        if version and not has_version(entry, version):
            raise version_gone(label, version, entry.version)
        if entry.is_coded:
            uuid = store.bucket(bucket).uuid_bytes
            raise ObjectCoded(f"{label}: it is coded, and has no file here", uuid, {name: entry})
        try:
            return open_file(drive, entry)
        except OSError as error:
            if error.errno != errno.ENOENT or not drive.is_there():
                raise drive_error(error, drive.root, f"opening {label}") from error
            if gone == (drive, entry.path):
                _note_damage(store, bucket, name, entry.version)
                raise CorruptObject(f"{label}: its file on {drive.root} is missing; see `ais-loader doctor`") from error
        except CorruptObject as error:
            if gone == (drive, entry.path):
                if isinstance(error, _SlotDamaged):
                    drive.faults.note_checksum()
                _note_damage(store, bucket, name, entry.version)
                raise
        except DriveFailed:
            if drive in store.drives:
                raise  # else it has left the store, and its objects are elsewhere
        # Probably replaced, deleted or moved between the two steps. The next result of the catalog is final.
        gone = drive, entry.path
        with contextlib.suppress(LoaderError):  # the next look-up reports it
            drive.catch_up()
    raise DriveFailed(f"{label} is replaced faster than it can be opened")

"""Batch reader: reads pieces of many files in one call, verified, in order, after a prefix or as a list.

Columns describe n entries; entry i is `lengths[i]` bytes from `offsets[i]` of the file `paths[i]`:

    dirfds    int32 (n,)    folder that paths[i] is relative to
    paths     n bytes       without NUL; b"" means that dirfds[i] is itself the file, open for reading; or StoredFile
    offsets   int64 (n,)    bytes, >= 0
    lengths   int64 (n,)    bytes, >= 0; a file that ends earlier fails, nothing is ever shorter
    expected  uint32 (n,)   CRC-32C of the piece, compared where verify is set
    verify    uint8 (n,)    0 or 1

Columns are one-dimensional contiguous buffers of native items: numpy arrays, array.array, bytes.

An entry that cannot be delivered is a result, not an exception: the call then returns a `Failure` and no bytes.
Exceptions mean wrong arguments (TypeError, ValueError) or no memory. Symbolic links are not followed. Consecutive
entries of the same file share one descriptor. A call holds at most 32 descriptors, fewer if they are scarce, and has
closed all of them when it returns.

Two implementations share this contract. `_native.c` releases the GIL once per call, keeps a drive's queue filled when
data is not cached, and copies objects of a `StoredFile` (drive/locations.py) out of a mapping when it is. The functions
below are the reference and read one piece after another.
AIS_LOADER_READER=native|python|auto (the default) selects one at import.

Threads: any number of calls may run at once.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import index
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from storage_node.store.checksum import crc32c
from storage_node.store.drive.locations import StoredFile

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt
    from typing_extensions import Buffer

    # numpy's arrays declare the buffer protocol from Python 3.12 on.
    Column: TypeAlias = Buffer | npt.NDArray[Any]

__all__ = [
    "IMPLEMENTATION",
    "CachedFile",
    "Failure",
    "FailureCode",
    "announce",
    "announce_python",
    "copy_into",
    "copy_into_python",
    "read_cached",
    "read_cached_python",
    "read_frame",
    "read_frame_python",
    "read_into",
    "read_into_python",
    "read_list",
    "read_list_python",
]

Failure: TypeAlias = tuple[int, int, int]
"""(position of the first entry that failed, FailureCode, errno or 0)"""

Paths: TypeAlias = Sequence[bytes] | Sequence[StoredFile]
"""A list or a tuple."""


class FailureCode(IntEnum):
    OPEN = 1
    """The file could not be opened; errno says why."""
    READ = 2
    """The file could not be read; errno says why."""
    SHORT = 3
    """The file ends before the entry does."""
    CHECKSUM = 4
    """The bytes are not those that were expected."""


class _EntryFailed(Exception):
    def __init__(self, position: int, code: FailureCode, errno: int = 0) -> None:
        super().__init__(position, code, errno)
        self.failure: Failure = (position, int(code), errno)


def read_frame_python(
    prefix: Buffer,
    checksum_at: int,
    dirfds: Column,
    paths: Paths,
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
    waited: bytearray | None = None,
    /,
) -> bytes | Failure:
    """Return `prefix` followed by every piece, as one bytes object of len(prefix) + sum(lengths) bytes.

    With `checksum_at` >= 0 the pieces' CRC-32C, computed from the bytes just read, replace the 4 * n bytes of the
    prefix from there on, as little-endian uint32. The first byte of `waited` becomes 1 if a drive had to be waited for
    because bytes were not in the page cache, as far as the file system can tell; otherwise it is unchanged.
    """
    checksum_at = index(checksum_at)
    if not memoryview(prefix).c_contiguous:
        raise BufferError("prefix must be C-contiguous")
    head = bytearray(memoryview(prefix))
    columns = _columns(len(head), dirfds, paths, offsets, lengths, expected, verify)
    count = len(columns)
    if checksum_at >= 0 and checksum_at + 4 * count > len(head):
        raise ValueError(f"{count} checksums at {checksum_at} do not fit in a prefix of {len(head)} bytes")
    try:
        pieces, sums = _read_pieces(columns, all_sums=checksum_at >= 0, waited=waited)
    except _EntryFailed as failed:
        return failed.failure
    if checksum_at >= 0:
        head[checksum_at : checksum_at + 4 * count] = b"".join(crc.to_bytes(4, "little") for crc in sums)
    return b"".join([head, *pieces])


def read_into_python(
    target: Buffer,
    first_byte: int,
    dirfds: Column,
    paths: Paths,
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
    waited: bytearray,
    /,
) -> Failure | None:
    """Read every piece into `target`, which they fill from `first_byte` to its end, and return None.

    After a failure the content of the target is undefined. `waited` is as in `read_frame_python`.
    """
    memory = memoryview(target)
    if memory.readonly:
        raise BufferError("target must be writable")
    memory, first_byte = memory.cast("B"), index(first_byte)
    columns = _columns(0, dirfds, paths, offsets, lengths, expected, verify)
    total = sum(entry[3] for entry in columns)
    if not 0 <= first_byte <= len(memory) or len(memory) - first_byte != total:
        raise ValueError(f"{total} bytes from {first_byte} do not fill a target of {len(memory)} bytes")
    try:
        pieces, _ = _read_pieces(columns, all_sums=False, waited=waited)
    except _EntryFailed as failed:
        return failed.failure
    for piece in pieces:
        memory[first_byte : first_byte + len(piece)] = piece
        first_byte += len(piece)
    return None


def copy_into_python(
    target: Buffer,
    first_byte: int,
    dirfds: Column,
    paths: Paths,
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
    /,
) -> bool:
    """Do what `read_into` does, but only with pieces that are mapped, so that hardly ever a drive is waited for.

    Returns whether all of them were copied, and are what was expected. Otherwise the content of the target is
    undefined, and the caller reads them in a thread. The arguments are not checked here if nothing is mapped, which is
    always the case for this implementation.
    """
    return False


def read_list_python(
    dirfds: Column, paths: Paths, offsets: Column, lengths: Column, expected: Column, verify: Column, /
) -> list[bytes] | Failure:
    """Return every piece as a bytes object of its own."""
    try:
        return _read_pieces(_columns(0, dirfds, paths, offsets, lengths, expected, verify), all_sums=False)[0]
    except _EntryFailed as failed:
        return failed.failure


def announce_python(dirfds: Column, paths: Paths, offsets: Column, lengths: Column, /) -> int:
    """Make the kernel prefetch what is not in the page cache. Returns the number of bytes requested.

    Waits for folders and for space in a drive's queue, not for the bytes. Each entry is judged by its first and last
    byte. Entries that cannot be opened are skipped. Nothing is requested if the file system cannot tell what is in the
    page cache.
    """
    count, announced = len(paths), 0
    for dirfd, path, offset, length, _, _ in _columns(
        0, dirfds, paths, offsets, lengths, array("I", bytes(4 * count)), bytes(count)
    ):
        if not length:
            continue
        try:
            fd = _open(0, dirfd, path) if path else dirfd
        except _EntryFailed:
            continue
        try:
            if _is_cold(fd, offset) or _is_cold(fd, offset + length - 1):
                os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
                announced += length
        finally:
            if path:
                os.close(fd)
    return announced


CachedFile: TypeAlias = tuple[int, bytes, int, int, int]
"""(folder that the path is relative to, path, offset in bytes, size in bytes, CRC-32C)"""


def read_cached_python(prefix: bytes, files: tuple[CachedFile, ...], /) -> bytes | None:
    """Return `prefix` and these small objects, verified, but only if no drive has to be waited for.

    Returns None in every other case. A caller on an event loop then reads in a thread, which also finds out what is
    wrong. Needs RWF_NOWAIT. This implementation may wait for a folder, the native one does not.
    """
    parts: list[bytes | bytearray] = [prefix]
    for dirfd, path, offset, length, expected in files:
        data = bytearray(length)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dirfd)
            try:
                got = os.preadv(fd, [data], offset, os.RWF_NOWAIT) if length else 0
            finally:
                os.close(fd)
        except OSError:
            return None
        if got != length or crc32c(data) != expected:
            return None
        parts.append(data)
    return b"".join(parts)


_Entry: TypeAlias = tuple[int, bytes, int, int, int, int]


def _column(name: str, kind: str, formats: str, itemsize: int, source: Column, count: int) -> list[int]:
    view = memoryview(cast("Buffer", source))
    item = view.format.removeprefix("@")
    if len(item) != 1 or item not in formats or view.itemsize != itemsize:
        raise TypeError(f"{name} must hold native {kind} items")
    if view.ndim != 1 or not view.c_contiguous:
        raise ValueError(f"{name} must be one-dimensional and contiguous")
    if len(view) != count:
        raise ValueError(f"{name} has {len(view)} items, paths has {count}")
    return view.tolist()


def _columns(
    prefix_bytes: int,
    dirfds: Column,
    paths: Paths,
    offsets: Column,
    lengths: Column,
    expected: Column,
    verify: Column,
) -> list[_Entry]:
    """Return the entries as rows, after every check that does not need the drive."""
    if not isinstance(paths, list | tuple):
        raise TypeError(f"paths must be a list of bytes, not {type(paths).__name__}")
    files = [path if isinstance(path, bytes) else getattr(path, "path", path) for path in paths]
    count = len(files)
    entries = list(
        zip(
            _column("dirfds", "int32", "i", 4, dirfds, count),
            files,
            _column("offsets", "int64", "lq", 8, offsets, count),
            _column("lengths", "int64", "lq", 8, lengths, count),
            _column("expected", "uint32", "I", 4, expected, count),
            _column("verify", "uint8", "B?", 1, verify, count),
            strict=True,
        )
    )
    total = prefix_bytes
    for i, (_, path, offset, length, _, _) in enumerate(entries):
        if not isinstance(path, bytes):
            raise TypeError(f"paths[{i}] must be bytes, not {type(path).__name__}")
        if b"\0" in path:
            raise ValueError(f"paths[{i}] contains a NUL byte")
        if offset < 0 or length < 0 or offset + length > sys.maxsize:
            raise ValueError(f"entry {i}: offset {offset} and length {length} are not a range of a file")
        total += length
        if total > sys.maxsize:
            raise ValueError("the lengths add up to more than an object can hold")
    return entries


def _read_pieces(
    entries: list[_Entry], *, all_sums: bool, waited: bytearray | None = None
) -> tuple[list[bytes], list[int]]:
    """Return the pieces and their checksums (0 if not requested), in order. Raises _EntryFailed."""
    pieces: list[bytes] = []
    sums: list[int] = []
    fd, file = -1, (-1, b"")  # file: what fd is open for; closed here if it has a path
    try:
        for i, (dirfd, path, offset, length, expected, verify) in enumerate(entries):
            if (dirfd, path) != file:
                if file[1]:
                    os.close(fd)
                file = (-1, b"")
                fd = _open(i, dirfd, path) if path else dirfd
                file = (dirfd, path)
            if waited is not None and length and not waited[0] and _is_cold(fd, offset):
                waited[0] = 1
            piece = _pread_exactly(i, fd, offset, length)
            crc = crc32c(piece) if verify or all_sums else 0
            if verify and crc != expected:
                raise _EntryFailed(i, FailureCode.CHECKSUM)
            pieces.append(piece)
            sums.append(crc)
    finally:
        if file[1]:
            os.close(fd)
    return pieces, sums


def _is_cold(fd: int, offset: int) -> bool:
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:  # this file system cannot tell
        return False
    return False


def _open(position: int, dirfd: int, path: bytes) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dirfd)
    except OSError as error:
        raise _EntryFailed(position, FailureCode.OPEN, error.errno or 0) from error


def _pread_exactly(position: int, fd: int, offset: int, length: int) -> bytes:
    parts: list[bytes] = []
    done = 0
    while done < length:
        try:
            part = os.pread(fd, length - done, offset + done)
        except OSError as error:
            raise _EntryFailed(position, FailureCode.READ, error.errno or 0) from error
        if not part:
            raise _EntryFailed(position, FailureCode.SHORT)
        parts.append(part)
        done += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class ReadFrame(Protocol):
    def __call__(
        self,
        prefix: Buffer,
        checksum_at: int,
        dirfds: Column,
        paths: Paths,
        offsets: Column,
        lengths: Column,
        expected: Column,
        verify: Column,
        waited: bytearray = ...,
        /,
    ) -> bytes | Failure: ...


ReadInto: TypeAlias = Callable[
    ["Buffer", int, "Column", Paths, "Column", "Column", "Column", "Column", bytearray], "Failure | None"
]
CopyInto: TypeAlias = Callable[["Buffer", int, "Column", Paths, "Column", "Column", "Column", "Column"], bool]
ReadList: TypeAlias = Callable[["Column", Paths, "Column", "Column", "Column", "Column"], "list[bytes] | Failure"]
ReadCached: TypeAlias = Callable[[bytes, tuple[CachedFile, ...]], "bytes | None"]
Announce: TypeAlias = Callable[["Column", Paths, "Column", "Column"], int]
Implementation: TypeAlias = Literal["native", "python"]


def _choose(choice: str) -> tuple[Implementation, ReadFrame, ReadInto, CopyInto, ReadList, ReadCached, Announce]:
    if choice not in ("auto", "native", "python"):
        raise ValueError(f"AIS_LOADER_READER must be auto, native or python, got {choice!r}")
    if choice != "python":
        try:
            from storage_node.store import _native
        except ImportError as error:
            if choice == "native":
                raise ImportError(
                    "AIS_LOADER_READER=native, but storage_node.store._native cannot be loaded "
                    f"({error}); install with a C compiler, or set AIS_LOADER_READER=auto"
                ) from error
        else:
            readers = _native.read_frame, _native.read_into, _native.copy_into, _native.read_list
            return "native", *readers, _native.read_cached, _native.announce
    readers_python = read_frame_python, read_into_python, copy_into_python, read_list_python
    return "python", *readers_python, read_cached_python, announce_python


IMPLEMENTATION, read_frame, read_into, copy_into, read_list, read_cached, announce = _choose(
    os.environ.get("AIS_LOADER_READER", "auto")
)

"""Clean-shutdown and high-water mark of a catalog: how its last writer ended, and how far its log had come.

After a crash of the process, the page cache survives: the log has every acknowledged commit, and intents and garbage
keys in the catalog name every file that may have to be removed. After a crash of the machine it does not: the log may
have lost its end, and a rename may be on the disk while the intent that announced it is not. While a writer has the
drive open, the mark contains the identity of the running kernel. A writer that finds the mark of another kernel
compares all files with the catalog.

A log does not show that its end is missing. The mark therefore has two sequence numbers of RocksDB: that of the last
commit, which counts if the kernel is still the same, and that of the last synced commit, which always counts. A catalog
that is behind has lost commits. It is rejected, because using it would silently undo deletions.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import uuid
from pathlib import Path
from typing import NamedTuple

import xxhash

from ais_loader.errors import StoreFormatError
from storage_node.store.checksum import crc32c
from storage_node.store.files.growing_file import write_atomically

FILE_NAME = "high-water"
"""In the catalog's folder, so that both are set aside together."""

_MAGIC, _FORMAT = b"AISW", 1
_MARK = struct.Struct("<4sI16sQQ")
_CHECK = struct.Struct("<I")
_CLOSED = bytes(16)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOOKS = 100


def boot_id() -> bytes:
    """Return an id of this start of the machine; a new one at every call if the system has none."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return uuid.uuid4().hex.encode()


class Mark(NamedTuple):
    boot: bytes
    """Digest of the id of the kernel in which a writer has the drive open; zeros after an orderly close."""
    written: int
    """Sequence number of the last commit."""
    synced: int
    """Sequence number up to which commits are durable."""

    @property
    def is_closed(self) -> bool:
        return self.boot == _CLOSED

    @property
    def is_open_here(self) -> bool:
        """Whether a writer has the drive open, or was killed, under the kernel that runs now."""
        return self.boot == _digest(boot_id())

    @property
    def machine_went_down(self) -> bool:
        """Whether the machine went down while the previous writer had the drive open."""
        return not self.is_closed and not self.is_open_here

    @property
    def required(self) -> int:
        """Sequence number that an intact catalog has reached."""
        return self.synced if self.machine_went_down else self.written


def read_mark(folder: Path) -> Mark | None:
    """Return the mark of the catalog in this folder, or None. Raises OSError, StoreFormatError."""
    path = folder / FILE_NAME
    for _ in range(_LOOKS):  # a read may see a partial write
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if (mark := _decode(data)) is not None:
            return mark
    raise StoreFormatError(
        f"{path} is damaged, so that nobody can tell whether the catalog has lost commits; "
        "`ais-loader doctor --rebuild` makes it anew from the files"
    )


def _decode(data: bytes) -> Mark | None:
    if len(data) != _MARK.size + _CHECK.size or _CHECK.pack(crc32c(data[: _MARK.size])) != data[_MARK.size :]:
        return None
    magic, number, boot, written, synced = _MARK.unpack_from(data)
    return Mark(boot, written, synced) if (magic, number) == (_MAGIC, _FORMAT) else None


def _encode(mark: Mark) -> bytes:
    head = _MARK.pack(_MAGIC, _FORMAT, *mark)
    return head + _CHECK.pack(crc32c(head))


def _digest(boot: bytes) -> bytes:
    return xxhash.xxh3_128_digest(boot)


class MarkWriter:
    """Writer of the mark of a catalog that is open for writing. Thread-safe."""

    def __init__(self, folder: Path, before: Mark | None) -> None:
        """Continues the mark of the previous writer. Without one, nothing is written before `begin`."""
        self._folder = folder
        self._mark = before or Mark(_CLOSED, 0, 0)
        self._lock = threading.Lock()
        self._fd = -1 if before is None else self._open()  # guarded by _lock

    def _open(self) -> int:
        return os.open(self._folder / FILE_NAME, os.O_WRONLY | os.O_CLOEXEC)

    def begin(self, sequence: int) -> None:
        """Mark the drive as open, durably. Raises OSError."""
        with self._lock:
            self._mark = Mark(_digest(boot_id()), max(self._mark.written, sequence), self._mark.synced)
            if self._fd < 0:
                write_atomically(self._folder / FILE_NAME, _encode(self._mark))
                self._fd = self._open()
            else:
                self._write(lasting=True)

    def advance(self, written: int, synced: int) -> None:
        """Record a commit. Errors are ignored: they make a later loss harder to detect, but the commit stands."""
        with self._lock:
            boot, before, synced_before = self._mark
            self._mark = Mark(
                boot, written if written > before else before, synced if synced > synced_before else synced_before
            )
            if self._fd >= 0:
                try:  # noqa: SIM105 - every commit comes here
                    self._write(lasting=False)
                except OSError:
                    pass

    def end(self, sequence: int) -> None:
        """Record that everything up to this number is in durable tables, durably. Raises OSError."""
        with self._lock:
            self._mark = Mark(_CLOSED, sequence, sequence)
            if self._fd >= 0:
                self._write(lasting=True)
            else:
                write_atomically(self._folder / FILE_NAME, _encode(self._mark))

    def _write(self, *, lasting: bool) -> None:
        os.pwrite(self._fd, _encode(self._mark), 0)
        if lasting:
            os.fsync(self._fd)

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


def sync_file_system(fd: int) -> None:
    """Make everything written to the file system of this descriptor durable. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

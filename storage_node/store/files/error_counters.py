"""Error counters of one drive: I/O errors and checksum errors, by which somebody may decide to stop using it.

Counted is what tells of the device or its file system. A full drive, or one file that is not there, tells of neither.
"""

from __future__ import annotations

import errno
import os
import threading

_BROKEN = frozenset(
    (
        errno.EIO,
        errno.EROFS,
        errno.ENODEV,
        errno.ENXIO,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.EUCLEAN,
        errno.ENOMEDIUM,
        errno.EMEDIUMTYPE,
        errno.ETIMEDOUT,
    )
)
OUT_OF_DESCRIPTORS = tuple(os.strerror(number) for number in (errno.EMFILE, errno.ENFILE))
_NOT_THE_DRIVE = ("No space left", "NoSpace", *OUT_OF_DESCRIPTORS)
"""Of what RocksDB says, which has only texts."""


class Faults:
    """Numbers that only grow while the drive is open. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.io_errors = 0
        """Times that the operating system, or the catalog, could not read or write the drive."""
        self.last_io_error = ""
        self.sync_failed = ""
        """What the first sync that failed said. The kernel tells of it once, drops what it could not write, and takes
        the next sync for a success: whatever came before may be lost, and this drive cannot be written any more."""
        self.checksum_errors = 0
        """Times that bytes were not those that had been put."""

    def note(self, error: OSError, doing: str) -> None:
        """Count an error of the operating system, if it is of the kind that counts."""
        self.note_number(error.errno or 0, f"{doing}: {error.strerror or error}")

    def note_sync(self, error: OSError, doing: str) -> None:
        """A sync failed, for whatever reason."""
        message = f"{doing}: {error.strerror or error}"
        with self._lock:
            self.sync_failed = self.sync_failed or message
        self._count(message)

    def note_number(self, number: int, message: str) -> None:
        if number in _BROKEN:
            self._count(message)

    def note_catalog(self, message: str) -> None:
        """Count what RocksDB says, unless it says that the drive is full, or that this process has too much open."""
        if not any(said in message for said in _NOT_THE_DRIVE):
            self._count(message)

    def note_checksum(self) -> None:
        with self._lock:
            self.checksum_errors += 1

    def _count(self, message: str) -> None:
        with self._lock:
            self.io_errors += 1
            self.last_io_error = message

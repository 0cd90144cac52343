"""Error counters of one drive: I/O errors and checksum errors, by which an operator may decide to disable it.

Only errors that indicate a problem of the device or its file system are counted. A full drive, or one missing file,
indicates neither.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

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
_PASSING = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT))
OUT_OF_DESCRIPTORS = tuple(os.strerror(number) for number in (errno.EMFILE, errno.ENFILE))
_NOT_THE_DRIVE = ("No space left", "NoSpace", *OUT_OF_DESCRIPTORS)
"""Parts of messages of RocksDB, which has no error numbers, that do not indicate a fault of the drive."""


def is_passing(error: OSError) -> bool:
    """Whether an error says nothing about a file: the process lacks descriptors or memory, or the drive is full."""
    return error.errno in _PASSING


class ErrorCounters:
    """Counters that only increase while the drive is open. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.io_errors = 0
        """Number of times that the operating system or the catalog could not read or write the drive."""
        self.last_io_error = ""
        self.sync_failed = ""
        """Message of the first sync that failed. The kernel reports such an error once, drops the data that it could
        not write, and lets the next sync succeed. Earlier writes may therefore be lost, and the drive must not be
        written any more."""
        self.watch: Callable[[], object] = bool
        """Called after each I/O error, on any thread."""
        self.checksum_errors = 0
        """Number of times that bytes did not match their checksum."""

    def note(self, error: OSError, doing: str) -> None:
        """Count an error of the operating system, if its kind indicates a fault of the drive."""
        self.note_number(error.errno or 0, f"{doing}: {error.strerror or error}")

    def note_sync(self, error: OSError, doing: str) -> None:
        """Record a failed sync, whatever its reason."""
        message = f"{doing}: {error.strerror or error}"
        with self._lock:
            self.sync_failed = self.sync_failed or message
        self._count(message)

    def note_number(self, number: int, message: str) -> None:
        if number in _BROKEN:
            self._count(message)

    def note_catalog(self, message: str) -> None:
        """Count an error of RocksDB, unless the drive is full or the process has too many open files."""
        if not any(text in message for text in _NOT_THE_DRIVE):
            self._count(message)

    def note_checksum(self) -> None:
        with self._lock:
            self.checksum_errors += 1

    def _count(self, message: str) -> None:
        with self._lock:
            self.io_errors += 1
            self.last_io_error = message
        self.watch()

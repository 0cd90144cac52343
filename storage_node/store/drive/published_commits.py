"""Published commits: how far the writer of a catalog has come, for readers in other processes of this host.

The file `last-commit` in the catalog's folder is mapped by the writer and by readers. It has four numbers:

    begun   Commits that have begun. A commit is counted before anything of it can be seen, in whatever process.
    ended   Commits that have ended, with or without success. One is counted before it is acknowledged.
    host    The digest of the host whose processes may read without asking the writer; 0 if none may.
    table   The id of the table of locations that the writer maintains (shared_locations.py); 0 if there is none.

A reader takes `ended`, then catches up with the catalog. While `begun` has the value that it took, every commit that
anybody can have seen had ended before, so that the reader has it. A writer that is killed during a commit leaves
`begun` ahead: readers then catch up before each read, until the next writer evens them.

The file's blocks are allocated before it is mapped, so that a full drive does not kill the process. Numbers are aligned
and stored whole.
"""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path

import xxhash

from ais_loader.wire.closing import closing_fd
from ais_loader.wire.node_folder import OwnFolder, host_id
from storage_node.store.permissions import FILE_MODE

FILE_NAME = "last-commit"
"""In the catalog's folder, so that both are set aside together."""
_SIZE_BYTES = 32
_BEGUN, _ENDED, _HOST, _TABLE = range(4)
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class PublishedCommits:
    """Commits of this process, which has the catalog open for writing. Thread-safe.

    Nobody may read beside it before `allow`.
    """

    def __init__(self, folder: Path) -> None:
        """Refuse readers that a previous writer allowed. Raises OSError."""
        self._path = folder / FILE_NAME
        self._lock = threading.Lock()
        self._numbers: memoryview[int] | None = None  # guarded by _lock, like the next two
        self._begun = self._ended = 1
        with suppress(FileNotFoundError, ValueError):  # ValueError: it is empty, left by a writer that was killed
            numbers = _mapped(os.open(self._path, _FLAGS))[0]
            numbers[_HOST] = numbers[_TABLE] = 0
            self._begun = self._ended = max(numbers[_BEGUN], numbers[_ENDED]) + 1

    def allow(self) -> None:
        """Let processes of this user and host read without asking this one. Raises OSError."""
        with self._lock:
            self._map()[_HOST] = _this_host()

    def set_table(self, number: int) -> None:
        """Publish the id of the table of locations that this process maintains; 0 for none. Raises OSError."""
        with self._lock:
            if number or self._numbers is not None:
                self._map()[_TABLE] = number

    def _map(self) -> memoryview[int]:
        if self._numbers is None:
            fd = os.open(self._path, _FLAGS | os.O_CREAT, FILE_MODE)
            self._numbers = _mapped(fd, allocate=True)[0]
        self._numbers[_BEGUN], self._numbers[_ENDED] = self._begun, self._ended
        return self._numbers

    def refuse(self) -> None:
        """Make readers ask this process again. Those that are reading end what they have begun."""
        with self._lock:
            if self._numbers is not None:
                self._numbers[_HOST] = 0

    def begin(self) -> None:
        """Count a commit that begins."""
        with self._lock:
            self._begun += 1
            if self._numbers is not None:
                self._numbers[_BEGUN] = self._begun

    def end(self) -> None:
        """Count a commit that has ended."""
        with self._lock:
            self._ended += 1
            if self._numbers is not None:
                self._numbers[_ENDED] = self._ended


class FollowedCommits:
    """Commits of the writer of a catalog, as a reader sees them. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError; PermissionError if the catalog is another user's; ValueError if no writer has published."""
        self._path = str(folder / FILE_NAME)
        with OwnFolder(folder) as own:
            self._numbers, self._found = _mapped(own.open(FILE_NAME, os.O_RDONLY), mmap.PROT_READ)
        self._host = _this_host()

    @property
    def is_allowed(self) -> bool:
        """Whether this process may read without asking the writer. False once the file is not there any more."""
        return self.is_there and self._numbers[_HOST] == self._host

    @property
    def is_there(self) -> bool:
        """Whether the file is still in its place, and not another user's."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        known = self._found
        return (found.st_ino, found.st_dev, found.st_uid) == (known.st_ino, known.st_dev, known.st_uid)

    def numbers(self) -> tuple[int, int]:
        """Return how many commits have begun, and how many have ended."""
        return self._numbers[_BEGUN], self._numbers[_ENDED]

    @property
    def table(self) -> int:
        """Id of the table of locations that the writer maintains; 0 if there is none."""
        return self._numbers[_TABLE]


def _mapped(
    fd: int, access: int = mmap.PROT_READ | mmap.PROT_WRITE, *, allocate: bool = False
) -> tuple[memoryview[int], os.stat_result]:
    """Return the numbers in a file, which is closed, and its identity. Raises OSError, and ValueError for one that is
    too short."""
    with closing_fd(fd):
        if allocate:
            os.posix_fallocate(fd, 0, _SIZE_BYTES)
        return memoryview(mmap.mmap(fd, _SIZE_BYTES, prot=access)).cast("Q"), os.fstat(fd)


def _this_host() -> int:
    return xxhash.xxh3_64_intdigest(host_id().encode()) or 1

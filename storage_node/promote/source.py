"""Source file of a promotion: opened once, never again by its name, and checked for changes at the end.

A file counts as changed if its size or one of its times differs. File times have the resolution of the kernel's ticks.
A file modified within the last tick is therefore waited for, so that any later write is visible.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable
from typing import NamedTuple

from ais_loader.errors import SourceChanged, SourceRefused, SourceUnreadable, StoreFormatError
from ais_loader.wire.closing import Closing
from storage_node.promote.confined_path import FILE, open_beneath
from storage_node.promote.walk import FoundFile
from storage_node.store import format as fmt
from storage_node.store.checksum import crc32c
from storage_node.store.files.clone_or_copy import read_source, source_pieces

_TICK_NS, _WHOLE_SECONDS_NS = 20_000_000, 2_100_000_000
"""Two of the longest kernel ticks; and the time needed on file systems with a resolution of seconds."""


class FileStamp(NamedTuple):
    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileStamp:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class SourceFile(Closing):
    """A file open for reading; close it afterwards. Belongs to one thread at a time."""

    def __init__(self, found: FoundFile) -> None:
        """Open the file. Raises SourceRefused, SourceUnreadable."""
        self.found = found
        self.equal = False
        """Whether the store already has it."""
        self.fd = _open(found)
        try:
            before = os.fstat(self.fd)
            if not stat.S_ISREG(before.st_mode):
                links_to_folder = found.is_link and stat.S_ISDIR(before.st_mode)
                raise SourceRefused("is a link to a folder, which is not followed" if links_to_folder else "is no file")
            tick_ns = _TICK_NS if before.st_ctime_ns % 10**9 else _WHOLE_SECONDS_NS
            if 0 <= (age_ns := time.time_ns() - before.st_ctime_ns) < tick_ns:
                time.sleep((tick_ns - age_ns) / 1e9)  # the clock's next tick is no event to wait for
                before = os.fstat(self.fd)
            self.stamp = FileStamp.of(before)
            self._links, self._owner, self._mode = before.st_nlink, before.st_uid, before.st_mode
        except BaseException:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        return self.stamp.size_bytes

    def read(self) -> bytes:
        """Read all of a small file. Raises SourceUnreadable, SourceChanged."""
        data = read_source(self.fd, self.size_bytes + 1)
        while data and len(data) < self.size_bytes and (more := read_source(self.fd, self.size_bytes, len(data))):
            data += more
        self.require_unchanged(len(data))
        return data

    def is_same(self, fd: int) -> bool:
        """Return whether another descriptor refers to this file."""
        return FileStamp.of(os.fstat(fd))[:2] == self.stamp[:2]

    def checksum(self, go_on: Callable[[], None]) -> int:
        """Compute the CRC-32C of the bytes; `go_on` is called at intervals. Raises SourceUnreadable, SourceChanged."""
        checksum = size_bytes = 0
        for piece in source_pieces(self.fd):
            go_on()
            checksum, size_bytes = crc32c(piece, checksum), size_bytes + len(piece)
        self.require_unchanged(size_bytes)
        return checksum

    def require_unchanged(self, size_bytes: int, *, linked: bool = False) -> None:
        """Raise SourceChanged unless the file is unchanged since it was opened and has this size.

        `linked`: it has been given another name since, which changes its ctime.
        """
        now = FileStamp.of(os.fstat(self.fd))
        if (
            size_bytes != self.size_bytes
            or now._replace(ctime_ns=self.stamp.ctime_ns) != self.stamp
            or (not linked and now != self.stamp)
        ):
            raise SourceChanged("was changed while it was promoted; nothing was stored of it")

    def may_be_linked(self) -> bool:
        """Return whether an object may take over this very file: this user owns it, it has no other name, and it can be
        marked.

        Raises SourceChanged if a process has it open for writing.
        """
        writable = self._mode & stat.S_IWUSR and self._mode & stat.S_IRUSR
        return self._links == 1 and self._owner == os.geteuid() and bool(writable) and self._nobody_writes()

    def is_object(self) -> bool:
        """Return whether it is the only name of a file that contains an object of some store. A file that is being
        taken over has two names, of which this one may be removed."""
        if self._links != 1:
            return False
        try:
            fmt.decode_identity(os.getxattr(self.fd, fmt.XATTR_NAME))
        except (OSError, StoreFormatError):
            return False
        return True

    def _nobody_writes(self) -> bool:
        try:
            # A broken lease is signalled, and the default signal would end this process.
            fcntl.fcntl(self.fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            raise SourceChanged("is open for writing; it cannot be moved") from None
        except OSError:
            return False  # the file system has no leases
        return True

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _open(found: FoundFile) -> int:
    if found.is_link:
        return open_beneath(found.root.fd, found.from_root, FILE)
    try:
        return os.open(found.file_name, FILE | os.O_NOFOLLOW, dir_fd=found.folder.fd)
    except OSError as error:
        raise SourceUnreadable(f"cannot be opened: {error.strerror or error}") from error


def remove(found: FoundFile, stamp: FileStamp) -> None:
    """Remove a file whose object is durable. Raises SourceChanged if the name refers to another file by now,
    SourceUnreadable if it cannot be removed."""
    with contextlib.suppress(FileNotFoundError):
        try:
            now = os.stat(found.file_name, dir_fd=found.folder.fd, follow_symlinks=False)
            same = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) == stamp[:4]
            if same:
                os.unlink(found.file_name, dir_fd=found.folder.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SourceUnreadable(f"is stored, but cannot be removed: {error.strerror or error}") from error
        if not same:
            raise SourceChanged("is stored as it was, and has been changed since: it is left where it is")

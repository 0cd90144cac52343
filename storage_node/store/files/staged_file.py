"""Staged file: an object that is being received, in a file that is not visible yet or, if it is small, in memory."""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from ais_loader.wire.closing import closing_fd
from storage_node.store.checksum import crc32c
from storage_node.store.files.error_counters import ErrorCounters
from storage_node.store.files.segment_format import MAX_OBJECT_BYTES
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.native import write_counted
from storage_node.store.permissions import FILE_MODE

RESERVE_BYTES = 64 << 20
"""Free space that objects may not use (64 MiB, or an eighth of a smaller drive)."""
LARGE_BYTES = 64 << 20
"""Size from which an object must leave additional space free."""
LEFT_SHARE = 20
"""An object above LARGE_BYTES must leave free as much as it takes beyond that, up to this fraction (one twentieth) of
the drive. An endless upload is thus rejected while there is space for others, and its space is freed again."""
_NEW = os.O_CREAT | os.O_EXCL | os.O_RDWR
_PIECES_AT_ONCE = 1024
"""Maximum number of buffers per call (IOV_MAX)."""
_COPIED_BYTES = 4 << 10
"""Smaller pieces are copied into a shared buffer: a buffer of its own would take more memory than its bytes."""

Buffer: TypeAlias = bytes | bytearray | memoryview


def is_full(error: OSError) -> bool:
    """Whether the error means that the drive is full, or the user's quota is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def require_space(fd: int, need_bytes: int, used_bytes: int = 0) -> None:
    """Raise ENOSPC before a drive is really full: the catalog must always be able to write its log.

    `used_bytes` is the space that the same object already uses on the drive.
    """
    found = os.fstatvfs(fd)
    size_bytes = found.f_blocks * found.f_frsize
    reserve_bytes = min(RESERVE_BYTES, size_bytes // 8)
    reserve_bytes += min(max(0, used_bytes - LARGE_BYTES), size_bytes // LEFT_SHARE)
    if found.f_bavail * found.f_frsize < need_bytes + reserve_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _behind(pieces: Sequence[Buffer], size_bytes: int) -> list[Buffer]:
    """Return the rest of these buffers after the first `size_bytes` bytes."""
    left: list[Buffer] = []
    for piece in pieces:
        if size_bytes < len(piece):
            left.append(memoryview(piece)[size_bytes:] if size_bytes else piece)
        size_bytes = max(0, size_bytes - len(piece))
    return left


class StagedFile:
    """Object file that is being written. Checksums are computed as the bytes arrive. Belongs to one thread."""

    __slots__ = (
        "_blocks",
        "_faults",
        "_fd",
        "_has_file",
        "_make_room",
        "_open_block",
        "_pid",
        "_staging_fd",
        "checksum",
        "held",
        "linked",
        "name",
        "published",
        "size_bytes",
    )

    def __init__(
        self,
        staging_fd: int,
        name: str,
        make_room: Callable[[], bool],
        faults: ErrorCounters,
        *,
        linked: bool = False,
        held: bool = False,
    ) -> None:
        """`linked`: the file exists already, complete, by a hard link; its bytes are only passed to `note`.

        `held`: no file is created before one is needed; see `held`.
        """
        self._staging_fd = staging_fd
        self._faults = faults
        self._make_room = make_room
        self._fd = -1
        self._has_file = False
        self.name = name
        self.linked = linked
        self.held: list[Buffer] | None = [] if held else None
        """The bytes, in immutable pieces, as long as there is no file; at most MAX_OBJECT_BYTES."""
        self.size_bytes = 0
        self.checksum = 0
        self.published = False
        self._open_block = 0
        if not held:
            self._open(os.O_RDONLY | os.O_NOFOLLOW if linked else _NEW)

    def _open(self, flags: int) -> None:
        self._fd = os.open(self.name, flags | os.O_CLOEXEC, FILE_MODE, dir_fd=self._staging_fd)
        self._has_file = True
        self._pid = os.getpid()
        self._blocks = array("I")

    @property
    def fd(self) -> int:
        """Descriptor of the file; held bytes are written to a new file first. Raises OSError."""
        held, self.held = self.held, None
        if held is not None:
            try:
                self._open(_NEW)
            except OSError as error:
                self._faults.note(error, "staging an object")
                raise
            self.append_all(held)
        return self._fd

    def write(self, data: Buffer) -> None:
        """Append bytes. After an OSError the file can only be discarded."""
        view = memoryview(data).cast("B")
        if self.held is not None and self.size_bytes + len(view) <= MAX_OBJECT_BYTES:
            # Held bytes are less than a block, so their checksum is also that of the last block.
            self.checksum = self._open_block = crc32c(view, self.checksum)
            self.size_bytes += len(view)
            self._hold(view)
            return
        fd = self.fd
        while view:
            view = view[self._with_room(len(view), partial(self._count, view, fd)) :]

    def _hold(self, view: memoryview) -> None:
        """Keep the bytes. They are copied unless they are immutable and large enough for a buffer of their own."""
        assert self.held is not None
        if type(view.obj) is bytes and len(view) >= _COPIED_BYTES:
            self.held.append(view)
        elif self.held and type(last := self.held[-1]) is bytearray:
            last += view
        else:
            self.held.append(bytearray(view))

    def append_all(self, pieces: Sequence[Buffer]) -> None:
        """Append bytes without counting them, in few calls. Raises OSError."""
        fd = self.fd
        for at in range(0, len(pieces), _PIECES_AT_ONCE):
            left: Sequence[Buffer] = pieces[at : at + _PIECES_AT_ONCE]
            while need_bytes := sum(map(len, left)):
                written = self._with_room(need_bytes, partial(os.writev, fd, left))
                if written == need_bytes:
                    break
                left = _behind(left, written)

    def note(self, data: Buffer) -> None:
        """Count the next bytes of a file that already contains them, in `size_bytes` and the checksums."""
        self._count(data)

    def _count(self, data: Buffer, fd: int = -1) -> int:
        """Count bytes and, with an `fd`, write them first. Returns how many. Raises OSError if none was written."""
        counted, self.checksum, self._open_block, closed, number = write_counted(
            fd, self.size_bytes, self.checksum, self._open_block, data
        )
        self.size_bytes += counted
        if closed:
            self._blocks.frombytes(closed)
        if number and not counted:
            raise OSError(number, os.strerror(number))
        return counted

    def copy_range(self, source_fd: int, offset: int, count: int) -> int:
        """Append bytes of another file in the kernel, without counting them. Returns how many, 0 at its end. Raises
        OSError, also if the file systems do not support it."""
        return self._with_room(count, partial(os.copy_file_range, source_fd, self.fd, count, offset), noted=False)

    def restart(self) -> None:
        """Drop the bytes received so far. Raises OSError."""
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.size_bytes = self.checksum = self._open_block = 0
        self._blocks = array("I")

    def _with_room(self, need_bytes: int, step: Callable[[], int], *, noted: bool = True) -> int:
        while True:
            try:
                require_space(self._fd, need_bytes, self.size_bytes)
                return step()
            except OSError as error:
                # Dead files are kept for late readers; a full drive cannot afford that.
                if not is_full(error) or not self._make_room():
                    if noted or is_full(error):
                        self._faults.note(error, "writing an object")
                    raise

    def sync(self) -> None:
        """Make the written bytes durable. Raises OSError."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            # When the drive was full, the caller writes the bytes again for the next try. It cannot do that for a
            # linked file, which another program has written.
            if self.linked or not is_full(error):
                self._faults.note_sync(error, "syncing an object")
            raise

    def read_back(self) -> Iterator[bytes]:
        """Iterate over the bytes written so far. Raises OSError."""
        if self.held is not None:
            yield b"".join(self.held)
            return
        with closing_fd(os.open(self.name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._staging_fd)) as fd:
            while part := os.read(fd, BLOCK_BYTES):
                yield part

    def block_checksums(self) -> Sequence[int]:
        """Return one checksum per block of BLOCK_BYTES; empty for objects of at most one block."""
        if self.size_bytes <= BLOCK_BYTES:  # as all held objects are
            return []
        return self._blocks if self.size_bytes % BLOCK_BYTES == 0 else [*self._blocks, self._open_block]

    def close(self) -> None:
        self.held = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Remove the file. Harmless once it has been published, and in a process that inherited it through fork."""
        if not self._has_file:
            self.held = None
            return
        self.close()
        if self.published or self._pid != os.getpid():
            return
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=self._staging_fd)

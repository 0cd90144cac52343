"""Staged file: one object's bytes on their way in, in a file that nobody sees yet or, few as they are, in memory."""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from storage_node.store.checksum import crc32c
from storage_node.store.files.counted_write import write_counted
from storage_node.store.files.error_counters import Faults
from storage_node.store.files.segment_format import MAX_OBJECT_BYTES
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.permissions import FILE_MODE

RESERVE_BYTES = 64 << 20
"""Objects may not take the last of a drive (64 MiB, or an eighth of a smaller one)."""
LARGE_BYTES = 64 << 20
"""An object that has taken so much of a drive already"""
LEFT_SHARE = 20
"""leaves free as much as it has taken beyond that, up to one of so many parts of the drive: one that never ends is
refused while there is room for others, and what it has taken is theirs again."""
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY
_PIECES_AT_ONCE = 1024
"""As many as one call takes (IOV_MAX)."""
_COPIED_BYTES = 4 << 10
"""Fewer are held as a copy, with others: a piece of their own would take more memory than they."""

Buffer: TypeAlias = bytes | bytearray | memoryview


def is_full(error: OSError) -> bool:
    """Whether the operating system refused for want of space, or of the user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def require_space(fd: int, need_bytes: int, taken_bytes: int = 0) -> None:
    """Raise ENOSPC before a drive is really full: the catalog must always be able to write its log.

    `taken_bytes`: what the same object has on the drive.
    """
    found = os.fstatvfs(fd)
    size_bytes = found.f_blocks * found.f_frsize
    reserve_bytes = min(RESERVE_BYTES, size_bytes // 8)
    reserve_bytes += min(max(0, taken_bytes - LARGE_BYTES), size_bytes // LEFT_SHARE)
    if found.f_bavail * found.f_frsize < need_bytes + reserve_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _behind(pieces: Sequence[Buffer], size_bytes: int) -> list[Buffer]:
    """What is left of these buffers of bytes after so many."""
    left: list[Buffer] = []
    for piece in pieces:
        if size_bytes < len(piece):
            left.append(memoryview(piece)[size_bytes:] if size_bytes else piece)
        size_bytes = max(0, size_bytes - len(piece))
    return left


class StagedFile:
    """Checksums are computed as the bytes pass. Belongs to one thread."""

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
        faults: Faults,
        *,
        linked: bool = False,
        held: bool = False,
    ) -> None:
        """`linked`: the file is there already, whole, by a hard link; its bytes are only to be `note`d.

        `held`: no file is made before one is needed; see `held`.
        """
        self._staging_fd = staging_fd
        self._faults = faults
        self._make_room = make_room
        self._fd = -1
        self._has_file = False
        self.name = name
        self.linked = linked
        self.held: list[Buffer] | None = [] if held else None
        """The bytes, in pieces that nobody changes, as long as there is no file; no more than MAX_OBJECT_BYTES."""
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
        """The file; made now of bytes that were held. Raises OSError."""
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
        """Append; after an OSError the file can only be discarded."""
        view = memoryview(data).cast("B")
        if self.held is not None and self.size_bytes + len(view) <= MAX_OBJECT_BYTES:
            # Less than a block, the last one.
            self.checksum = self._open_block = crc32c(view, self.checksum)
            self.size_bytes += len(view)
            self._hold(view)
            return
        fd = self.fd
        while view:
            view = view[self._with_room(len(view), partial(self._count, view, fd)) :]

    def _hold(self, view: memoryview) -> None:
        """Copied unless nobody can change it, and it is worth a piece of its own."""
        assert self.held is not None
        if type(view.obj) is bytes and len(view) >= _COPIED_BYTES:
            self.held.append(view)
        elif self.held and type(last := self.held[-1]) is bytearray:
            last += view
        else:
            self.held.append(bytearray(view))

    def append_all(self, pieces: Sequence[Buffer]) -> None:
        """Append uncounted bytes, in few calls. Raises OSError."""
        fd = self.fd
        for at in range(0, len(pieces), _PIECES_AT_ONCE):
            left: Sequence[Buffer] = pieces[at : at + _PIECES_AT_ONCE]
            while need_bytes := sum(map(len, left)):
                written = self._with_room(need_bytes, partial(os.writev, fd, left))
                if written == need_bytes:
                    break
                left = _behind(left, written)

    def note(self, data: Buffer) -> None:
        """Count the next bytes of a file that has them already, in `size_bytes` and the checksums."""
        self._count(data)

    def _count(self, data: Buffer, fd: int = -1) -> int:
        """As `note`, having written them where `fd` is a file; how many. Raises OSError, for the first."""
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
        """Append bytes of another file in the kernel, uncounted; how many, 0 at its end. Raises OSError, also where
        the file systems cannot."""
        return self._with_room(count, partial(os.copy_file_range, source_fd, self.fd, count, offset), noted=False)

    def restart(self) -> None:
        """Forget the bytes that have come. Raises OSError."""
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
                # Dead files wait for late readers; a full drive cannot afford that.
                if not is_full(error) or not self._make_room():
                    if noted or is_full(error):
                        self._faults.note(error, "writing an object")
                    raise

    def sync(self) -> None:
        """What has been written survives a power cut on return. Raises OSError."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            # Its bytes are written anew for the next try, but those of a file that somebody else has written.
            if self.linked or not is_full(error):
                self._faults.note_sync(error, "syncing an object")
            raise

    def read_back(self) -> Iterator[bytes]:
        """The bytes written so far. Raises OSError."""
        if self.held is not None:
            yield b"".join(self.held)
            return
        fd = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._staging_fd)
        try:
            while part := os.read(fd, BLOCK_BYTES):
                yield part
        finally:
            os.close(fd)

    def block_checksums(self) -> Sequence[int]:
        """One per block of BLOCK_BYTES; empty for objects of at most one block."""
        if self.size_bytes <= BLOCK_BYTES:  # as of all that is held
            return []
        return self._blocks if self.size_bytes % BLOCK_BYTES == 0 else [*self._blocks, self._open_block]

    def close(self) -> None:
        self.held = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Remove the file; harmless once it has been published, and in a process that inherited it through fork."""
        if not self._has_file:
            self.held = None
            return
        self.close()
        if self.published or self._pid != os.getpid():
            return
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=self._staging_fd)

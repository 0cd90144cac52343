"""Staged file: one object's bytes on their way in, in a file that nobody sees yet or, few as they are, in memory."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from functools import partial

from storage_node.store.checksum import crc32c
from storage_node.store.files.error_counters import Faults
from storage_node.store.files.segment_format import MAX_OBJECT_BYTES
from storage_node.store.format import BLOCK_BYTES

RESERVE_BYTES = 64 << 20
"""Objects may not take the last of a drive (64 MiB, or an eighth of a smaller one)."""
LARGE_BYTES = 64 << 20
"""An object that has taken so much of a drive already"""
LEFT_SHARE = 20
"""leaves free as much as it has taken beyond that, up to one of so many parts of the drive: one that never ends is
refused while there is room for others, and what it has taken is theirs again."""
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY


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


class StagedFile:
    """Checksums are computed as the bytes pass. Belongs to one thread."""

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
        self._pid = os.getpid()
        self._fd = -1
        self._has_file = False
        self.name = name
        self.linked = linked
        self.held: bytearray | None = None
        """The bytes, as long as there is no file; no more than MAX_OBJECT_BYTES."""
        self.size_bytes = 0
        self.checksum = 0
        self.published = False
        self._blocks: list[int] = []
        self._open_block = 0
        if held:
            self.held = bytearray()
        else:
            self._open(os.O_RDONLY | os.O_NOFOLLOW if linked else _NEW)

    def _open(self, flags: int) -> None:
        self._fd = os.open(self.name, flags | os.O_CLOEXEC, 0o644, dir_fd=self._staging_fd)
        self._has_file = True

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
            self.append(memoryview(held))
        return self._fd

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append; after an OSError the file can only be discarded."""
        view = memoryview(data).cast("B")
        self.note(view)
        if self.held is not None and len(self.held) + len(view) <= MAX_OBJECT_BYTES:
            self.held += view
        else:
            self.append(view)

    def append(self, view: memoryview) -> None:
        """As `write`, uncounted."""
        fd = self.fd
        while view:
            view = view[self._with_room(len(view), partial(os.write, fd, view)) :]

    def note(self, view: memoryview) -> None:
        """Count the next bytes of a file that has them already, in `size_bytes` and the checksums."""
        self.checksum = crc32c(view, self.checksum)
        if self.size_bytes + len(view) > BLOCK_BYTES:
            self._update_blocks(view)
        elif view:
            self._open_block = self.checksum
        self.size_bytes += len(view)

    def copy_range(self, source_fd: int, offset: int, count: int) -> int:
        """Append bytes of another file in the kernel, uncounted; how many, 0 at its end. Raises OSError, also where
        the file systems cannot."""
        return self._with_room(count, partial(os.copy_file_range, source_fd, self.fd, count, offset), noted=False)

    def restart(self) -> None:
        """Forget the bytes that have come. Raises OSError."""
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.size_bytes = self.checksum = self._open_block = 0
        self._blocks = []

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
            yield bytes(self.held)
            return
        fd = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._staging_fd)
        try:
            while part := os.read(fd, BLOCK_BYTES):
                yield part
        finally:
            os.close(fd)

    def _update_blocks(self, view: memoryview) -> None:
        at = self.size_bytes
        if at == BLOCK_BYTES and not self._blocks:
            self._blocks.append(self._open_block)  # the object ended with its first block until now
        while view:
            part = view[: BLOCK_BYTES - at % BLOCK_BYTES]
            self._open_block = crc32c(part, 0 if at % BLOCK_BYTES == 0 else self._open_block)
            at += len(part)
            view = view[len(part) :]
            if at % BLOCK_BYTES == 0:
                self._blocks.append(self._open_block)

    def block_checksums(self) -> list[int]:
        """One per block of BLOCK_BYTES; empty for objects of at most one block."""
        if self.size_bytes <= BLOCK_BYTES:
            return []
        return self._blocks if self.size_bytes % BLOCK_BYTES == 0 else [*self._blocks, self._open_block]

    def close(self) -> None:
        self.held = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Remove the file; harmless once it has been published, and in a process that inherited it through fork."""
        self.close()
        if self.published or not self._has_file or self._pid != os.getpid():
            return
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=self._staging_fd)

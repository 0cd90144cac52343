"""Object files: the only code that creates, names or removes the bytes of objects.

A file is staged (one writer, invisible), then published under its final name, and read-only for ever; its name is
never used again. Names are bytes relative to the drive's `objects` folder and are resolved from an open descriptor of
that folder, so a drive that is renamed or covered by a mount meanwhile cannot be mixed up with another.

Threads: a StagedFile belongs to one thread; everything else may be called from any.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from storage_node.store.checksum import crc32c
from storage_node.store.errors import DriveFailed, DriveFull, StoreError, StoreReadOnly
from storage_node.store.faults import Faults
from storage_node.store.format import BLOCK_BYTES, ENDED_XATTR_NAME, XATTR_NAME
from storage_node.store.object_folders import ObjectFolders
from storage_node.store.syncing import Syncs

RESERVE_BYTES = 64 << 20
"""Objects may not take the last of a drive (64 MiB, or an eighth of a smaller one)."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def is_full(error: OSError) -> bool:
    """Whether the operating system refused for want of space, or of the user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def drive_error(error: OSError, drive: os.PathLike[str], doing: str) -> StoreError:
    """The store's error for what the operating system said of a drive."""
    if is_full(error):
        return DriveFull(f"{drive}: no space left while {doing}; free space on it, or delete objects")
    if error.errno == errno.EROFS:
        return StoreReadOnly(f"{drive}: the file system is mounted read-only ({doing})")
    if not os.path.isdir(drive):
        return DriveFailed(f"{drive}: the folder is gone ({doing}); mount or restore it, then open the store again")
    return DriveFailed(f"{drive}: {doing}: {error.strerror or error} (errno {error.errno})")


def require_space(fd: int, need_bytes: int) -> None:
    """Raise ENOSPC before a drive is really full: the catalog must always be able to write its log."""
    found = os.fstatvfs(fd)
    reserve_bytes = min(RESERVE_BYTES, found.f_blocks * found.f_frsize // 8)
    if found.f_bavail * found.f_frsize < need_bytes + reserve_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class StagedFile:
    """Bytes of an object on their way in: checksums are computed as they pass."""

    def __init__(
        self, staging_fd: int, name: str, make_room: Callable[[], bool], faults: Faults, *, linked: bool = False
    ) -> None:
        """`linked`: the file is there already, whole, by a hard link; its bytes are only to be `note`d."""
        self._staging_fd = staging_fd
        self._faults = faults
        self._make_room = make_room
        self._pid = os.getpid()
        self.name = name
        flags = os.O_RDONLY | os.O_NOFOLLOW if linked else os.O_CREAT | os.O_EXCL | os.O_WRONLY
        self.fd = os.open(name, flags | os.O_CLOEXEC, 0o644, dir_fd=staging_fd)
        self.linked = linked
        self.size_bytes = 0
        self.checksum = 0
        self.published = False
        self._blocks: list[int] = []
        self._open_block = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append; after an OSError the file can only be discarded."""
        view = memoryview(data).cast("B")
        self.note(view)
        while view:
            view = view[self._with_room(len(view), partial(os.write, self.fd, view)) :]

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
                require_space(self.fd, need_bytes)
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
            self._faults.note(error, "syncing an object")
            raise

    def read_back(self) -> Iterator[bytes]:
        """The bytes written so far. Raises OSError."""
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
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def discard(self) -> None:
        """Remove the file; harmless once it has been published, and in a process that inherited it through fork."""
        self.close()
        if self.published or self._pid != os.getpid():
            return
        with contextlib.suppress(OSError):
            os.unlink(self.name, dir_fd=self._staging_fd)


class RawFiles:
    """The folders `objects` and `staging` of one drive."""

    def __init__(self, root: Path, *, writable: bool, faults: Faults | None = None) -> None:
        self.root = root
        self.faults = faults or Faults()
        self.objects_fd = self.staging_fd = -1
        self._syncs = Syncs()
        if writable:
            (root / "objects").mkdir(exist_ok=True)
            (root / "staging").mkdir(exist_ok=True)
        try:
            self.objects_fd = os.open(root / "objects", _DIRECTORY)
            self._folders = ObjectFolders(self.objects_fd, self._syncs)
            if writable:
                self.staging_fd = os.open(root / "staging", _DIRECTORY)
            self.keeps_identity = writable and self._try_xattr()
        except BaseException:
            self.close()
            raise

    def _try_xattr(self) -> bool:
        """Whether this file system stores extended attributes; without them a lost catalog cannot be rebuilt."""
        try:
            os.setxattr(self.staging_fd, XATTR_NAME, b"probe")
            os.removexattr(self.staging_fd, XATTR_NAME)
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.EPERM, errno.EACCES):
                return False
            if is_full(error):
                return True  # a full drive says nothing about the file system
            raise
        return True

    def stage(self, name: str, make_room: Callable[[], bool]) -> StagedFile:
        """A new invisible file; `make_room` is asked when the drive is full and says whether it freed anything."""
        try:
            return StagedFile(self.staging_fd, name, make_room, self.faults)
        except OSError as error:
            self.faults.note(error, "staging an object")
            raise

    def stage_link(self, name: str, make_room: Callable[[], bool], folder_fd: int, source: str) -> StagedFile:
        """As `stage`, of a file of this file system that is given up: it gets the new name besides its own."""
        os.link(source, name, src_dir_fd=folder_fd, dst_dir_fd=self.staging_fd, follow_symlinks=False)
        try:
            return StagedFile(self.staging_fd, name, make_room, self.faults, linked=True)
        except BaseException:
            os.unlink(name, dir_fd=self.staging_fd)
            raise

    def set_identity(self, fd: int, identity: bytes) -> None:
        if self.keeps_identity:
            try:
                os.setxattr(fd, XATTR_NAME, identity)
            except OSError as error:
                self.faults.note(error, "writing what an object is")
                raise

    def make_lasting_folders(self, paths: Iterable[bytes]) -> None:
        """Before `publish`: what these files will be in survives a power cut on return. Raises OSError."""
        with self._noting("publishing an object"):
            self._folders.make_lasting(paths)

    def publish(self, staged: StagedFile, path: bytes) -> None:
        """Give the staged file its final name. Raises OSError."""
        with self._noting("publishing an object"):
            try:
                os.rename(staged.name, path, src_dir_fd=self.staging_fd, dst_dir_fd=self.objects_fd)
            except FileNotFoundError:
                self._folders.make(path)
                os.rename(staged.name, path, src_dir_fd=self.staging_fd, dst_dir_fd=self.objects_fd)
            staged.published = True

    def sync_staged(self, files: Sequence[StagedFile]) -> None:
        """What has been written to these survives a power cut on return. Raises OSError."""
        self._syncs.run([file.sync for file in files])

    def sync_names(self, paths: Iterable[bytes]) -> None:
        """The names of published files survive a power cut on return. Raises OSError."""
        with self._noting("publishing an object"):
            self._folders.sync_names(paths)

    @contextlib.contextmanager
    def _noting(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.faults.note(error, doing)
            raise

    def open(self, path: bytes) -> int:
        """A descriptor for reading; the caller closes it. Raises OSError."""
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.objects_fd)
        except OSError as error:
            self.faults.note(error, "opening an object")
            raise

    def read(self, path: bytes, most_bytes: int) -> Iterator[bytes]:
        """A file's bytes in pieces, `most_bytes` in all if it has so many. Raises OSError."""
        fd = self.open(path)
        try:
            while most_bytes and (part := os.read(fd, min(most_bytes, 4 * BLOCK_BYTES))):
                most_bytes -= len(part)
                yield part
        except OSError as error:
            self.faults.note(error, "reading an object")
            raise
        finally:
            os.close(fd)

    def size_bytes(self, path: bytes) -> int:
        return os.stat(path, dir_fd=self.objects_fd, follow_symlinks=False).st_size

    def identity(self, path: bytes) -> bytes | None:
        """What the file says of itself; None when it says nothing."""
        return self._attribute(path, XATTR_NAME)

    def _attribute(self, path: bytes, name: str) -> bytes | None:
        """None where the file has none of this name. Raises OSError."""
        fd = self.open(path)
        try:
            return os.getxattr(fd, name)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.ENOTSUP):
                return None
            raise
        finally:
            os.close(fd)

    def disown(self, path: bytes) -> None:
        """Take a dead file's identity away, so that rebuilding the catalog cannot bring a deleted object back."""
        if self.keeps_identity:
            with contextlib.suppress(OSError):  # it may be gone already; its removal is due anyway
                fd = self.open(path)
                try:
                    os.removexattr(fd, XATTR_NAME)
                finally:
                    os.close(fd)

    def ended(self, path: bytes) -> int | None:
        """At which counter the object in this file was replaced or deleted, of a file retained for snapshots."""
        said = self._attribute(path, ENDED_XATTR_NAME)
        return None if said is None else int.from_bytes(said, "big")

    def set_ended(self, path: bytes, ended: int | None) -> None:
        """Say so on the file, or take it back. Harmless where there is no such file. Raises OSError."""
        if self.keeps_identity:
            with contextlib.suppress(FileNotFoundError):
                fd = self.open(path)
                try:
                    if ended is not None:
                        os.setxattr(fd, ENDED_XATTR_NAME, ended.to_bytes(8, "big"))
                    else:
                        os.removexattr(fd, ENDED_XATTR_NAME)
                except OSError as error:
                    if error.errno != errno.ENODATA:
                        raise
                finally:
                    os.close(fd)

    def unlink(self, path: bytes) -> None:
        try:
            os.unlink(path, dir_fd=self.objects_fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.faults.note(error, "removing an object's file")
            raise

    def clear_staging(self) -> int:
        """Remove what earlier writers left unfinished; returns how many files there were."""
        removed = 0
        for name in os.listdir(self.staging_fd):
            with contextlib.suppress(IsADirectoryError):  # not ours: staged files have no folders
                os.unlink(name, dir_fd=self.staging_fd)
                removed += 1
        return removed

    def walk(self) -> Iterator[bytes]:
        """Paths of everything below `objects` that is not a folder, folder by folder, in no particular order."""
        pending = [b""]
        while pending:
            folder = pending.pop()
            # A descriptor of its own for each listing: two that share one also share its position.
            fd = os.open(folder or b".", _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.objects_fd)
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        path = os.path.join(folder, os.fsencode(entry.name))
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(path)
                        else:
                            yield path
            finally:
                os.close(fd)

    def holds_any(self) -> bool:
        """Whether anything at all was ever published here and is still there."""
        return next(self.walk(), None) is not None

    def close(self) -> None:
        self._syncs.close()
        # Numbers are forgotten before they are given back: a late caller gets EBADF, not somebody else's folder.
        fds = self.objects_fd, self.staging_fd
        self.objects_fd = self.staging_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        self.close()

"""Object files: the only code that creates, names or removes the bytes of objects.

A file is staged (one writer, invisible), then published under its final name, and read-only for ever; its name is
never used again. Small objects that come together share a file, a segment, and have paths as if it was a folder.
Names are bytes relative to the drive's `objects` folder and are resolved from an open descriptor of that folder, so a
drive that is renamed or covered by a mount meanwhile cannot be mixed up with another.

Threads: a StagedFile belongs to one thread; everything else may be called from any.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ais_loader.errors import DriveFailed, DriveFull, LoaderError, StoreReadOnly
from storage_node.store.files.error_counters import Faults
from storage_node.store.files.group_sync import Syncs
from storage_node.store.files.segment_format import by_segment, file_of, is_segment, is_slot
from storage_node.store.files.segments import Segments
from storage_node.store.files.staged_file import StagedFile, is_full
from storage_node.store.format import BLOCK_BYTES, ENDED_XATTR_NAME, XATTR_NAME, CatalogEntry
from storage_node.store.permissions import FOLDER_MODE

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def drive_error(error: OSError, drive: os.PathLike[str], doing: str) -> LoaderError:
    """The store's error for what the operating system said of a drive."""
    if is_full(error):
        return DriveFull(f"{drive}: no space left while {doing}; free space on it, or delete objects")
    if error.errno == errno.EROFS:
        return StoreReadOnly(f"{drive}: the file system is mounted read-only ({doing})")
    if error.errno not in (errno.EACCES, errno.EPERM) and not os.path.isdir(drive):
        return DriveFailed(f"{drive}: the folder is gone ({doing}); mount or restore it, then open the store again")
    return DriveFailed(f"{drive}: {doing}: {error.strerror or error} (errno {error.errno})")


class RawFiles:
    """The folders `objects` and `staging` of one drive."""

    def __init__(self, root: Path, *, writable: bool, faults: Faults | None = None) -> None:
        self.root = root
        self.faults = faults or Faults()
        self.objects_fd = self.staging_fd = -1
        self._syncs = Syncs()
        self._segments = Segments(-1, self.faults)
        if writable:
            (root / "objects").mkdir(FOLDER_MODE, exist_ok=True)
            (root / "staging").mkdir(FOLDER_MODE, exist_ok=True)
        try:
            self.objects_fd = self._segments.objects_fd = os.open(root / "objects", _DIRECTORY)
            self._folders = ObjectFolders(self.objects_fd, self._syncs, self.faults)
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

    def hold(self, name: str, make_room: Callable[[], bool]) -> StagedFile:
        """What may become a new invisible file, see `StagedFile.held`. `make_room`: as of `stage`."""
        return StagedFile(self.staging_fd, name, make_room, self.faults, held=True)

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
            self._folders.make_lasting({file_of(path) for path in paths})

    def publish(self, staged: StagedFile, path: bytes) -> None:
        """Give the staged file its final name. Raises OSError."""
        try:
            try:
                os.rename(staged.name, path, src_dir_fd=self.staging_fd, dst_dir_fd=self.objects_fd)
            except FileNotFoundError:
                self._folders.make(path)
                os.rename(staged.name, path, src_dir_fd=self.staging_fd, dst_dir_fd=self.objects_fd)
        except OSError as error:
            self.faults.note(error, "publishing an object")
            raise
        staged.published = True

    def sync_staged(self, files: Sequence[StagedFile]) -> None:
        """What has been written to these survives a power cut on return. Raises OSError."""
        self._syncs.run([file.sync for file in files])

    def sync_names(self, paths: Iterable[bytes]) -> None:
        """The names of published files survive a power cut on return. Raises OSError."""
        with self._noting("publishing an object"):
            self._folders.sync_names({file_of(path) for path in paths})

    @contextlib.contextmanager
    def _noting(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.faults.note(error, doing)
            raise

    def open(self, path: bytes) -> int:
        """A descriptor for reading of the file in which the object is; the caller closes it. Raises OSError."""
        try:
            return os.open(file_of(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.objects_fd)
        except OSError as error:
            self.faults.note(error, "opening an object")
            raise

    def read(self, record: CatalogEntry) -> Iterator[bytes]:
        """An object's bytes in pieces, as many as there are. Raises OSError."""
        fd = self.open(record.path)
        at, end = record.offset, record.offset + record.size_bytes
        try:
            while at < end and (part := os.pread(fd, min(end - at, 4 * BLOCK_BYTES), at)):
                at += len(part)
                yield part
        except OSError as error:
            self.faults.note(error, "reading an object")
            raise
        finally:
            os.close(fd)

    def exists(self, path: bytes) -> bool:
        """Whether there is such a file, or the bytes of such an object have not been given back. Raises OSError."""
        try:
            if is_slot(path):
                return not self._segments.is_freed(path)
            os.stat(path, dir_fd=self.objects_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def identity(self, path: bytes) -> bytes | None:
        """What the file says of itself; None when it says nothing. Raises OSError."""
        return self._segments.identity(path) if is_slot(path) else self._attribute(path, XATTR_NAME)

    def offset(self, path: bytes) -> int:
        """Where the object begins in its file. Raises OSError, StoreFormatError."""
        return self._segments.offset(path) if is_slot(path) else 0

    def own(self, path: bytes, identity: bytes) -> bool:
        """Have a published file say what it is; whether it does. Raises OSError."""
        if is_slot(path):
            return self._segments.own(path, identity)
        fd = self.open(path)
        try:
            self.set_identity(fd, identity)
        finally:
            os.close(fd)
        return self.keeps_identity

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

    def disown(self, paths: Iterable[bytes]) -> None:
        """Take dead files' identity away, so that rebuilding the catalog cannot bring deleted objects back."""
        alone, slots = by_segment(paths)
        for file, of_file in slots.items():
            with contextlib.suppress(OSError):  # it may be gone already; its removal is due anyway
                self._segments.disown(file, of_file)
        for path in alone if self.keeps_identity else ():
            with contextlib.suppress(OSError):
                fd = self.open(path)
                try:
                    os.removexattr(fd, XATTR_NAME)
                finally:
                    os.close(fd)

    def ended(self, path: bytes) -> int | None:
        """At which counter the object in this file was replaced or deleted, of a file retained for snapshots."""
        if is_slot(path):
            return self._segments.ended(path)
        said = self._attribute(path, ENDED_XATTR_NAME)
        return None if said is None else int.from_bytes(said, "big")

    def set_ended(self, path: bytes, ended: int | None) -> None:
        """Say so on the file, or take it back. Harmless where there is no such file. Raises OSError."""
        if is_slot(path):
            with contextlib.suppress(FileNotFoundError):
                self._segments.set_ended(path, ended)
        elif self.keeps_identity:
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
        """Remove a file, or give an object's bytes in a segment back. Harmless where it is gone. Raises OSError."""
        for problem in self.unlink_many([path]).values():
            raise problem

    def unlink_many(self, paths: Sequence[bytes]) -> dict[bytes, OSError]:
        """As `unlink` of each, a segment at a time; what could not be removed, and why."""
        failed: dict[bytes, OSError] = {}
        alone, slots = by_segment(paths)
        for path in alone:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path, dir_fd=self.objects_fd)
            except OSError as error:
                failed[path] = error
        for file, of_file in slots.items():
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._segments.free(file, of_file)
            except OSError as error:
                failed.update(dict.fromkeys((path for path in paths if file_of(path) == file), error))
        for problem in dict.fromkeys(failed.values()):
            self.faults.note(problem, "removing an object's file")
        return failed

    def clear_staging(self) -> int:
        """Remove what earlier writers left unfinished; returns how many files there were."""
        removed = 0
        for name in os.listdir(self.staging_fd):
            with contextlib.suppress(IsADirectoryError):  # not ours: staged files have no folders
                os.unlink(name, dir_fd=self.staging_fd)
                removed += 1
        return removed

    def may_hold_objects(self, path: bytes) -> bool:
        """Of a segment, or an object in one: whether there may be any, as where nobody can tell any more there may."""
        try:
            if is_slot(path):
                return self._segments.is_untold(path)
            return is_segment(path) and not self._segments.is_spent(path)
        except OSError:
            return True

    def drop_untold(self, path: bytes) -> None:
        """Remove such objects: all of a segment of which that is so, or the one in this slot. Raises OSError."""
        if is_segment(path):
            self._segments.drop_unknown(path)
        else:
            self.unlink(path)

    def is_segment_damaged(self, path: bytes, *, in_motion: bool) -> bool:
        """Whether the segment in which this object lies has lost one of the copies of its index, and not the other.

        `in_motion`: a writer may have it open. Raises OSError.
        """
        return self._segments.is_damaged(file_of(path), in_motion=in_motion)

    def mend_segment(self, path: bytes) -> bool:
        """Make what has been lost of the copies of its index anew; whether all could be. Raises OSError."""
        return self._segments.mend(path)

    def walk(self) -> Iterator[bytes]:
        """Paths of all objects, and of whatever else is below `objects` and no folder, in no particular order."""
        for path in self._walk_files():
            if is_segment(path):
                yield from self._segments.paths(path)
            else:
                yield path

    def _walk_files(self) -> Iterator[bytes]:
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
        self.objects_fd = self.staging_fd = self._segments.objects_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        self.close()


class ObjectFolders:
    """Folder tree of objects, two levels deep: made when needed, and made to survive a power cut. Thread-safe."""

    def __init__(self, objects_fd: int, syncs: Syncs, faults: Faults) -> None:
        self._objects_fd = objects_fd
        self._faults = faults
        self._syncs = syncs
        self._lasting: set[bytes] = set()  # known to survive a power cut; only ever grows

    def make(self, path: bytes) -> None:
        """Those that a file is to be in. Raises OSError."""
        inner = os.path.dirname(path)
        outer = os.path.dirname(inner)
        if inner in self._lasting:  # somebody has removed them since
            self._lasting.difference_update((inner, outer))
            self.make_lasting([path])
        else:
            self._make([outer, inner])

    def make_lasting(self, paths: Iterable[bytes]) -> None:
        """Those that these files are to be in; they survive a power cut on return. Raises OSError.

        Each parent is synced once for all of them, and all parents side by side: most objects of a young store come
        into a folder of their own.
        """
        # Synced even where they exist: whoever made them may not have synced them.
        inner = {os.path.dirname(path) for path in paths} - self._lasting
        outer = {os.path.dirname(folder) for folder in inner}
        self._make([*outer, *inner])
        self._sync([*outer, b"."] if outer - self._lasting else [*outer])
        self._lasting.update(inner, outer)

    def sync_names(self, paths: Iterable[bytes]) -> None:
        """These files survive a power cut on return as far as their names go. Raises OSError."""
        self._sync({os.path.dirname(path) for path in paths})

    def _make(self, folders: Iterable[bytes]) -> None:
        for folder in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, FOLDER_MODE, dir_fd=self._objects_fd)

    def _sync(self, folders: Iterable[bytes]) -> None:
        self._syncs.run([partial(self._sync_one, folder) for folder in folders])

    def _sync_one(self, folder: bytes) -> None:
        fd = os.open(folder, _DIRECTORY, dir_fd=self._objects_fd)
        try:
            os.fsync(fd)
        except OSError as error:
            self._faults.note_sync(error, "syncing a folder")
            raise
        finally:
            os.close(fd)

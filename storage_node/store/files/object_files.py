"""Object files: the only code that creates, names or removes the bytes of objects.

A file is staged (one writer, invisible), then published under its final name and read-only from then on. Its name is
never reused. Small objects that are committed together share a file, a segment, and have paths as if the segment was a
folder. Names are bytes relative to the drive's `objects` folder and are resolved from an open descriptor of that
folder, so that renaming a drive or mounting over it cannot redirect them to another drive.

Threads: a StagedFile belongs to one thread; everything else may be called from any.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ais_loader.errors import DriveFailed, DriveFull, LoaderError, StoreReadOnly
from ais_loader.wire.closing import closing_fd
from storage_node.store.files.error_counters import ErrorCounters
from storage_node.store.files.segment_format import (
    REMOVED,
    SEGMENTS,
    SegmentUse,
    by_segment,
    file_of,
    is_segment,
    is_slot,
)
from storage_node.store.files.segments import Segments
from storage_node.store.files.staged_file import StagedFile, is_full
from storage_node.store.format import BLOCK_BYTES, ENDED_XATTR_NAME, XATTR_NAME, CatalogEntry
from storage_node.store.permissions import FILE_MODE, FOLDER_MODE

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


# Group sync: makes many files durable at the same time.
#
# A file system's journal commit covers every sync that is waiting at that moment. Sixteen parallel syncs take hardly
# longer than one; in sequence they take sixteen times as long.

SYNCS_AT_ONCE = 16


class Syncs:
    """Pool of threads for syncing, created when several files are synced for the first time. Thread-safe."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None  # guarded by _lock
        self._closed = False  # guarded by _lock

    def run(self, syncs: Sequence[Callable[[], None]]) -> None:
        """Run all syncs and wait for them. Raises the error of one of them; none is running then."""
        todo = deque(syncs)
        helpers = self._help(todo, min(SYNCS_AT_ONCE, len(syncs)) - 1)
        try:
            _do(todo)
        finally:
            todo.clear()
            wait([helper for helper in helpers if not helper.cancel()])
        for helper in helpers:
            if not helper.cancelled():
                helper.result()

    def _help(self, todo: deque[Callable[[], None]], helpers: int) -> list[Future[None]]:
        """Submit helper threads. Returns an empty list if none are useful or the pool is closed: the caller then does
        all of it."""
        if helpers < 1:
            return []
        with self._lock:
            if self._closed:
                return []
            if self._pool is None:
                self._pool = ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="sync")
            return [self._pool.submit(_do, todo) for _ in range(helpers)]

    def close(self) -> None:
        """Shut the threads down. Harmless in a process that inherited this through fork and has none of the threads."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            if self._pool is not None:
                self._pool.shutdown(wait=False)


def _do(todo: deque[Callable[[], None]]) -> None:
    while True:
        try:
            sync = todo.popleft()
        except IndexError:
            return
        sync()


def drive_error(error: OSError, drive: os.PathLike[str], doing: str) -> LoaderError:
    """Convert an error of the operating system about a drive to the store's error."""
    if is_full(error):
        return DriveFull(f"{drive}: no space left while {doing}; free space on it, or delete objects")
    if error.errno == errno.EROFS:
        return StoreReadOnly(f"{drive}: the file system is mounted read-only ({doing})")
    if error.errno not in (errno.EACCES, errno.EPERM) and not os.path.isdir(drive):
        return DriveFailed(f"{drive}: the folder is gone ({doing}); mount or restore it, then open the store again")
    return DriveFailed(f"{drive}: {doing}: {error.strerror or error} (errno {error.errno})")


def read_fully(fd: int, size_bytes: int, offset: int = 0) -> bytes:
    """Read this many bytes of a file, or fewer if it ends earlier. Raises OSError."""
    data = os.pread(fd, size_bytes, offset)
    while len(data) < size_bytes and (more := os.pread(fd, size_bytes - len(data), offset + len(data))):
        data += more
    return data


class Unlinked(NamedTuple):
    """Result of `RawFiles.unlink_many`."""

    failed: dict[bytes, OSError]
    """Paths that could not be removed, with the errors."""
    segments: dict[bytes, SegmentUse]
    """Space that each segment takes in which an object was freed."""


class RawFiles:
    """Object files of one drive: the folders `objects` and `staging`."""

    def __init__(self, root: Path, *, writable: bool, faults: ErrorCounters | None = None) -> None:
        self.root = root
        self.faults = faults or ErrorCounters()
        self.objects_fd = self.staging_fd = -1
        self._syncs = Syncs()
        self._segments = Segments(-1, self.faults)
        try:
            # Never made here: it was made with the drive, so without it the objects are lost too.
            self.objects_fd = self._segments.objects_fd = os.open(root / "objects", _DIRECTORY)
            self._folders = ObjectFolders(self.objects_fd, self._syncs, self.faults)
            if writable:
                (root / "staging").mkdir(FOLDER_MODE, exist_ok=True)
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
                return True  # a full drive does not tell whether attributes are supported
            raise
        return True

    def on_segment_removed(self, removed: Callable[[bytes], None]) -> None:
        """Have this called with the path of each segment that has been removed."""
        self._segments.removed = removed

    def hold(self, name: str, make_room: Callable[[], bool]) -> StagedFile:
        """Create a staged file that stays in memory while it is small, see `StagedFile.held`. `make_room` is as in
        `stage`."""
        return StagedFile(self.staging_fd, name, make_room, self.faults, held=True)

    def stage(self, name: str, make_room: Callable[[], bool]) -> StagedFile:
        """Create a new invisible file. `make_room` is called when the drive is full, and returns whether it freed any
        space."""
        try:
            return StagedFile(self.staging_fd, name, make_room, self.faults)
        except OSError as error:
            self.faults.note(error, "staging an object")
            raise

    def stage_link(self, name: str, make_room: Callable[[], bool], folder_fd: int, source: str) -> StagedFile:
        """Stage a file of the same file system by adding a hard link to it. Its source is about to be given up."""
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
        """Create the folders for these files durably. Call it before `publish`. Raises OSError."""
        with self._noting("publishing an object"):
            self._folders.make_lasting({file_of(path) for path in paths})

    def publish(self, staged: StagedFile, path: bytes) -> None:
        """Rename the staged file to its final name. Raises OSError."""
        if staged.linked:
            with contextlib.suppress(OSError):  # the file of another user: the folder of the drive keeps others out
                os.chmod(staged.name, FILE_MODE, dir_fd=self.staging_fd)
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
        """Make the bytes of these files durable. Raises OSError."""
        self._syncs.run([file.sync for file in files])

    def sync_names(self, paths: Iterable[bytes]) -> None:
        """Make the names of published files durable. Raises OSError."""
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
        """Open the file that contains the object, for reading; the caller closes the descriptor. Raises OSError."""
        try:
            return os.open(file_of(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.objects_fd)
        except OSError as error:
            self.faults.note(error, "opening an object")
            raise

    def read(self, entry: CatalogEntry) -> Iterator[bytes]:
        """Iterate over an object's bytes in pieces. Stops early if the file is shorter. Raises OSError."""
        fd = self.open(entry.path)
        at, end = entry.offset, entry.offset + entry.size_bytes
        try:
            while at < end and (part := os.pread(fd, min(end - at, 4 * BLOCK_BYTES), at)):
                at += len(part)
                yield part
        except OSError as error:
            self.faults.note(error, "reading an object")
            raise
        finally:
            os.close(fd)

    def read_into(self, wanted: Sequence[tuple[CatalogEntry, memoryview]]) -> list[bool]:
        """Fill the buffer of each object with its bytes, with one descriptor for all objects of a segment. Returns
        whether each is there, in order. Raises OSError."""
        found, by_file = [False] * len(wanted), dict[bytes, list[int]]()
        for at, (entry, _) in enumerate(wanted):
            by_file.setdefault(file_of(entry.path), []).append(at)
        for file, positions in by_file.items():
            with contextlib.suppress(FileNotFoundError), self._noting("reading an object"):
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.objects_fd)
                try:
                    for at in positions:
                        entry, room = wanted[at]
                        found[at] = os.preadv(fd, [room], entry.offset) == entry.size_bytes
                finally:
                    os.close(fd)
        return found

    def exists(self, path: bytes) -> bool:
        """Whether there is such a file or, in a segment, whether the object's bytes have not been freed. Raises
        OSError."""
        try:
            if is_slot(path):
                return not self._segments.is_freed(path)
            os.stat(path, dir_fd=self.objects_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def identity(self, path: bytes) -> bytes | None:
        """Return the identity stored in the file, or None if there is none. Raises OSError."""
        return self._segments.identity(path) if is_slot(path) else self._attribute(path, XATTR_NAME)

    def offset(self, path: bytes) -> int:
        """Return the offset of the object in its file. Raises OSError, StoreFormatError."""
        return self._segments.offset(path) if is_slot(path) else 0

    def own(self, path: bytes, identity: bytes) -> bool:
        """Store an identity in a published file. Returns whether the file has it now. Raises OSError."""
        if is_slot(path):
            return self._segments.own(path, identity)
        with closing_fd(self.open(path)) as fd:
            self.set_identity(fd, identity)
        return self.keeps_identity

    def _attribute(self, path: bytes, name: str) -> bytes | None:
        """Return an extended attribute, or None if the file does not have it. Raises OSError."""
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
        """Remove the identity of dead files, so that rebuilding the catalog cannot bring deleted objects back."""
        alone, slots = by_segment(paths)
        for file, of_file in slots.items():
            with contextlib.suppress(OSError):  # it may be gone already; its removal is due anyway
                self._segments.disown(file, of_file)
        for path in alone if self.keeps_identity else ():
            with contextlib.suppress(OSError), closing_fd(self.open(path)) as fd:
                os.removexattr(fd, XATTR_NAME)

    def ended(self, path: bytes) -> int | None:
        """Return the counter at which the object in this file ended, if it is retained for snapshots."""
        if is_slot(path):
            return self._segments.ended(path)
        value = self._attribute(path, ENDED_XATTR_NAME)
        return None if value is None else int.from_bytes(value, "big")

    def set_ended(self, path: bytes, ended: int | None) -> None:
        """Store that counter in the file, or remove it. Harmless if the file does not exist. Raises OSError."""
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
        """Remove a file, or free an object's bytes in a segment. Harmless if it is gone. Raises OSError."""
        for problem in self.unlink_many([path]).failed.values():
            raise problem

    def unlink_many(self, paths: Sequence[bytes], *, durably: bool = False) -> Unlinked:
        """Unlink many paths, one segment at a time. With `durably`, nothing of them is left in a segment, and neither a
        power failure brings them back."""
        failed: dict[bytes, OSError] = {}
        segments: dict[bytes, SegmentUse] = {}
        alone, slots = by_segment(paths)
        unlinked: list[bytes] = []
        for path in alone:
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path, dir_fd=self.objects_fd)
                    unlinked.append(path)
            except OSError as error:
                failed[path] = error
        for file, of_file in slots.items():
            try:
                if (use := self._segments.free(file, of_file, durably=durably)) is not None:
                    segments[file] = use
                    unlinked.append(file)
                elif durably:
                    raise OSError(errno.EBADMSG, f"the index of {file.decode()} does not tell where all bytes are")
            except FileNotFoundError:
                segments[file] = REMOVED
            except OSError as error:
                failed.update(dict.fromkeys((path for path in paths if file_of(path) == file), error))
        if durably:
            try:
                self.sync_names(unlinked)
            except OSError as error:
                failed.update(dict.fromkeys(paths, error))
        for problem in dict.fromkeys(failed.values()):
            self.faults.note(problem, "removing an object's file")
        return Unlinked(failed, segments)

    def is_linked(self, path: bytes) -> bool:
        """Whether an object's file has other names, such as that from which it was promoted."""
        with contextlib.suppress(OSError):
            return os.stat(path, dir_fd=self.objects_fd, follow_symlinks=False).st_nlink > 1
        return False

    def segment_use(self, file: bytes) -> SegmentUse | None:
        """Return the space that a segment takes; None if its index cannot be read. Raises OSError."""
        return self._segments.use(file)

    def living(self, file: bytes) -> list[tuple[int, bytes]]:
        """Return slot and identity of the objects of a segment that are alive and identifiable. Raises OSError."""
        return self._segments.living(file)

    def segment_files(self) -> Iterator[bytes]:
        """Iterate over the paths of all segments. Raises OSError."""
        return filter(is_segment, self._walk_files(SEGMENTS))

    def clear_staging(self) -> int:
        """Remove unfinished files of earlier writers. Returns how many there were."""
        removed = 0
        for name in os.listdir(self.staging_fd):
            with contextlib.suppress(IsADirectoryError):  # not created by the store: staged files have no folders
                os.unlink(name, dir_fd=self.staging_fd)
                removed += 1
        return removed

    def may_hold_objects(self, path: bytes) -> bool:
        """Whether a segment, or a slot of one, may contain objects, including unidentifiable ones."""
        try:
            if is_slot(path):
                return self._segments.is_untold(path)
            return is_segment(path) and not self._segments.is_spent(path)
        except OSError:
            return True

    def drop_untold(self, path: bytes) -> None:
        """Remove unidentifiable objects: all of those in a segment, or the one in this slot. Raises OSError."""
        if is_segment(path):
            self._segments.drop_unknown(path)
        else:
            self.unlink(path)

    def is_segment_damaged(self, path: bytes, *, in_motion: bool) -> bool:
        """Whether exactly one copy of the index of this object's segment is damaged.

        `in_motion`: a writer may have it open. Raises OSError.
        """
        return self._segments.is_damaged(file_of(path), in_motion=in_motion)

    def mend_segment(self, path: bytes) -> bool:
        """Restore the damaged parts of both copies of the segment's index. Returns whether everything was restored.
        Raises OSError."""
        return self._segments.mend(path)

    def walk(self) -> Iterator[bytes]:
        """Iterate over the paths of all objects, and of everything else below `objects` that is not a folder, in no
        particular order."""
        for path in self._walk_files():
            if is_segment(path):
                yield from self._segments.paths(path)
            else:
                yield path

    def _walk_files(self, top: bytes = b"") -> Iterator[bytes]:
        pending = [top]
        while pending:
            folder = pending.pop()
            # Each listing has a descriptor of its own: two that share one also share its position.
            opened = os.open(folder or b".", _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.objects_fd)
            with closing_fd(opened) as fd, os.scandir(fd) as entries:
                for entry in entries:
                    path = os.path.join(folder, os.fsencode(entry.name))
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(path)
                    else:
                        yield path

    def holds_any(self) -> bool:
        """Whether any published file exists."""
        return next(self.walk(), None) is not None

    def close(self) -> None:
        self._syncs.close()
        # The numbers are reset before the descriptors are closed: a late caller gets EBADF, not an unrelated folder.
        fds = self.objects_fd, self.staging_fd
        self.objects_fd = self.staging_fd = self._segments.objects_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        self.close()


class ObjectFolders:
    """Folder tree of objects, two levels deep: created when needed, and made durable. Thread-safe."""

    def __init__(self, objects_fd: int, syncs: Syncs, faults: ErrorCounters) -> None:
        self._objects_fd = objects_fd
        self._faults = faults
        self._syncs = syncs
        self._lasting: set[bytes] = set()  # known to be durable

    def make(self, path: bytes) -> None:
        """Create the folders of a file. Raises OSError."""
        inner = os.path.dirname(path)
        outer = os.path.dirname(inner)
        if inner in self._lasting:  # they have been removed since
            self._lasting.difference_update((inner, outer))
            self.make_lasting([path])
        else:
            self._make([outer, inner])

    def make_lasting(self, paths: Iterable[bytes]) -> None:
        """Create the folders of these files durably. Raises OSError.

        Each parent is synced once for all files, and all parents in parallel: on a young store most objects go into a
        new folder.
        """
        # Synced even if they exist: whoever created them may not have synced them.
        inner = {os.path.dirname(path) for path in paths} - self._lasting
        outer = {os.path.dirname(folder) for folder in inner}
        self._make([*outer, *inner])
        self._sync([*outer, b"."] if outer - self._lasting else [*outer])
        self._lasting.update(inner, outer)

    def sync_names(self, paths: Iterable[bytes]) -> None:
        """Make the names of these files durable. Raises OSError."""
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

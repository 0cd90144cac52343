"""Open archives of one drive: member indexes, stored on the drive, and descriptors of the shards, kept open.

The index is built when the shard is put (`Indexing`), or by the first request for a member, while other requests wait.
It is in the folder `members`, under the name of the shard's file. That name is never reused: a shard that is replaced
gets another file, and so another index. A lost, stale or damaged index is rebuilt. An index that cannot be written is
still used.

Threads: any.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ais_loader.errors import (
    ArchiveError,
    ArchiveIndexError,
    ArchiveIndexStale,
    CopiesBusy,
    CorruptObject,
    DriveFailed,
    DriveFull,
    LoaderError,
    StoreReadOnly,
)
from ais_loader.wire.closing import closing_fd
from storage_node.store.archives.archive import Archive, ShardIndexer, index_shard
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.index_format import ShardState
from storage_node.store.archives.kinds import ArchiveKind, recognise
from storage_node.store.archives.source import CheckedSource, FdSource, chunks_of
from storage_node.store.archives.unpack_cache import UnpackCache
from storage_node.store.checksum import crc32c
from storage_node.store.files.object_files import RawFiles
from storage_node.store.format import CatalogEntry
from storage_node.store.permissions import FOLDER_MODE

FOLDER_NAME = "members"
LEAST_SHARDS, MOST_SHARDS = 128, 4096
"""Range of the number of archives that stay open on a drive, unless a setting says otherwise."""
REFUSED_SHARDS = 1024
"""Maximum number of shards remembered as impossible to index, so that they are not scanned again."""
COPY_TIMEOUT_S = 60.0
_SUFFIX = ".index"
log = logging.getLogger(__name__)


_VIEWS_BYTES = 2 << 10
"""Approximate memory of an index beside its bytes."""


class IndexCache:
    """Verified indexes by the file of their shard, the least recently used dropped first. Thread-safe.

    An index that is mapped from its file is not kept: it holds a descriptor, and its file could be truncated.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._indexes: OrderedDict[bytes, MemberIndex] = OrderedDict()  # guarded by _lock, as is the size
        self.size_bytes = 0

    def get(self, path: bytes) -> MemberIndex | None:
        with self._lock:
            found = self._indexes.get(path)
            if found is not None:
                self._indexes.move_to_end(path)
            return found

    def add(self, path: bytes, index: MemberIndex) -> None:
        if index.is_mapped:
            return
        with self._lock:
            self._drop(path)
            self._indexes[path] = index
            self.size_bytes += _memory_bytes(index)
            while self.size_bytes > self._limit_bytes:
                self._drop(next(iter(self._indexes)))

    def drop(self, path: bytes) -> None:
        with self._lock:
            self._drop(path)

    def clear(self) -> None:
        with self._lock:
            self._indexes.clear()
            self.size_bytes = 0

    def _drop(self, path: bytes) -> None:
        index = self._indexes.pop(path, None)
        if index is not None:
            self.size_bytes -= _memory_bytes(index)


def _memory_bytes(index: MemberIndex) -> int:
    return index.file_bytes + _VIEWS_BYTES


def named_message(error: LoaderError, name: str, member: str | None = None) -> str:
    """Return the message of an error about the archive `name`, with the names of the archive and of the member."""
    text = str(error)
    if repr(name) in text:
        return text
    if member is None or repr(member) in text:
        return f"{name!r}: {text}"
    return f"{name!r}, member {member!r}: {text}"


@contextlib.contextmanager
def naming(name: str, member: str | None = None) -> Iterator[None]:
    """Re-raise errors about an archive with the names of the archive and of the member in their message."""
    try:
        yield
    except LoaderError as error:
        raise type(error)(named_message(error, name, member)) from error


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """Limits on the open archives and decompressed copies of one drive. Raises ValueError."""

    open_shards: int | None = None
    """Maximum number of open shards, least recently used closed first. Each has one descriptor, and a second one if
    its index is mapped. None: see `of_drives`."""
    index_bytes: int = 256 << 20
    """Memory for indexes of shards, which outlive their descriptors; least recently used dropped first."""
    copy_bytes: int = 4 << 30
    """Disk budget for decompressed copies of shards without restart points. Their files disappear with the process."""

    def __post_init__(self) -> None:
        if self.open_shards is not None and self.open_shards < 1:
            raise ValueError(f"open_shards={self.open_shards}: need at least 1")
        if self.index_bytes < 0:
            raise ValueError(f"shard_index_bytes={self.index_bytes}: need at least 0")
        if self.copy_bytes < 0:
            raise ValueError(f"shard_copy_bytes={self.copy_bytes}: need at least 0")

    def of_drives(self, count: int) -> ShardLimits:
        """Return the limits of each of so many drives. Opening an archive again costs more than reading a small member
        of it, so all drives together keep an eighth of the descriptors that this process may have."""
        if self.open_shards is not None:
            return self
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return replace(self, open_shards=min(max(descriptors // (8 * count), LEAST_SHARDS), MOST_SHARDS))


class OpenShard:
    """Shard with its index. Its descriptor is closed with the last reference to it: keep one while reading."""

    def __init__(
        self,
        archive: Archive,
        fd: int,
        open_checked: Callable[[], Archive],
        *,
        copy: contextlib.ExitStack | None = None,
    ) -> None:
        """`fd`: closed with this object, or with `copy` if the shard is read from a decompressed copy."""
        self.archive = archive
        """Archive to read from. Whole members are verified against their checksums; parts of members are not."""
        self.fd = fd
        """Descriptor of the file that `Archive.file_range` refers to."""
        self.is_object = copy is None
        """Whether that is the object's own file, and not a decompressed copy of it."""
        self._copy = copy
        self._open_checked = open_checked
        self._checked: Archive | None = None

    def checked(self) -> Archive:
        """Return the archive, read through the block checksums of the object: every byte is verified before it is
        returned.

        Only if `is_object`. Raises FileNotFoundError if the checksums are gone, as after the object was replaced.
        """
        if self._checked is None:
            self._checked = self._open_checked()
        return self._checked

    def __del__(self) -> None:
        if self._copy is None:
            os.close(self.fd)
        else:
            self._copy.close()


class OpenArchives:
    """Open archives of one drive. Only a drive that is open for writing saves indexes. Other drives use the saved ones,
    or build their own in memory."""

    def __init__(
        self,
        root: Path,
        files: RawFiles,
        block_checksums: Callable[[CatalogEntry], Sequence[int]],
        *,
        writable: bool,
        limits: ShardLimits | None = None,
        damaged: Callable[[], None] = lambda: None,
    ) -> None:
        """`block_checksums` returns the checksums of all blocks of an object, or raises CorruptObject. `damaged` is
        called for a block that does not match."""
        self.limits = limits or ShardLimits()
        self._open_shards = self.limits.open_shards or LEAST_SHARDS
        self._block_checksums = block_checksums
        self._damaged = damaged
        self._folder = root / FOLDER_NAME
        self._files = files
        self._writable = writable
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, OpenShard] = OrderedDict()
        self._without_copy = weakref.WeakValueDictionary[bytes, OpenShard]()
        """Shards for whose copies there was no room, while they are read: the next reader tries again."""
        self._indexes = IndexCache(self.limits.index_bytes)
        self._refused: OrderedDict[bytes, ArchiveError | CorruptObject] = OrderedDict()
        self._busy: dict[bytes, tuple[threading.Lock, int]] = {}
        """Locks of the shards that are being opened, each with the number of threads that hold or await it."""
        self._copies: UnpackCache | None = None
        self._swept = not writable
        self._keeps = writable and self._folder.exists()
        """Whether the drive may contain index files."""

    # -- reading

    def open(self, entry: CatalogEntry, name: str) -> OpenShard:
        """Open the shard that this catalog entry of the object `name` refers to. May take as long as reading all of it.

        Raises FileNotFoundError if its file is gone, OSError, LoaderError; ArchiveError if it has no members.
        """
        if entry.offset:  # in a segment, so not an archive: archives have files of their own
            recognise(name, b"")
        found = self._known(entry.path)
        if found is not None:
            return found
        with self._alone(entry.path):
            found = self._known(entry.path)
            if found is not None:
                return found
            try:
                shard = self._opened(entry, name)
            except LoaderError as error:
                named = type(error)(named_message(error, name))
                if isinstance(named, ArchiveError | CorruptObject):
                    self._refuse(entry.path, named)
                raise named from error
            with self._lock:
                if shard.archive.needs_copy:
                    self._without_copy[entry.path] = shard
                    return shard
                self._open[entry.path] = shard
                while len(self._open) > self._open_shards:
                    self._open.popitem(last=False)
            return shard

    def closed_index(self, path: bytes) -> MemberIndex | None:
        """Return the index of a tar that is not open, if it is in memory. Reading a few small members by the path of
        their tar costs less than opening it."""
        index = None if path in self._open else self._indexes.get(path)
        return index if index is not None and index.kind is ArchiveKind.TAR else None

    def _refuse(self, path: bytes, error: ArchiveError | CorruptObject) -> None:
        with self._lock:
            self._refused[path] = error
            while len(self._refused) > REFUSED_SHARDS:
                self._refused.popitem(last=False)

    def _known(self, path: bytes) -> OpenShard | None:
        with self._lock:
            if (refused := self._refused.get(path)) is not None:
                raise type(refused)(*refused.args)
            found = self._open.get(path)
            if found is None:
                return self._without_copy.get(path)
            if not found.archive.index.is_whole:
                del self._open[path]  # reopening rebuilds the index
                return None
            self._open.move_to_end(path)
            return found

    @contextlib.contextmanager
    def _alone(self, path: bytes) -> Iterator[None]:
        """Hold the lock of one shard: only one thread opens it at a time."""
        with self._lock:
            lock, waiting = self._busy.get(path, (threading.Lock(), 0))
            self._busy[path] = lock, waiting + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, waiting = self._busy[path]
                if waiting == 1:
                    del self._busy[path]
                else:
                    self._busy[path] = lock, waiting - 1

    def _opened(self, entry: CatalogEntry, name: str) -> OpenShard:
        fd = self._files.open(entry.path)
        try:
            archive = self._indexed(FdSource(fd, entry.size_bytes), entry, name)
            open_checked = partial(self._checked, fd, entry, archive.index)
            if not archive.needs_copy:
                return OpenShard(archive, fd, open_checked)
            with contextlib.ExitStack() as held:
                content_bytes = archive.index.content_bytes
                try:
                    copy = held.enter_context(
                        self._unpacked().get(entry.path, content_bytes, archive.content, timeout_s=COPY_TIMEOUT_S)
                    )
                except (CopiesBusy, DriveFull, DriveFailed, StoreReadOnly, OSError):
                    # Slower, because each member is unpacked with what precedes it.
                    return OpenShard(archive, fd, open_checked)
                archive = archive.on_copy(copy)
                held.callback(os.close, fd)
                return OpenShard(archive, copy.fd, open_checked, copy=held.pop_all())
        except BaseException:
            os.close(fd)
            raise

    def _checked(self, fd: int, entry: CatalogEntry, index: MemberIndex) -> Archive:
        try:
            checksums = self._block_checksums(entry)
        except CorruptObject as error:
            raise FileNotFoundError(errno.ENOENT, str(error)) from error
        return Archive(CheckedSource(fd, entry.size_bytes, checksums, self._damaged), index)

    def _unpacked(self) -> UnpackCache:
        with self._lock:
            if self._copies is None:
                self._copies = UnpackCache(self._folder, self.limits.copy_bytes, self._close_copied)
            return self._copies

    def _close_copied(self, size_bytes: int) -> None:
        """Close archives that are read from decompressed copies, least recently used first, until so many bytes of
        these are given back. A copy that is being read is given back by its last reader."""
        closed: list[OpenShard] = []
        with self._lock:
            for path in [path for path, shard in self._open.items() if not shard.is_object]:
                if sum(shard.archive.index.content_bytes for shard in closed) < size_bytes:
                    closed.append(self._open.pop(path))

    # -- indexes

    def saved(self, entry: CatalogEntry) -> MemberIndex | None:
        """Return the saved index of a shard; None if there is none that can be used. Builds none."""
        try:
            return MemberIndex.open(self._path(entry.path), _state(entry))
        except (OSError, ArchiveError):
            return None

    def _indexed(self, source: FdSource, entry: CatalogEntry, name: str) -> Archive:
        if (known := self._indexes.get(entry.path)) is not None:
            return Archive(source, known)
        archive = self._newly_indexed(source, entry, name)
        self._indexes.add(entry.path, archive.index)
        return archive

    def _newly_indexed(self, source: FdSource, entry: CatalogEntry, name: str) -> Archive:
        self._sweep()
        path, state = self._path(entry.path), _state(entry)
        try:
            return Archive(source, MemberIndex.open(path, state))
        except FileNotFoundError:
            pass
        except (ArchiveIndexError, ArchiveIndexStale) as error:
            log.warning("%s; it is rebuilt", error)
        except OSError as error:  # the shard itself may be readable
            log.warning("%s: the index cannot be read and is rebuilt: %s", path, error)
        _verify(source, entry, name)
        return Archive(source, self._save(index_shard(source, name), path, state))

    def _save(self, index: MemberIndex, path: Path, state: ShardState) -> MemberIndex:
        """Save the index, and return it as mapped from its file, so that a large one takes no memory of the process."""
        if not self._writable:
            return index
        try:
            self._folder.mkdir(FOLDER_MODE, exist_ok=True)
            self._keeps = True
            index.save(path, state)
            return MemberIndex.open(path, state)
        except (OSError, ArchiveError) as error:
            log.warning("%s: the index cannot be kept and is made again next time: %s", path, error)
            return index

    def keep(self, entry: CatalogEntry, indexing: Indexing) -> None:
        """Save the index that was built during the put. Without one, it is built when a member is requested."""
        try:
            fd = self._files.open(entry.path)
        except OSError:
            return  # replaced already
        with closing_fd(fd):
            index = indexing.finish(FdSource(fd, entry.size_bytes))
            if index is not None:
                self._save(index, self._path(entry.path), _state(entry))

    def forget(self, path: bytes) -> None:
        """Drop everything kept for a shard whose file has been removed."""
        with self._lock:
            self._open.pop(path, None)
            self._indexes.drop(path)
            self._refused.pop(path, None)
            if self._copies is not None:
                self._copies.drop(path)
        if self._keeps:
            with contextlib.suppress(OSError):
                self._path(path).unlink()

    def _sweep(self) -> None:
        """Remove index files that a crash left behind: partial ones, and those of removed shards. Runs once."""
        with self._lock:
            if self._swept:
                return
            self._swept = True
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.startswith("."):
                    os.unlink(entry.path)  # partially written
                elif entry.name.endswith(_SUFFIX):
                    shard = entry.name.removesuffix(_SUFFIX).replace("-", "/").encode()
                    if not self._files.exists(shard):
                        os.unlink(entry.path)

    def _path(self, path: bytes) -> Path:
        return self._folder / f"{path.decode().replace('/', '-')}{_SUFFIX}"

    def close(self) -> None:
        """Close all shards; those in use are closed with their last reader."""
        self._indexes.clear()
        with self._lock:
            self._open.clear()
            if self._copies is not None:
                self._copies.close()


class Indexing:
    """Indexer of a shard that is being put. If the shard cannot be indexed, it is stored as an ordinary object."""

    def __init__(self, name: str) -> None:
        self._indexer: ShardIndexer | None = ShardIndexer(name)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        if self._indexer is not None:
            try:
                self._indexer.feed(data)
            except LoaderError as error:
                self._refuse(error)

    def finish(self, source: FdSource) -> MemberIndex | None:
        """Return the index, or None if the shard cannot be indexed."""
        if self._indexer is not None:
            try:
                return self._indexer.finish(source)
            except (LoaderError, OSError) as error:
                self._refuse(error)
        return None

    def _refuse(self, error: Exception) -> None:
        self._indexer = None
        log.info("a shard is stored without an index of its members: %s", error)


def _verify(source: FdSource, entry: CatalogEntry, name: str) -> None:
    """Verify the whole shard before it is indexed: an index of damaged bytes would confirm the damage."""
    checksum = 0
    for chunk in chunks_of(source):
        checksum = crc32c(chunk, checksum)
    if checksum != entry.checksum:
        raise CorruptObject(f"{name!r}: the archive's bytes do not match their checksum, and it has no index any more")


def _state(entry: CatalogEntry) -> ShardState:
    return ShardState(entry.version, entry.size_bytes, entry.checksum)

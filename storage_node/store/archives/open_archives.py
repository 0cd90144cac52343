"""Open shards of one drive whose members are read: their indexes, kept beside them, and their files, kept open.

An index is made when the shard is put (`Indexing`), or by the first who asks for a member while others wait. It lies in
`members`, under the name of the shard's file, which is never used again: a shard that is replaced has another file, and
so another index. An index that is lost, stale or damaged is made anew; one that cannot be written is used all the same.

Threads: any.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ais_loader.errors import ArchiveError, ArchiveIndexError, ArchiveIndexStale, CorruptObject, LoaderError
from storage_node.store.archives.archive import Archive, ShardIndexer, index_shard
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.index_format import ShardState
from storage_node.store.archives.kinds import kind_of_name, recognise
from storage_node.store.archives.limits import ShardLimits
from storage_node.store.archives.member import Member
from storage_node.store.archives.source import CheckedSource, FdSource, chunks_of
from storage_node.store.archives.unpack_cache import UnpackCache
from storage_node.store.checksum import crc32c
from storage_node.store.files.object_files import RawFiles
from storage_node.store.format import CatalogEntry
from storage_node.store.permissions import FOLDER_MODE

FOLDER_NAME = "members"
REFUSED_SHARDS = 1024
"""Shards that cannot be indexed, and are not looked through again."""
COPY_TIMEOUT_S = 60.0
_SUFFIX = ".index"
log = logging.getLogger(__name__)


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
    """Raise errors of what is read here again with the names of the archive and of the member in their message."""
    try:
        yield
    except LoaderError as error:
        raise type(error)(named_message(error, name, member)) from error


class OpenShard:
    """A shard with its index. Its descriptor is closed with the last reference to it: keep one while reading."""

    def __init__(
        self,
        archive: Archive,
        fd: int,
        held: contextlib.ExitStack,
        open_checked: Callable[[], Archive],
        *,
        is_object: bool = True,
    ) -> None:
        self.archive = archive
        """Whole members are verified against their checksums, parts of them are not."""
        self.fd = fd
        """Of what `Archive.file_range` counts in."""
        self.is_object = is_object
        """Whether that is the object's own file, and not an unpacked copy of it."""
        self._held = held
        self._open_checked = open_checked
        self._checked: Archive | None = None

    def checked(self) -> Archive:
        """The archive, read through the block checksums of the object: every byte is verified before it is returned.

        Only where `is_object`. Raises FileNotFoundError if the checksums are gone, as after the object was replaced.
        """
        if self._checked is None:
            self._checked = self._open_checked()
        return self._checked

    def find(self, member: str) -> Member:
        """Raises MemberNotFound."""
        return self.archive.index.find(member)

    def __del__(self) -> None:
        self._held.close()


class Shards:
    """Of one drive. Only a drive that is open for writing keeps indexes; others use those, or make their own."""

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
        """`block_checksums`: of all blocks of an object, raises CorruptObject. `damaged`: called for a block that does
        not match."""
        self.limits = limits or ShardLimits()
        self._block_checksums = block_checksums
        self._damaged = damaged
        self._folder = root / FOLDER_NAME
        self._files = files
        self._writable = writable
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, OpenShard] = OrderedDict()
        self._refused: OrderedDict[bytes, ArchiveError | CorruptObject] = OrderedDict()
        self._busy: dict[bytes, tuple[threading.Lock, int]] = {}
        """Shards that are being opened, each with how many wait for it."""
        self._copies: UnpackCache | None = None
        self._swept = not writable
        self._keeps = writable and self._folder.exists()
        """Whether there may be an index on the drive."""

    # -- reading

    def open(self, record: CatalogEntry, name: str) -> OpenShard:
        """The shard that this record of the object `name` stands for. May take as long as reading it whole.

        Raises FileNotFoundError when its file is gone, OSError, LoaderError; ArchiveError when it has no members.
        """
        if record.offset:  # no archive by its name: those have files of their own
            recognise(name, b"")
        found = self._known(record.path)
        if found is not None:
            return found
        with self._alone(record.path):
            found = self._known(record.path)
            if found is not None:
                return found
            try:
                with naming(name):
                    shard = self._opened(record, name)
            except (ArchiveError, CorruptObject) as error:
                with self._lock:
                    self._refused[record.path] = error
                    while len(self._refused) > REFUSED_SHARDS:
                        self._refused.popitem(last=False)
                raise
            with self._lock:
                self._open[record.path] = shard
                while len(self._open) > self.limits.open_shards:
                    self._open.popitem(last=False)
            return shard

    def _known(self, path: bytes) -> OpenShard | None:
        with self._lock:
            if (refused := self._refused.get(path)) is not None:
                raise type(refused)(*refused.args)
            found = self._open.get(path)
            if found is None:
                return None
            if not found.archive.index.is_whole:
                del self._open[path]  # opening it again finds out what is left, and makes it anew
                return None
            self._open.move_to_end(path)
            return found

    @contextlib.contextmanager
    def _alone(self, path: bytes) -> Iterator[None]:
        """One thread for each shard."""
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

    def _opened(self, record: CatalogEntry, name: str) -> OpenShard:
        with contextlib.ExitStack() as held:
            fd = self._files.open(record.path)
            held.callback(os.close, fd)
            source = FdSource(fd, record.size_bytes)
            archive, is_object = self._indexed(source, record, name), True
            open_checked = partial(self._checked, fd, record, archive.index)
            if archive.needs_copy:
                content_bytes = archive.index.content_bytes
                copy = held.enter_context(
                    self._unpacked().get(record.path, content_bytes, archive.content, timeout_s=COPY_TIMEOUT_S)
                )
                archive, fd, is_object = archive.on_copy(copy), copy.fd, False
            return OpenShard(archive, fd, held.pop_all(), open_checked, is_object=is_object)

    def _checked(self, fd: int, record: CatalogEntry, index: MemberIndex) -> Archive:
        try:
            checksums = self._block_checksums(record)
        except CorruptObject as error:
            raise FileNotFoundError(errno.ENOENT, str(error)) from error
        return Archive(CheckedSource(fd, record.size_bytes, checksums, self._damaged), index)

    def _unpacked(self) -> UnpackCache:
        with self._lock:
            if self._copies is None:
                self._copies = UnpackCache(self._folder, self.limits.copy_bytes)
            return self._copies

    # -- indexes

    def _indexed(self, source: FdSource, record: CatalogEntry, name: str) -> Archive:
        self._sweep()
        path, state = self._path(record.path), _state(record)
        try:
            return Archive(source, MemberIndex.open(path, state))
        except FileNotFoundError:
            pass
        except (ArchiveIndexError, ArchiveIndexStale) as error:
            log.warning("%s; it is rebuilt", error)
        except OSError as error:  # the shard itself may well be readable
            log.warning("%s: the index cannot be read and is rebuilt: %s", path, error)
        _verify(source, record, name)
        return Archive(source, self._save(index_shard(source, name), path, state))

    def _save(self, index: MemberIndex, path: Path, state: ShardState) -> MemberIndex:
        """Returns it as it is in the file: a large one costs no memory of ours."""
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

    def keep(self, record: CatalogEntry, indexing: Indexing) -> None:
        """Keep the index that was made while the shard was put; without one it is made when a member is asked for."""
        try:
            fd = self._files.open(record.path)
        except OSError:
            return  # replaced already
        try:
            index = indexing.finish(FdSource(fd, record.size_bytes))
            if index is not None:
                self._save(index, self._path(record.path), _state(record))
        finally:
            os.close(fd)

    def forget(self, path: bytes) -> None:
        """The shard's file has been removed."""
        with self._lock:
            self._open.pop(path, None)
            self._refused.pop(path, None)
            if self._copies is not None:
                self._copies.drop(path)
        if self._keeps:
            with contextlib.suppress(OSError):
                self._path(path).unlink()

    def _sweep(self) -> None:
        """Once: what a crash left of files that are gone."""
        with self._lock:
            if self._swept:
                return
            self._swept = True
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.startswith("."):
                    os.unlink(entry.path)  # half written
                elif entry.name.endswith(_SUFFIX):
                    shard = entry.name.removesuffix(_SUFFIX).replace("-", "/").encode()
                    if not self._files.exists(shard):
                        os.unlink(entry.path)

    def _path(self, path: bytes) -> Path:
        return self._folder / f"{path.decode().replace('/', '-')}{_SUFFIX}"

    def close(self) -> None:
        """Let go of all files; those that are being read are closed with their last reader."""
        with self._lock:
            self._open.clear()
            if self._copies is not None:
                self._copies.close()


class Indexing:
    """The index of a shard that is being put. A shard that can have none is an object like any other."""

    def __init__(self, name: str) -> None:
        self._indexer: ShardIndexer | None = ShardIndexer(name)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        if self._indexer is not None:
            try:
                self._indexer.feed(data)
            except LoaderError as error:
                self._refuse(error)

    def finish(self, source: FdSource) -> MemberIndex | None:
        """None when there can be none."""
        if self._indexer is not None:
            try:
                return self._indexer.finish(source)
            except (LoaderError, OSError) as error:
                self._refuse(error)
        return None

    def _refuse(self, error: Exception) -> None:
        self._indexer = None
        log.info("a shard is stored without an index of its members: %s", error)


def indexing_of(name: str) -> Indexing | None:
    """None for an object that is no archive by its name."""
    return Indexing(name) if kind_of_name(name) is not None else None


def _verify(source: FdSource, record: CatalogEntry, name: str) -> None:
    """An index has checksums of members: made of bytes that are not those that were put, it would vouch for them."""
    checksum = 0
    for chunk in chunks_of(source):
        checksum = crc32c(chunk, checksum)
    if checksum != record.checksum:
        raise CorruptObject(f"{name!r}: the archive's bytes do not match their checksum, and it has no index any more")


def _state(record: CatalogEntry) -> ShardState:
    return ShardState(record.version, record.size_bytes, record.checksum)

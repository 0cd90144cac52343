"""Drive: its catalog, its files, and the protocol that keeps the two consistent.

A PUT stages a file. Holding the object's stripe, it then writes an intent, renames the file to its final name, and
commits the catalog entry, the only step that changes anything for readers. The same commit removes the intent and marks
the file of the previous version as garbage. Garbage is removed after a grace period; a reader that finds a file missing
looks the entry up again. After a crash, intents and garbage keys name every file that may have to be removed, so that
the cost of opening a drive depends on what was in flight, not on what is stored.

The module is long because one class has each access to a drive: most lead to the module that does the work.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from ais_loader.errors import (
    Closed,
    DriveFailed,
    LoaderError,
    StoreFormatError,
    StoreNotFound,
    StoreReadOnly,
    Unsupported,
)
from storage_node.store import format as fmt
from storage_node.store.archives.open_archives import OpenArchives, ShardLimits
from storage_node.store.checksum import combine_blocks
from storage_node.store.drive import clean_shutdown
from storage_node.store.drive.block_checksums import read_blocks
from storage_node.store.drive.catalog import REBUILD_HINT, Catalog
from storage_node.store.drive.commit_files import PendingObject, SequenceNumbers
from storage_node.store.drive.ended_versions import Garbage, Retention, find_retained, scan_at
from storage_node.store.drive.entry_cache import EntryCache, LocationFill
from storage_node.store.drive.identity import DriveIdentity
from storage_node.store.drive.locations import Locations
from storage_node.store.drive.published_commits import FollowedCommits
from storage_node.store.drive.segment_compaction import Compacted, SegmentCompaction
from storage_node.store.drive.shared_locations import SharedLocations
from storage_node.store.drive.sparse_segments import SparseSegments
from storage_node.store.drive.transactions import Transactions
from storage_node.store.drive.version_clock import VersionClock
from storage_node.store.files.error_counters import ErrorCounters
from storage_node.store.files.growing_file import sync_folder
from storage_node.store.files.object_files import RawFiles, drive_error
from storage_node.store.files.staged_file import StagedFile, is_full
from storage_node.store.format import CatalogEntry
from storage_node.store.permissions import FOLDER_MODE, OTHERS
from storage_node.store.store_record import commit_mark

Durability: TypeAlias = Literal["process", "power"]

READER_STALENESS_S = 1.0
"""Maximum time until a reader sees a commit of a writer in another process. It sees those of a writer in its own
process at once, and catches up before it reports a miss."""
FOLLOW_INTERVAL_S = 0.05
"""Minimum time between two catch-ups of a reader that can ask the writer instead. A catch-up forgets the locations of
objects: beside a writer that commits all the time, reads would cost more than the writer's answers."""


class Drive:
    """Open drive. Thread-safe. The caller has verified its identity."""

    def __init__(
        self,
        root: Path,
        identity: DriveIdentity,
        *,
        writable: bool,
        new: bool = False,
        durability: Durability = "process",
        epoch: int = 1,
        shard_limits: ShardLimits | None = None,
        clock: VersionClock | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            new: whether a drive without a catalog and objects was never used; in any other one they are lost.
            clock: the store's, shared by all its drives; None for one of the drive's own.
            wake: called when there is something to reap or to compact; see `Upkeep`.
        """
        self.root = root
        self.identity = identity
        self.writable = writable
        self._sync = durability == "power"
        self.faults = ErrorCounters()
        self._use = DriveUse(root, self.faults, writable=writable)
        self._require_open, self._require_writable = self._use.require_open, self._use.require_writable
        try:
            if new and writable:
                (root / "objects").mkdir(FOLDER_MODE, exist_ok=True)
            has_catalog = (root / "catalog" / "CURRENT").exists()
            self.files = RawFiles(root, writable=writable, faults=self.faults)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or not root.is_dir():
                raise drive_error(error, root, "opening its folders") from error
            raise never_opened(root) if new else objects_missing(root) from error
        try:
            if not has_catalog:
                if not new or self.files.holds_any():
                    raise StoreFormatError(f"{root / 'catalog'} is missing from a drive in use; {REBUILD_HINT}")
                if not writable:
                    raise never_opened(root)
            self.catalog = Catalog(root / "catalog", writable=writable, faults=self.faults)
        except BaseException:
            self.files.close()
            raise
        self.shards = OpenArchives(
            root,
            self.files,
            self.all_block_checksums,
            writable=writable,
            limits=shard_limits,
            damaged=lambda: self.faults.note_checksum(),
        )
        self._shared = SharedLocations(
            self.catalog.path, identity.drive_uuid, self.catalog.published, self.files.objects_fd
        )
        self._cache = EntryCache(self.files.objects_fd, self._shared if writable else None)
        self.fill = LocationFill(self.catalog, self._cache, weakref.WeakMethod(self._save_locations))
        self.files.on_segment_removed(self._cache.forget_segment)
        sparse = (path for _, path in self.catalog.scan(fmt.SPARSE_PREFIX)) if writable else ()
        try:
            self.sparse = SparseSegments(sparse)
            """Segments that are less than half live."""
        except BaseException:
            self.catalog.close()
            self.files.close()
            raise
        self._garbage = Garbage(self.files, self.catalog, self.sparse, self.shards.forget, wake)
        self._staging_names = itertools.count()
        self.record_mark = commit_mark(root)
        self._seen: object = None
        """Readers only: the commit mark at the last catch-up."""
        self._caught_up_at = time.monotonic()
        self._catching_up = threading.Lock()
        self._followed: FollowedCommits | None = None
        self._followed_to = 0
        """Readers only: a number of commits that had ended before a catch-up; 0 before the first `follow`."""
        self._begun = self._ended = self._sequence = 0  # guarded by _catching_up, as is the next
        """Readers only: commits begun and ended before the last catch-up, and the catalog's last number after it."""
        self._reached = -1  # readers only: the highest cut of a snapshot for which it has caught up
        self._is_ahead = False
        """Readers only: whether locations came from a table that may be newer than the catalog as it was read."""
        if not writable:
            self._sequence = self.catalog.sequence()
        self._clock = clock or VersionClock()
        if writable:
            try:
                self._recover()
                self._clock.attach(self.catalog)
                self._changes = Transactions(
                    root,
                    self.files,
                    self.catalog,
                    self._cache,
                    self._garbage,
                    epoch=epoch,
                    sync=self._sync,
                    clock=self._clock,
                    require_writable=self._use.require_writable,
                )
                self._changes.purge()
                self._compaction = SegmentCompaction(self.catalog, self.files, self._changes, self.sparse, self.faults)
            except BaseException:
                # Not close(): a drive that could not be recovered keeps the mark that shows this.
                self._clock.detach(self.catalog, orderly=False)
                self.catalog.close()
                self.files.close()
                raise

    def _recover(self) -> None:
        """Remove what earlier writers left behind."""
        try:
            sync_folder(self.root)  # the names of the catalog and the object folders
            self._garbage.recover()
            Retention(self.files, self.catalog).recover()
            if self.catalog.machine_went_down:
                self._garbage.remove_unnamed()
            try:
                self.catalog.begin_session()
            except OSError as error:
                if not is_full(error):  # a full drive must open to be emptied
                    raise
        except OSError as error:
            raise drive_error(error, self.root, "recovering") from error

    # -- how well it works

    def is_there(self) -> bool:
        """Whether the drive's folder is still where it was opened, and the same one. False for a closed drive.

        If the folder was removed, or the disk unmounted, files that are open continue to work.
        """
        try:
            here, opened = os.stat(self.root / "objects"), os.fstat(self.files.objects_fd)
            return os.path.samestat(here, opened) and opened.st_nlink > 0
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            return error.errno != errno.EBADF  # errors of the device are counted by reads and writes

    # -- reading

    def lookup(self, bucket_uuid: bytes, names: Sequence[str]) -> list[CatalogEntry | None]:
        """Look up names; None also for tombstones. A reader catches up before it reports a name missing."""
        keys = [fmt.object_key(bucket_uuid, name) for name in names]
        self._follow()
        entries = self._cache.get_many(keys)
        unknown = [at for at, entry in enumerate(entries) if entry is None]
        if unknown:
            unknown = self._look_up(keys, entries, unknown)
            if unknown and not self.writable:
                self.catch_up()
                self._look_up(keys, entries, unknown)
        return entries

    def _look_up(self, keys: Sequence[bytes], entries: list[CatalogEntry | None], unknown: Sequence[int]) -> list[int]:
        """Fill in the `unknown` positions of `entries` from the catalog. Returns those that are not there."""
        generation = self._cache.generation
        values = self.catalog.get_many([keys[at] for at in unknown])
        decoded = {at: fmt.decode_entry(value) for at, value in zip(unknown, values, strict=True) if value is not None}
        found = {at: entry for at, entry in decoded.items() if entry.path}  # a tombstone has none
        for at, entry in found.items():
            entries[at] = entry
        self._cache.add(((keys[at], entry) for at, entry in found.items()), generation)
        self._cache.learn([keys[at] for at in unknown], values, generation)
        return [at for at in unknown if at not in found]

    def lookup_at(self, bucket_uuid: bytes, names: Sequence[str], cut: int) -> list[CatalogEntry | None]:
        """Look up what a snapshot with this cut sees of each name."""
        self._reach(cut)
        current = self.lookup(bucket_uuid, names)
        return [
            entry if entry is not None and entry.counter <= cut else find_retained(self.catalog, bucket_uuid, name, cut)
            for name, entry in zip(names, current, strict=True)
        ]

    def _reach(self, cut: int) -> None:
        """Let a reader see every commit: what it has read may be older than a snapshot with this cut."""
        followed = self._followed if self.catalog.is_open_here and cut <= self._reached else None
        if self.writable or (followed is not None and followed.table and followed.numbers()[0] == self._ended):
            return  # the writer publishes its commits, and there was none since
        self._require_open()
        self.catch_up()
        self._reached = max(self._reached, cut)

    def locations(self, cut: int | None = None) -> tuple[Locations, ...]:
        """Return what is known of locations, at least as current as what `lookup` finds, or `lookup_at` a cut."""
        if cut is not None:
            self._reach(cut)
        self._follow(may_be_ahead=True)
        own = self._cache.locations
        if self.writable:
            return (own,)
        with self._catching_up:
            followed = self._followed if self.catalog.is_open_here else None
            shared = self._shared.current(self._sequence, followed)
            if shared is None:
                return (own,)
            if followed is not None and followed.table and followed.numbers()[0] != self._begun:
                self._is_ahead = True  # what was read before might be older than what is found in the shared table
                return (shared,)
        return shared, own

    @property
    def learned(self) -> Locations:
        """Table to which `learn` adds."""
        return self._cache.locations

    def share_locations(self, placement: int) -> None:
        """Share the table of locations with other processes. `placement`: a digest of the store's drives; 0 while
        objects are moving between them, and nothing is shared."""
        if self.writable:
            is_empty = next(self.catalog.scan(fmt.OBJECT_PREFIX), None) is None
            self._cache.begin_sharing(placement, is_empty=is_empty)
        else:
            with self._catching_up:
                self._shared.set_placement(placement)
                self._shared.current(self._sequence, None)

    def _save_locations(self) -> None:
        """Share the table of a reader, which has been filled. Beside a writer it would soon be of no use."""
        with self._catching_up:
            if not self.writable and self.catalog.is_left:
                self._cache.save(self._shared, self._sequence)

    def learn(self, bucket_uuid: bytes, names: Sequence[str]) -> None:
        """Read the locations of these names from the catalog, in one call."""
        self._follow()
        prefix = fmt.object_key(bucket_uuid, "")
        keys = [prefix + name.encode() for name in names]
        generation = self._cache.generation
        self._cache.learn(keys, self.catalog.get_many(keys), generation)

    def cached(self, bucket_uuid: bytes, name: str, *, coded: bool = False) -> CatalogEntry | None:
        """Return the cached entry of a name that has a file; None means that the catalog has to be read. With `coded`,
        also one without a file. A reader has none after the writer has published another commit, until it follows."""
        is_current = self.writable or (self._followed is not None and self._is_followed(self._followed))
        entry = self._cache.get_many((fmt.object_key(bucket_uuid, name),))[0] if is_current else None
        return entry if entry is not None and (entry.has_file or coded) else None

    def _is_followed(self, followed: FollowedCommits) -> bool:
        return followed.is_allowed and followed.numbers()[0] == self._followed_to

    def catch_up(self) -> None:
        """Read what the writer has committed; does nothing in the writer itself."""
        if self.writable:
            return
        # One at a time: who finds nothing new must not answer from what another thread is about to forget.
        with self._catching_up:
            seen = self.catalog.mark.latest
            published = self._published_commits()
            if self.catalog.catch_up():
                self._cache.forget()
            (self._begun, self._ended), self._sequence, self._is_ahead = published, self.catalog.sequence(), False
            self._seen, self._caught_up_at = seen, time.monotonic()

    def _published_commits(self) -> tuple[int, int]:
        """Return how many commits a writer of this host has begun, and ended; 0 if it publishes none."""
        if self._followed is None or not self._followed.is_there:
            self._followed = None
            with contextlib.suppress(OSError, ValueError):
                if not self.catalog.path.stat().st_mode & OTHERS:
                    self._followed = FollowedCommits(self.catalog.path)
        return (0, 0) if self._followed is None else self._followed.numbers()

    def follow(self, refresh: Callable[[], object]) -> bool:
        """Make a reader see every commit that a writer of this host has acknowledged to anybody. Returns False if there
        was one since it caught up a moment ago: the writer is to be asked.

        `refresh` makes the reader see changes of the store record, which are published with the commits. Raises
        Unsupported if the writer has to be asked for everything; DriveFailed, StoreFormatError, Closed.
        """
        self._require_open()
        followed = self._followed
        if followed is None:
            try:
                followed = self._followed = FollowedCommits(self.catalog.path)
            except (OSError, ValueError) as error:
                raise Unsupported(f"{self.root}: the writer publishes no commits: {error}") from error
        if not followed.is_allowed:
            raise Unsupported(f"{self.root}: the writer lets nobody read beside it")
        begun, ended = followed.numbers()
        if begun != self._followed_to:
            if self._followed_to and time.monotonic() - self._caught_up_at < FOLLOW_INTERVAL_S:
                return False
            refresh()
            self.catch_up()
            self._followed_to = ended
        return True

    def _follow(self, *, may_be_ahead: bool = False) -> None:
        """Let a reader catch up if it may not answer from what it has. Raises Closed: a cache would still answer.

        `may_be_ahead`: whether newer locations may have been found than the catalog had when it was read.
        """
        self._require_open()
        if not self.writable:
            age_s = time.monotonic() - self._caught_up_at
            is_behind = self._is_ahead and not may_be_ahead
            if is_behind or self._seen is not self.catalog.mark.latest or age_s > READER_STALENESS_S:
                self.catch_up()

    def newest(self, bucket_uuid: bytes, names: Sequence[str]) -> list[CatalogEntry | None]:
        """Return the entry of each name, including tombstones, from the catalog."""
        self._require_open()
        values = self.catalog.get_many([fmt.object_key(bucket_uuid, name) for name in names])
        return [None if value is None else fmt.decode_entry(value) for value in values]

    def scan(
        self, bucket_uuid: bytes, prefix: str, start_after: str, *, again: bool = False
    ) -> Iterator[tuple[str, CatalogEntry]]:
        """Iterate over objects with this prefix after `start_after`, ordered by the UTF-8 bytes of their names.

        `again`: this continues a scan, for which a reader has caught up with the writer.
        """
        return (pair for pair in self.scan_all(bucket_uuid, prefix, start_after, again=again) if pair[1].path)

    def scan_all(
        self, bucket_uuid: bytes, prefix: str, start_after: str, *, again: bool = False
    ) -> Iterator[tuple[str, CatalogEntry]]:
        if not again:
            self.catch_up()
        after = fmt.object_key(bucket_uuid, start_after) if start_after else None
        for key, value in self.catalog.scan(fmt.object_key(bucket_uuid, prefix), after):
            yield fmt.name_of_key(key), fmt.decode_entry(value)

    def values(self, bucket_uuid: bytes) -> Iterator[tuple[str, bytes]]:
        """Iterate over the names of a bucket and their values in the catalog, then over those of retained versions."""
        for key, value in self.catalog.scan(fmt.object_key(bucket_uuid, "")):
            yield fmt.name_of_key(key), value
        for key, value in self.catalog.scan(fmt.RETAINED_PREFIX + bucket_uuid):
            yield fmt.name_of_retained(key), value

    def names(
        self, bucket_uuid: bytes, prefix: str, start_after: str, most_bytes: int
    ) -> tuple[list[bytes], bytes | None]:
        """Return names of objects in UTF-8, with this prefix after `start_after`, and the name after which there may be
        more; None if these are all.

        `most_bytes`: the size of names after which they end. Entries are not decoded, which takes most of a scan.
        """
        self.catch_up()
        after = fmt.object_key(bucket_uuid, start_after) if start_after else None
        found: list[bytes] = []
        size_bytes, first, last = 0, fmt.NAME_AT, b""
        for key, value in self.catalog.scan(fmt.object_key(bucket_uuid, prefix), after):
            if size_bytes >= most_bytes:
                return found, last
            last = key[first:]
            size_bytes += len(last)
            if fmt.is_object(value):
                found.append(last)
        return found, None

    def scan_at(
        self, bucket_uuid: bytes, prefix: str, start_after: str, cut: int
    ) -> Iterator[tuple[str, CatalogEntry]]:
        """Scan what a snapshot with this cut sees."""
        self.catch_up()
        return scan_at(self.catalog, bucket_uuid, prefix, start_after, cut)

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over key and value of all objects and tombstones after this key, in key order."""
        return self.catalog.scan(fmt.OBJECT_PREFIX, after)

    def entries_between(self, bucket_uuid: bytes, after: bytes, up_to: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Return key and value of the first objects and tombstones after one name, up to another, in UTF-8 and in
        order; of all that follow if `up_to` is empty. Fewer than `most` are all. See `Catalog.part`."""
        prefix = fmt.object_key(bucket_uuid, "")
        return self.catalog.part(prefix, prefix + after, prefix + up_to if up_to else None, most)

    def watch_changes(self, changing: Callable[[Collection[bytes]], object]) -> None:
        """Call `changing` with the keys of each commit before it is written, on any thread, and now with the keys that
        are being written. It must not raise, nor use the drive."""
        self._cache.watch(changing)

    def block_checksums(self, entry: CatalogEntry, first: int, stop: int) -> list[int]:
        """Return the stored checksums of blocks first .. stop-1 of an object larger than one block. Raises
        CorruptObject."""
        checksums: list[int] = read_blocks(self.catalog, entry, first, stop).tolist()
        return checksums

    def all_block_checksums(self, entry: CatalogEntry) -> list[int]:
        """Return the checksums of all blocks of an object, its own if it has one block. Raises CorruptObject."""
        if entry.size_bytes <= fmt.BLOCK_BYTES:
            return [entry.checksum]
        return self.block_checksums(entry, 0, -(-entry.size_bytes // fmt.BLOCK_BYTES))

    def own_file(self, entry: CatalogEntry) -> str:
        """Return the path of an object's file; "" if it shares one with others, or has none."""
        return "" if entry.offset or not entry.has_file else str(self.root / "objects" / os.fsdecode(entry.path))

    def range_checksum(self, entry: CatalogEntry, start: int, size_bytes: int) -> int | None:
        """Return the checksum of a range, from stored block checksums; None if they do not cover it exactly."""
        stop = start + size_bytes
        if entry.offset or entry.size_bytes <= fmt.BLOCK_BYTES or start % fmt.BLOCK_BYTES:
            return None
        if not size_bytes or (stop % fmt.BLOCK_BYTES and stop != entry.size_bytes):
            return None
        try:
            blocks = self.block_checksums(entry, start // fmt.BLOCK_BYTES, -(-stop // fmt.BLOCK_BYTES))
        except LoaderError:  # the object has been replaced
            return None
        return combine_blocks(blocks, fmt.BLOCK_BYTES, size_bytes - (len(blocks) - 1) * fmt.BLOCK_BYTES)

    # -- writing

    def stage(self, *, held: bool = False) -> StagedFile:
        """Create an invisible file for an object's bytes. Raises DriveFull, DriveFailed, StoreReadOnly, Closed.

        `held`: see `StagedFile`; for objects that are committed with others.
        """
        self._require_writable()
        while True:
            name = f"{next(self._staging_names):x}"
            if held:
                return self.files.hold(name, self._make_room)
            try:
                return self.files.stage(name, self._make_room)
            except OSError as error:
                if not is_full(error) or not self._make_room():
                    raise drive_error(error, self.root, "staging an object") from error

    def stage_link(self, folder_fd: int, source: str) -> StagedFile | None:
        """Stage a file that is given up, by a hard link; None if that is impossible. Raises as `stage` does."""
        self._require_writable()
        try:
            return self.files.stage_link(f"{next(self._staging_names):x}", self._make_room, folder_fd, source)
        except OSError:
            return None

    def commit(
        self, objects: Sequence[PendingObject], elsewhere: Mapping[bytes, CatalogEntry] | None = None
    ) -> list[CatalogEntry | LoaderError]:
        """Make staged files visible, all in one catalog commit. Returns the entry that counts for each now, in order.

        That is the object itself, with two exceptions. If it brought a version and the drive had the same or a newer
        one, the result is the drive's entry, which may be a tombstone. If its condition does not hold, the result is a
        VersionConflict. A name that occurs twice ends with the later object, or the newer version. On an error none of
        them is visible and the staged files are gone. Raises DriveFull, DriveFailed, StoreReadOnly, Closed,
        StoreFormatError, and BucketNotFound if the bucket of one of them has been deleted meanwhile. `elsewhere`: see
        `Transactions.commit`.
        """
        try:
            self._require_writable()
            return self._changes.commit(objects, self.stage, elsewhere)
        except OSError as error:
            raise drive_error(error, self.root, "publishing an object") from error
        finally:
            for pending in objects:
                pending.file.discard()

    @property
    def changes(self) -> Transactions:
        """Changes of the catalog that stage no file. Raises StoreReadOnly, Closed."""
        self._require_writable()
        return self._changes

    @property
    def generations(self) -> SequenceNumbers:
        """Raises StoreReadOnly, Closed."""
        self._require_writable()
        return self._changes.generations

    def allow_readers(self, allowed: bool) -> None:
        """Let processes of this user and host read beside this one without asking it, or no longer. Has no effect on a
        drive that is full or cannot be written: its readers ask."""
        if (published := self.catalog.published) is not None:
            with contextlib.suppress(OSError):
                (published.allow if allowed else published.refuse)()

    def note_change(self) -> None:
        """Make the readers that this drive allows read the store record again."""
        if (published := self.catalog.published) is not None:
            published.begin()
            published.end()

    def quiet(self) -> contextlib.ExitStack:
        """Return a context in which no commit and no deletion runs. The caller must do neither."""
        return self._changes.stripes.all() if self.writable else contextlib.ExitStack()

    def refuse_bucket(self, bucket_uuid: bytes) -> None:
        """Reject commits to this bucket from now on. The caller keeps the drive quiet."""
        self._changes.dead_buckets.add(bucket_uuid)

    def flush_catalog(self) -> None:
        """Write the catalog's log to a table. Raises DriveFailed, DriveFull, StoreReadOnly, Closed."""
        self._require_writable()
        self.catalog.flush()

    def compact(self) -> None:
        """Compact the catalog. Raises DriveFailed, DriveFull, StoreReadOnly."""
        self._require_writable()
        self.catalog.compact()

    def sync(self) -> None:
        """Make all commits durable. Raises DriveFailed, DriveFull, StoreReadOnly."""
        self._require_writable()
        try:
            clean_shutdown.sync_file_system(self.files.objects_fd)
        except OSError as error:
            self.faults.note_sync(error, "syncing the drive")
            raise drive_error(error, self.root, "syncing the drive") from error

    # -- the end of things

    def reap(self, *, everything: bool = False) -> int:
        """Remove dead files whose grace period is over, or all of them, and what denials have left. Returns how many
        files. Raises LoaderError."""
        self._require_writable()
        reaped = self._garbage.reap(everything=everything)
        self._changes.purge()
        return reaped

    def due_in_s(self) -> float | None:
        """Return the time until `reap` has something to remove, at least 0; None if nothing is dead."""
        return self._garbage.due_in_s()

    def compact_segments(self) -> Compacted:
        """Move living objects out of sparse segments, one group. Raises as `commit` does."""
        self._require_writable()
        try:
            return self._compaction.step(lambda: self.stage(held=True), self.stage)
        except OSError as error:
            raise drive_error(error, self.root, "compacting segments") from error

    def note_sparse_segments(self) -> None:
        """Find the sparse segments by reading all indexes: those that earlier releases have left. Raises as `commit`
        does."""
        self._require_writable()
        try:
            self._compaction.note_all()
        except OSError as error:
            raise drive_error(error, self.root, "looking for sparse segments") from error

    def _make_room(self) -> bool:
        return self._garbage.reap(everything=True) > 0

    def refuse(self, why: str) -> None:
        """Begin nothing on this drive from now on: every operation raises DriveFailed."""
        self._use.given_up = why

    def doubt(self, why: str) -> None:
        """Change nothing on this drive from now on: changes raise DriveFailed."""
        self._use.doubted = why

    def give_up(self, why: str) -> None:
        """Stop using a failing drive: wait for running commits, and close its catalog as it is.

        Its folders are closed with their last reader.
        """
        self.refuse(why)
        with self.quiet():
            self._clock.detach(self.catalog, orderly=False)
            self.catalog.give_up(why)

    def close(self) -> None:
        """Wait for running commits, then release the drive. A forked child only closes its descriptors."""
        if self._use.pid != os.getpid():
            self.files.close()
            return
        if self._use.closed:
            return
        try:
            self.fill.stop()
            self.shards.close()
        finally:
            with self.quiet(), contextlib.ExitStack() as stack:
                stack.callback(self._close_files)
                if self.writable:
                    self._tidy_up()

    def _tidy_up(self) -> None:
        with contextlib.suppress(LoaderError, OSError):  # the next start does the rest
            self._garbage.reap(everything=True)
            self.files.clear_staging()  # uploads in progress can no longer be committed
        with contextlib.suppress(LoaderError, OSError):
            self._clock.detach(self.catalog, orderly=True)
            if self._sync and not self.faults.sync_failed:
                clean_shutdown.sync_file_system(self.files.objects_fd)
            if not self.faults.sync_failed:
                self.catalog.end_session()
                self._cache.end_sharing(self.catalog.sequence())

    def _close_files(self) -> None:
        self._use.closed = True
        self._cache.forget()
        self.catalog.close()
        self.files.close()


def objects_missing(root: Path) -> StoreFormatError:
    return StoreFormatError(
        f"{root / 'objects'} is missing, and all objects of the drive with it; put the folder back, or "
        "`ais-loader doctor --rebuild` makes the drive an empty one"
    )


def never_opened(root: Path) -> StoreNotFound:
    return StoreNotFound(f"{root}: the store is only being created, or was never opened for writing")


class DriveUse:
    """Handle guard: rejects use after close or fork, and writes to a drive that is open for reading.

    It has no reference to the drive, so that a drive is collected with its last user.
    """

    def __init__(self, root: Path, faults: ErrorCounters, *, writable: bool) -> None:
        self.root = root
        self.writable = writable
        self._faults = faults
        self.pid = os.getpid()
        self.closed = False
        self.given_up: str | None = None
        self.doubted: str | None = None

    def require_writable(self) -> None:
        if not self.writable:
            raise StoreReadOnly(f'{self.root} is open for reading only; connect with mode="a" to write')
        self.require_open()
        if self.doubted is not None:
            raise DriveFailed(self.doubted)
        if self._faults.sync_failed:
            raise DriveFailed(
                f"{self.root}: {self._faults.sync_failed}; what was written before may be lost, and nothing more is "
                "written until the store is opened again"
            )

    def require_open(self) -> None:
        if self.given_up is not None:
            raise DriveFailed(self.given_up)
        if self.closed:
            raise Closed(f"{self.root}: the store has been closed")
        if self.pid != os.getpid():
            raise Closed(f"{self.root}: the store was opened before a fork; open it again in the child")

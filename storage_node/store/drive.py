"""One drive: its catalog, its files, and the protocol that keeps the two in step.

A PUT stages a file, then, holding the object's stripe: notes the intent to publish, renames the file to its final
name, and commits the catalog entry, which is the only moment at which anything changes for readers. The same commit
removes the intent and notes the file of the previous version as garbage. Garbage goes after a grace period; a reader
that meets a vanished file looks the entry up again. After a crash, intents and garbage name every file that may have
to go, so that opening a drive costs what was in flight, not what is stored.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import xxhash

from storage_node.store import format as fmt
from storage_node.store import session
from storage_node.store.blocks import put_blocks, read_blocks
from storage_node.store.catalog import REBUILD_HINT, Catalog, WriteBatch
from storage_node.store.errors import (
    BucketNotFound,
    FormatError,
    StoreClosed,
    StoreError,
    StoreNotFound,
    StoreReadOnly,
)
from storage_node.store.failpoints import failpoint
from storage_node.store.format import Record, Version
from storage_node.store.garbage import GRACE_S, Garbage
from storage_node.store.identity import DriveIdentity
from storage_node.store.raw_files import RawFiles, StagedFile, drive_error, is_full
from storage_node.store.record import sync_folder
from storage_node.store.record_cache import RecordCache

Durability: TypeAlias = Literal["process", "power"]

READER_STALENESS_S = 1.0
"""A reader beside a writer sees a commit after at most this time; a miss is always looked up anew."""
_COUNTERS_RESERVED = 1 << 16
_STRIPES = 64


@dataclass(slots=True)
class PendingObject:
    """A staged file and the name under which it is to become visible."""

    bucket_uuid: bytes
    name: str
    file: StagedFile
    metadata: dict[str, str]


class Drive:
    """An open drive. Thread-safe. The caller has made sure of its identity."""

    def __init__(
        self,
        root: Path,
        identity: DriveIdentity,
        *,
        writable: bool,
        durability: Durability = "process",
        epoch: int = 1,
        grace_s: float = GRACE_S,
    ) -> None:
        self.root = root
        self.identity = identity
        self.writable = writable
        self._sync = durability == "power"
        self._epoch = epoch
        self._pid = os.getpid()
        self._closed = False
        if not writable and not (root / "objects").exists() and not (root / "catalog").exists():
            raise StoreNotFound(f"{root}: the store is only being created, or was never opened for writing")
        try:
            self.files = RawFiles(root, writable=writable)
        except OSError as error:
            raise drive_error(error, root, "opening its folders") from error
        try:
            if writable and self.files.holds_any() and not (root / "catalog" / "CURRENT").exists():
                raise FormatError(f"{root / 'catalog'} is missing, but not the objects; {REBUILD_HINT}")
            self.catalog = Catalog(root / "catalog", writable=writable)
        except BaseException:
            self.files.close()
            raise
        self._cache = RecordCache()
        self._garbage = Garbage(self.files, self.catalog, grace_s)
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._dead_buckets: set[bytes] = set()  # guarded by all _stripes
        self._counter_lock = threading.Lock()
        self._next_counter = self._reserved = 0  # guarded by _counter_lock
        self._staging_names = itertools.count()
        self._caught_up_at = time.monotonic()
        if writable:
            try:
                self._recover()
            except BaseException:
                # Not close(): a drive that could not be recovered keeps the mark that says so.
                self.catalog.close()
                self.files.close()
                raise

    def _recover(self) -> None:
        """Remove what earlier writers left behind."""
        try:
            sync_folder(self.root)  # the names of the catalog and the object folders
            self._garbage.recover()
            if session.machine_went_down(self.catalog):
                self._garbage.remove_unnamed()
            session.begin(self.catalog)
        except OSError as error:
            raise drive_error(error, self.root, "recovering") from error
        stored = self.catalog.get(fmt.COUNTER_KEY)
        self._next_counter = self._reserved = int.from_bytes(stored or b"\1", "big")

    # -- reading

    def lookup(self, bucket_uuid: bytes, names: Sequence[str]) -> list[Record | None]:
        """What the catalog knows of each name; a reader beside a writer looks twice before it says None."""
        self._require_open()  # the cache would go on answering
        keys = [fmt.object_key(bucket_uuid, name) for name in names]
        if not self.writable and time.monotonic() - self._caught_up_at > READER_STALENESS_S:
            self.catch_up()
        records = self._cache.get_many(keys)
        unknown = [at for at, record in enumerate(records) if record is None]
        if unknown:
            unknown = self._look_up(keys, records, unknown)
            if unknown and not self.writable:
                self.catch_up()
                self._look_up(keys, records, unknown)
        return records

    def _look_up(self, keys: Sequence[bytes], records: list[Record | None], unknown: Sequence[int]) -> list[int]:
        """Fill in the `unknown` positions of `records` from the catalog; returns those that are not there."""
        generation = self._cache.generation
        values = self.catalog.get_many([keys[at] for at in unknown])
        found = {at: fmt.decode_record(value) for at, value in zip(unknown, values, strict=True) if value is not None}
        for at, record in found.items():
            records[at] = record
        self._cache.add(((keys[at], record) for at, record in found.items()), generation)
        return [at for at in unknown if at not in found]

    def cached(self, bucket_uuid: bytes, name: str) -> Record | None:
        """What is known of one name without asking the catalog; None means that it has to be asked."""
        return self._cache.get_many((fmt.object_key(bucket_uuid, name),))[0] if self.writable else None

    def catch_up(self) -> None:
        """See what the writer in another process has committed; nothing to do for the writer itself."""
        if self.catalog.catch_up():
            self._cache.forget()
        self._caught_up_at = time.monotonic()

    def scan(self, bucket_uuid: bytes, prefix: str, start_after: str) -> Iterator[tuple[str, Record]]:
        """Names with this prefix after `start_after`, by the bytes of their UTF-8 form."""
        if not self.writable:
            self.catch_up()
        after = fmt.object_key(bucket_uuid, start_after) if start_after else None
        for key, value in self.catalog.scan(fmt.object_key(bucket_uuid, prefix), after):
            yield fmt.name_of_key(key), fmt.decode_record(value)

    def block_checksums(self, record: Record, first: int, stop: int) -> list[int]:
        """Stored checksums of blocks first .. stop-1 of an object larger than one block. Raises CorruptObject."""
        checksums: list[int] = read_blocks(self.catalog, record, first, stop).tolist()
        return checksums

    # -- writing

    def stage(self) -> StagedFile:
        """A new invisible file for an object's bytes. Raises DriveFull, DriveFailed, StoreReadOnly, StoreClosed."""
        self._require_writable()
        while True:
            try:
                return self.files.stage(f"{next(self._staging_names):x}", self._make_room)
            except OSError as error:
                if not is_full(error) or not self._make_room():
                    raise drive_error(error, self.root, "staging an object") from error

    def _require_writable(self) -> None:
        if not self.writable:
            raise StoreReadOnly(f'{self.root} is open for reading only; connect with mode="a" to write')
        self._require_open()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.root}: the store has been closed")
        if self._pid != os.getpid():
            raise StoreClosed(f"{self.root}: the store was opened before a fork; open it again in the child")

    def commit(self, objects: Sequence[PendingObject]) -> list[Record]:
        """Make staged files visible, all in one catalog commit; returns their records in order.

        A name that occurs twice ends with the later object. On an error none of them is visible and the staged files
        are gone. Raises DriveFull, DriveFailed, StoreReadOnly, StoreClosed, FormatError, and BucketNotFound when the
        bucket of one of them has been deleted meanwhile.
        """
        try:
            self._require_writable()
            return self._commit(objects)
        except OSError as error:
            raise drive_error(error, self.root, "publishing an object") from error
        finally:
            for pending in objects:
                pending.file.discard()

    def _commit(self, objects: Sequence[PendingObject]) -> list[Record]:
        failpoint("put.staged")
        now = time.time_ns()
        # Before the stripes are held: syncing is slow. Whoever is overtaken meanwhile takes another counter then.
        records = [self._identify(pending, now) for pending in objects]
        keys = [fmt.object_key(pending.bucket_uuid, pending.name) for pending in objects]
        with self._striped(keys):
            self._require_writable()
            self._require_buckets(objects)
            current: dict[bytes, Record] = {}
            for key, value in zip(keys, self.catalog.get_many(keys), strict=True):
                if value is not None:
                    current[key] = fmt.decode_record(value)
            newest = {key: record.version for key, record in current.items()}
            for at, (key, pending) in enumerate(zip(keys, objects, strict=True)):
                if key in newest and newest[key] >= records[at].version:
                    records[at] = self._identify(pending, now)
                    if newest[key] >= records[at].version:
                        raise FormatError(
                            f"{self.root}: {pending.name!r} has version {newest[key]}, from a later epoch than the "
                            f"store's record, {self._epoch}; `ais-loader doctor --repair` brings the two together"
                        )
                newest[key] = records[at].version
            dead = self._publish(keys, objects, records, current)
        self._garbage.bury(dead)
        return records

    def _require_buckets(self, objects: Sequence[PendingObject]) -> None:
        if self._dead_buckets:
            for pending in objects:
                if pending.bucket_uuid in self._dead_buckets:
                    raise BucketNotFound(f"the bucket of {pending.name!r} has been deleted meanwhile")

    def _publish(
        self,
        keys: Sequence[bytes],
        objects: Sequence[PendingObject],
        records: Sequence[Record],
        current: dict[bytes, Record],
    ) -> list[Record]:
        """Announce the files, rename them, commit; returns the records that were replaced."""
        intents = WriteBatch(raw_mode=True)
        for record in records:
            intents.put(fmt.generation_key(fmt.INTENT_PREFIX, record.counter), record.path)
        self.catalog.write(intents, sync=False)
        failpoint("put.intended")
        commit = WriteBatch(raw_mode=True)
        dead: list[Record] = []
        try:
            for key, pending, record in zip(keys, objects, records, strict=True):
                self.files.publish(pending.file, record.path, sync=self._sync)
                failpoint("put.renamed")
                if key in current:
                    dead.append(current[key])
                current[key] = record
                commit.put(key, fmt.encode_record(record))
                commit.delete(fmt.generation_key(fmt.INTENT_PREFIX, record.counter))
                put_blocks(commit, record.counter, pending.file.block_checksums())
            for record in dead:
                commit.put(fmt.generation_key(fmt.GARBAGE_PREFIX, record.counter), record.path)
            failpoint("put.published")
            self.catalog.write(commit, sync=self._sync)
        except (OSError, StoreError):
            self._garbage.abandon(records)
            raise
        self._cache.forget(keys)
        failpoint("put.committed")
        return dead

    def _identify(self, pending: PendingObject, now_ns: int) -> Record:
        """Give the staged file a version, and write on it what it is."""
        version = Version(self._epoch, self._take_counter())
        file = pending.file
        identity = fmt.Identity(
            pending.bucket_uuid, pending.name, version, file.size_bytes, file.checksum, now_ns, pending.metadata
        )
        self.files.set_identity(file.fd, fmt.encode_identity(identity))
        if self._sync:
            os.fsync(file.fd)
        path = fmt.file_path(pending.bucket_uuid, pending.name, version.counter)
        raw_metadata = fmt.encode_metadata(pending.metadata)
        return Record(
            version.epoch, version.counter, version.node, file.size_bytes, file.checksum, now_ns, 0, path, raw_metadata
        )

    def _take_counter(self) -> int:
        with self._counter_lock:
            if self._next_counter >= self._reserved:
                # Always synced, whatever the durability: a counter that came back would name two files alike.
                batch = WriteBatch(raw_mode=True)
                reserved = self._next_counter + _COUNTERS_RESERVED
                batch.put(fmt.COUNTER_KEY, reserved.to_bytes(8, "big"))
                self.catalog.write(batch, sync=True)
                self._reserved = reserved
            self._next_counter += 1
            return self._next_counter - 1

    def _striped(self, keys: Sequence[bytes]) -> contextlib.ExitStack:
        return self._hold(sorted({xxhash.xxh3_64_intdigest(key) % _STRIPES for key in keys}))

    def _hold(self, stripes: Iterable[int]) -> contextlib.ExitStack:
        with contextlib.ExitStack() as held:
            for stripe in stripes:
                held.enter_context(self._stripes[stripe])
            return held.pop_all()

    def quiet(self) -> contextlib.ExitStack:
        """A context in which no commit and no delete runs; the caller must do neither."""
        return self._hold(range(_STRIPES))

    def refuse_bucket(self, bucket_uuid: bytes) -> None:
        """From now on nothing is committed into this bucket; the caller keeps the drive quiet."""
        self._dead_buckets.add(bucket_uuid)

    def delete(self, bucket_uuid: bytes, names: Sequence[str]) -> list[bool]:
        """Remove objects, all in one catalog commit; False for a name that did not exist. Raises as `commit` does."""
        keys = [fmt.object_key(bucket_uuid, name) for name in names]
        self._require_writable()
        with self._striped(keys):
            self._require_writable()
            dead: dict[bytes, Record] = {}
            batch = WriteBatch(raw_mode=True)
            for key, value in zip(keys, self.catalog.get_many(keys), strict=True):
                if value is not None and key not in dead:
                    dead[key] = fmt.decode_record(value)
                    batch.delete(key)
                    batch.put(fmt.generation_key(fmt.GARBAGE_PREFIX, dead[key].counter), dead[key].path)
            if dead:
                self.catalog.write(batch, sync=self._sync)
                self._cache.forget(keys)
            failpoint("delete.committed")
        self._garbage.bury(list(dead.values()))
        return [key in dead for key in keys]

    def replace_entry(self, key: bytes, record: Record | None, blocks: Sequence[int] = ()) -> None:
        """Set one catalog entry as it is, or remove it (None), and bury what it named before. For the doctor."""
        with self._striped([key]):
            self._require_writable()
            dead: list[Record] = []
            with contextlib.suppress(FormatError):  # an unintelligible entry names no file that could be told
                before = self.catalog.get(key)
                dead = [fmt.decode_record(before)] if before is not None else []
            batch = WriteBatch(raw_mode=True)
            if record is None:
                batch.delete(key)
            else:
                dead = [other for other in dead if other.path != record.path]
                batch.put(key, fmt.encode_record(record))
                put_blocks(batch, record.counter, blocks)
            for other in dead:
                batch.put(fmt.generation_key(fmt.GARBAGE_PREFIX, other.counter), other.path)
            self.catalog.write(batch, sync=True)
            self._cache.forget([key])
        self._garbage.bury(dead)

    # -- the end of things

    def reap(self, *, everything: bool = False) -> int:
        """Remove dead files whose grace period is over (or all of them); returns how many went. Raises StoreError."""
        self._require_writable()
        return self._garbage.reap(everything=everything)

    def _make_room(self) -> bool:
        return self.reap(everything=True) > 0

    def close(self) -> None:
        """Wait for running commits, then let go of the drive. A forked child only closes its descriptors."""
        if self._pid != os.getpid():
            self.files.close()
            return
        if self._closed:
            return
        with self.quiet():
            if self.writable:
                with contextlib.suppress(StoreError, OSError):  # what is not tidied up now is at the next start
                    self._garbage.reap(everything=True)
                    self.files.clear_staging()  # uploads that are still under way can no longer be committed
                    session.end(self.catalog, self.files.objects_fd, lasting=self._sync)
            self._closed = True
            self.catalog.close()
            self.files.close()

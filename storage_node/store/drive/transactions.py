"""Transactions of one drive: puts, deletions and tombstones, each one atomic catalog commit.

The problem. An object consists of a file and a catalog entry, in two systems that share no transaction: the file system
and RocksDB. Readers must never see an entry without its file or a partial file, and a crash must not lose an
acknowledged object or leave a file that nothing names.

The invariant. Only one step changes what readers see: the atomic catalog write. Before it, the new file exists without
an entry, and the catalog has an intent that names it. After it, the old file exists without an entry, and the catalog
has a garbage key that names it. So at every moment each file is either in use or named for removal.

The steps of a put:

1. Prepare (commit_files.py), without locks: issue generation and version, write the identity to the staged file, write
   several small objects to one segment. With durability `power`, sync the files.
2. Lock the stripes of the names. Read the current entries, check conditions, and decide which objects are
   committed. One that was overtaken since step 1 gets a higher version and another generation.
3. Intent: write the final path of each file to the catalog. This write is never synced.
4. Rename each staged file to its final name, which is never reused. With `power`, the folders are made durable
   before, and the names after the rename.
5. Commit: one atomic write deletes the intents, puts the entries and their block checksums, and turns the
   replaced files into garbage or, if a snapshot sees them, into retained versions. With `power` it is synced.
6. Release the stripes. Mark retained files, and queue dead ones for removal (ended_versions.py).

What a crash of the process leaves, by the step that it follows:

- 1 or 2: a staged file. The next start empties the staging folder.
- 3: an intent for a file that does not exist. The next start deletes the intent.
- 4: a file under its final name and its intent. No entry names it; the next start removes both. The previous
  object is untouched.
- 5: the new object. A garbage key names the old file, and the next start removes both.

A crash of the machine may in addition undo changes that were not synced, in the file system and the catalog
independently. With `power`, the bytes and names of the files are durable before the commit, so a durable entry has its
file. With `process`, commits may be lost, which the high-water mark does not count as damage then; incomplete files are
found when they are read. In both cases an unsynced intent may be lost although its rename was not, so the next start
compares all files with the catalog (`Garbage.remove_unnamed`).

If a step fails with an error, the files that did not get an entry are abandoned (ended_versions.py): the failed commit
may have reached RocksDB's log. If even the catalog cannot be read, their intents stay for the next start.

A move (segment_compaction.py) is a put of the bytes that an entry names already, under the same version. It is
committed only if the catalog still has that very entry, and always durably: the old bytes may have been durable.

Deletions, tombstones and coded entries bring no file: they consist of step 2, a commit as in step 5, and step 6.

Versions. An object's entry is only ever replaced by a newer version. A put without a version gets one above the current
one. A put or a deletion with a version, which another node issued, changes nothing if the drive already has that
version or a newer one, be it an object or a tombstone. Replicas that receive the same changes in any order therefore
end up equal.

A commit holds the stripes of its names, and while it does, it waits for the drive only.

The module is long because of this text: the steps above and their code stay side by side.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import xxhash

from ais_loader.errors import BucketNotFound, LoaderError, OutcomeUnknown, StoreFormatError, VersionConflict
from ais_loader.wire.denied import content_of
from ais_loader.wire.reserved import DENIED_CONTENT
from storage_node.store import format as fmt
from storage_node.store.drive.block_checksums import put_blocks
from storage_node.store.drive.bucket_usage import BucketUsage, Change, Changes, Grants
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.drive.commit_files import CommitFiles, PendingObject, SequenceNumbers
from storage_node.store.drive.denied_names import DeniedNames, denied_error
from storage_node.store.drive.ended_versions import Ended, Garbage, Retention
from storage_node.store.drive.entry_cache import EntryCache
from storage_node.store.drive.preconditions import (
    REMEMBERED_NS,
    Condition,
    after,
    done_before,
    find,
    memory_of,
    require,
    too_late,
    undecided,
)
from storage_node.store.drive.upload_journal import UploadJournal
from storage_node.store.drive.version_clock import VersionClock
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import RawFiles
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import CatalogEntry, Version

MAX_DELETIONS = 1 << 14


class _Chosen(NamedTuple):
    key: bytes
    pending: PendingObject
    record: CatalogEntry


class Stripes:
    """Locks of names: changes of one object run one at a time; those of different ones nearly always in parallel.

    They are always acquired in one order, which prevents deadlocks.
    """

    def __init__(self, count: int = 64) -> None:
        self._locks = [threading.Lock() for _ in range(count)]

    def of(self, keys: Sequence[bytes]) -> contextlib.AbstractContextManager[object]:
        """Return a context that holds the stripes of these keys until it is left. They are acquired at the latest on
        entering."""
        if len(keys) == 1:
            return self._locks[xxhash.xxh3_64_intdigest(keys[0]) % len(self._locks)]
        return self._hold(sorted({xxhash.xxh3_64_intdigest(key) % len(self._locks) for key in keys}))

    def all(self) -> contextlib.ExitStack:
        return self._hold(range(len(self._locks)))

    def number(self, key: bytes) -> int:
        """Return the number of a key's stripe. Counts on drives depend on it (bucket_usage.py)."""
        return xxhash.xxh3_64_intdigest(key) % len(self._locks)

    def _hold(self, numbers: Iterable[int]) -> contextlib.ExitStack:
        with contextlib.ExitStack() as held:
            for number in numbers:
                held.enter_context(self._locks[number])
            return held.pop_all()


class DeletionLog:
    """Ids of recent deletions that left no tombstone. Thread-safe if callers hold the stripes of the names.

    A standalone store keeps no tombstones. The result of a deletion, and the write memory of the deleted object, are
    kept here until there is an object of that name again, or until MAX_DELETIONS others have been deleted since. So
    are evicted copies of remote objects that clients have written: older replicas on other nodes are outdated.
    """

    def __init__(self, catalog: Catalog, max_entries: int = MAX_DELETIONS) -> None:
        """Reads the log from the drive. Raises DriveFailed, StoreFormatError."""
        self._max_entries = max_entries
        self._lock = threading.Lock()
        kept = [(key, fmt.decode_entry(value)) for key, value in catalog.scan(fmt.DELETION_PREFIX)]
        kept.sort(key=lambda pair: pair[1].modified_ns)
        self._entries: OrderedDict[bytes, CatalogEntry] = OrderedDict(  # guarded by _lock
            (fmt.OBJECT_PREFIX + key[1:], entry) for key, entry in kept
        )
        stored = catalog.get(fmt.FORGOTTEN_KEY)
        self.forgotten_ns = int.from_bytes(stored, "big") if stored is not None else 0
        """Time of the newest deletion that was dropped to make room; 0 if none was."""
        self._trimmed: list[bytes] = []  # guarded by _lock; still on the drive
        self._trim()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> CatalogEntry | None:
        """Return the deletion of an object, as a tombstone with the deleted object's version."""
        return self._entries.get(key)

    def evicted_version(self, key: bytes) -> Version | None:
        """Return the version of a copy of a remote object that was evicted; None if nothing is known of one. The remote
        storage has this version or a newer one."""
        entry = self._entries.get(key)
        return entry.version if entry is not None and fmt.is_remote_copy(entry.raw_metadata) else None

    def evicted(self) -> list[tuple[bytes, Version]]:
        """Return the keys and versions of evicted copies of remote objects."""
        with self._lock:
            entries = list(self._entries.items())
        return [(key, entry.version) for key, entry in entries if fmt.is_remote_copy(entry.raw_metadata)]

    def put(self, batch: WriteBatch, deletions: Mapping[bytes, CatalogEntry]) -> None:
        """Add deletions to a commit; `committed` follows."""
        with self._lock:
            trimmed, self._trimmed = self._trimmed, []
            if trimmed:
                batch.put(fmt.FORGOTTEN_KEY, self.forgotten_ns.to_bytes(8, "big"))
        for key in trimmed:  # if the commit fails, the next start trims them
            if key not in self._entries:
                batch.delete(fmt.DELETION_PREFIX + key[1:])
        for key, deletion in deletions.items():
            batch.put(fmt.DELETION_PREFIX + key[1:], fmt.encode_entry(deletion))

    def committed(self, deletions: Mapping[bytes, CatalogEntry]) -> None:
        """Keep deletions that have been committed; drop the oldest ones above the limit."""
        if not deletions:
            return
        with self._lock:
            for key, deletion in deletions.items():
                self._entries[key] = deletion
                self._entries.move_to_end(key)
            self._trim()

    def _trim(self) -> None:
        while len(self._entries) > self._max_entries:
            key, oldest = self._entries.popitem(last=False)
            self.forgotten_ns = max(self.forgotten_ns, oldest.modified_ns)
            self._trimmed.append(key)

    def replaced(self, batch: WriteBatch, keys: Iterable[bytes]) -> None:
        """Add to a commit that these objects exist again, with the memory of their deletions. `forget` follows."""
        if self._entries:
            for key in keys:
                if key in self._entries:
                    batch.delete(fmt.DELETION_PREFIX + key[1:])

    def forget(self, keys: Iterable[bytes]) -> None:
        if self._entries:
            with self._lock:
                for key in keys:
                    self._entries.pop(key, None)


class Transactions:
    """Puts, deletions and tombstones of a drive that is open for writing. Thread-safe."""

    def __init__(
        self,
        root: Path,
        files: RawFiles,
        catalog: Catalog,
        cache: EntryCache,
        garbage: Garbage,
        *,
        epoch: int,
        sync: bool,
        clock: VersionClock,
        require_writable: Callable[[], None],
    ) -> None:
        """`require_writable` raises if the drive has been closed; it is called with the stripes held. It must not refer
        to the drive, so that an unused drive closes its folders at once."""
        self._root = root
        self._files = files
        self._catalog = catalog
        self._cache = cache
        self._garbage = garbage
        self._epoch = epoch
        self._sync = sync
        self._require_writable = require_writable
        self._clock = clock
        self.generations = SequenceNumbers(catalog)
        self.retention = Retention(files, catalog)
        self.deletions = DeletionLog(catalog)
        self.denied = DeniedNames(files, catalog)
        self._purging = threading.RLock()
        self.stripes = Stripes()
        self.journal = UploadJournal(catalog, files, cache, self.stripes.of, require_writable, sync=sync)
        self.usage = BucketUsage(catalog, self.stripes.number, self.stripes.all, sync=sync)
        """Counts of the buckets with a quota."""
        self.dead_buckets: set[bytes] = set()  # guarded by all stripes

    # -- putting

    def commit(
        self,
        objects: Sequence[PendingObject],
        stage: Callable[[], StagedFile],
        elsewhere: Mapping[bytes, CatalogEntry] | None = None,
        *,
        durable: bool = False,
    ) -> list[CatalogEntry | LoaderError]:
        """Commit staged objects. `elsewhere`: newest entries of these names on other drives, which count as if they
        were here. `stage`: see `Drive.stage`. `durable`: sync as with durability `power`."""
        failpoint("put.staged")
        sync = self._sync or durable or any(one.durable for one in objects)
        files = CommitFiles(self._files, self.generations, self._clock, objects, stage, epoch=self._epoch, sync=sync)
        grants = self.usage.grants()
        try:
            return self._commit(objects, files, elsewhere or {}, grants)
        finally:
            files.discard()
            grants.end()

    def _commit(
        self,
        objects: Sequence[PendingObject],
        files: CommitFiles,
        elsewhere: Mapping[bytes, CatalogEntry],
        grants: Grants,
    ) -> list[CatalogEntry | LoaderError]:
        """Take the steps of the module's text.

        An object is decided by the newest entry of its name: on this drive (`stored`), elsewhere, or of an earlier
        object of the call. Preparing syncs, which is slow, so no stripe is held meanwhile; an object that is overtaken
        gets another counter when it is chosen. Files of what was replaced end after the stripes are released.
        """
        prepared = files.prepare()
        keys = [fmt.object_key(pending.bucket_uuid, pending.name) for pending in objects]
        with self.stripes.of(keys):
            self._require_writable()
            self._require_buckets((one.bucket_uuid, one.name) for one in objects if one.moved is None)
            stored = self._entries(keys)
            newest = dict(stored)
            for key, other in elsewhere.items():
                if key not in newest or newest[key].version < other.version:
                    newest[key] = other
            chosen: list[_Chosen] = []
            results: list[CatalogEntry | LoaderError] = []
            for key, pending, entry in zip(keys, objects, prepared, strict=True):
                result = self._choose(key, pending, entry, newest.get(key), files, grants)
                if isinstance(result, _Chosen):
                    chosen.append(result)
                    newest[key] = result = result.record
                results.append(result)
            ended = self._publish(chosen, files, stored, grants) if chosen else Ended([], [])
        self.defer_unlink(ended)
        return results

    def _choose(
        self,
        key: bytes,
        pending: PendingObject,
        entry: CatalogEntry,
        before: CatalogEntry | None,
        files: CommitFiles,
        grants: Grants,
    ) -> _Chosen | CatalogEntry | LoaderError:
        """Decide about one object (step 2), given its prepared entry and the newest one of its name. Return it with the
        entry to commit, or the result of an object that is not committed.

        The questions, in an order in which each one may rely on the answers to those before it:

        - A move is committed only over the very entry whose bytes it has copied.
        - A denied object stays denied. A copy that is older is none, as of any tombstone. No object has the version of
          a denial, whoever sends it.
        - A file of the version that is coded here replaces the coded entry.
        - A copy of a remote object gives way to a write that is not uploaded yet, and to a newer copy that was evicted.
        - A mended copy of the version that is here replaces it, whatever its condition says: that was decided before.
        - A condition is decided by the newest entry. A repeat has the result of the earlier attempt, if that is known.
        - A version that was issued elsewhere changes nothing if that version or a newer one is here.
        - A write without a version has to fit into the quota of its bucket; for one with a version, other nodes have
          decided that it does.
        - The write gets a version above the one that is here, and above the snapshots that were made since it was
          prepared, which must not see it.
        """
        if pending.moved is not None:
            if before != pending.moved or pending.bucket_uuid in self.dead_buckets:
                return VersionConflict(f"{pending.name!r}: changed while it was to be moved")
            return _Chosen(key, pending, entry._replace(writes=pending.moved.writes))
        is_denied = entry.epoch & fmt.DENIAL_BIT or (
            before is not None
            and before.is_denied
            and (pending.version is None or not (entry.version > before.version or pending.is_copy))
        )
        if is_denied:
            return denied_error(repr(pending.name), before)
        if before is not None and before.is_coded and before[:5] == entry[:5]:
            return _Chosen(key, pending, entry._replace(writes=before.writes))
        floor = self.retention.floor(pending.bucket_uuid)
        if before is not None and pending.is_outdated_copy(before, entry):
            return VersionConflict(f"{pending.name!r}: what was put or deleted is not uploaded yet")
        evicted = self.deletions.evicted_version(key) if before is None and pending.is_copy else None
        if evicted is not None and entry.version < evicted:
            return VersionConflict(f"{pending.name!r}: version {evicted} was here, and was evicted")
        if pending.condition is not None:
            if before is not None and pending.is_mended(before, entry):
                return _Chosen(key, pending, entry._replace(writes=before.writes))
            late = too_late(pending.condition, pending.name, entry.version, floor)
            if (result := self.settled(pending, before) or late) is not None:
                return result
        newer = before.version if before is not None and before[:3] >= entry[:3] else None
        if before is not None and newer is not None and pending.version is not None:
            return before
        asks = self.usage.any and pending.version is None
        if asks and (refused := grants.ask(key, before, entry.size_bytes)) is not None:
            return refused
        if pending.version is None and entry.counter <= floor:
            self._clock.advance_past(floor)
            newer = newer or Version(self._epoch, floor)
        if newer is not None:
            entry = files.identify_anew(pending, self._above(newer, pending.name))
        writes = pending.writes
        # A new name has no write memory, unless something was deleted.
        if before is not None or self.deletions or self.deletions.forgotten_ns:
            writes = self._memory(key, before, writes, entry.modified_ns)
        if writes:
            entry = CatalogEntry._make((*entry[:-1], writes))
        return _Chosen(key, pending, entry)

    def _entries(self, keys: Sequence[bytes]) -> dict[bytes, CatalogEntry]:
        """Return the current entries, including tombstones, of those names that have one."""
        values = self._catalog.get_many(keys)
        return {key: fmt.decode_entry(value) for key, value in zip(keys, values, strict=True) if value is not None}

    def settled(
        self, pending: PendingObject, before: CatalogEntry | None
    ) -> CatalogEntry | VersionConflict | OutcomeUnknown | None:
        """See `PendingObject.settled`."""
        deleted = None
        if before is None and self.deletions:
            deleted = self.deletions.get(fmt.object_key(pending.bucket_uuid, pending.name))
        return pending.settled(before, deleted, self.deletions.forgotten_ns)

    def _memory(self, key: bytes, before: CatalogEntry | None, brought: bytes, modified_ns: int) -> bytes:
        """Return the write memory of an entry that replaces another one, or a deleted one."""
        if before is not None:
            return after([before], brought, modified_ns) if before.writes else brought
        deleted = self.deletions.get(key)
        forgotten_ns = self.deletions.forgotten_ns
        recent = forgotten_ns if forgotten_ns > modified_ns - REMEMBERED_NS else 0
        if deleted is None and not recent:
            return brought
        return after([deleted] if deleted is not None else [], brought, modified_ns, forgotten_before_ns=recent)

    def defer_unlink(self, ended: Ended) -> None:
        """Process the files of what a commit has ended. No stripe is held."""
        self.retention.mark(ended.kept)
        self._garbage.defer_unlink(ended.dead)
        if ended.names:
            failpoint("deny.committed")
            with self._purging, contextlib.suppress(LoaderError):  # the denials stand; `Drive.reap` goes on
                self._garbage.defer_unlink([entry for _, entry in ended.denied if entry.has_file], at_once=True)
                self.purge(ended.names)

    def purge(self, names: Collection[bytes] = ()) -> None:
        """Remove the bytes that denials have ended from the drive, and what the catalog's files have of any version of
        these objects and of those for which that has failed before, and record that. Raises LoaderError."""
        with self._purging:
            left = self.denied.uncompacted()
            if keys := {*names, *left}:
                self._garbage.reap(everything=True)
                retained = [fmt.retained_prefix(fmt.bucket_of_key(key), fmt.name_of_key(key)) for key in keys]
                for found, end in (keys, b"\0"), (retained, b"\xff"):  # between them are all objects: no rewrite
                    self._catalog.compact(min(found), max(found) + end)
            if pending := self.denied.pending():
                with self.stripes.of(pending):
                    self.denied.purged(left)

    def _require_buckets(self, names: Iterable[tuple[bytes, str]]) -> None:
        if self.dead_buckets:
            for bucket_uuid, name in names:
                if bucket_uuid in self.dead_buckets:
                    raise BucketNotFound(f"the bucket of {name!r} has been deleted meanwhile")

    def _above(self, before: Version, name: str) -> Version:
        """Issue a version above one that the drive has."""
        self._clock.advance_past(before.counter)
        # The epochs in versions with a node number are those of a cluster, not of this store: they are kept, as are
        # those of names that were denied.
        is_kept = before.node or before.epoch >= fmt.DENIAL_BIT
        version = Version(max(self._epoch, before.epoch if is_kept else 0), self._clock.take())
        if version <= before:
            raise StoreFormatError(
                f"{self._root}: {name!r} has version {before}, from a later epoch than the "
                f"store's record, {self._epoch}; `ais-loader doctor --repair` brings the two together"
            )
        return version

    def _publish(
        self,
        chosen: Sequence[_Chosen],
        files: CommitFiles,
        current: dict[bytes, CatalogEntry],
        grants: Grants | None = None,
    ) -> Ended:
        """Write intents, rename the files, commit. Returns what was replaced."""
        objects = [(pending, entry) for _, pending, entry in chosen]
        intents = WriteBatch(raw_mode=True)
        intent_keys: list[bytes] = []
        for path in files.paths(objects):
            intent_keys.append(fmt.generation_key(fmt.INTENT_PREFIX, fmt.generation_of_path(path)))
            intents.put(intent_keys[-1], path)
        self._catalog.write(intents, sync=False, is_commit=False)
        failpoint("put.intended")
        commit = WriteBatch(raw_mode=True)
        written: dict[bytes, bytes | None] = {}
        ending: list[tuple[bytes, CatalogEntry, int]] = []
        changes: list[Change] = []
        counted: Changes = {}
        is_counting = self.usage.any
        try:
            files.publish(objects)
            for intent_key in intent_keys:
                commit.delete(intent_key)
            for key, pending, entry in chosen:
                if key in current:
                    ending.append((key, current[key], entry.counter))
                if is_counting:
                    changes.append(Change(key, current.get(key), entry))
                current[key] = entry
                written[key] = value = fmt.encode_entry(entry)
                commit.put(key, value)
                blocks = pending.file.block_checksums() if pending.damaged is None else pending.damaged_blocks
                if blocks:
                    put_blocks(commit, entry.generation, blocks)
            ended = self.retention.end(commit, ending) if ending else Ended([], [])
            self.deletions.replaced(commit, written)
            # A move changes nothing about an upload that may be under way.
            put = {key: entry for key, pending, entry in chosen if pending.moved is None}
            journaled = self.journal.note(commit, put)
            noted = self.denied.note(commit, put)
            counted = self.usage.change(commit, changes)
            if files.sync:
                self._files.sync_names(entry.path for _, _, entry in chosen)
            failpoint("put.published")
            with self._cache.changing(written):
                self._catalog.write(commit, sync=files.sync)
        except BaseException:
            self.usage.failed(counted)
            self._garbage.abandon(self._not_entered(chosen))
            raise
        self.usage.committed(counted, grants)
        self.journal.committed(journaled)
        self.denied.committed(noted)
        self.deletions.forget(written)
        failpoint("put.committed")
        return ended

    def _not_entered(self, chosen: Sequence[_Chosen]) -> list[CatalogEntry]:
        """Return the objects of a failed commit that the catalog does not have. The error may have come after the
        write."""
        try:
            entered = {entry.path for entry in self._entries([key for key, _, _ in chosen]).values()}
        except LoaderError:
            return []  # unknown: their intents name them, for the next start
        return [entry for _, _, entry in chosen if entry.path not in entered]

    # -- taking away

    def delete(
        self,
        bucket_uuid: bytes,
        names: Sequence[str],
        *,
        tombstones: bool = False,
        condition: Condition | None = None,
        copies_only: bool = False,
    ) -> list[bool | OutcomeUnknown]:
        """Remove objects without leaving tombstones and, with `tombstones`, remove tombstones as well. True for names
        that had an object. With `copies_only`, only copies of remote objects are removed.

        A deletion whose earlier try, found by its id, has taken effect also gives True, and changes nothing. Raises
        VersionConflict, before anything is changed, if the condition does not hold for one of them.
        """
        keys = [fmt.object_key(bucket_uuid, name) for name in names]
        memory = memory_of(condition.write_id) if condition is not None else b""
        now_ns = time.time_ns()
        results: list[bool | OutcomeUnknown] = [False] * len(names)
        with self.stripes.of(keys):
            self._require_writable()
            gone: dict[bytes, CatalogEntry] = {}
            deletions: dict[bytes, CatalogEntry] = {}
            current = self._entries(keys)
            for at, (name, key) in enumerate(zip(names, keys, strict=True)):
                entry = current.get(key)
                if copies_only and entry is not None and not fmt.is_remote_copy(entry.raw_metadata):
                    continue
                if condition is not None:
                    remembering = entry or self.deletions.get(key)
                    if done_before(condition, remembering) is not None:
                        results[at] = True
                        continue
                    forgotten_ns = self.deletions.forgotten_ns if entry is None else 0
                    if (problem := undecided(condition, name, remembering, forgotten_ns)) is not None:
                        results[at] = problem
                        continue
                    require(condition, name, entry)
                if entry is not None and (tombstones or not entry.is_tombstone):
                    gone[key] = entry
                    results[at] = not entry.is_tombstone
                    if (memory or entry.writes) and (writes := after([entry], memory, now_ns)):
                        mark = fmt.EVICTED if copies_only else b""
                        deletions[key] = fmt.tombstone(entry.version, now_ns, writes, mark)
            ended = self._replace(dict.fromkeys(gone), gone, deletions)
        self.defer_unlink(ended)
        return results

    def write_tombstone(
        self,
        bucket_uuid: bytes,
        name: str,
        version: Version | None,
        modified_ns: int = 0,
        elsewhere: CatalogEntry | None = None,
        condition: Condition | None = None,
        writes: bytes = b"",
        raw_metadata: bytes = b"",
    ) -> tuple[CatalogEntry | None, CatalogEntry | None]:
        """Replace an object by a tombstone. Returns the entry before, and the one that counts now.

        Without a version the drive issues one, and nothing changes if there is no object, unless the deletion is to be
        uploaded (`raw_metadata`). A tombstone with a version takes effect if it is newer than the current entry, also
        if there is none. `elsewhere`: see `commit`. `writes`: its write memory, in addition to what this drive knows of
        the name. Raises VersionConflict.
        """
        is_pending = fmt.is_pending(raw_metadata)
        key = fmt.object_key(bucket_uuid, name)
        with self.stripes.of([key]):
            self._require_writable()
            self._require_buckets([(bucket_uuid, name)])
            stored = before = self._entries([key]).get(key)
            if elsewhere is not None and (before is None or before.version < elsewhere.version):
                before = elsewhere
            remembering = self.deletions.get(key) if before is None and version is None else before
            if (done := done_before(condition, remembering)) is not None and (done is not before or version is None):
                return before, before  # an earlier try, replaced since then or not
            require(condition, name, before)
            if version is None and (fmt.is_denying(raw_metadata) or fmt.is_allowing(raw_metadata)):
                if (version := self._denial_above(key, before, raw_metadata)) is None:
                    return before, before
            elif version is None:
                if before is not None and fmt.is_pending(before.raw_metadata) and before.is_tombstone:
                    return before, before
                if (before is None or before.is_tombstone) and not is_pending:
                    return before, before
                known = before.version if before is not None else Version(self._epoch, self._clock.take())
                version = self._above(known, name)
            elif late := too_late(condition, name, version, self.retention.floor(bucket_uuid)):
                raise late
            elif before is not None and before.version >= version:
                return before, before
            self._clock.advance_past(version.counter)
            modified_ns = modified_ns or time.time_ns()
            memory = self._memory(key, before, writes, modified_ns)
            tombstone = _tombstone(version, modified_ns, memory, raw_metadata, before)
            current = {key: stored} if stored is not None else {}
            ended = self._replace({key: tombstone}, current, durable=tombstone.is_denied)
        self.defer_unlink(ended)
        return before, tombstone

    def drop(self, bucket_uuid: bytes, name: str, version: Version, *, tombstone: bool) -> CatalogEntry | None:
        """Remove one entry without a tombstone unless it is newer than `version`. Returns the remaining entry, if any.

        With `tombstone`, objects of any version are kept. If `version` is that of a denial, nothing is kept of the
        bytes.
        """
        key = fmt.object_key(bucket_uuid, name)
        with self.stripes.of([key]):
            self._require_writable()
            before, denied = self._entries([key]).get(key), [key] if version.epoch & fmt.DENIAL_BIT else []
            if before is not None and (before.version > version or (tombstone and not before.is_tombstone)):
                return before
            if before is None and not denied:
                return None
            ended = self._replace({key: None}, {} if before is None else {key: before}, denied=denied)
        self.defer_unlink(ended)
        return None

    def write_tombstones(
        self, bucket_uuid: bytes, tombstones: Sequence[tuple[str, Version | None, bytes]], raw_metadata: bytes = b""
    ) -> list[tuple[CatalogEntry | None, CatalogEntry | None]]:
        """Write a tombstone for each name, with its version and write memory, all in one catalog commit. Results are in
        order, as those of `write_tombstone`. Denials, and their ends, may have no version: the drive issues them. What
        is not denied cannot be allowed, and stays as it is."""
        now_ns = time.time_ns()
        keys = [fmt.object_key(bucket_uuid, name) for name, _, _ in tombstones]
        results: list[tuple[CatalogEntry | None, CatalogEntry | None]] = []
        with self.stripes.of(keys):
            self._require_writable()
            self._require_buckets((bucket_uuid, name) for name, _, _ in tombstones)
            stored = self._entries(keys)
            newest, placed = dict(stored), dict[bytes, CatalogEntry | None]()
            floor = self.retention.floor(bucket_uuid)
            for key, (name, given, writes) in zip(keys, tombstones, strict=True):
                before = newest.get(key)
                if (version := given or self._denial_above(key, before, raw_metadata)) is None:
                    results.append((before, before))
                    continue
                if (late := too_late(Condition(after_cuts=True), name, version, floor)) is not None:
                    raise late
                if before is not None and (before.version >= version or find(before.writes, writes[1:17]) is not None):
                    results.append((before, before))  # it is newer, or has replaced the result of an earlier try
                    continue
                self._clock.advance_past(version.counter)
                writes = self._memory(key, before, writes, now_ns)
                tombstone = _tombstone(version, now_ns, writes, raw_metadata, before)
                newest[key] = placed[key] = tombstone
                results.append((before, tombstone))
            durable = any(entry is not None and entry.is_denied for entry in placed.values())
            ended = self._replace(placed, {key: stored[key] for key in placed if key in stored}, durable=durable)
        self.defer_unlink(ended)
        return results

    def write_coded(self, bucket_uuid: bytes, coded: Sequence[tuple[str, CatalogEntry]]) -> list[CatalogEntry]:
        """Write coded entries, given with their names, in one durable commit. Returns the entry of each name that
        counts now, in order.

        One replaces an older version, the file of its own version, and the same version in an older group. Raises
        BucketNotFound.
        """
        keys = [fmt.object_key(bucket_uuid, name) for name, _ in coded]
        with self.stripes.of(keys):
            self._require_writable()
            self._require_buckets((bucket_uuid, name) for name, _ in coded)
            stored = self._entries(keys)
            newest, placed = dict(stored), dict[bytes, CatalogEntry | None]()
            for key, (_, entry) in zip(keys, coded, strict=True):
                before = newest.get(key)
                if before is not None and before[:5] == entry[:5]:
                    if before.is_coded and before.path >= entry.path:
                        continue
                    if (entry.raw_metadata, entry.writes) != (before.raw_metadata, before.writes):
                        entry = entry._replace(raw_metadata=before.raw_metadata, writes=before.writes)
                elif before is not None and before.version >= entry.version:
                    continue
                else:
                    self._clock.advance_past(entry.counter)
                    entry = entry._replace(writes=self._memory(key, before, entry.writes, entry.modified_ns))
                newest[key] = placed[key] = entry
            ended = self._replace(placed, {key: stored[key] for key in placed if key in stored}, durable=True)
        self.defer_unlink(ended)
        return [newest[key] for key in keys]

    def _replace(
        self,
        entries: dict[bytes, CatalogEntry | None],
        before: dict[bytes, CatalogEntry],
        deletions: dict[bytes, CatalogEntry] | None = None,
        *,
        durable: bool = False,
        denied: Sequence[bytes] = (),
    ) -> Ended:
        """Set entries without files, or remove them (None). Returns the objects that this ends. Those of names that are
        denied with this commit, or in `denied`, end for snapshots too."""
        batch = WriteBatch(raw_mode=True)
        exist = [key for key, entry in entries.items() if entry is not None and not entry.is_tombstone]
        self.deletions.replaced(batch, exist)
        if deletions:
            self.deletions.put(batch, deletions)
        written = {key: None if entry is None else fmt.encode_entry(entry) for key, entry in entries.items()}
        for key, value in written.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        now = self._clock.take() if any(self.retention.floor(fmt.bucket_of_key(key)) for key in before) else 0
        # A version that another one ends, ends at that one's number, on every node and at any time.
        ends = {key: entry.counter for key, entry in entries.items() if entry is not None}
        denied = [*denied, *(key for key, entry in entries.items() if entry is not None and entry.is_denied)]
        ended = self.retention.end(batch, ((key, entry, ends.get(key, now)) for key, entry in before.items()), denied)
        noted = self.denied.note(batch, entries, ended.denied)
        journaled = self.journal.note(batch, entries)
        counted = self.usage.change(batch, (Change(key, before.get(key), entry) for key, entry in entries.items()))
        if entries:
            try:
                with self._cache.changing(written):
                    self._catalog.write(batch, sync=self._sync or durable)
            except BaseException:
                self.usage.failed(counted)
                raise
            self.usage.committed(counted)
            self.journal.committed(journaled)
            self.denied.committed(noted)
            self.deletions.committed(deletions or {})
            self.deletions.forget(exist)
        failpoint("delete.committed")
        return ended

    def replace_entry(self, key: bytes, entry: CatalogEntry | None, blocks: Sequence[int] = ()) -> None:
        """Set one catalog entry as it is, or remove it (None); the file of the previous one becomes garbage. For the
        doctor.

        The previous file is retained for snapshots that see it if another object replaces it, but not if the entry is
        removed as damaged. A retained entry is removed for good.
        """
        with self.stripes.of([key]):
            self._require_writable()
            dead: list[CatalogEntry] = []
            with contextlib.suppress(StoreFormatError):  # the file of an unreadable entry is unknown
                before = self._catalog.get(key)
                dead = [fmt.decode_entry(before)] if before is not None else []
            batch = WriteBatch(raw_mode=True)
            counted = self.usage.change(batch, [Change(key, dead[0] if dead else None, entry)])
            dead = [other for other in dead if other.has_file]
            now = 0
            if entry is None:
                batch.delete(key)
            else:
                now = entry.counter if key.startswith(fmt.OBJECT_PREFIX) else 0
                dead = [other for other in dead if other.path != entry.path]
                batch.put(key, fmt.encode_entry(entry))
                if blocks:
                    put_blocks(batch, entry.generation, blocks)
            ended = self.retention.end(batch, ((key, other, now) for other in dead))
            try:
                with self._cache.changing({key: None}):  # it is looked up when it is read
                    self._catalog.write(batch, sync=True)
            except BaseException:
                self.usage.failed(counted)
                raise
            self.usage.committed(counted)
        self.defer_unlink(ended)

    # -- snapshots

    def set_cuts(self, cuts: Mapping[bytes, Iterable[int]]) -> None:
        """Set the cuts of all snapshots. Numbers issued from now on are above all of them. The caller holds all
        stripes."""
        self._clock.advance_past(max((cut for of_bucket in cuts.values() for cut in of_bucket), default=0))
        self.retention.set_cuts(cuts)

    def _denial_above(self, key: bytes, before: CatalogEntry | None, raw_metadata: bytes) -> Version | None:
        """Issue a version that denies or allows a name; None to allow one that is not denied, or to deny one for a
        content that it has no more: the object was replaced after it was found."""
        if fmt.is_allowing(raw_metadata) and (before is None or not before.is_denied):
            return None
        if content := fmt.decode_metadata(raw_metadata).get(DENIED_CONTENT):
            kept = self._catalog.scan(fmt.retained_prefix(fmt.bucket_of_key(key), fmt.name_of_key(key)))
            found = [fmt.content_of_value(value) for _, value in kept]
            found += [(before.checksum, before.size_bytes)] if before is not None and not before.is_tombstone else []
            if content not in (content_of(*one) for one in found):
                return None
        self._clock.advance_past(before.counter if before is not None else 0)
        epoch = self._epoch if before is None else max(self._epoch, before.epoch)
        return Version(fmt.epoch_of_deletion(epoch, raw_metadata), self._clock.take())

    def retain(self, batch: WriteBatch, key: bytes, ended: int, pending: PendingObject) -> CatalogEntry:
        """Publish an ended version under `key`, after writing `batch`.

        The stripe is held, and `defer_unlink` follows.
        """
        sync = self._sync or pending.durable
        files = CommitFiles(self._files, self.generations, self._clock, [pending], None, epoch=self._epoch, sync=sync)
        [entry] = files.prepare()
        batch.put(fmt.generation_key(fmt.MARK_PREFIX, entry.generation), ended.to_bytes(8, "big") + entry.path)
        self._catalog.write(batch, sync=sync)
        self._publish([_Chosen(key, pending, entry)], files, {})
        return entry

    def trim(self, bucket_uuid: bytes) -> int:
        """Release versions that no snapshot sees any more. Returns how many. Raises as `commit` does."""
        trimmed = 0
        for keys in self.retention.keys(bucket_uuid):
            with self.stripes.of(keys[:1]):
                self._require_writable()
                dead = self.retention.release(keys, sync=self._sync)
            self._garbage.defer_unlink(dead)
            trimmed += len(dead)
        return trimmed


def _tombstone(
    version: Version, modified_ns: int, memory: bytes, raw_metadata: bytes, before: CatalogEntry | None
) -> CatalogEntry:
    """Create a tombstone. A denied object that is deleted once more stays denied for the reason that it had."""
    if version.epoch & fmt.DENIAL_BIT and before is not None and before.is_denied and not fmt.is_denying(raw_metadata):
        raw_metadata = fmt.encode_metadata(before.metadata | fmt.decode_metadata(raw_metadata))
    return fmt.tombstone(version, modified_ns, memory, raw_metadata)

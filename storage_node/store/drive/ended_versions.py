"""Ended versions: objects of one drive that were replaced or deleted, retained for snapshots and then removed.

The commit that ends a version decides, in its own atomic write, what becomes of it. If a snapshot sees it, it becomes a
retained version; otherwise its file becomes garbage. `Retention` decides this, and `Garbage` removes the files.

Retained versions. A snapshot of a bucket is a cut: a number of the store's version clock. Of each name it sees the
version that was issued at or before the cut and ended after it. A version that ends and is seen by a snapshot keeps its
file and its block checksums: the commit that ends it moves its entry to a key of its own, by name and end, instead of
making it garbage. A crash leaves one or the other.

The file then also records the number at which it ended, so that a rebuilt catalog treats it neither as the current
object nor as garbage. This cannot be part of the atomic commit: the commit lists the files that have to be marked, and
the next start marks those that a crash has left unmarked.

Why removal waits. A reader looks up an entry and then opens the file that it names. If a commit replaced the object
between these two steps and removed the file at once, the reader would fail although the object always existed. While
removal waits, the process may die, and neither may a file be left behind that nothing names, nor may a file be removed
that an entry names.

The invariant. Every published file is named in the catalog: by an entry, by a retained entry, by an intent (it is being
published), or by a garbage key (it is to be removed). The commit that removes the last entry of a file adds its garbage
key in the same atomic write.

The life of a dead file:

1. A commit adds the garbage key.
2. `defer_unlink` removes the file's identity, so that rebuilding the catalog cannot bring a deleted object back,
   and queues the file.
3. After the grace period `reap` unlinks it, called by the next commit or by the upkeep (upkeep.py). It is unlinked
   earlier if more than MAX_GARBAGE_BYTES wait, if the drive is full, or when the drive is closed. A reader that comes
   too late looks the object up again.
4. The garbage key and the block checksums of the file are deleted.

If the process dies after step 1 or 2, the garbage key names the file, and `recover` removes it at the next start. After
step 3, the key names a missing file, which `recover` ignores before it deletes the key. If the machine dies, the file
system and the catalog may each have lost their latest changes: a removed file may be back without a key, or a published
one may be there without its intent. `remove_unnamed` then compares all files with the catalog.

Failed commits. RocksDB may report an error for a write that has reached its log. As long as that log can be replayed,
opening the drive again may find the commit applied, and its entries would need their files. `abandon` therefore keeps
the files until the log is out of use: it writes a record and flushes, which makes RocksDB begin another log. Then the
intents of the commit are replaced by garbage keys in one write. If the process dies before that, the next start finds
either the commit applied, with its intents deleted, or the intents, and removes the files.

Threads: any. The cuts are changed with all stripes of the drive held, and read with one of them held. The catalog and
the files determine what is garbage; the queue in memory only determines when each file is removed.
"""

from __future__ import annotations

import array
import contextlib
import heapq
import itertools
import re
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from ais_loader.errors import LoaderError, StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.drive.sparse_segments import SparseSegments
from storage_node.store.failpoints import failpoint
from storage_node.store.files.error_counters import is_passing
from storage_node.store.files.object_files import RawFiles, drive_error
from storage_node.store.files.segment_format import SegmentUse, file_of
from storage_node.store.format import CatalogEntry, Identity
from storage_node.store.names import HIDDEN

_TRIM_AT_ONCE = 500
GRACE_S = 5.0
"""Time for which the file of a replaced or deleted object stays for readers that looked it up earlier."""
MAX_GARBAGE_BYTES = 1 << 30
"""Above this much waiting garbage, the oldest is removed early."""
_REAP_AT_ONCE = 1000
_OURS = re.compile(
    rb"([0-3][0-9a-f]/[0-3][0-9a-f]/[0-9a-f]{28}\.[0-9a-f]+|segments/[0-3][0-9a-f]/segment\.[0-9a-f]+(/[0-9a-f]+\.[0-9a-f]+)?)\Z"
)
_COMPARED_AT_ONCE = 4096


class Retained(NamedTuple):
    """Retained entry of the catalog."""

    key: bytes
    record: CatalogEntry

    @property
    def ended(self) -> int:
        return fmt.ended_of_retained(self.key)


class Ended(NamedTuple):
    """Objects that one commit has ended."""

    dead: list[CatalogEntry]
    """Entries whose files are garbage."""
    kept: list[Retained]
    denied: Sequence[tuple[bytes, CatalogEntry]] = ()
    """Entries that denials have ended, with their keys. Their files are garbage that no reader may see again."""
    names: Sequence[bytes] = ()
    """Keys of the objects that are denied, also of those of which the drive has nothing any more."""


class Retention:
    """Retention of a drive that is open for writing."""

    def __init__(self, files: RawFiles, catalog: Catalog) -> None:
        self._files = files
        self._catalog = catalog
        self._cuts: dict[bytes, Sequence[int]] = {}

    # -- what snapshots see

    def set_cuts(self, cuts: Mapping[bytes, Iterable[int]]) -> None:
        """Set the cuts of all existing snapshots, by bucket uuid."""
        self._cuts = {bucket_uuid: sorted(of_bucket) for bucket_uuid, of_bucket in cuts.items()}

    def floor(self, bucket_uuid: bytes) -> int:
        """Return the number above which new versions are seen by no snapshot."""
        cuts = self._cuts.get(bucket_uuid)
        return cuts[-1] if cuts else 0

    def is_seen(self, bucket_uuid: bytes, born: int, ended: int) -> bool:
        cuts = self._cuts.get(bucket_uuid, ())
        at = bisect_left(cuts, born)
        return at < len(cuts) and cuts[at] < ended

    # -- ending

    def end(
        self, batch: WriteBatch, ending: Iterable[tuple[bytes, CatalogEntry, int]], denied: Sequence[bytes] = ()
    ) -> Ended:
        """Add to a commit what becomes of the entries that it ends, given as key, entry and end of each. Of the keys in
        `denied` nothing is kept, for no snapshot."""
        gone = [pair for key in denied for pair in self._unretained(batch, key)]
        outcome = Ended([], [], gone, denied)
        for key, entry, ended in ending:
            if denied and key in denied:
                gone.append((key, entry))
                if entry.has_file:
                    batch.put(fmt.generation_key(fmt.GARBAGE_PREFIX, entry.generation), entry.path)
                continue
            is_kept = bool(self._cuts) and self._is_kept(key, entry, ended)
            if not entry.has_file:  # of a tombstone, another replica may have missed the deletion
                if is_kept:
                    name = fmt.name_of_key(key)
                    batch.put(fmt.retained_key(fmt.bucket_of_key(key), name, ended), fmt.encode_entry(entry))
                continue
            generation = entry.generation
            if is_kept:
                kept = Retained(fmt.retained_key(fmt.bucket_of_key(key), fmt.name_of_key(key), ended), entry)
                batch.put(kept.key, fmt.encode_entry(entry))
                batch.put(fmt.generation_key(fmt.MARK_PREFIX, generation), ended.to_bytes(8, "big") + entry.path)
                outcome.kept.append(kept)
            else:
                batch.put(fmt.generation_key(fmt.GARBAGE_PREFIX, generation), entry.path)
                outcome.dead.append(entry)
        return outcome

    def _unretained(self, batch: WriteBatch, key: bytes) -> Iterator[tuple[bytes, CatalogEntry]]:
        """Add to a commit that snapshots lose what they see of a name. Yields the key and the entry of each version."""
        for retained, value in self._catalog.scan(fmt.retained_prefix(fmt.bucket_of_key(key), fmt.name_of_key(key))):
            entry = fmt.decode_entry(value)
            end_retained(batch, retained, entry)
            yield retained, entry

    def _is_kept(self, key: bytes, entry: CatalogEntry, ended: int) -> bool:
        # Hidden objects are in no listing, and no client reads them from a snapshot.
        is_hidden = key.startswith(HIDDEN.encode(), 17)
        return not is_hidden and self.is_seen(fmt.bucket_of_key(key), entry.counter, ended)

    def mark(self, kept: Sequence[Retained]) -> None:
        """Mark the files after the commit. The next start retries what fails."""
        if kept:
            with contextlib.suppress(OSError, LoaderError):
                self._mark((one.record.path, one.ended, one.record.generation) for one in kept)

    def recover(self) -> None:
        """Mark the files that earlier writers left unmarked; failures are retried at the next start. Raises
        LoaderError."""
        for key, value in list(self._catalog.scan(fmt.MARK_PREFIX)):
            with contextlib.suppress(OSError):
                self._mark([(value[8:], int.from_bytes(value[:8], "big"), int.from_bytes(key[1:], "big"))])

    def _mark(self, files: Iterable[tuple[bytes, int, int]]) -> None:
        batch = WriteBatch(raw_mode=True)
        marked = False
        for path, ended, generation in files:
            self._files.set_ended(path, ended)
            batch.delete(fmt.generation_key(fmt.MARK_PREFIX, generation))
            marked = True
        if marked:
            failpoint("retain.marked")
            self._catalog.write(batch, sync=False)

    # -- releasing

    def keys(self, bucket_uuid: bytes) -> Iterator[list[bytes]]:
        """Iterate over the keys of all retained versions in a bucket, in groups."""
        keys = (key for key, _ in self._catalog.scan(fmt.RETAINED_PREFIX + bucket_uuid))
        while some := list(itertools.islice(keys, _TRIM_AT_ONCE)):
            yield some

    def release(self, keys: Sequence[bytes], *, sync: bool) -> list[CatalogEntry]:
        """Make those of these versions garbage that no snapshot sees. A stripe is held. Returns their entries."""
        batch = WriteBatch(raw_mode=True)
        dead: list[CatalogEntry] = []
        gone = 0
        for key, value in zip(keys, self._catalog.get_many(keys), strict=True):
            if value is None:
                continue
            entry = fmt.decode_entry(value)
            if not self.is_seen(fmt.bucket_of_key(key), entry.counter, fmt.ended_of_retained(key)):
                end_retained(batch, key, entry)
                gone += 1
                if entry.has_file:
                    dead.append(entry)
        if gone:
            self._catalog.write(batch, sync=sync)
            failpoint("snapshot.trimmed")
        return dead


def end_retained(batch: WriteBatch, key: bytes, entry: CatalogEntry) -> None:
    """Add to a commit that a retained version ends, and that its file is garbage."""
    batch.delete(key)
    if entry.has_file:
        batch.delete(fmt.generation_key(fmt.MARK_PREFIX, entry.generation))
        batch.put(fmt.generation_key(fmt.GARBAGE_PREFIX, entry.generation), entry.path)


def enter_from_file(
    catalog: Catalog, cuts: Mapping[bytes, Iterable[int]], identity: Identity, entry: CatalogEntry, ended: int
) -> bool:
    """Add a retained version to a catalog that is being rebuilt; False if no snapshot sees it."""
    if not any(entry.counter <= cut < ended for cut in cuts.get(identity.bucket_uuid, ())):
        return False
    batch = WriteBatch(raw_mode=True)
    batch.put(fmt.retained_key(identity.bucket_uuid, identity.name, ended), fmt.encode_entry(entry))
    catalog.write(batch, sync=False)
    return True


# -- reading; of a drive that is open for reading, too


def find_retained(catalog: Catalog, bucket_uuid: bytes, name: str, cut: int) -> CatalogEntry | None:
    """Return the ended object of a name that this cut sees."""
    found = find_seen(catalog, bucket_uuid, name, cut)
    return None if found is None or found.record.is_tombstone else found.record


def find_seen(catalog: Catalog, bucket_uuid: bytes, name: str, cut: int) -> Retained | None:
    """Return the ended object or deletion of a name that this cut sees."""
    prefix = fmt.retained_prefix(bucket_uuid, name)
    # Versions of one name do not overlap: only the first that ended after the cut can have existed at the cut.
    for key, value in catalog.scan(prefix, prefix + cut.to_bytes(8, "big")):
        entry = fmt.decode_entry(value)
        return Retained(key, entry) if entry.counter <= cut else None
    return None


def scan_at(
    catalog: Catalog, bucket_uuid: bytes, prefix: str, start_after: str, cut: int
) -> Iterator[tuple[str, CatalogEntry]]:
    """Iterate over objects after `start_after` as this cut sees them, ordered by the UTF-8 bytes of their names."""
    return (pair for pair in scan_seen(catalog, bucket_uuid, prefix, start_after, cut) if not pair[1].is_tombstone)


def scan_seen(
    catalog: Catalog, bucket_uuid: bytes, prefix: str, start_after: str, cut: int
) -> Iterator[tuple[str, CatalogEntry]]:
    """Iterate as `scan_at` does, with deletions."""
    # Current entries are scanned first: a version that ends meanwhile is in both lists, and never in none.
    current = _start(_current(catalog, bucket_uuid, prefix, start_after, cut))
    ended = _ended(catalog, bucket_uuid, prefix, start_after, cut)
    last: str | None = None
    for name, entry in heapq.merge(current, ended, key=lambda pair: pair[0].encode()):
        if name != last:
            yield name, entry
        last = name


def _start(scan: Iterator[tuple[str, CatalogEntry] | None]) -> Iterator[tuple[str, CatalogEntry]]:
    """Start the scan, which fixes its snapshot of the catalog."""
    next(scan)
    return (pair for pair in scan if pair is not None)


def _current(
    catalog: Catalog, bucket_uuid: bytes, prefix: str, start_after: str, cut: int
) -> Iterator[tuple[str, CatalogEntry] | None]:
    after = fmt.object_key(bucket_uuid, start_after) if start_after else None
    scan = catalog.scan(fmt.object_key(bucket_uuid, prefix), after)
    first = list(itertools.islice(scan, 1))
    yield None
    for key, value in itertools.chain(first, scan):
        entry = fmt.decode_entry(value)
        if entry.counter <= cut:
            yield fmt.name_of_key(key), entry


def _ended(
    catalog: Catalog, bucket_uuid: bytes, prefix: str, start_after: str, cut: int
) -> Iterator[tuple[str, CatalogEntry]]:
    # After all versions of that name: their keys end in eight bytes.
    after = fmt.retained_prefix(bucket_uuid, start_after) + b"\xff" * 8 if start_after else None
    for key, value in catalog.scan(fmt.RETAINED_PREFIX + bucket_uuid + prefix.encode(), after):
        if fmt.ended_of_retained(key) > cut:
            entry = fmt.decode_entry(value)
            if entry.counter <= cut:
                yield fmt.name_of_retained(key), entry


class _Dead(NamedTuple):
    due_s: float
    """On the monotonic clock."""
    generation: int
    path: bytes
    size_bytes: int
    durably: bool = False
    """Whether a denial has ended it."""


class Garbage:
    """Dead files of one drive that is open for writing."""

    def __init__(
        self,
        files: RawFiles,
        catalog: Catalog,
        sparse: SparseSegments,
        removed: Callable[[bytes], None],
        wake: Callable[[], None],
    ) -> None:
        """`removed` is called with the path of every removed file, to drop what is kept about it. `wake` is called when
        there may be something to reap, or to compact."""
        self._files = files
        self._removed = removed
        self._wake = wake
        self._catalog = catalog
        self._sparse = sparse
        self._grace_s = GRACE_S
        self._lock = threading.Lock()
        self._waiting: deque[_Dead] = deque()  # guarded by _lock
        self._waiting_bytes = 0  # guarded by _lock
        self._abandoned: list[CatalogEntry] = []  # guarded by _lock

    def recover(self) -> None:
        """Remove what earlier writers left behind, in time proportional to that. Raises OSError, LoaderError.

        Files that the drive cannot remove stay named, and the next start tries again: a bad sector in one dead file
        must not make the whole drive unusable.
        """
        self._files.clear_staging()
        for prefix in (fmt.INTENT_PREFIX, fmt.GARBAGE_PREFIX):
            left = list(self._catalog.scan(prefix))
            is_denying = next(self._catalog.scan(fmt.DENIAL_PREFIX), None) is not None  # they may be of denied objects
            unlinked = self._files.unlink_many([path for _, path in left], durably=is_denying)
            self._forget([], unlinked.segments)
            for key, path in left:
                if path not in unlinked.failed:
                    blocks = fmt.BLOCKS_PREFIX + key[1:]
                    self._forget([key, *(block_key for block_key, _ in self._catalog.scan(blocks))])

    def remove_unnamed(self) -> None:
        """Remove unnamed files after a power loss: those whose intent was lost, or whose removal was.

        Takes time proportional to what is stored, not to what was in flight. Raises OSError, LoaderError.
        """
        try:
            unnamed = unnamed_files(self._catalog, self._files.walk())
            while some := list(itertools.islice(unnamed, _REAP_AT_ONCE)):
                self._forget([], self._files.unlink_many(some).segments)
        except StoreFormatError:
            return  # with an unreadable entry nothing is certain; the doctor reports it

    def defer_unlink(self, dead: Sequence[CatalogEntry], *, at_once: bool = False) -> None:
        """Queue the files of replaced objects for removal. The catalog has their garbage keys already. `at_once`: they
        are due now, and nothing of them is left on the drive."""
        if not (dead or self._waiting or self._abandoned):
            return  # the usual case
        due_s = time.monotonic() + self._grace_s
        # A dead file that kept its identity could bring a deleted object back when the catalog is rebuilt.
        self._files.disown(entry.path for entry in dead)
        with self._lock:
            for entry in dead:
                if at_once:
                    self._waiting.appendleft(_Dead(0.0, entry.generation, entry.path, entry.size_bytes, durably=True))
                else:
                    self._waiting.append(_Dead(due_s, entry.generation, entry.path, entry.size_bytes))
                self._waiting_bytes += entry.size_bytes
        with contextlib.suppress(LoaderError):  # the commit stands; the next start removes the rest
            self.reap()
        self._wake()

    def abandon(self, entries: Sequence[CatalogEntry]) -> None:
        """Remove the files of a commit that failed, as soon as it is certain that it failed.

        The commit may have reached the catalog's log nevertheless: as long as that log can be read again, opening the
        drive could find the commit applied, and would need the files.
        """
        with self._lock:
            self._abandoned.extend(entries)
        with contextlib.suppress(LoaderError):
            self.reap()

    def reap(self, *, everything: bool = False) -> int:
        """Remove dead files that are due, or all of them. Returns how many. Raises LoaderError.

        What the drive cannot remove is left to the next start, unless it is of a denial, or the error will pass.
        """
        self._unlink_abandoned()
        reaped, kept = 0, list[_Dead]()
        problem: OSError | None = None
        try:
            while due := self._take_due(everything=everything):
                gone: list[bytes] = []
                unlinked = self._files.unlink_many(
                    [dead.path for dead in due], durably=any(dead.durably for dead in due)
                )
                problem = next(iter(unlinked.failed.values()), problem)
                for dead in due:
                    if dead.path in unlinked.failed:
                        kept += [dead] if dead.durably or is_passing(unlinked.failed[dead.path]) else []
                        continue
                    reaped += 1
                    self._removed(dead.path)
                    gone.append(fmt.generation_key(fmt.GARBAGE_PREFIX, dead.generation))
                    if dead.size_bytes > fmt.BLOCK_BYTES:
                        gone.extend(_blocks_keys(dead))
                failpoint("reap.unlinked")
                self._forget(gone, unlinked.segments)
        finally:
            with self._lock:
                self._waiting.extend(dead._replace(due_s=time.monotonic() + self._grace_s) for dead in kept)
                self._waiting_bytes += sum(dead.size_bytes for dead in kept)
        if problem is not None:
            raise drive_error(problem, self._files.root, "removing a dead file")
        return reaped

    def due_in_s(self) -> float | None:
        """Return the time until a dead file is due, at least 0; None if none waits."""
        with self._lock:
            if self._abandoned:
                return self._grace_s
            return max(0.0, self._waiting[0].due_s - time.monotonic()) if self._waiting else None

    def _take_due(self, *, everything: bool) -> list[_Dead]:
        now = time.monotonic()
        due: list[_Dead] = []
        with self._lock:
            while self._waiting and len(due) < _REAP_AT_ONCE:
                if not (everything or self._waiting[0].due_s <= now or self._waiting_bytes > MAX_GARBAGE_BYTES):
                    break
                due.append(self._waiting.popleft())
                self._waiting_bytes -= due[-1].size_bytes
        return due

    def _unlink_abandoned(self) -> None:
        with self._lock:
            abandoned, self._abandoned = self._abandoned, []
        if not abandoned:
            return
        begin_log = WriteBatch(raw_mode=True)  # an empty flush would keep the log
        begin_log.delete(fmt.generation_key(fmt.GARBAGE_PREFIX, abandoned[0].generation))
        batch = WriteBatch(raw_mode=True)
        for entry in abandoned:
            named = fmt.generation_of_path(file_of(entry.path))
            batch.delete(fmt.generation_key(fmt.INTENT_PREFIX, named))
            batch.put(fmt.generation_key(fmt.GARBAGE_PREFIX, entry.generation), entry.path)
        try:
            self._catalog.write(begin_log, sync=False)
            self._catalog.flush()
            self._catalog.write(batch, sync=False)
        except LoaderError:
            with self._lock:
                self._abandoned.extend(abandoned)
            return
        with self._lock:
            for entry in abandoned:
                self._waiting.appendleft(_Dead(0.0, entry.generation, entry.path, entry.size_bytes))
                self._waiting_bytes += entry.size_bytes

    def _forget(self, keys: Iterable[bytes], segments: Mapping[bytes, SegmentUse] | None = None) -> None:
        """Remove keys of dead files, and note what has become of segments."""
        # Deleted key by key: one range tombstone per generation makes every later read of the catalog slower (measured:
        # 20,000 of them, 26 times).
        batch = WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(key)
        self._sparse.note(batch, segments or {})
        if batch.len():
            self._catalog.write(batch, sync=False, is_commit=False)


def _blocks_keys(dead: _Dead) -> list[bytes]:
    return [fmt.blocks_key(dead.generation, chunk) for chunk in range(fmt.chunk_count(dead.size_bytes))]


# -- files that nothing names: after a power loss, and for the doctor


def is_object_path(path: bytes) -> bool:
    """Whether a path below `objects` is one that the store could have generated."""
    return _OURS.match(path) is not None


class NamedFiles:
    """Paths that a catalog names: in entries, retained entries, intents and garbage keys. Eight bytes for each.

    They are stored as 64-bit hashes. A collision (one in 2**64 for a pair) can hide an unnamed file, but never makes a
    named one look unnamed.
    """

    def __init__(self, paths: Iterable[bytes]) -> None:
        hashes = array.array("Q", map(xxhash.xxh3_64_intdigest, paths))
        self._hashes = np.sort(np.frombuffer(hashes, np.uint64))

    def __len__(self) -> int:
        return len(self._hashes)

    def not_among(self, paths: Iterable[bytes]) -> Iterator[bytes]:
        """Iterate over those of `paths` that the catalog does not name."""
        paths = iter(paths)
        while some := list(itertools.islice(paths, _COMPARED_AT_ONCE)):
            hashes = np.array([xxhash.xxh3_64_intdigest(path) for path in some], np.uint64)
            at = np.searchsorted(self._hashes, hashes)
            known = np.zeros(len(some), bool)
            inside = at < len(self._hashes)
            known[inside] = self._hashes[at[inside]] == hashes[inside]
            yield from (path for path, is_known in zip(some, known, strict=True) if not is_known)


def named_by(entry: CatalogEntry) -> tuple[bytes, ...]:
    """Return the object's path and, for a slot of a segment, the segment's, which is removed with its last object; none
    for an entry without a file."""
    if not entry.has_file:
        return ()
    return (entry.path, file_of(entry.path)) if entry.offset else (entry.path,)


def named_paths(catalog: Catalog) -> Iterator[bytes]:
    """Iterate over every path that the catalog names, including segments that contain named objects.

    Raises StoreFormatError at an entry that cannot be read.
    """
    for prefix in (fmt.OBJECT_PREFIX, fmt.RETAINED_PREFIX):
        for _, value in catalog.scan(prefix):
            yield from named_by(fmt.decode_entry(value))
    for prefix in (fmt.INTENT_PREFIX, fmt.GARBAGE_PREFIX):
        for _, path in catalog.scan(prefix):
            yield path


def unnamed_files(catalog: Catalog, files: Iterable[bytes]) -> Iterator[bytes]:
    """Iterate over object files that no key of the catalog names. Raises StoreFormatError at a damaged entry, before
    the first."""
    named = NamedFiles(named_paths(catalog))
    return named.not_among(path for path in files if is_object_path(path))

"""Usage of buckets with a quota on one drive: the number and size of their current objects, in the catalog.

The problem. A quota needs the use of a bucket at every commit, and a scan takes too long. A count that is kept beside
the entries must change with them, at once and also in a crash, and commits run in parallel.

The invariant. A bucket's count is kept in parts, one for each stripe of names (transactions.py). A commit holds the
stripes of its names, so no other one changes their parts. It puts the changed parts into the same atomic write as the
entries. So the sum of the parts is at all times what a scan of the entries gives, also after a crash. It costs commits
into other buckets nothing.

A write that failed may have reached RocksDB's log all the same, and be replayed before parts that were computed without
it. From then on the count of its buckets is kept in memory, and the next commit into one removes its mark (below): the
next start counts it anew.

A count begins when a bucket gets a quota, or when a drive is opened that has none. For a moment no commit runs: a scan
of the catalog begins, which sees the catalog as it is then, and from then on commits add their changes in memory. When
the scan has ended, no commit runs for another moment, and both together are written. A key of the bucket alone says
that its parts are complete. If the drive is too full for them, the count is kept in memory until the drive is closed.

Not counted are tombstones, versions that are retained for snapshots, and hidden objects such as the parts of unfinished
uploads.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from ais_loader.errors import DriveFull, QuotaExceeded, StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.failpoints import failpoint
from storage_node.store.format import CatalogEntry
from storage_node.store.names import HIDDEN
from storage_node.store.quotas import Quotas, Use

_PART = struct.Struct("<qq")
_HIDDEN = HIDDEN.encode()


class Change(NamedTuple):
    """Entries of one name before and after a commit."""

    key: bytes
    before: CatalogEntry | None
    after: CatalogEntry | None


class _Count:
    """Count of one bucket; parts by number of the stripe."""

    def __init__(self, parts: dict[int, Use], *, is_stored: bool) -> None:
        self.parts = parts  # each is guarded by its stripe
        self.is_stored = is_stored  # guarded by all stripes
        self.is_doubted = False
        """Whether a write has failed, so that the stored parts may be wrong. Never undone; set with a stripe held."""

    def part(self, stripe: int) -> Use:
        return self.parts.get(stripe, Use())

    def total(self) -> Use:
        return _sum(self.parts.values())


Changes = Mapping[bytes, Mapping[int, Use]]
"""Changes of counts, by the bucket's uuid and the number of the stripe."""


class BucketUsage:
    """Counts of a drive that is open for writing. Thread-safe if commits hold the stripes of their names."""

    def __init__(
        self,
        catalog: Catalog,
        stripe_of: Callable[[bytes], int],
        all_stripes: Callable[[], contextlib.AbstractContextManager[object]],
        *,
        sync: bool,
    ) -> None:
        """`stripe_of`: number of a key's stripe, below 256. `all_stripes`: see `Stripes.all`. Reads the counts from the
        drive. Raises DriveFailed, StoreFormatError."""
        self._catalog = catalog
        self._stripe_of = stripe_of
        self._all_stripes = all_stripes
        self._sync = sync
        self._quotas, self._drive = Quotas(), ""
        self._counts = {  # guarded by all stripes
            bucket_uuid: _Count(parts, is_stored=True) for bucket_uuid, parts in _stored_parts(catalog).items()
        }

    def join(self, quotas: Quotas, drive: str, wanted: Set[bytes]) -> None:
        """Report to the quotas of a store, as the drive of this uuid, what it has of the wanted buckets. Counts that
        are missing are made, and others are removed. No commit runs yet. Raises LoaderError."""
        self._quotas, self._drive = quotas, drive
        for bucket_uuid in list(self._counts.keys() - wanted):
            with contextlib.suppress(DriveFull):  # a full drive must open to be emptied
                self.stop(bucket_uuid)
        for bucket_uuid in wanted:
            if bucket_uuid in self._counts:
                quotas.count(drive, bucket_uuid, self._counts[bucket_uuid].total())
            else:
                self.start(bucket_uuid)

    def start(self, bucket_uuid: bytes) -> None:
        """Count a bucket from now on, beginning anew if it is counted already. Raises LoaderError."""
        with self._all_stripes():
            if bucket_uuid in self._counts:
                self._remove(bucket_uuid)
            scan = self._catalog.scan(fmt.OBJECT_PREFIX + bucket_uuid)
            first = list(itertools.islice(scan, 1))  # fixes what the scan sees
            count = self._counts[bucket_uuid] = _Count({}, is_stored=False)
        try:
            scanned = _scanned_parts(itertools.chain(first, scan), self._stripe_of)
            failpoint("quota.scanned")
            with self._all_stripes():
                count.parts = {at: count.part(at).plus(scanned.get(at, Use())) for at in count.parts | scanned}
                self._store(bucket_uuid, count)
                self._quotas.count(self._drive, bucket_uuid, count.total())
            failpoint("quota.counted")
        except BaseException:
            with self._all_stripes():
                self._counts.pop(bucket_uuid, None)
                self._quotas.count(self._drive, bucket_uuid, None)
            raise

    def _store(self, bucket_uuid: bytes, count: _Count) -> None:
        if count.is_doubted:
            return
        batch = WriteBatch(raw_mode=True)
        batch.put(fmt.usage_key(bucket_uuid), b"")
        for at, part in count.parts.items():
            batch.put(fmt.usage_key(bucket_uuid, at), _PART.pack(*part))
        try:
            self._catalog.write(batch, sync=self._sync)
        except DriveFull:
            count.is_doubted = True
        else:
            count.is_stored = True

    def stop(self, bucket_uuid: bytes) -> None:
        """Count a bucket no more. Raises LoaderError."""
        with self._all_stripes():
            if bucket_uuid in self._counts:
                self._remove(bucket_uuid)

    def _remove(self, bucket_uuid: bytes) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, _ in list(self._catalog.scan(fmt.usage_key(bucket_uuid))):
            batch.delete(key)
        if batch.len():
            self._catalog.write(batch, sync=self._sync)
        del self._counts[bucket_uuid]
        self._quotas.count(self._drive, bucket_uuid, None)

    def use(self, bucket_uuid: bytes) -> Use | None:
        """Return the count of a bucket; None if it is not counted."""
        with self._all_stripes():
            count = self._counts.get(bucket_uuid)
            return None if count is None else count.total()

    # -- commits

    @property
    def any(self) -> bool:
        """Whether a bucket is counted. A stripe is held."""
        return bool(self._counts)

    def grants(self) -> Grants:
        """Return what a commit asks for its objects."""
        return Grants(self._quotas, self._drive)

    def change(self, batch: WriteBatch, changes: Iterable[Change]) -> Changes:
        """Add to a commit what it changes about the counts; `committed` follows. The stripes are held."""
        changed: dict[bytes, dict[int, Use]] = {}
        if not self._counts:
            return changed
        for key, before, after in changes:
            bucket_uuid = fmt.bucket_of_key(key)
            if bucket_uuid not in self._counts or not _is_counted(key):
                continue
            if (change := use_of(after).minus(use_of(before))) != Use():
                parts = changed.setdefault(bucket_uuid, {})
                stripe = self._stripe_of(key)
                parts[stripe] = parts.get(stripe, Use()).plus(change)
        for bucket_uuid, parts in changed.items():
            count = self._counts[bucket_uuid]
            if count.is_doubted:
                batch.delete(fmt.usage_key(bucket_uuid))
            elif count.is_stored:
                for stripe, change in parts.items():
                    batch.put(fmt.usage_key(bucket_uuid, stripe), _PART.pack(*count.part(stripe).plus(change)))
        return changed

    def failed(self, changed: Changes) -> None:
        """Record that the write of a commit has failed: whether it is applied, the next start shows."""
        for bucket_uuid in changed:
            self._counts[bucket_uuid].is_doubted = True

    def committed(self, changed: Changes, grants: Grants | None = None) -> None:
        """Keep changes that have been committed, and end the grants of their commit."""
        for bucket_uuid, parts in changed.items():
            count = self._counts[bucket_uuid]
            for stripe, change in parts.items():
                count.parts[stripe] = count.part(stripe).plus(change)
        totals = {bucket_uuid: _sum(parts.values()) for bucket_uuid, parts in changed.items()}
        granted = grants.take() if grants is not None else {}
        if totals or granted:
            self._quotas.settle(self._drive, totals, granted)


class Grants:
    """Grants of one commit. Belongs to one thread; leaving the block ends what has not become a count."""

    def __init__(self, quotas: Quotas, drive: str) -> None:
        self._quotas = quotas
        self._drive = drive
        self._granted: dict[bytes, Use] = {}

    def ask(self, key: bytes, before: CatalogEntry | None, size_bytes: int) -> QuotaExceeded | None:
        """Ask for an object of this size in the place of `before`. Returns QuotaExceeded if it may not be stored."""
        if not _is_counted(key):
            return None
        bucket_uuid = fmt.bucket_of_key(key)
        granted = self._quotas.grant(bucket_uuid, fmt.name_of_key(key), Use(1, size_bytes).minus(use_of(before)))
        if not isinstance(granted, Use):
            return granted
        if granted != Use():
            self._granted[bucket_uuid] = self._granted.get(bucket_uuid, Use()).plus(granted)
        return None

    def take(self) -> Mapping[bytes, Use]:
        """Hand the grants over to the caller, which ends them."""
        granted, self._granted = self._granted, {}
        return granted

    def end(self) -> None:
        if self._granted:
            self._quotas.settle(self._drive, {}, self.take())


def use_of(entry: CatalogEntry | None) -> Use:
    """Return what an entry counts: nothing, if it is a tombstone."""
    return Use() if entry is None or entry.is_tombstone else Use(1, entry.size_bytes)


def wrong_counts(catalog: Catalog) -> Iterator[tuple[bytes, Use, Use]]:
    """Iterate over the buckets whose counts differ from a scan: uuid, count, and what the scan gives. In a reader, it
    must not catch up meanwhile. Raises DriveFailed, StoreFormatError."""
    for bucket_uuid, parts in _stored_parts(catalog).items():
        scanned = _scanned_parts(catalog.scan(fmt.OBJECT_PREFIX + bucket_uuid), lambda key: 0)
        stored, found = _sum(parts.values()), scanned.get(0, Use())
        if stored != found:
            yield bucket_uuid, stored, found


def _is_counted(key: bytes) -> bool:
    return key.startswith(fmt.OBJECT_PREFIX) and not key.startswith(_HIDDEN, fmt.NAME_AT)


def _sum(uses: Iterable[Use]) -> Use:
    total = Use()
    for use in uses:
        total = total.plus(use)
    return total


def _scanned_parts(entries: Iterable[tuple[bytes, bytes]], stripe_of: Callable[[bytes], int]) -> dict[int, Use]:
    parts: dict[int, Use] = {}
    for key, value in entries:
        if _is_counted(key):
            with contextlib.suppress(StoreFormatError):  # the doctor reports the entry
                stripe = stripe_of(key)
                parts[stripe] = parts.get(stripe, Use()).plus(use_of(fmt.decode_entry(value)))
    return parts


def _stored_parts(catalog: Catalog) -> dict[bytes, dict[int, Use]]:
    found: dict[bytes, dict[int, Use]] = {}
    for key, value in catalog.scan(fmt.USAGE_PREFIX):
        if len(key) == len(fmt.usage_key(bytes(16))):  # before its parts
            found[fmt.bucket_of_key(key)] = {}
        elif (parts := found.get(fmt.bucket_of_key(key))) is not None:
            try:
                parts[key[-1]] = Use(*_PART.unpack(value))
            except struct.error as error:
                raise StoreFormatError(f"damaged count of a bucket, of {len(value)} bytes: {error}") from error
    return found

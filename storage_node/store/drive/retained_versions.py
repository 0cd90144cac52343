"""Retained versions: objects of one drive that were replaced or deleted, kept for the snapshots that see them.

A snapshot of a bucket is a cut: a number of the store's version clock. Of each name it sees the version that was issued
at or before the cut and ended after it. A version that ends and is seen by a snapshot keeps its file and its block
checksums: the commit that ends it moves its entry to a key of its own, by name and end, instead of making it garbage. A
crash leaves one or the other.

The file then also records the number at which it ended, so that a rebuilt catalog treats it neither as the current
object nor as garbage. This cannot be part of the atomic commit: the commit lists the files that have to be marked, and
the next start marks those that a crash has left unmarked.

Threads: any. `cuts` is changed with all stripes of the drive held, and read with one of them held.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ais_loader.errors import LoaderError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import RawFiles
from storage_node.store.format import CatalogEntry, Identity
from storage_node.store.names import PARTS_PREFIX

_TRIM_AT_ONCE = 500


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

    def end(self, batch: WriteBatch, ending: Iterable[tuple[bytes, CatalogEntry, int]]) -> Ended:
        """Add to a commit what becomes of the entries that it ends, given as key, entry and end of each."""
        outcome = Ended([], [])
        for key, entry, ended in ending:
            is_kept = bool(self._cuts) and self._is_kept(key, entry, ended)
            if entry.is_tombstone:  # in a cluster: another replica may have missed the deletion
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

    def _is_kept(self, key: bytes, entry: CatalogEntry, ended: int) -> bool:
        # Parts of multipart uploads are in no listing, and no client reads them from a snapshot.
        is_part = key.startswith(PARTS_PREFIX.encode(), 17)
        return not is_part and self.is_seen(fmt.bucket_of_key(key), entry.counter, ended)

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
                batch.delete(key)
                gone += 1
                if entry.is_tombstone:
                    continue
                batch.delete(fmt.generation_key(fmt.MARK_PREFIX, entry.generation))
                batch.put(fmt.generation_key(fmt.GARBAGE_PREFIX, entry.generation), entry.path)
                dead.append(entry)
        if gone:
            self._catalog.write(batch, sync=sync)
            failpoint("snapshot.trimmed")
        return dead


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

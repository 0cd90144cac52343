"""Replica state: versions, tombstones and the version clock, by which replicas on several nodes are compared, and the
replicas that are stale.

A stale replica may be outdated, because this node was away or was notified of a write that it took no part in. Reads of
it are refused, so that clients go on to another replica. Writes are accepted, since a newer version ends the doubt. A
name is in doubt until the store has at least the version that is said to exist, a whole bucket until repair has
compared it with its other replicas. After a drive was given up, the objects that the store has are valid, but a missing
name means nothing until the bucket has been compared. None of this is stored on the drives: a node that starts doubts
whole buckets.

Replicated buckets are read only while this node is known to receive notifications: while it holds a lease, or runs.
Thread-safe.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import math
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ais_loader.errors import (
    ClockOffset,
    DriveFailed,
    InvalidRequest,
    LoaderError,
    ObjectDeleted,
    ObjectDenied,
    ObjectNotFound,
    ObjectReplaced,
)
from ais_loader.name_matching import PATTERN_HINT, is_pattern
from storage_node.store import format as fmt
from storage_node.store.buckets import Buckets, ReplicaStale
from storage_node.store.drive.denied_names import denied_error
from storage_node.store.drive.preconditions import parse_version
from storage_node.store.drive.transactions import DeletionLog
from storage_node.store.drive.version_clock import VersionClock, advice, ms_of, shown
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.listing import CatalogPage, level_page, merged, names_page
from storage_node.store.names import SNAPSHOT_MARK, check_object_name, object_name_fault, shown_name
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.write import WriteRouter


class StaleName(NamedTuple):
    version: Version
    """Version that some node has, or is about to have."""
    since_s: float
    """On the monotonic clock."""


class StaleReplicas:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: frozenset[bytes] = frozenset()
        self._gaps: frozenset[bytes] = frozenset()
        self._names: dict[bytes, dict[str, StaleName]] = {}
        self._guarded: frozenset[bytes] = frozenset()
        self._until_s = float("inf")
        self._in_touch_since_s = float("-inf")
        self._any = False
        self.on_doubt: Callable[[], object] = bool
        """Called, on any thread and with the lock held, when something may have come into doubt."""
        self._is_unsure: Callable[[bytes, str, CatalogEntry], bool] | None = None

    @property
    def any(self) -> bool:
        """Whether any replica may be stale, so that readers have to check."""
        return self._any or self._is_unsure is not None or clock_s() > self._until_s

    # -- asked by readers

    def whole(self, bucket_uuid: bytes) -> bool:
        return bucket_uuid in self._buckets or (clock_s() > self._until_s and bucket_uuid in self._guarded)

    def gaps(self, bucket_uuid: bytes) -> bool:
        """Whether names that the store lacks may exist on other nodes."""
        return bucket_uuid in self._gaps

    def wanted(self, bucket_uuid: bytes, name: str) -> Version | None:
        """Return the version that the store must have for the name to be read; None if any is fine."""
        names = self._names.get(bucket_uuid)
        doubt = names.get(name) if names else None
        return None if doubt is None else doubt.version

    def unsure(self, bucket_uuid: bytes, name: str, found: CatalogEntry) -> bool:
        """Whether this node may not have been notified of later changes to an entry."""
        is_unsure = self._is_unsure
        return is_unsure is not None and is_unsure(bucket_uuid, name, found)

    # -- asked by writers

    def missed(self, bucket_uuid: bytes, name: str, version: Version, after_s: float) -> bool:
        """Whether this node may have missed a write of a name, below `version`, after a moment of `clock_s`: it was
        notified of one, or it had no lease for a while."""
        with self._lock:
            # In this order: a pause between the two clocks makes the moment an earlier one.
            monotonic_s, now_s = time.monotonic(), clock_s()
            entry = self._names.get(bucket_uuid, {}).get(name)
            if entry is not None and entry.version < version and entry.since_s >= monotonic_s - (now_s - after_s):
                return True
            changed_s = self._in_touch_since_s if now_s <= self._until_s else self._until_s
            return bucket_uuid in self._guarded and changed_s > after_s

    # -- called by repair

    def mark_unsure(self, is_unsure: Callable[[bytes, str, CatalogEntry], bool] | None) -> None:
        """Ask `is_unsure`, from any thread, about each entry that is read; see `unsure`. None: ask nobody any more."""
        self._is_unsure = is_unsure

    def mark_buckets(self, bucket_uuids: Iterable[bytes]) -> None:
        with self._lock:
            self._buckets |= frozenset(bucket_uuids)
            self._note()

    def trust_bucket(self, bucket_uuid: bytes) -> None:
        """Trust a bucket, except for the names in doubt."""
        with self._lock:
            self._buckets -= {bucket_uuid}
            self._note()

    def mark_gaps(self, bucket_uuids: Iterable[bytes]) -> None:
        with self._lock:
            self._gaps |= frozenset(bucket_uuids)
            self._note()

    def trust_gaps(self, bucket_uuid: bytes) -> None:
        with self._lock:
            self._gaps -= {bucket_uuid}
            self._note()

    def mark_names(self, bucket_uuid: bytes, names: Mapping[str, Version]) -> None:
        now = time.monotonic()
        with self._lock:
            for name, version in names.items():
                known = self._names.setdefault(bucket_uuid, {})  # without a name it would stay in doubt for good
                before = known.get(name)
                if before is None or before.version <= version:
                    known[name] = StaleName(version, now)
            self._note()

    def trust_name(self, bucket_uuid: bytes, name: str, version: Version, only_if: StaleName | None = None) -> None:
        """Trust a name: the store has this version, or it never came to exist. A doubt about a higher version stays,
        and with `only_if` any other doubt: the version may have been announced again."""
        with self._lock:
            names = self._names.get(bucket_uuid)
            found = names.get(name) if names is not None else None
            if names is not None and found is not None and found.version <= version and only_if in (None, found):
                del names[name]
                if not names:
                    del self._names[bucket_uuid]
            self._note()

    def awake(self, for_s: float, guarded: Iterable[bytes]) -> bool:
        """Record that this process runs, and will do so again within `for_s`. Returns whether it has kept the last
        promise.

        A process that was stopped for longer has missed changes of other nodes: until its next call, `guarded` buckets
        are in doubt.
        """
        now = clock_s()
        with self._lock:
            kept = now <= self._until_s
            self._guarded = frozenset(guarded)
            if not kept:
                self._in_touch_since_s = now
                self._buckets |= self._guarded
                self._note()
            self._until_s = now + for_s
        return kept

    def hold_until(self, until_s: float, guarded: Iterable[bytes]) -> None:
        """Allow reads of `guarded` buckets until this time, by the clock that continues while the machine is suspended.
        Unlike with `awake`, missed writes have been announced by name before there is a later end."""
        now = clock_s()
        with self._lock:
            if self._until_s < now <= until_s:
                self._in_touch_since_s = now
            self._guarded = frozenset(guarded)
            self._until_s = until_s

    def guard(self, guarded: Iterable[bytes], for_s: float) -> None:
        """Replace the set of guarded buckets. They may be read for `for_s` at most until the next call of `awake`."""
        with self._lock:
            self._guarded = frozenset(guarded)
            self._until_s = min(self._until_s, clock_s() + for_s)

    def forget_bucket(self, bucket_uuid: bytes) -> None:
        """Forget a bucket that has been deleted."""
        with self._lock:
            self._buckets -= {bucket_uuid}
            self._gaps -= {bucket_uuid}
            self._names.pop(bucket_uuid, None)
            self._note()

    def buckets(self) -> frozenset[bytes]:
        return self._buckets

    def buckets_with_gaps(self) -> frozenset[bytes]:
        return self._gaps

    def names(self, bucket_uuid: bytes) -> dict[str, StaleName]:
        with self._lock:
            return dict(self._names.get(bucket_uuid, {}))

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self._names.values()))

    def bucket_uuids(self) -> set[bytes]:
        """Return the uuids of all buckets with anything in doubt."""
        with self._lock:
            return {*self._buckets, *self._gaps, *self._names}

    def _note(self) -> None:
        self._any = bool(self._buckets or self._gaps or self._names)
        if self._any:
            self.on_doubt()


def clock_s() -> float:
    """Return a clock that continues while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ms_since(moment_s: float) -> int:
    """Return milliseconds since a moment of `clock_s`, rounded up."""
    return max(0, math.ceil((clock_s() - moment_s) * 1000))


def stale_message(name: str) -> str:
    return f"{name!r}: this copy may be old, and is not read before it has been compared with the others"


class StoredVersion(NamedTuple):
    """Version of one name in a listing of versions."""

    name: str
    version: Version
    is_tombstone: bool
    size_bytes: int
    checksum: int
    is_evicted: bool = False
    """The store has no entry of the name: it has evicted this version."""
    raw_metadata: bytes = b""
    """Metadata of a tombstone."""
    writes: bytes = b""
    """Write memory of a tombstone."""


def _all_stale(bucket: str) -> ReplicaStale:
    return ReplicaStale(f"bucket {bucket!r}: copies here may be old, and are being compared with others")


def version_gone(label: str, requested: str, current: Version) -> ObjectNotFound:
    """Return the error for a version that the store does not have. `label` stands for the object.

    It is ObjectReplaced if the store has a newer one. A store that has an older one may lack a write, and another
    holder may have it.
    """
    message = f"{label}: version {requested} is gone, the store has {current}"
    with contextlib.suppress(InvalidRequest):  # no store has issued such a version
        if parse_version(requested) < current:
            return ObjectReplaced(message)
    return ObjectNotFound(message)


def not_found_message(bucket: str, name: str) -> str:
    for begin in (f"ais://{bucket}/", f"/{bucket}/", f"{bucket}/"):
        if name.startswith(begin) and not object_name_fault(rest := name[len(begin) :]):
            return f"no object {name!r} in bucket {bucket!r}; did you mean {rest!r}, without the bucket?"
    if fault := object_name_fault(name):
        return f"no object {shown_name(name)!r} in bucket {bucket!r}, and there can be none: {fault}"
    hint = f"; {PATTERN_HINT}" if is_pattern(name) else ""
    if not unicodedata.is_normalized("NFC", name):
        hint += "; accents of this name are characters of their own (Unicode NFD), those of most names are not (NFC)"
    return f"no object {name!r} in bucket {bucket!r}{hint}"


class ClusterRole(Protocol):
    """Role of this store's node in its cluster."""

    @property
    def map_version(self) -> int:
        """Version of the newest map here, by which objects may have been handed over to other nodes; 0 without one."""

    def is_owner(self, bucket_uuid: bytes, name: str) -> bool:
        """Whether this store's information about an object is authoritative."""

    def is_holder(self, bucket_uuid: bytes, name: str) -> bool:
        """Whether readers of a snapshot ask this store for an object. Its replicas of others may be out of date."""


class _Alone:
    map_version = 0

    def is_owner(self, bucket_uuid: bytes, name: str) -> bool:
        return True

    is_holder = is_owner


class ReplicaState:
    """State of the replicas on one node of a cluster. A standalone store owns all objects."""

    def __init__(self, drives: DriveSet, buckets: Buckets, changes: WriteRouter, clock: VersionClock) -> None:
        self._clock = clock
        self._drives = drives
        self._buckets = buckets
        self._changes = changes
        self.stale = StaleReplicas()
        """Replicas that must not be read."""
        self._role: ClusterRole = _Alone()
        self.last_removal_s: float | None = None
        """Time on the monotonic clock at which a replica was last removed here because other nodes have it."""

    def join(self, role: ClusterRole) -> None:
        """Take part in a cluster from now on. A call of its own: the open store has the role on its drives."""
        self._role = role

    @property
    def map_version(self) -> int:
        """See `ClusterRole.map_version`."""
        return self._role.map_version

    def note_removal(self) -> None:
        """Note that a replica is being removed here because other nodes have it."""
        self.last_removal_s = time.monotonic()

    def newest_entry(self, bucket_uuid: bytes, name: str) -> CatalogEntry | None:
        """Return the newest entry of a name on any drive, including tombstones. Raises DriveFailed, StoreFormatError,
        Closed."""
        return self._drives.newest(bucket_uuid, name).record

    def evicted_version(self, bucket_uuid: bytes, name: str) -> Version | None:
        """Return the version of a copy of a remote object that was evicted here, if the store has no entry of the name
        now. None if there was none, or it is not remembered: copies that no client has written are not, nor are
        evictions before the last `MAX_DELETIONS` of a drive.

        The remote storage has this version or a newer one, so older replicas on other nodes are outdated.
        """
        key = fmt.object_key(bucket_uuid, name)
        versions = [deletions.evicted_version(key) for deletions in self._deletions()]
        return max((one for one in versions if one is not None), default=None)

    def _deletions(self) -> Iterator[DeletionLog]:
        for drive in self._drives.live():
            with contextlib.suppress(LoaderError):  # it accepts no writes
                yield drive.changes.deletions

    def scan(
        self,
        bucket: str,
        prefix: str,
        start_after: str,
        *,
        tombstones: bool,
        skip_missing: bool = False,
        again: bool = False,
    ) -> Iterator[tuple[str, CatalogEntry]]:
        """Iterate over all drives' entries in name order; in a snapshot, over those that this store is a holder of.

        `again`: see `Drive.scan`.

        Raises BucketNotFound, InvalidRequest, and as `merged`.
        """
        of = self._buckets.get(bucket)
        self._require_text(prefix, start_after)
        self._drives.require_open()
        found = merged(
            self._drives,
            of.uuid_bytes,
            prefix,
            start_after,
            tombstones=tombstones,
            cut=of.cut,
            skip_missing=skip_missing,
            again=again,
        )
        return found if of.cut is None else (pair for pair in found if self._role.is_holder(of.uuid_bytes, pair[0]))

    @staticmethod
    def _require_text(prefix: str, start_after: str) -> None:
        try:
            prefix.encode(), start_after.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"prefix {prefix!r}, start_after {start_after!r}: not valid Unicode") from None

    def is_stale(self, bucket_uuid: bytes, name: str, found: CatalogEntry | None) -> bool:
        """Whether a reader must not trust the entry found for this name. Raises DriveFailed, StoreFormatError.

        Not for snapshots: later writes do not change what they see, except denials, see `may_be_denied`.
        """
        if self.stale.whole(bucket_uuid):
            return True
        if found is not None and self.stale.unsure(bucket_uuid, name, found):
            return True
        wanted = self.stale.wanted(bucket_uuid, name)
        if wanted is None and (found is not None or not self.stale.gaps(bucket_uuid)):
            return False
        if found is None:
            found = self.newest_entry(bucket_uuid, name)
        if wanted is None:
            return found is None  # a tombstone is a valid answer
        if found is None or found.version < wanted:
            return True
        self.stale.trust_name(bucket_uuid, name, found.version)
        return False

    def may_be_denied(self, bucket_uuid: bytes, name: str) -> bool:
        """Whether other nodes may have denied an object of a snapshot, so that a reader must not trust what is here."""
        if not self.stale.any:
            return False
        wanted = self.stale.wanted(bucket_uuid, name)
        return self.stale.whole(bucket_uuid) or (wanted is not None and bool(wanted.epoch & fmt.DENIAL_BIT))

    def page(
        self,
        bucket: str,
        prefix: str,
        start_after: str,
        *,
        most: int,
        most_bytes: int,
        skip_missing: bool = False,
        names_only: bool = False,
        one_level: bool = False,
    ) -> CatalogPage:
        """List like `Store.objects`, without names in doubt, which another node lists. Raises ReplicaStale if all are
        in doubt.

        `most` is the number of names, `most_bytes` the size of names and metadata after which a page ends.
        `one_level` lists folders, if nothing is in doubt; `names_only` lists names, as many as fit, if nothing moves
        either, and not of a snapshot. Otherwise the page has all objects.
        """
        of = self._buckets.get(bucket)
        doubts = self.stale.any and of.cut is None
        page: CatalogPage | None = None
        if one_level and not doubts:
            scan = functools.partial(self.scan, bucket, prefix, tombstones=False, skip_missing=skip_missing)
            page = level_page(scan, prefix, start_after, most=most, most_bytes=most_bytes)
        elif names_only and not doubts and of.cut is None:
            self._require_text(prefix, start_after)
            page = names_page(self._drives, of.uuid_bytes, prefix, start_after, most_bytes, skip_missing=skip_missing)
        if page is not None:
            self._buckets.require_still(bucket, of)
            return page
        bucket_uuid, size_bytes, last = of.uuid_bytes, 0, start_after
        objects: list[tuple[str, CatalogEntry]] = []
        left_out: set[str] = set()
        more = False
        for name, entry in self.scan(bucket, prefix, start_after, tombstones=False, skip_missing=skip_missing):
            if len(objects) + len(left_out) >= most or size_bytes >= most_bytes:
                more = True
                break
            last = name
            size_bytes += len(name) + len(entry.raw_metadata)
            if doubts and self.is_stale(bucket_uuid, name, entry):
                left_out.add(name)
            else:
                objects.append((name, entry))
        self._buckets.require_still(bucket, of)
        if doubts:
            if self.stale.whole(bucket_uuid) or self.stale.gaps(bucket_uuid):
                raise _all_stale(bucket)
            # Code points order names as the bytes of their UTF-8 form do.
            missed = [
                name
                for name in self.stale.names(bucket_uuid)
                if name.startswith(prefix) and start_after < name and (name <= last or not more)
            ]
            if len(missed) > most:
                raise _all_stale(bucket)
            left_out |= {name for name in missed if self.is_stale(bucket_uuid, name, None)}
        return CatalogPage(objects, last if more else None, sorted(left_out))

    def versions(
        self,
        bucket: str,
        start_after: str = "",
        limit: int | None = None,
        prefix: str = "",
        *,
        with_evicted: bool = False,
    ) -> Iterator[StoredVersion]:
        """Iterate over objects and tombstones in name order. Raises what `Store.objects` raises.

        `with_evicted`: also over evicted copies; see `evicted_version`.
        """
        found = (
            StoredVersion(
                name,
                entry.version,
                entry.is_tombstone,
                entry.size_bytes,
                entry.checksum,
                raw_metadata=entry.raw_metadata if entry.is_tombstone else b"",
                writes=entry.writes if entry.is_tombstone else b"",
            )
            for name, entry in self.scan(bucket, prefix, start_after, tombstones=True)
        )
        if with_evicted:
            evicted = self._evicted(self._buckets.get(bucket).uuid_bytes, prefix, start_after)
            # Code points order names as the bytes of their UTF-8 form do.
            return itertools.islice(heapq.merge(found, evicted, key=lambda one: one.name), limit)
        return itertools.islice(found, limit)

    def _evicted(self, bucket_uuid: bytes, prefix: str, start_after: str) -> list[StoredVersion]:
        found: dict[str, Version] = {}
        for deletions in self._deletions():
            for key, version in deletions.evicted():
                name = fmt.name_of_key(key)
                if fmt.bucket_of_key(key) == bucket_uuid and name.startswith(prefix) and name > start_after:
                    found[name] = max(version, found.get(name, version))
        return [StoredVersion(name, found[name], True, 0, 0, is_evicted=True) for name in sorted(found)]

    def tombstones(self, bucket: str) -> Iterator[StoredVersion]:
        """Iterate over tombstones. Raises what `Store.objects` raises."""
        return (found for found in self.versions(bucket) if found.is_tombstone)

    def forget_tombstone(self, bucket: str, name: str, version: Version) -> bool:
        """Remove a tombstone that every replica has; False if there is none, or a newer one. Raises as `delete`."""
        self._drives.require_writable()
        bucket_uuid = self._buckets.get(bucket).uuid_bytes
        before = self.newest_entry(bucket_uuid, name)
        if before is None or not before.is_tombstone or before.version > version:
            return False
        return self._changes.drop(bucket_uuid, name, version, tombstone=True) is None

    def missing(self, bucket: str, bucket_uuid: bytes, name: str) -> ObjectNotFound | ObjectDenied:
        """Return the error for an object that is certainly missing. It tells if the object was deleted, or denied."""
        message = not_found_message(bucket, name)
        if object_name_fault(name) is None:
            with contextlib.suppress(LoaderError):  # an error of the drive does not change that there is no object
                found = self.newest_entry(bucket_uuid, name)
                if found is not None and found.is_denied:
                    return denied_error(f"{bucket}/{name}", found)
                is_deletion = found is not None and found.is_tombstone and SNAPSHOT_MARK not in bucket
                if found is not None and is_deletion and self._role.is_owner(bucket_uuid, name):
                    return ObjectDeleted(f"{message}: deleted with version {found.version}")
        return ObjectNotFound(message)

    def newest(self, bucket: str, names: Sequence[str]) -> list[CatalogEntry | None]:
        """Return the entry of each name, including tombstones. Raises InvalidName, BucketNotFound, DriveFailed,
        StoreFormatError."""
        for name in names:
            check_object_name(name)
        bucket_uuid = self._buckets.get(bucket).uuid_bytes
        return self._drives.newest_of(bucket_uuid, names)

    @property
    def clock(self) -> int:
        """The highest counter that was issued here, or heard of."""
        return self._clock.highest

    def advance_past(self, counter: int) -> None:
        """Advance the version clock past a counter of another node: versions issued here from now on are above it.

        A counter further ahead than clocks may differ does not advance the clock. A version above an existing one with
        such a counter is still issued, see `next_version`. Raises DriveFailed, DriveFull, Closed.
        """
        self._drives.require_writable()
        if self._clock.believes(counter):
            self._clock.advance_past(counter)

    def require_believable(self, version: Version, wall_ms: int) -> None:
        """Raise ClockOffset for a new version from a clock that is further ahead than clocks may differ.

        For writes only: replicas of existing objects keep their versions. `wall_ms` is the coordinator's wall clock.
        """
        if not self._clock.believes(version.counter, wall_ms):
            raise ClockOffset(
                f"version {version} is of {shown(ms_of(version.counter))} by the clock of node {version.node}, and "
                f"this node's shows {shown(self._clock.wall_ms())}; {advice(self._clock.max_offset_ms)}"
            )

    def announced(self, bucket_uuid: bytes, name: str) -> list[Version]:
        """Return versions that other nodes have, or were about to commit, and that this node was notified of but does
        not have."""
        wanted = self.stale.wanted(bucket_uuid, name)
        return [] if wanted is None else [wanted]

    def next_version(self, node: int, seen: Iterable[Version], clock: int = 0) -> Version:
        """Issue a version for a write that this store's node coordinates. It is never issued twice, even after a crash.

        It is above all of `seen`, and has a counter above `clock`, which other nodes have reported, if that is
        believable. Raises DriveFailed, DriveFull, Closed.
        """
        self._drives.require_writable()
        if not self._drives.live():
            raise DriveFailed("no drive of the store can be used")
        self._clock.catch_up()
        self.advance_past(clock)
        epoch = 1
        for version in seen:
            self._clock.advance_past(version.counter)
            epoch = max(epoch, version.epoch)
        return Version(epoch, self._clock.take(), node)

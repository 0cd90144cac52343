"""Stale replicas: replicas that may be outdated, because this node was away or was notified of a write that it took no
part in.

Reads of them are refused, so that clients go on to another replica. Writes are accepted, since a newer version ends the
doubt. A name is in doubt until the store has at least the version that is said to exist, a whole bucket until repair
has compared it with its other replicas. After a drive was given up, the objects that the store has are valid, but a
missing name means nothing until the bucket has been compared. None of this is stored on the drives: a node that starts
doubts whole buckets.

Replicated buckets are read only while this node is known to receive notifications: while it holds a lease, or runs.

Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ais_loader.errors import NodeUnavailable
from storage_node.store.format import CatalogEntry, Version


class ReplicaStale(NodeUnavailable):
    """Another node may have a newer version; read there, or retry in a moment."""


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
        self._is_unsure: Callable[[bytes, str, CatalogEntry], bool] | None = None

    @property
    def any(self) -> bool:
        """Whether any replica may be stale, so that readers have to check."""
        return self._any or self._is_unsure is not None or _clock_s() > self._until_s

    # -- asked by readers

    def whole(self, bucket_uuid: bytes) -> bool:
        return bucket_uuid in self._buckets or (_clock_s() > self._until_s and bucket_uuid in self._guarded)

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

    def missed(self, bucket_uuid: bytes, name: str, version: Version, for_s: float) -> bool:
        """Whether this node may have missed a write of a name, below `version`, within the last `for_s` seconds: it was
        notified of one, or it had no lease for a while."""
        with self._lock:
            entry = self._names.get(bucket_uuid, {}).get(name)
            if entry is not None and entry.version < version and entry.since_s > time.monotonic() - for_s:
                return True
            now = _clock_s()
            changed_s = self._in_touch_since_s if now <= self._until_s else self._until_s
            return bucket_uuid in self._guarded and changed_s > now - for_s

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
            known = self._names.setdefault(bucket_uuid, {})
            for name, version in names.items():
                before = known.get(name)
                if before is None or before.version < version:
                    known[name] = StaleName(version, now)
            self._note()

    def trust_name(self, bucket_uuid: bytes, name: str, version: Version) -> None:
        """Trust a name: the store has this version, or it never came to exist. A doubt about a higher version stays."""
        with self._lock:
            names = self._names.get(bucket_uuid)
            if names is not None and (found := names.get(name)) is not None and found.version <= version:
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
        now = _clock_s()
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
        now = _clock_s()
        with self._lock:
            if self._until_s < now <= until_s:
                self._in_touch_since_s = now
            self._guarded = frozenset(guarded)
            self._until_s = until_s

    def guard(self, guarded: Iterable[bytes]) -> None:
        """Replace the set of guarded buckets. The time until which they may be read stays."""
        with self._lock:
            self._guarded = frozenset(guarded)

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


def _clock_s() -> float:
    """Return the clock that continues while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def stale_message(name: str) -> str:
    return f"{name!r}: this copy may be old, and is not read before it has been compared with the others"

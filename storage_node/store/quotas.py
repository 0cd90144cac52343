"""Quotas of one store's buckets: compares what is to be committed with what all drives count.

Each drive counts for itself (drive/bucket_usage.py). This object has the sums of all drives, the limits of the record,
and the grants: what commits that are under way may add. A commit asks for a grant before it changes anything, and turns
it into a count when it has been done. So the sum of counts and grants never exceeds a quota, however many commits run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from ais_loader.errors import QuotaExceeded
from storage_node.store.store_record import StoreRecord


class Use(NamedTuple):
    """Number and size of objects, or a change of both."""

    objects: int = 0
    size_bytes: int = 0

    def plus(self, other: Use) -> Use:
        return Use(self.objects + other.objects, self.size_bytes + other.size_bytes)

    def minus(self, other: Use) -> Use:
        return Use(self.objects - other.objects, self.size_bytes - other.size_bytes)


class _Limit(NamedTuple):
    bucket: str
    quota: Use
    """0: none."""


class Quotas:
    """Thread-safe. Drives are named by their uuids."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: Mapping[bytes, _Limit] = {}
        self._uses: dict[str, dict[bytes, Use]] = {}  # guarded by _lock, as are _granted
        self._granted: dict[bytes, Use] = {}

    def follow(self, record: StoreRecord) -> None:
        """Use the quotas of this record, and forget drives that have left the store."""
        limits = {
            bucket.uuid_bytes: _Limit(name, Use(bucket.quota_objects, bucket.quota_bytes))
            for name, bucket in record.buckets.items()
            if bucket.quota_bytes or bucket.quota_objects  # `has_quota`, which takes twice as long
        }
        with self._lock:
            self._limits = limits
            self._uses = {drive: uses for drive, uses in self._uses.items() if drive in record.drives}

    def count(self, drive: str, bucket_uuid: bytes, use: Use | None) -> None:
        """Set what a drive has counted in a bucket; None if it does not count any more."""
        with self._lock:
            uses = self._uses.setdefault(drive, {})
            if use is None:
                uses.pop(bucket_uuid, None)
            else:
                uses[bucket_uuid] = use

    def use(self, bucket_uuid: bytes) -> Use:
        """Return what all drives have counted in a bucket."""
        with self._lock:
            return self._use(bucket_uuid)

    def _use(self, bucket_uuid: bytes) -> Use:
        total = Use()
        for uses in self._uses.values():
            total = total.plus(uses.get(bucket_uuid, Use()))
        return total

    def grant(self, bucket_uuid: bytes, name: str, wanted: Use) -> Use | QuotaExceeded:
        """Grant what an object adds to its bucket, until `settle`. What it takes away counts when it is committed."""
        limit = self._limits.get(bucket_uuid)
        added = Use(max(0, wanted.objects), max(0, wanted.size_bytes))
        if limit is None or added == Use():
            return Use()
        with self._lock:
            used = self._use(bucket_uuid)
            granted = self._granted.get(bucket_uuid, Use())
            left = limit.quota.minus(used).minus(granted)
            if limit.quota.size_bytes and added.size_bytes and added.size_bytes > left.size_bytes:
                return QuotaExceeded(
                    f"bucket {limit.bucket!r} has a quota of {limit.quota.size_bytes:,} bytes and uses "
                    f"{used.size_bytes:,}: {name!r} would add {added.size_bytes:,}"
                )
            if limit.quota.objects and added.objects and added.objects > left.objects:
                return QuotaExceeded(
                    f"bucket {limit.bucket!r} has a quota of {limit.quota.objects:,} objects and has "
                    f"{used.objects:,}: {name!r} would add one"
                )
            self._granted[bucket_uuid] = granted.plus(added)
        return added

    def settle(self, drive: str, changed: Mapping[bytes, Use], granted: Mapping[bytes, Use]) -> None:
        """Count what a commit on this drive has changed, and end the grants that it had."""
        with self._lock:
            uses = self._uses.setdefault(drive, {})
            for bucket_uuid, change in changed.items():
                uses[bucket_uuid] = uses.get(bucket_uuid, Use()).plus(change)
            for bucket_uuid, grant in granted.items():
                left = self._granted[bucket_uuid].minus(grant)
                if left == Use():
                    del self._granted[bucket_uuid]
                else:
                    self._granted[bucket_uuid] = left

"""Usage: counters of requests to remote storage, by bucket and tenant.

Their number is limited: beyond it, further tenants of a bucket are counted together. Besides, the bytes that each
bucket has received on this day are counted, for its limit.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from storage_node.limits.call_slots import current_tenant

Request = Literal["get", "head", "list", "put", "delete"]
Count = Literal["bytes_in", "bytes_out", "throttled", "retried", "hedged", "errors", "wait_s"]
MAX_ROWS = 10_000
OTHERS = "other"
"""Tenant of the counters of further tenants."""
_DAY_S = 24 * 3600


class UsageKey(NamedTuple):
    bucket: str
    """UUID."""
    tenant: str


@dataclass(slots=True)
class UsageCounts:
    """Counters of one bucket and tenant. All only grow."""

    requests: dict[Request, int] = field(default_factory=lambda: defaultdict(int))
    """Requests that were sent, including those that were repeated."""
    bytes_in: int = 0
    """Bytes of objects that were received."""
    bytes_out: int = 0
    """Bytes of objects that were put."""
    throttled: int = 0
    """Answers that asked for fewer requests."""
    retried: int = 0
    """Requests that repeated a failed one."""
    hedged: int = 0
    """Second requests for slow answers."""
    errors: int = 0
    """Operations that failed, except for objects that do not exist, and for conditions that do not hold."""
    wait_s: float = 0.0
    """Time that readers waited for cold objects."""

    def add(self, other: UsageCounts) -> None:
        for request, count in other.requests.items():
            self.requests[request] = self.requests.get(request, 0) + count
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.throttled += other.throttled
        self.retried += other.retried
        self.hedged += other.hedged
        self.errors += other.errors
        self.wait_s += other.wait_s


class Usage:
    """Counters of one process. Thread-safe.

    Args:
        now_s: Seconds since 1970, by which days change, at midnight UTC.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._counts: dict[UsageKey, UsageCounts] = {}
        self._days: dict[str, tuple[int, int]] = {}
        """The last day on which a bucket received bytes, and how many."""
        self._buckets: dict[str, None] = {}
        """All buckets, in the order of their first request."""
        self.throttled = 0
        """Sum of this counter over all buckets."""

    def of_bucket(self, bucket: str) -> RemoteBucketUsage:
        """Return the counters of one bucket, by its UUID. Each call counts for its `current_tenant`."""
        return RemoteBucketUsage(self, bucket)

    def note(self, bucket: str, tenant: str, count: Request | Count, amount: float = 1) -> None:
        """Increase a counter: of requests of one kind, or another one."""
        with self._lock:
            self._buckets.setdefault(bucket)
            counts = self._counts_of(UsageKey(bucket, tenant))
            if count in ("get", "head", "list", "put", "delete"):
                counts.requests[count] += int(amount)
            else:
                setattr(counts, count, getattr(counts, count) + amount)
            self.throttled += count == "throttled"
            if count == "bytes_in":
                today = self._today()
                day, size_bytes = self._days.get(bucket, (today, 0))
                self._days[bucket] = today, int(amount) + (size_bytes if day == today else 0)

    def _counts_of(self, key: UsageKey) -> UsageCounts:
        if key not in self._counts and len(self._counts) >= MAX_ROWS:
            key = key._replace(tenant=OTHERS)
        return self._counts.setdefault(key, UsageCounts())

    def _today(self) -> int:
        return int(self._now_s() // _DAY_S)

    def bytes_today(self, bucket: str) -> int:
        """Return the bytes of objects that a bucket has received since midnight UTC, or since this process began."""
        with self._lock:
            day, size_bytes = self._days.get(bucket, (0, 0))
            return size_bytes if day == self._today() else 0

    def snapshot(self) -> Mapping[UsageKey, UsageCounts]:
        """Return copies of all counters, by bucket and tenant."""
        with self._lock:
            return {key: replace(one, requests=dict(one.requests)) for key, one in self._counts.items()}

    def by_bucket(self) -> Mapping[str, UsageCounts]:
        """Return the sums of the counters by bucket, in the order of the buckets' first requests."""
        with self._lock:
            sums = {bucket: UsageCounts() for bucket in self._buckets}
            for key, counts in self._counts.items():
                sums[key.bucket].add(counts)
            return sums


class RemoteBucketUsage:
    """Counters of one bucket."""

    def __init__(self, usage: Usage, bucket: str) -> None:
        self._usage = usage
        self._bucket = bucket

    def note(self, count: Request | Count, amount: float = 1) -> None:
        self._usage.note(self._bucket, current_tenant.get(), count, amount)

    @property
    def bytes_today(self) -> int:
        """See `Usage.bytes_today`."""
        return self._usage.bytes_today(self._bucket)

"""Usage: counters of requests to remote storage, by bucket and tenant."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from storage_node.limits.call_slots import current_tenant

Request = Literal["get", "head", "list", "put", "delete"]
Count = Literal["bytes_in", "bytes_out", "throttled", "retried", "hedged", "errors", "wait_s"]


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
    """Time that requests waited for their turn, or before they were repeated."""


class Usage:
    """Counters of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], UsageCounts] = {}

    def of_bucket(self, bucket: str) -> BucketUsage:
        """Return the counters of one bucket, by its UUID; those of each call go to its `current_tenant`."""
        return BucketUsage(self, bucket)

    def note(self, bucket: str, tenant: str, count: Request | Count, amount: float = 1) -> None:
        """Increase a counter: of requests of one kind, or another one."""
        with self._lock:
            counts = self._counts.setdefault((bucket, tenant), UsageCounts())
            if count in ("get", "head", "list", "put", "delete"):
                counts.requests[count] += int(amount)
            else:
                setattr(counts, count, getattr(counts, count) + amount)

    def forget(self, buckets: Iterable[str]) -> None:
        """Remove the counters of deleted buckets."""
        gone = set(buckets)
        with self._lock:
            self._counts = {key: counts for key, counts in self._counts.items() if key[0] not in gone}

    def snapshot(self) -> Mapping[tuple[str, str], UsageCounts]:
        """Return copies of all counters, by bucket and tenant."""
        with self._lock:
            return {key: replace(one, requests=dict(one.requests)) for key, one in self._counts.items()}


class BucketUsage:
    """Counters of one bucket."""

    def __init__(self, usage: Usage, bucket: str) -> None:
        self._usage = usage
        self._bucket = bucket

    def note(self, count: Request | Count, amount: float = 1) -> None:
        self._usage.note(self._bucket, current_tenant.get(), count, amount)

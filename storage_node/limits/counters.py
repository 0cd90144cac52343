"""Metric counters of a node: plain numbers, so that counting takes no lock and needs no library.

They are written on the node's event loop only. `storage_node.metrics` declares what they mean and reads them from
another thread on each scrape; it may see one batch's numbers half added. Nothing is ever reset: rates are computed by
Prometheus.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ais_loader.wire.frame import U8, U32
from ais_loader.wire.generated import ais_batch_pb2 as pb

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the latency histograms' buckets, in seconds, inclusive; one further bucket is unbounded."""
KINDS = ("single", "many", "part")
"""Kinds of batches. A batch of one entry is a client's read of a single object; its latency is counted separately,
since a mixture would mean little. A part is the contribution of one node of several: the node that assembles the batch
may deliver its bytes once more."""
OUTCOMES = ("complete", "stopped", "failed", "rejected", "abandoned")
CONTENTS = ("object", "member")
REASONS = ("batches", "answers", "memory", "still", "rate", "stopping")
THROTTLES = ("memory", "turn", "cpu", "drives")
OPERATIONS = ("put", "get", "head", "delete", "list")
STATUSES = {status: name.lower() for name, status in pb.Status.items() if status != pb.OK}
REFUSALS = (
    "missing",
    "malformed",
    "algorithm",
    "signature",
    "audience",
    "expired",
    "not_yet_valid",
    "revoked",
    "rights",
    "entries",
)
"""Reasons for refusing a client's call: its token, or missing rights. With `entries`, only some entries of a batch are
refused."""
K = TypeVar("K")
clock_s = time.perf_counter


class Histogram:
    """Number of values in each bucket, and their sum in seconds."""

    __slots__ = ("buckets", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        self.buckets[bisect_left(BOUNDS_S, value_s)] += 1
        self.sum_s += value_s


def _zeros(names: Iterable[str]) -> dict[str, int]:
    # Present from the start: a rate needs the zero before the first event.
    return dict.fromkeys(names, 0)


def count(counts: dict[K, int], key: K, more: int = 1) -> None:
    counts[key] = counts.get(key, 0) + more


class NodeCounters:
    """All counters since the node started."""

    def __init__(self) -> None:
        self.batches = {kind: _zeros(OUTCOMES) for kind in KINDS}
        self.first_byte = {kind: Histogram() for kind in KINDS}
        self.duration = {kind: Histogram() for kind in KINDS}
        self.entries = {kind: _zeros(CONTENTS) for kind in KINDS}
        self.entry_bytes = {kind: _zeros(CONTENTS) for kind in KINDS}
        self.soft_errors = _zeros(STATUSES.values())
        self.hard_errors = _zeros(STATUSES.values())
        self.rejections = _zeros(REASONS)
        self.throttle_s = dict.fromkeys(THROTTLES, 0.0)
        self.client_wait_s = 0.0
        self.sent_bytes = 0
        self.pending_reads = 0
        self.requests = _zeros(OPERATIONS)
        self.request_errors = dict.fromkeys(((operation, "internal") for operation in OPERATIONS), 0)
        self.request_bytes = _zeros(("get", "put"))
        self.listed_objects = 0
        self.refusals = _zeros(REFUSALS)
        self.first_token_end_s: float | None = None
        """When the first of the tokens ends that were used lately, in seconds since the epoch."""

    def small(self, request: pb.BatchRequest, size_bytes: int, took_s: float) -> None:
        """Count a batch of a few small objects that was answered at once, or the mere description of one."""
        if not size_bytes and request.HasField("whole_up_to"):
            self.requests["head"] += 1
            return
        kind = kind_of(request)
        self.batches[kind]["complete"] += 1
        self.entries[kind]["object"] += len(request.name)
        self.entry_bytes[kind]["object"] += size_bytes
        self.first_byte[kind].observe(took_s)
        self.duration[kind].observe(took_s)


def count_each(counts: NodeCounters, operation: str, kinds: Iterable[str]) -> None:
    """Count an operation on many objects as one for each: `kinds` contains the error kind of each, "" for success."""
    for kind in kinds:
        count(counts.requests, operation)
        if kind:
            count(counts.request_errors, (operation, kind))


def kind_of(request: pb.BatchRequest) -> str:
    if request.local:
        return "part"
    return "single" if len(request.name) == 1 else "many"


class Entries(Protocol):
    """Properties of a batch's entries at its end; arrays of shape (n,)."""

    @property
    def status(self) -> U8: ...
    @property
    def sizes(self) -> npt.NDArray[np.int64]: ...
    @property
    def checksum(self) -> U32: ...


class BatchTally:
    """Counts one batch, from its request's arrival to its end; a context manager around its processing."""

    __slots__ = ("_began_s", "_counts", "_first_byte_s", "_kind", "_outcome", "_request", "batch")

    def __init__(self, counts: NodeCounters, request: pb.BatchRequest) -> None:
        self._counts = counts
        self._request = request
        self._kind = kind_of(request)
        self._outcome = ""
        self.batch: Entries | None = None
        """The entries, once all that are sent were; None before."""
        self._first_byte_s: float | None = None
        self._began_s = clock_s()

    @property
    def outcome(self) -> str:
        """One of OUTCOMES, or "described"; known after the batch."""
        return self._outcome

    def __enter__(self) -> BatchTally:
        return self

    def __exit__(self, *_: object) -> None:
        counts, kind = self._counts, self._kind
        if self._outcome == "described":
            return
        # No outcome so far: the client cancelled the batch, or its connection has broken.
        self._outcome = self._outcome or "abandoned"
        counts.batches[kind][self._outcome] += 1
        if self._first_byte_s is not None:
            counts.first_byte[kind].observe(self._first_byte_s)
        if self._outcome in ("complete", "stopped", "failed"):
            counts.duration[kind].observe(clock_s() - self._began_s)

    def frame_sent(self) -> None:
        if self._first_byte_s is None:
            self._first_byte_s = clock_s() - self._began_s

    def ended(self, batch: Entries, end: pb.End | None) -> None:
        """Note that the batch has been read and sent, except `end` (None if it went with the last frame)."""
        self.batch = batch
        counts, n = self._counts, len(batch.status) if end is None else end.entries
        status, members = batch.status[:n], self._request.member
        failed = status.nonzero()[0].tolist()
        in_shards, shard_bytes = 0, 0
        if members:
            at = [i for i in range(n) if members[i] and not status[i]]
            in_shards, shard_bytes = len(at), int(batch.sizes[at].sum())
        entries, entry_bytes = counts.entries[self._kind], counts.entry_bytes[self._kind]
        entries["member"] += in_shards
        entry_bytes["member"] += shard_bytes
        entries["object"] += n - len(failed) - in_shards
        # A failed entry has no size.
        entry_bytes["object"] += int(batch.sizes[:n].sum()) - shard_bytes
        if self._request.fail_fast and failed:
            self.stopped_at(status)
            return
        self._outcome = "complete"
        for position in failed:
            count(counts.soft_errors, STATUSES.get(int(status[position]), "failed"))

    def described(self, *, found: bool) -> None:
        """Note that only the properties of the only entry's object were sent: a HEAD. If it was not `found`, the client
        goes on to ask by a call that counts."""
        self._outcome = "described"
        self._counts.requests["head"] += found

    def stopped_at(self, status: U8) -> None:
        """Note that the first failed entry among these has ended the batch; its client may have disconnected with the
        error before the node reports it. May be called again."""
        if self._outcome != "stopped":
            self._outcome = "stopped"
            count(self._counts.hard_errors, STATUSES.get(int(status[status != pb.OK][0]), "failed"))

    def failed(self, kind: str) -> None:
        self._outcome = "failed"
        count(self._counts.hard_errors, kind)

    def rejected(self, reason: str) -> None:
        self._outcome = "rejected"
        count(self._counts.rejections, reason)

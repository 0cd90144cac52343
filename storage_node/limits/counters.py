"""Metric counters of a node: plain numbers, so that serving pays next to nothing and needs no library.

Written on the node's event loop only. `storage_node.metrics.exporter` reads them from another thread, and may see one
batch's numbers half added. Nothing here is ever reset: rates are the reader's business.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ais_loader.wire.frame import U8
from ais_loader.wire.generated import ais_batch_pb2 as pb

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the latency histograms' buckets, in seconds, inclusive; one more bucket has no bound."""
KINDS = ("single", "many", "part")
"""A batch of one entry is how a client reads a single object; counted with others, neither latency would mean much.
A part is what one node of several contributes: its bytes may be delivered once more by the node that assembles."""
OUTCOMES = ("complete", "stopped", "failed", "rejected", "abandoned")
CONTENTS = ("object", "member")
REASONS = ("batches", "answers", "memory", "still", "stopping")
THROTTLES = ("memory", "turn", "cpu", "drives")
OPERATIONS = ("put", "get", "head", "delete", "list")
STATUSES = {status: name.lower() for name, status in pb.Status.items() if status != pb.OK}
clock_s = time.perf_counter


class Histogram:
    """How many values fell into each bucket, and their sum in seconds."""

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


def count(counts: dict[str, int], name: str, more: int = 1) -> None:
    counts[name] = counts.get(name, 0) + more


class NodeMetrics:
    """Everything since the node began."""

    def __init__(self) -> None:
        self.batches = {kind: _zeros(OUTCOMES) for kind in KINDS}
        self.first_byte = {kind: Histogram() for kind in KINDS}
        """From the request's arrival to the moment when its first frame has been handed to the network."""
        self.duration = {kind: Histogram() for kind in KINDS}
        """From the request's arrival to the moment when its END has been; of batches that were not turned away."""
        self.entries = {kind: _zeros(CONTENTS) for kind in KINDS}
        self.entry_bytes = {kind: _zeros(CONTENTS) for kind in KINDS}
        """Good entries of batches that reached their END."""
        self.soft_errors = _zeros(STATUSES.values())
        """Entries that failed in a batch that went on, by status."""
        self.hard_errors = _zeros(STATUSES.values())
        """Batches that an error ended, by the error's kind; the status of the entry where that ended it."""
        self.rejections = _zeros(REASONS)
        self.throttle_s = dict.fromkeys(THROTTLES, 0.0)
        """Batches held back, by cause: frames that wait for a turn among tenants or for memory, and pauses."""
        self.client_wait_s = 0.0
        """Frames whose client had granted no credit for them yet."""
        self.sent_bytes = 0
        """All messages of all sessions."""
        self.pending_reads = 0
        """Pieces of work that reader threads have or are waiting for."""

        self.requests = _zeros(OPERATIONS)
        """Calls on single objects."""
        self.request_errors = dict.fromkeys(((operation, "internal") for operation in OPERATIONS), 0)
        """By operation and the error's kind."""
        self.request_bytes = _zeros(("get", "put"))
        self.listed_objects = 0

    def small(self, request: pb.BatchRequest, size_bytes: int, took_s: float) -> None:
        """A batch of a few small objects, answered whole."""
        kind = kind_of(request)
        self.batches[kind]["complete"] += 1
        self.entries[kind]["object"] += len(request.name)
        self.entry_bytes[kind]["object"] += size_bytes
        self.first_byte[kind].observe(took_s)
        self.duration[kind].observe(took_s)


def kind_of(request: pb.BatchRequest) -> str:
    if request.local:
        return "part"
    return "single" if len(request.name) == 1 else "many"


class Entries(Protocol):
    """What a batch knows of its entries when it ends; arrays of shape (n,)."""

    @property
    def status(self) -> U8: ...
    @property
    def sizes(self) -> npt.NDArray[np.int64]: ...


class BatchTally:
    """One batch from its request's arrival to whatever ends it; a context manager around all that is done for it."""

    __slots__ = ("_began_s", "_counts", "_first_byte_s", "_kind", "_outcome", "_request")

    def __init__(self, counts: NodeMetrics, request: pb.BatchRequest) -> None:
        self._counts = counts
        self._request = request
        self._kind = kind_of(request)
        self._outcome = ""
        self._first_byte_s: float | None = None
        self._began_s = clock_s()

    def __enter__(self) -> BatchTally:
        return self

    def __exit__(self, *_: object) -> None:
        counts, kind = self._counts, self._kind
        # Without a word so far: the client cancelled it, or its connection is gone.
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
        """The batch has been read and sent, but for `end` (None when that went with the last frame)."""
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
        # An entry that failed has no size.
        entry_bytes["object"] += int(batch.sizes[:n].sum()) - shard_bytes
        if self._request.fail_fast and failed:
            self.stopped_at(status)
            return
        self._outcome = "complete"
        for position in failed:
            count(counts.soft_errors, STATUSES.get(int(status[position]), "failed"))

    def stopped_at(self, status: U8) -> None:
        """A failed entry, the first among these, has ended the batch, and its client may be gone with its error before
        the node has said so. May be called again."""
        if self._outcome != "stopped":
            self._outcome = "stopped"
            count(self._counts.hard_errors, STATUSES.get(int(status[status != pb.OK][0]), "failed"))

    def failed(self, kind: str) -> None:
        self._outcome = "failed"
        count(self._counts.hard_errors, kind)

    def rejected(self, reason: str) -> None:
        self._outcome = "rejected"
        count(self._counts.rejections, reason)

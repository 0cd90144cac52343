"""Batch timing: every moment of a batch counts for exactly one of five causes.

A `TimingStopwatch` goes from cause to cause as the batch does, at most a few times per frame and never per item.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ais_loader.wire.frame import Frame
from ais_loader.wire.node_waits import NodeWaits

Cause: TypeAlias = Literal["queue", "ahead", "wire", "consumer", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTiming:
    """Timing of one batch as its client saw it, in seconds. The five times add up to the life of the batch, from the
    request to the last item.
    """

    queue_s: float
    """Time before the request was sent, and between a rejection or the loss of a node and the next attempt."""
    ahead_s: float
    """Time in flight while nothing waited for the batch, because it was requested ahead of its turn."""
    wire_s: float
    """Time spent waiting for frames, that is, for the network and the nodes. In an embedded store: reading them."""
    consumer_s: float
    """Time between taking one frame and asking for the next: the trainer's time."""
    decode_s: float
    """The same for time that this library used: copying by tobytes() or packed(), and a dataset's decode()."""
    payload_bytes: int
    """Bytes of the entries that arrived."""
    entries: int
    """Entries that arrived, including failed ones. Fewer than were requested if the batch was not consumed."""
    failures: int
    """Entries that arrived without their data."""
    retries: int
    """How many times the batch, or the rest of it, was requested again."""
    hedged: int = 0
    """Entries that were also requested from a second node because the first was slow."""
    node_queue_s: float = 0.0
    """These five are what a node says of its own waits, once the batch has been received, and overlap with `ahead_s`
    and `wire_s`; of several nodes, the one that was waited for the longest. Here: waiting for a turn or a thread."""
    drive_s: float = 0.0
    """Looking up and reading what is stored; in an embedded store, too."""
    peer_s: float = 0.0
    """Waiting for another node, beyond that node's own waits; includes the network."""
    cloud_s: float = 0.0
    """Waiting for remote storage; in an embedded store, too."""
    throttle_s: float = 0.0
    """The same, while remote storage asked for fewer requests."""
    node: str = ""
    """Node that was waited for the longest; "" if only one was asked."""
    request_id: str = ""
    """Identifies the batch in the logs of nodes."""

    @property
    def total_s(self) -> float:
        """The life of the batch: the sum of the five times."""
        return self.queue_s + self.ahead_s + self.wire_s + self.consumer_s + self.decode_s


class TimingStopwatch:
    """Running measurement of one batch. Belongs to one thread at a time."""

    __slots__ = ("_cause", "_since_s", "_spent_s", "entries", "failures", "heard", "payload_bytes")

    def __init__(self) -> None:
        self._spent_s: dict[Cause, float] = {"queue": 0.0, "ahead": 0.0, "wire": 0.0, "consumer": 0.0, "decode": 0.0}
        self._cause: Cause | None = "queue"
        self._since_s = time.perf_counter()
        self.payload_bytes = self.entries = self.failures = 0
        self.heard: Callable[[Cause], None] | None = None
        """Called with each cause that begins."""

    def enter(self, cause: Cause) -> None:
        """Attribute the time from now on to `cause`. No effect after a stop."""
        if self._cause is not None:
            now_s = time.perf_counter()
            self._spent_s[self._cause] += now_s - self._since_s
            self._cause, self._since_s = cause, now_s
            if self.heard is not None:
                self.heard(cause)

    def stop(self) -> None:
        self.enter("wire")
        self._cause = None

    def resume(self, cause: Cause) -> None:
        """Continue after a stop; the time in between does not count."""
        self._cause, self._since_s = cause, time.perf_counter()

    def took(self, frame: Frame) -> None:
        self.payload_bytes += frame.payload_bytes
        self.entries += len(frame.index) if frame.completes_entry else 0
        self.failures += int(np.count_nonzero(frame.status))

    def took_whole(self, items: Sequence[bytes]) -> None:
        self.payload_bytes += sum(map(len, items))
        self.entries += len(items)

    def read(self, *, paused_s: float, retries: int, hedged: int, waits: NodeWaits, request_id: str) -> BatchTiming:
        """Return the times so far. `paused_s`: the pauses before retries, which were counted as "wire"."""
        spent_s = dict(self._spent_s)
        if self._cause is not None:
            spent_s[self._cause] += time.perf_counter() - self._since_s
        paused_s = min(paused_s, spent_s["wire"])
        return BatchTiming(
            queue_s=spent_s["queue"] + paused_s,
            ahead_s=spent_s["ahead"],
            wire_s=spent_s["wire"] - paused_s,
            consumer_s=spent_s["consumer"],
            decode_s=spent_s["decode"],
            payload_bytes=self.payload_bytes,
            entries=self.entries,
            failures=self.failures,
            retries=retries,
            hedged=hedged,
            node_queue_s=waits.spent_s["queue"],
            drive_s=waits.spent_s["drive"],
            peer_s=waits.spent_s["peer"],
            cloud_s=waits.spent_s["cloud"],
            throttle_s=waits.spent_s["throttle"],
            node=waits.node,
            request_id=request_id,
        )

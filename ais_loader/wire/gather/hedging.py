"""Hedging: when to request a slow response from a second node as well, and how often.

A response is slow if its reader waits longer than for nearly all recent ones. A second request doubles the work for an
entry. That pays off for the few entries that hold up all others, and would be fatal if an overloaded cluster were asked
for everything twice. A budget, a share of all requests, therefore bounds it.

Source: Dean and Barroso, "The Tail at Scale" (2013). Shared by clients and by nodes that gather batches.
"""

from __future__ import annotations

import threading
from collections import deque

BURST_ENTRIES = 20_000
"""The full budget, which is also the initial one, corresponds to this many requested entries."""
_SAMPLES, _AT_LEAST, _EVERY = 512, 20, 32
_QUANTILE = 0.95
_LAST_FACTOR, _FACTOR = 1.5, 3.0


class HedgeBudget:
    """Tokens, one per entry that is requested twice. Thread-safe.

    Args:
        share: tokens gained per requested entry, 0 to 1. 0 disables hedging.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.hedged = 0
        """Number of entries that were requested twice."""
        self._most = share * BURST_ENTRIES
        self._tokens = self._most
        self._lock = threading.Lock()

    def requested(self, entries: int) -> None:
        """Add tokens for entries that were requested once."""
        with self._lock:
            self._tokens = min(self._most, self._tokens + self.share * entries)

    @property
    def available(self) -> bool:
        """Whether anything may be requested again."""
        return self._tokens >= 1

    def take(self, entries: int) -> int:
        """Return how many of these entries may be requested again, and spend their tokens."""
        with self._lock:
            granted = min(entries, int(self._tokens))
            self._tokens -= granted
            self.hedged += granted
            return granted

    def forget_inherited(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may hold it."""
        self._lock = threading.Lock()


class Silences:
    """Recent waiting times of readers.

    Args:
        floor_s: shorter waits are never slow.
        first_s: limit until enough waits were observed.
    """

    def __init__(self, floor_s: float = 0.1, first_s: float = 1.0) -> None:
        self._floor_s = floor_s
        self._first_s = first_s
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._seen = 0
        self._high_s = first_s

    def note(self, waited_s: float) -> None:
        """Record a wait that ended with a response."""
        self._samples.append(waited_s)
        self._seen += 1
        if len(self._samples) >= _AT_LEAST and self._seen % _EVERY in (0, _AT_LEAST):
            ordered = sorted(self._samples)  # numpy takes longer for so few
            at, part = divmod(_QUANTILE * (len(ordered) - 1), 1)
            low_s, high_s = ordered[int(at) : int(at) + 2]
            self._high_s = low_s + part * (high_s - low_s)

    def limit_s(self, *, last: bool) -> float:
        """Return how long a wait must be to count as slow; less if it is the last one of a batch."""
        if len(self._samples) < _AT_LEAST:
            return self._first_s
        return max(self._floor_s, self._high_s * (_LAST_FACTOR if last else _FACTOR))


class Hedging:
    """Hedging state of one client or node."""

    def __init__(self, share: float) -> None:
        self.budget = HedgeBudget(share)
        self.parts = Silences()
        """Waits for nodes that send their own objects."""
        self.gathered = Silences(0.5, 2.0)
        """Waits for nodes that gather from others first, and hedge by themselves."""
        self.singles = Silences()
        """Waits for single objects."""

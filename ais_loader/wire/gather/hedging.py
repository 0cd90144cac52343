"""Hedging: when a slow answer is asked for at a second place as well, and how much of that there may be.

Slow is what keeps its reader waiting for longer than nearly everything did of late. Asking twice doubles the work for
an entry, which is worth it for the few that would hold up all others, and would be ruin if an overloaded cluster were
asked for everything twice: so a budget, a share of what is asked for at all, bounds it.

The idea is that of Dean and Barroso, "The Tail at Scale" (2013). Shared by clients and by nodes that gather batches.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

BURST_ENTRIES = 20_000
"""The budget may be spent at once for as many entries as these were asked for: it begins full."""
_SAMPLES, _AT_LEAST, _EVERY = 512, 20, 32
_QUANTILE = 0.95
_LAST_FACTOR, _FACTOR = 1.5, 3.0


class HedgeBudget:
    """Tokens, one for each entry that is asked for twice. Thread-safe.

    Args:
        share: tokens that come in for each entry asked for, 0 to 1; 0: nothing is ever asked for twice.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.hedged = 0
        """Entries that were asked for twice."""
        self._most = share * BURST_ENTRIES
        self._tokens = self._most
        self._lock = threading.Lock()

    def asked(self, entries: int) -> None:
        """Entries have been asked for, once."""
        with self._lock:
            self._tokens = min(self._most, self._tokens + self.share * entries)

    @property
    def available(self) -> bool:
        """Whether anything may be asked for again."""
        return self._tokens >= 1

    def take(self, entries: int) -> int:
        """How many of these may be asked for again; they count as spent."""
        with self._lock:
            granted = min(entries, int(self._tokens))
            self._tokens -= granted
            self.hedged += granted
            return granted

    def forget_inherited(self) -> None:
        """In a forked child: the lock may be held by a thread that is not here."""
        self._lock = threading.Lock()


class Silences:
    """How long answers have kept their readers waiting, of late.

    Args:
        floor_s: shorter silences are nothing.
        first_s: what counts as long before enough has been seen.
    """

    def __init__(self, floor_s: float = 0.1, first_s: float = 1.0) -> None:
        self._floor_s = floor_s
        self._first_s = first_s
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._seen = 0
        self._high_s = first_s

    def note(self, waited_s: float) -> None:
        """A reader has waited for something, which then came."""
        self._samples.append(waited_s)
        self._seen += 1
        if len(self._samples) >= _AT_LEAST and self._seen % _EVERY in (0, _AT_LEAST):
            self._high_s = float(np.quantile(np.array(self._samples), _QUANTILE))

    def limit_s(self, *, last: bool) -> float:
        """How long a silence must be to be out of the ordinary; less where it is the last that a batch waits for."""
        if len(self._samples) < _AT_LEAST:
            return self._first_s
        return max(self._floor_s, self._high_s * (_LAST_FACTOR if last else _FACTOR))


class Hedging:
    """What one client, or one node, knows and may do."""

    def __init__(self, share: float) -> None:
        self.budget = HedgeBudget(share)
        self.parts = Silences()
        """Of nodes that send what they have."""
        self.gathered = Silences(0.5, 2.0)
        """Of nodes that gather from others first, and hedge themselves."""
        self.singles = Silences()
        """Of nodes that are asked for one object."""

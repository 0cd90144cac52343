"""MixOrder: which of several weighted sources has each draw, at any position, without the draws before it.

The *due* of a source before draw t is the sum of its weights until then. The number of draws that it has had, its
*count*, is that due, rounded down or up. Counts never decrease, and their sum is t. Such an order exists for any
weights (Tijdeman). The usual way to find one replays it: always take the source whose next draw is due first, among
those that have begun to owe one. Here, replay is limited to a chunk:

- At multiples of a period, counts depend on the dues alone. A source of the smallest weight has two draws in a period,
  so that its count at one multiple never exceeds that at the next.
- Between two positions with known counts, those in the middle are chosen, until a chunk is left.

A choice decides which sources are rounded up. Rounding down is possible as long as all draws before that position can
be filled by sources that owe one. Among those possibilities, the sources rounded down are those that are due last. The
sets of sources that can be rounded down are a matroid, so that the greedy choice leaves the best possible rest.

Shares are fractions with one denominator. The arithmetic is exact at any position. The search for draws that could not
be filled covers `_HORIZON` draws. For weights below 2 / _HORIZON of the sum, a count may therefore be rounded by more
than one draw.

Source: Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

SCALE_BITS = 40
SCALE = 1 << SCALE_BITS
"""Denominator of all shares."""
_CHUNK = 64
"""Draws whose order is found one after another."""
_HORIZON = 2048
_FAR = 1 << 60


class MixOrder:
    """The order of draws from draw `start` on, with constant weights.

    Args:
        start: The first draw.
        weights: The weights of the sources, at least one of them > 0. Weights of 0 get no draw.
        counts: The number of draws that each source has had before `start`. Their sum is `start`.
        dues: The dues before `start`, in units of 1 / SCALE draws. Their sum is `start * SCALE`.
    """

    def __init__(self, start: int, weights: Sequence[float], counts: Sequence[int], dues: Sequence[int]) -> None:
        self.start = start
        self.shares = _shares(weights)
        self._counts, self._dues = list(counts), list(dues)
        self._share_array = np.array(self.shares)
        least = min(share for share in self.shares if share)
        self._period = max(_CHUNK, 1 << (2 * SCALE // least).bit_length())
        self._chunk: tuple[int, list[int], list[int]] | None = None

    def dues(self, draw: int) -> list[int]:
        """Return the due of each source before a draw, in units of 1 / SCALE draws."""
        return [due + (draw - self.start) * share for due, share in zip(self._dues, self.shares, strict=True)]

    def counts(self, draw: int) -> list[int]:
        """Return the number of draws that each source has had before a draw."""
        first, counts, sources = self._chunk_of(draw)
        counts = list(counts)
        for source in sources[: draw - first]:
            counts[source] += 1
        return counts

    def sources(self, draw: int, stop: int) -> list[int]:
        """Return the source of each draw from `draw` to `stop` - 1."""
        found: list[int] = []
        while draw < stop:
            first, _, sources = self._chunk_of(draw)
            part = sources[draw - first : stop - first]
            found += part
            draw += len(part)
        return found

    def _chunk_of(self, draw: int) -> tuple[int, list[int], list[int]]:
        """Return the first draw of a chunk, the counts before it, and the sources of its draws."""
        chunk = self._chunk
        if chunk is None or not chunk[0] <= draw < chunk[0] + _CHUNK:
            low = draw - (draw - self.start) % self._period
            high = low + self._period
            least, most = self._at_multiple(low), self._at_multiple(high)
            while high - low > _CHUNK:
                middle = (low + high) // 2
                found = self._chosen(middle, low, least, most)
                if draw < middle:
                    high, most = middle, found
                else:
                    low, least = middle, found
            self._chunk = chunk = (low, least, self._one_by_one(low, least, most))
        return chunk

    def _at_multiple(self, draw: int) -> list[int]:
        if draw == self.start:
            return self._counts
        most = [count + _FAR if share else count for count, share in zip(self._counts, self.shares, strict=True)]
        return self._chosen(draw, draw - self._period, self._counts, most)

    def _chosen(self, draw: int, first: int, least: list[int], most: list[int]) -> list[int]:
        """Return the counts before a draw.

        Args:
            first: The draw from which on the order is still open.
            least, most: Counts at two other positions, one before and one after `draw`.
        """
        dues = self.dues(draw)
        counts = [min(max(due >> SCALE_BITS, low), high) for due, low, high in zip(dues, least, most, strict=True)]
        missing = draw - sum(counts)
        free = [at for at, count in enumerate(counts) if count < most[at] and count << SCALE_BITS < dues[at]]
        free.sort(key=lambda at: (self._deadline(at, counts[at], dues[at]), at))
        if 0 < missing < len(free):
            window = np.arange(max(first - draw, -_HORIZON), 0)
            # Whole draws that each source owes or has had before each draw of the window, relative to its count.
            owed = np.array([due - (count << SCALE_BITS) for due, count in zip(dues, counts, strict=True)])
            begun = -(-(owed + window[:, None] * self._share_array) >> SCALE_BITS)
            begun = np.maximum(begun, [max(low - count, -_FAR) for low, count in zip(least, counts, strict=True)])
            ups = np.zeros(len(counts), np.int64)
            ups[free] = 1
            spare = np.minimum(begun, ups).sum(axis=1) - window - missing
            since = (begun < 1).sum(axis=0)
            down: set[int] = set()
            for at in reversed(free):
                if len(down) < len(free) - missing and spare[since[at] :].min(initial=1) > 0:
                    spare[since[at] :] -= 1
                    down.add(at)
            free = [at for at in free if at not in down] + sorted(down, key=free.index)
        for at in free[: max(missing, 0)]:
            counts[at] += 1
        # Only where the weights have changed a short time ago can more be missing, or too many be there.
        missing = draw - sum(counts)
        while missing:
            bounds, step = (most, 1) if missing > 0 else (least, -1)
            at = min(
                (at for at, count in enumerate(counts) if count != bounds[at]),
                key=lambda at: (step * self._deadline(at, counts[at], dues[at]), at),
            )
            counts[at] += step
            missing -= step
        return counts

    def _one_by_one(self, first: int, least: list[int], most: list[int]) -> list[int]:
        """Return the sources of a chunk's draws, between the counts at its ends."""
        dues = self.dues(first)
        coming = [
            (((count << SCALE_BITS) - due) // share, self._deadline(at, count, due), at)
            for at, (low, high, due, share) in enumerate(zip(least, most, dues, self.shares, strict=True))
            for count in range(low, high)
        ]
        coming.sort(reverse=True)
        owed: list[tuple[int, int]] = []
        sources = []
        for place in range(_CHUNK):
            while coming and (coming[-1][0] <= place or not owed):
                heapq.heappush(owed, coming.pop()[1:])
            sources.append(heapq.heappop(owed)[1])
        return sources

    def _deadline(self, at: int, count: int, due: int) -> int:
        """Return the number of draws until the source's next one is due in full."""
        return -((due - ((count + 1) << SCALE_BITS)) // (self.shares[at] or 1))


def _shares(weights: Sequence[float]) -> list[int]:
    """Return integers in proportion to the weights, whose sum is SCALE."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    shares = [max(int(weight * SCALE / total), 1) if weight else 0 for weight in exact]
    shares[shares.index(max(shares))] += SCALE - sum(shares)
    return shares

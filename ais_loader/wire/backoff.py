"""Back-off: pauses between attempts, each longer than the last, with jitter.

The caller counts the failures, and sets the first and the longest pause. If many may retry at once, the pause is drawn
at random, so that callers that failed together do not return together.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `first_s` to `longest_s`.

    Args:
        jitter: the share of a pause that is drawn: 1: anything up to the whole of it; 0: always the whole.
    """

    first_s: float
    longest_s: float
    jitter: float = 1.0

    def whole_s(self, failures: int = 0) -> float:
        """Return the pause after this many earlier failures, without jitter."""
        return min(self.longest_s, math.ldexp(self.first_s, min(failures, _DOUBLINGS)))

    def pause_s(self, failures: int = 0, at_least_s: float = 0.0, source: random.Random | None = None) -> float:
        """Return the pause with jitter applied, at least `at_least_s` before the jitter."""
        share = (random if source is None else source).uniform(1 - self.jitter, 1)
        return share * max(self.whole_s(failures), at_least_s)

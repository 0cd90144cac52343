"""Back-off: how long to wait between the tries of one thing, longer each time, and not all at the same time.

Whoever tries counts the failures, and says with which pause to begin and where to stop growing. What may be done by
many at once is drawn at random, so that those who failed together do not come back together.
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
        """The pause after so many failures before this one, undiminished."""
        return min(self.longest_s, math.ldexp(self.first_s, min(failures, _DOUBLINGS)))

    def pause_s(self, failures: int = 0, at_least_s: float = 0.0, source: random.Random | None = None) -> float:
        """The same as drawn; of `at_least_s`, where that is longer."""
        share = (random if source is None else source).uniform(1 - self.jitter, 1)
        return share * max(self.whole_s(failures), at_least_s)

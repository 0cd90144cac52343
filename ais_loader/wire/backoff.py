"""Back-off: pauses between attempts, each longer than the last, with jitter.

The caller counts the failures, and sets the first and the longest pause. If many may retry at once, the pause is drawn
at random, so that callers that failed together do not return together.

Suspects are nodes that did not answer, each for a while or until it answers. They keep one dead node from costing every
call its time limit. The caller decides how long to remember, and whether to ask such a node last or not at all.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

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


Node = TypeVar("Node", bound=Hashable)


class _Suspect(NamedTuple):
    since_s: float
    until_s: float
    times: int
    """Number of earlier suspicions since the node last answered."""


class Suspects(Generic[Node]):
    """Suspected nodes. Thread-safe: each step is one look-up or one assignment.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Node, _Suspect] = {}

    def __bool__(self) -> bool:
        """Return whether any node has failed and not answered since."""
        return bool(self._known)

    def failed(self, node: Node, pause: Backoff) -> None:
        """Suspect a node for `pause` from now on, longer each time until it answers."""
        now, before = self._clock(), self._known.get(node)
        since_s, times = (now, 0) if before is None else (before.since_s, before.times + 1)
        self._known[node] = _Suspect(since_s, now + pause.whole_s(times), times)

    def answered(self, node: Node) -> None:
        if self._known:
            self._known.pop(node, None)

    def __contains__(self, node: Node) -> bool:
        known = self._known.get(node)
        return known is not None and self._clock() < known.until_s

    def among(self, nodes: set[Node]) -> set[Node]:
        """Return those of these nodes that are suspected now."""
        return {node for node in self._known.keys() & nodes if node in self}

    def failing_s(self, node: Node) -> float:
        """Return how long the node has been failing since its last answer; 0 if it has not failed."""
        known = self._known.get(node)
        return 0.0 if known is None else self._clock() - known.since_s

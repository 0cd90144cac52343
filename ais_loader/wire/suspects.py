"""Suspects: nodes that did not answer, as whoever asks them remembers them, each for a while or until it answers.

So that one dead node does not cost every call its time-out. Whoever remembers says for how long, and what follows: to
ask such a node last, or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from ais_loader.wire.backoff import Backoff

Node = TypeVar("Node", bound=Hashable)


class _Suspect(NamedTuple):
    since_s: float
    until_s: float
    times: int
    """How often it has been suspected before, and not answered since."""


class Suspects(Generic[Node]):
    """Any thread may ask and tell: each step is one look-up, or one assignment.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Node, _Suspect] = {}

    def __bool__(self) -> bool:
        """Whether any node has failed and not answered since."""
        return bool(self._known)

    def failed(self, node: Node, pause: Backoff) -> None:
        """It did not answer: it is suspect for `pause` from now on, each time longer until it answers."""
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
        """Those of these nodes that are suspect now."""
        return {node for node in self._known.keys() & nodes if node in self}

    def failing_s(self, node: Node) -> float:
        """For how long it has been failing, since it last answered; 0 when it has not failed since."""
        known = self._known.get(node)
        return 0.0 if known is None else self._clock() - known.since_s

"""Straggler detection for hedged reads: finds the senders of a gathered batch that are silent much longer than usual.

A sender is silent if it may send and does not. After this process itself was suspended or late, no sender counts as
silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ais_loader.wire.gather.hedging import Hedging
from storage_node.batch.gather.senders import PartSender
from storage_node.limits.counters import clock_s

_SHORTEST_S, _LATE_S = 0.02, 0.05


class HedgeWatch:
    """Calls `hedge` with each late sender, and again after twice the time. Belongs to the event loop."""

    def __init__(
        self, hedging: Hedging, senders: Mapping[int, PartSender], hedge: Callable[[PartSender], None]
    ) -> None:
        self._hedging = hedging
        self._senders = senders
        self._hedge = hedge
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._hedging.budget.share:
            self._wait(self._hedging.parts.limit_s(last=True))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, for_s: float) -> None:
        self._due_s = clock_s() + for_s
        self._timer = asyncio.get_running_loop().call_later(for_s, self._check)

    def _check(self) -> None:
        now = clock_s()
        if now - self._due_s > _LATE_S:
            for sender in self._senders.values():
                sender.active_s = max(sender.active_s, now - _SHORTEST_S)
        next_s = self._hedging.parts.limit_s(last=True)
        for sender in list(self._senders.values()):
            if not sender.endpoint or sender.credit_bytes <= 0:
                continue
            limit_s = self._limit_s(sender)
            if now - sender.active_s >= limit_s:
                sender.hedges += 1
                self._hedge(sender)
                limit_s = self._limit_s(sender)
            next_s = min(next_s, sender.active_s + limit_s - now)
        self._wait(max(_SHORTEST_S, next_s))

    def _limit_s(self, sender: PartSender) -> float:
        last = all(other is sender or other.hedge for other in self._senders.values())
        return self._hedging.parts.limit_s(last=last) * float(1 << sender.hedges)

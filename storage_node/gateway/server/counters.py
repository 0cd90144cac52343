"""Counters of a gateway's process: plain numbers, written on its event loop only."""

from __future__ import annotations

from storage_node.gateway.server.exchange import Exchange
from storage_node.limits.counters import Histogram, count

REASONS = ("limit", "slow_headers", "slow_body", "slow_answer")
"""Reasons for which connections are closed: too many of them, or a client that is too slow."""


class GatewayCounters:
    """All counters since the process started."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        """Requests that have ended, by call and status."""
        self.duration: dict[str, Histogram] = {}
        """Times from headers to the end of the answer, by call."""
        self.bytes = {"in": 0, "out": 0}
        self.active = 0
        """Requests that are being received or answered."""
        self.connections = 0
        self.closed = dict.fromkeys(REASONS, 0)

    def ended(self, exchange: Exchange) -> None:
        """Count a request."""
        count(self.requests, (exchange.call, exchange.status))
        if (histogram := self.duration.get(exchange.call)) is None:
            histogram = self.duration.setdefault(exchange.call, Histogram())
        histogram.observe(exchange.took_s)
        self.bytes["in"] += exchange.received_bytes
        self.bytes["out"] += exchange.sent_bytes

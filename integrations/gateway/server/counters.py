"""Counters of a gateway's process, plain numbers written on its event loop only, and the metrics that export them."""

from __future__ import annotations

from collections.abc import Mapping

from storage_node.limits.counters import Histogram, count
from storage_node.metrics.declarations import Metric

from .exchange import Exchange

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


Counters = Mapping[str, GatewayCounters]
"""Counters of each process, by its number. A process that replaces another one starts at zero."""

METRICS: tuple[Metric[Counters], ...] = (
    Metric(
        "ais_loader_gateway_requests_total",
        "counter",
        ("process", "call", "status"),
        "requests",
        "Requests that have ended. process: number of the process (0 and so on). call: its name, such as GetObject; "
        "`malformed` for what is not valid HTTP, and `none` for what was refused before the call was known. status: "
        "that of HTTP; `aborted` if the client, or the answer, ended early.",
        lambda processes: {number: {**one.requests} for number, one in processes.items()},
    ),
    Metric(
        "ais_loader_gateway_request_seconds",
        "histogram",
        ("process", "call"),
        "seconds",
        "Time from the headers of a request to the end of its answer.",
        lambda processes: {number: {**one.duration} for number, one in processes.items()},
    ),
    Metric(
        "ais_loader_gateway_bytes_total",
        "counter",
        ("process", "direction"),
        "bytes",
        "Bytes of requests' bodies (in), and of answers with their headers (out).",
        lambda processes: {number: one.bytes for number, one in processes.items()},
    ),
    Metric(
        "ais_loader_gateway_active_requests",
        "gauge",
        ("process",),
        "requests",
        "Requests that are being received or answered.",
        lambda processes: {number: one.active for number, one in processes.items()},
    ),
    Metric(
        "ais_loader_gateway_connections",
        "gauge",
        ("process",),
        "connections",
        "Open connections of clients, including idle ones.",
        lambda processes: {number: one.connections for number, one in processes.items()},
    ),
    Metric(
        "ais_loader_gateway_closed_connections_total",
        "counter",
        ("process", "reason"),
        "connections",
        "Connections that the gateway closed: beyond their greatest number (limit), or because the client sent its "
        "headers (slow_headers) or body (slow_body), or took an answer (slow_answer), too slowly.",
        lambda processes: {number: one.closed for number, one in processes.items()},
    ),
)

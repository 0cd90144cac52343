"""Prometheus exporter: reads the declared metrics from a node, or a gateway, on each scrape.

Each has a registry and a port of its own, so that several of them in one process do not mix. prometheus-client is
needed only if metrics are served.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from socketserver import ThreadingMixIn
from typing import Any, Generic, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from storage_node.limits.counters import BOUNDS_S, Histogram
from storage_node.metrics.declarations import Metric, Value

S = TypeVar("S")


MAX_CONNECTIONS = 16
"""Maximum number of open connections. Beyond it, the oldest one is closed."""
SILENCE_TIMEOUT_S = 5.0
SHUTDOWN_TIMEOUT_S = 5.0


class MetricsServer:
    """Serves a WSGI application until it is closed. Raises OSError if it cannot listen."""

    def __init__(self, host: str, port: int, app: Any) -> None:
        class Listening(_FewConnections):
            address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

        self._server = make_server(host, port, app, Listening, _MetricsHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="ais-loader metrics", daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(SHUTDOWN_TIMEOUT_S)


class _FewConnections(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[Any, None] = {}  # guarded by _lock; oldest first
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called for a new connection, on the thread that accepts them."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):  # its client has disconnected
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread notices, and closes it
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called for a connection that has been served, on its thread."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)


class _MetricsHandler(WSGIRequestHandler):
    timeout = SILENCE_TIMEOUT_S

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client is silent, or has disconnected
            super().handle()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do nothing: requests are not logged."""


class _Collector(Generic[S]):
    """Reads metrics. prometheus-client calls `collect` from its own threads."""

    def __init__(self, metrics: Iterable[Metric[S]], source: Callable[[], S]) -> None:
        self._metrics, self._source = list(metrics), source

    def describe(self) -> list[Any]:
        return []  # the registry is ours alone: no names to compare, and nothing to read before the first scrape

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        source = self._source()
        for metric in self._metrics:
            family = families[metric.type](metric.name, metric.meaning, labels=metric.labels)
            for labels, value in _samples(metric.read(source)):
                if isinstance(value, Histogram):
                    family.add_metric(labels, _buckets(value), value.sum_s)
                else:
                    family.add_metric(labels, value)
            yield family


def _samples(value: Value, labels: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float | Histogram]]:
    if isinstance(value, Mapping):
        for label, inner in list(value.items()):  # copied at once: the node's own thread may add to it
            yield from _samples(inner, (*labels, *((label,) if isinstance(label, str) else label)))
    else:
        yield labels, value


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return cumulative counts, as Prometheus expects them."""
    bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(list(histogram.buckets)), strict=True))


def require_library() -> None:
    """Require prometheus-client. Raises InvalidRequest if it is missing."""
    with needs("prometheus_client", "metrics_port", InvalidRequest):
        import prometheus_client  # noqa: F401


@contextmanager
def metrics_served(
    host: str, port: int | None, metrics: Iterable[Metric[S]], source: Callable[[], S]
) -> Iterator[int | None]:
    """Serve metrics over HTTP, at /metrics, on threads of their own; yields the port. Raises OSError.

    `source` returns, for one scrape, what they are read from. Nothing is served if `port` is None.
    """
    if port is None:
        yield None
        return
    from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

    registry = CollectorRegistry()
    registry.register(_Collector(metrics, source))
    ProcessCollector(namespace="ais_loader", registry=registry)
    try:
        server = MetricsServer(host.strip("[]"), port, make_wsgi_app(registry))
    except OSError as error:
        raise OSError(f"cannot serve metrics on {host}:{port}: {error.strerror or error}") from error
    try:
        yield server.port
    finally:
        server.close()

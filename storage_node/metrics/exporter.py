"""Prometheus exporter: reads the declared metrics from a node, or a gateway, on each scrape.

Each has a registry and a port of its own, so that several of them in one process do not mix. prometheus-client is
needed only if metrics are served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Generic, TypeVar

from ais_loader.errors import InvalidRequest
from ais_loader.extras import needs
from storage_node.limits.counters import BOUNDS_S, Histogram
from storage_node.metrics.declarations import Metric, Value
from storage_node.metrics.server import MetricsServer

S = TypeVar("S")


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

"""Prometheus exporter: evaluates, on each scrape, what the node counts anyway (`metric_counters`).

The metrics are listed in metric_list.py. Every node has a registry and a port of its own, so that several nodes in one
process do not mix. prometheus-client is needed only if metrics are served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ais_loader.errors import InvalidRequest, LoaderError
from ais_loader.extras import needs
from ais_loader.wire.generated import ais_cluster_pb2
from storage_node.batch.session import BatchService
from storage_node.cluster.drives.manager import DriveManager
from storage_node.cluster.repair.repair import Repair
from storage_node.context.membership import Membership
from storage_node.etl.run.result_cache import ResultCache
from storage_node.lane.listener import LaneListener
from storage_node.limits.counters import BOUNDS_S, Histogram
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.metrics.declarations import METRICS
from storage_node.metrics.server import MetricsServer
from storage_node.promote.metrics import PromoteMetrics
from storage_node.settings.config import ServerConfig
from storage_node.store.read.batch_reader import IMPLEMENTATION

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Sample = tuple[str, tuple[str, ...], float]


class NodeCollector:
    """Reads a running node. prometheus-client calls `collect` from its own threads."""

    def __init__(
        self,
        batches: BatchService,
        membership: Membership,
        version: str,
        repair: Repair,
        drives: DriveManager,
        promote: PromoteMetrics,
        lanes: Mapping[str, LaneListener],
    ) -> None:
        """`lanes`: the node's listeners, by the kind of their clients."""
        self._batches = batches
        self._node = batches.node
        self._repair = repair.metrics
        self._short_objects = repair.short_objects
        self._scrub = repair.damage.progress
        self._care = drives
        self._promote = promote
        self._lanes = lanes
        self._membership = membership
        self._version = version

    def describe(self) -> list[Any]:
        return []  # the registry is this node's alone: no names to compare, and nothing to read before the first scrape

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        by_name: dict[str, list[tuple[tuple[str, ...], float]]] = {metric.name: [] for metric in METRICS}
        for name, labels, value in self._samples():
            by_name[name].append((labels, value))
        counts = self._node.metrics
        histograms = {
            "ais_loader_batch_first_byte_seconds": counts.first_byte,
            "ais_loader_batch_duration_seconds": counts.duration,
        }
        for metric in METRICS:
            if metric.type == "histogram":
                family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
                for kind, histogram in histograms[metric.name].items():
                    family.add_metric((kind,), _buckets(histogram), histogram.sum_s)
                yield family
                continue
            make = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
            simple = make(metric.name, metric.meaning, labels=metric.labels)
            for labels, value in by_name[metric.name]:
                simple.add_metric(labels, value)
            yield simple

    def _samples(self) -> Iterator[Sample]:
        yield from self._traffic()
        yield from self._admission()
        yield from self._drives()
        yield from self._moves()
        yield from self._cluster()
        yield from self._repairs()
        yield from self._promotions()
        yield from self._transforms()

    def _traffic(self) -> Iterator[Sample]:
        resources, counts = self._batches.resources, self._node.metrics
        by_kind = {
            "ais_loader_batches_total": counts.batches,
            "ais_loader_delivered_entries_total": counts.entries,
            "ais_loader_delivered_bytes_total": counts.entry_bytes,
        }
        for name, kinds in by_kind.items():
            for kind, numbers in kinds.items():
                for label, number in list(numbers.items()):
                    yield name, (kind, label), number
        yield "ais_loader_session_sent_bytes_total", (), counts.sent_bytes
        yield "ais_loader_listed_objects_total", (), counts.listed_objects
        for cause, waited_s in counts.throttle_s.items():
            yield "ais_loader_throttle_seconds_total", (cause,), waited_s
        yield "ais_loader_client_wait_seconds_total", (), counts.client_wait_s
        yield "ais_loader_peer_wait_seconds_total", (), resources.peer_wait_s
        yield "ais_loader_assembly_soft_errors_total", (), resources.soft_errors
        yield "ais_loader_recoveries_total", (), resources.recoveries
        yield "ais_loader_hedged_entries_total", (), resources.hedging.budget.hedged
        yield "ais_loader_assembled_batches_total", (), resources.batches_assembled
        labelled = {
            "ais_loader_requests_total": counts.requests,
            "ais_loader_request_bytes_total": counts.request_bytes,
            "ais_loader_hard_errors_total": counts.hard_errors,
            "ais_loader_soft_errors_total": counts.soft_errors,
            "ais_loader_rejections_total": counts.rejections,
            "ais_loader_tenant_bytes_total": resources.slots.charged_bytes,
        }
        for name, numbers in labelled.items():
            for label, number in list(numbers.items()):
                yield name, (label,), number
        for labels, number in list(counts.request_errors.items()):
            yield "ais_loader_request_errors_total", labels, number

    def _admission(self) -> Iterator[Sample]:
        resources, config = self._batches.resources, self._node.config
        budgets: dict[str, MemoryBudget | ResultCache] = {
            "frames": resources.budget,
            "answers": resources.buffered,
            "assembly": resources.assembly,
            "requests": resources.requests,
            "messages": self._node.streams.messages,
            "replicas": self._node.replica_streams.messages,
        }
        if resources.etl is not None:
            budgets |= {"transforms": resources.etl.memory, "results": resources.etl.cache}
        for kind, budget in budgets.items():
            yield "ais_loader_memory_held_bytes", (kind,), budget.held_bytes
            yield "ais_loader_memory_limit_bytes", (kind,), budget.limit_bytes
        streams = self._node.streams.slots
        shared = {"batches": resources.batches, "parts": resources.parts, "streams": streams}
        shared |= {"sessions": self._batches.session_slots, "requests": self._node.unread}
        for kind, slots in {**shared, "replicas": self._node.replica_streams.slots}.items():
            yield "ais_loader_evictions_total", (kind,), slots.evicted
        yield "ais_loader_open_streams", (), streams.held
        yield "ais_loader_open_sessions", (), self._batches.open_sessions
        for kind, listener in self._lanes.items():
            yield "ais_loader_open_lanes", (kind,), listener.open_lanes
            for reason, number in listener.closed.items():
                yield "ais_loader_lanes_closed_total", (kind, reason), number
        yield "ais_loader_open_lanes", ("to_peers",), resources.peers.open_lanes
        yield "ais_loader_active_batches", (), resources.batches.held
        yield "ais_loader_active_parts", (), resources.parts.held
        yield "ais_loader_active_batches_limit", (), config.max_active_batches
        yield "ais_loader_pending_reads", (), self._node.metrics.pending_reads
        yield "ais_loader_read_threads", (), config.read_threads

    def _drives(self) -> Iterator[Sample]:
        store = self._node.store
        yield "ais_loader_node_info", (self._version, store.store_uuid, IMPLEMENTATION), 1
        try:
            states = store.pool.states()
        except LoaderError:  # closed meanwhile: the node is stopping
            return
        for state in states:
            labels = (state.uuid, state.path)
            yield "ais_loader_drive_state", (*labels, self._care.state(state)), 1
            yield "ais_loader_drive_io_errors_total", labels, state.io_errors
            yield "ais_loader_drive_bad_checksums_total", labels, state.checksum_errors
            yield "ais_loader_drive_up", labels, 0 if state.problem else 1
            if state.size_bytes:
                yield "ais_loader_drive_free_bytes", labels, state.free_bytes
                yield "ais_loader_drive_size_bytes", labels, state.size_bytes
                yield "ais_loader_drive_objects", labels, state.objects_estimate

    def _moves(self) -> Iterator[Sample]:
        counts = self._care.counts
        yield "ais_loader_drive_changes_total", ("disabled",), counts.disabled
        yield "ais_loader_drive_changes_total", ("given up",), counts.given_up
        yield "ais_loader_drive_moved_objects_total", (), counts.objects_moved
        yield "ais_loader_drive_moved_bytes_total", (), counts.bytes_moved
        yield "ais_loader_drive_objects_to_move", (), counts.objects_left

    def _cluster(self) -> Iterator[Sample]:
        view = self._membership.view
        yield "ais_loader_map_version", (), view.version if view is not None else 0
        states: list[int] = [node.state for node in view.nodes] if view is not None else []
        for name, state in ais_cluster_pb2.MapNode.State.items():
            yield "ais_loader_map_nodes", (name.lower(),), states.count(state)

    def _repairs(self) -> Iterator[Sample]:
        counts, stale = self._repair, self._node.store.replicas.stale
        yield "ais_loader_repair_passes_total", (), counts.passes
        objects = {
            "pushed": counts.objects_pushed,
            "failed": counts.failed_pushes,
            "fetched": counts.names_fetched,
            "dropped": counts.copies_dropped,
        }
        for what, number in objects.items():
            yield "ais_loader_repair_objects_total", (what,), number
        for what, number in {"pushed": counts.bytes_pushed, "fetched": counts.bytes_fetched}.items():
            yield "ais_loader_repair_bytes_total", (what,), number
        tombstones = {"pushed": counts.tombstones_pushed, "forgotten": counts.tombstones_forgotten}
        for what, number in tombstones.items():
            yield "ais_loader_repair_tombstones_total", (what,), number
        yield "ais_loader_repair_doubtful_names", (), stale.count()
        yield "ais_loader_repair_doubtful_buckets", ("copies",), len(stale.buckets())
        yield "ais_loader_repair_doubtful_buckets", ("gaps",), len(stale.buckets_with_gaps())
        yield "ais_loader_repair_silent_peers", (), len(counts.silent)
        yield "ais_loader_peer_clock_offset_seconds", (), self._node.peer_clocks.widest_ms / 1000
        yield "ais_loader_version_clock_ahead_seconds", (), self._node.store.clock.ahead_ms / 1000
        for bucket, number in self._short_objects().items():
            yield "ais_loader_repair_short_objects", (bucket,), number
        yield "ais_loader_repair_short_writes_total", (), counts.short_writes
        scrub = self._scrub()
        yield "ais_loader_damaged_copies", (), scrub.damaged
        for what, number in {"found": scrub.found, "mended": scrub.mended}.items():
            yield "ais_loader_damaged_copies_total", (what,), number
        yield "ais_loader_scrubbed_bytes_total", (), scrub.scrubbed_bytes
        yield "ais_loader_scrub_finished_seconds", (), scrub.finished_s

    def _promotions(self) -> Iterator[Sample]:
        counts = self._promote
        yield "ais_loader_promote_skipped_files_total", (), counts.skipped
        labelled = {
            "ais_loader_promoted_files_total": counts.files,
            "ais_loader_promoted_bytes_total": counts.taken_bytes,
            "ais_loader_promote_errors_total": counts.errors,
        }
        for name, numbers in labelled.items():
            for label, number in list(numbers.items()):
                yield name, (label,), number

    def _transforms(self) -> Iterator[Sample]:
        etl = self._batches.resources.etl
        for name, counts in etl.transforms.all_counts().items() if etl is not None else ():
            yield "ais_loader_etl_objects_total", (name,), counts.objects
            for kind, number in list(counts.failures.items()):
                yield "ais_loader_etl_failures_total", (name, kind), number
            yield "ais_loader_etl_bytes_total", (name, "input"), counts.input_bytes
            yield "ais_loader_etl_bytes_total", (name, "output"), counts.output_bytes
            yield "ais_loader_etl_seconds_total", (name,), counts.busy_s
            yield "ais_loader_etl_running", (name,), counts.running
            yield "ais_loader_etl_workers", (name,), counts.workers
            yield "ais_loader_etl_worker_restarts_total", (name,), counts.restarts
            yield "ais_loader_etl_results_total", (name, "kept"), counts.cache_hits
            yield "ais_loader_etl_results_total", (name, "made"), counts.cache_misses
            yield "ais_loader_etl_kept_result_bytes_total", (name,), counts.cache_hit_bytes


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return cumulative counts, as Prometheus expects them."""
    bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(list(histogram.buckets)), strict=True))


def node_registry(collector: NodeCollector) -> CollectorRegistry:
    """Create a registry with all metrics of one node."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(namespace="ais_loader", registry=registry)
    return registry


def require_library() -> None:
    """Require prometheus-client. Raises InvalidRequest if it is missing."""
    with needs("prometheus_client", "metrics_port", InvalidRequest):
        import prometheus_client  # noqa: F401


@contextmanager
def metrics_served(config: ServerConfig, collector: NodeCollector) -> Iterator[int | None]:
    """Serve a node's metrics over HTTP, at /metrics, on threads of their own; yields the port. Raises OSError.

    Nothing is served if the node's configuration has no port for it.
    """
    host, port = config.host, config.metrics_port
    if port is None:
        yield None
        return
    from prometheus_client import make_wsgi_app

    registry = node_registry(collector)
    try:
        server = MetricsServer(host.strip("[]"), port, make_wsgi_app(registry))
    except OSError as error:
        raise OSError(f"cannot serve metrics on {host}:{port}: {error.strerror or error}") from error
    try:
        yield server.port
    finally:
        server.close()

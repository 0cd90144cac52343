"""A node's numbers for Prometheus: read when somebody scrapes, from what the node counts anyway (`batch.counts`).

`METRICS` is the whole list; docs/metrics.md and the dashboard are held against it. Every node has a registry and a
port of its own, so several nodes of one process do not mix. prometheus-client is needed only where metrics are served.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from protos import ais_cluster_pb2
from storage_node.batch.counts import BOUNDS_S, Histogram
from storage_node.batch.session import BatchService
from storage_node.cluster.drive_care import DriveCare
from storage_node.cluster.membership import Membership
from storage_node.cluster.transfers import RepairCounts
from storage_node.store.batch_read import IMPLEMENTATION
from storage_node.store.errors import InvalidRequest, StoreError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SHUTDOWN_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter's name ends in _total; a histogram has _bucket, _sum and _count of its name."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    unit: str
    meaning: str


METRICS = (
    # Throughput.
    Metric("ais_loader_batches_total", "counter", ("kind", "outcome"), "batches",
           "GetBatch requests that have ended. kind: single (one entry, as a client's get() sends), many, or part "
           "(what one node of several contributes, to a node that assembles or to a client that does). outcome: "
           "complete, stopped (at an entry that failed, as asked), failed, rejected (to be asked again), abandoned "
           "(cancelled, or its connection broke)."),
    Metric("ais_loader_delivered_entries_total", "counter", ("kind", "content"), "entries",
           "Good entries of batches that reached their end, by the batch's kind: a part is delivered once more by the "
           "node that assembles. content: object (whole or a range) or member (of a shard)."),
    Metric("ais_loader_delivered_bytes_total", "counter", ("kind", "content"), "bytes", "Payload of those entries."),
    Metric("ais_loader_session_sent_bytes_total", "counter", (), "bytes",
           "All messages of all sessions, to clients and to peers, those of abandoned batches too."),
    Metric("ais_loader_tenant_bytes_total", "counter", ("tenant",), "bytes",
           "Payload of batches by tenant: those that have a weight, and all others together as `other`. What this node "
           "read for them, for parts too."),
    Metric("ais_loader_requests_total", "counter", ("operation",), "requests",
           "Calls on single objects that have ended: put, get, head, delete, list. In a PUT of many objects each "
           "counts. A small get() rides a session and is a batch of kind single."),
    Metric("ais_loader_request_bytes_total", "counter", ("operation",), "bytes", "Payload put and got by those calls."),
    Metric("ais_loader_listed_objects_total", "counter", (), "objects", "Objects that list calls have returned."),
    # Latency.
    Metric("ais_loader_batch_first_byte_seconds", "histogram", ("kind",), "seconds",
           "From a batch's arrival until its first frame was handed to the network."),
    Metric("ais_loader_batch_duration_seconds", "histogram", ("kind",), "seconds",
           "From a batch's arrival until its end was; complete, stopped and failed batches."),
    Metric("ais_loader_peer_wait_seconds_total", "counter", (), "seconds",
           "Time that batches waited for entries from other nodes (rxwait)."),
    Metric("ais_loader_throttle_seconds_total", "counter", ("cause",), "seconds",
           "Time that batches were held back by this node's own limits. cause: memory (of frames on their way), turn "
           "(others came first), cpu and drives (pauses of a node that has too much to do)."),
    Metric("ais_loader_client_wait_seconds_total", "counter", (), "seconds",
           "Time that batches waited for their clients to take what they had been sent."),
    # Errors and recoveries.
    Metric("ais_loader_hard_errors_total", "counter", ("kind",), "batches",
           "Batches ended by an error, by its kind; where an entry ended it, by that entry's status."),
    Metric("ais_loader_soft_errors_total", "counter", ("status",), "entries",
           "Entries that failed in batches that went on, by status."),
    Metric("ais_loader_assembly_soft_errors_total", "counter", (), "entries",
           "Those among them, of batches gathered from other nodes, that no node could deliver."),
    Metric("ais_loader_recoveries_total", "counter", (), "entries",
           "Entries asked again, of another holder, because the first one asked did not deliver them."),
    Metric("ais_loader_hedged_entries_total", "counter", (), "entries",
           "Entries of gathered batches asked of a second holder as well, because the first one was unusually slow."),
    Metric("ais_loader_request_errors_total", "counter", ("operation", "kind"), "requests",
           "Calls on single objects that failed, by the error's kind."),
    Metric("ais_loader_rejections_total", "counter", ("reason",), "batches",
           "Batches told to come back. reason: batches (too many active), answers (no room to collect it), memory "
           "(over its critical mark, or of what other nodes have sent), stopping."),
    # Memory and admission.
    Metric("ais_loader_memory_held_bytes", "gauge", ("kind",), "bytes",
           "Payload in memory. kind: frames (on their way to the network), answers (collected before "
           "sending), assembly (what other nodes have sent or may send)."),
    Metric("ais_loader_memory_limit_bytes", "gauge", ("kind",), "bytes", "What each kind may reach."),
    Metric("ais_loader_open_sessions", "gauge", (), "sessions", "Open GetBatch sessions, idle ones too."),
    Metric("ais_loader_active_batches", "gauge", (), "batches", "Batches being served, parts aside."),
    Metric("ais_loader_active_parts", "gauge", (), "batches", "Parts being served."),
    Metric("ais_loader_active_batches_limit", "gauge", (), "batches", "Where further ones are rejected."),
    Metric("ais_loader_assembled_batches_total", "counter", (), "batches",
           "Batches for which this node gathered entries from others."),
    Metric("ais_loader_pending_reads", "gauge", (), "reads",
           "Reads and writes that the drives' threads have or that wait for one: the node's queue."),
    Metric("ais_loader_read_threads", "gauge", (), "threads", "Threads that work off that queue."),
    # Drives.
    Metric("ais_loader_drive_up", "gauge", ("drive", "path"), "1 or 0",
           "Whether the drive works. path is empty for one that was not found."),
    Metric("ais_loader_drive_free_bytes", "gauge", ("drive", "path"), "bytes", "Room left for this process."),
    Metric("ais_loader_drive_size_bytes", "gauge", ("drive", "path"), "bytes", "Size of the drive's file system."),
    Metric("ais_loader_drive_objects", "gauge", ("drive", "path"), "objects", "Objects on the drive, estimated."),
    Metric("ais_loader_drive_state", "gauge", ("drive", "path", "state"), "1",
           "How the drive is: active, retiring (its objects move to the others), disabled (it failed too often, or the "
           "node was told so), missing, failing (it is used, and failed a moment ago)."),
    Metric("ais_loader_drive_io_errors_total", "counter", ("drive", "path"), "errors",
           "Reads and writes that the drive, its file system or its catalog refused since the node opened it."),
    Metric("ais_loader_drive_bad_checksums_total", "counter", ("drive", "path"), "objects",
           "Times that bytes on the drive were not those that had been put."),
    Metric("ais_loader_drive_changes_total", "counter", ("what",), "drives",
           "what: disabled (because they failed too often), given up (what was on them comes from other nodes)."),
    Metric("ais_loader_drive_moved_objects_total", "counter", (), "objects",
           "Moved between the node's drives, after one was added or while one retires."),
    Metric("ais_loader_drive_moved_bytes_total", "counter", (), "bytes", "Of those objects."),
    Metric("ais_loader_drive_objects_to_move", "gauge", (), "objects", "Left to be moved, roughly."),
    # The node in its cluster.
    Metric("ais_loader_map_version", "gauge", (), "version", "Version of the cluster's map; 0 while in no cluster."),
    Metric("ais_loader_map_nodes", "gauge", ("state",), "nodes", "Nodes in that map: active, joining, leaving."),
    # Making copies equal.
    Metric("ais_loader_repair_passes_total", "counter", (), "passes",
           "Times that the node went through all that it has, in search of copies that other nodes lack."),
    Metric("ais_loader_repair_objects_total", "counter", ("what",), "objects",
           "what: pushed (to nodes that lacked them or had them older), failed (pushes that did not succeed, and are "
           "tried again), fetched (that this node lacked or had older), dropped (that belong to other nodes, which "
           "have them)."),
    Metric("ais_loader_repair_bytes_total", "counter", ("what",), "bytes", "Of the objects pushed and fetched."),
    Metric("ais_loader_repair_tombstones_total", "counter", ("what",), "objects",
           "Deletions. what: pushed (to nodes that had not heard of them), forgotten (nothing is left to guard "
           "against)."),
    Metric("ais_loader_repair_doubtful_names", "gauge", (), "objects",
           "Copies that the node has older than another node, or not at all, and does not serve before they have "
           "come."),
    Metric("ais_loader_repair_doubtful_buckets", "gauge", ("what",), "buckets",
           "Buckets being compared with other nodes. what: copies (any may be old, none is served), gaps (what is here "
           "is served; what is not may have been on a drive that was given up)."),
    Metric("ais_loader_repair_silent_peers", "gauge", (), "nodes",
           "Nodes that kept silent while this one came back: it may serve copies older than theirs."),
    Metric("ais_loader_node_info", "gauge", ("version", "store_uuid", "batch_reader"), "1", "What this node is."),
)  # fmt: skip
PROCESS = {
    "ais_loader_process_virtual_memory_bytes": "Address space of the node's process.",
    "ais_loader_process_resident_memory_bytes": "Memory of the node's process.",
    "ais_loader_process_start_time_seconds": "When the node's process began, since 1970.",
    "ais_loader_process_cpu_seconds_total": "Processor time of the node's process.",
    "ais_loader_process_open_fds": "Open file descriptors.",
    "ais_loader_process_max_fds": "How many it may have.",
}
"""Of prometheus-client's own collector, on Linux."""

Sample = tuple[str, tuple[str, ...], float]


class NodeCollector:
    """Reads a running node; prometheus-client calls `collect` from its own threads."""

    def __init__(
        self, service: BatchService, membership: Membership, version: str, repair: RepairCounts, drives: DriveCare
    ) -> None:
        self._service = service
        self._repair = repair
        self._care = drives
        self._membership = membership
        self._version = version

    def describe(self) -> list[Any]:
        return []  # the registry is this node's alone: no names to compare, and no read before somebody asks

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        by_name: dict[str, list[tuple[tuple[str, ...], float]]] = {metric.name: [] for metric in METRICS}
        for name, labels, value in self._samples():
            by_name[name].append((labels, value))
        counts = self._service.counts
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

    def _traffic(self) -> Iterator[Sample]:
        service, counts = self._service, self._service.counts
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
        yield "ais_loader_peer_wait_seconds_total", (), service.peer_wait_s
        yield "ais_loader_assembly_soft_errors_total", (), service.soft_errors
        yield "ais_loader_recoveries_total", (), service.recoveries
        yield "ais_loader_hedged_entries_total", (), service.hedging.budget.hedged
        yield "ais_loader_assembled_batches_total", (), service.batches_assembled
        labelled = {
            "ais_loader_requests_total": counts.requests,
            "ais_loader_request_bytes_total": counts.request_bytes,
            "ais_loader_hard_errors_total": counts.hard_errors,
            "ais_loader_soft_errors_total": counts.soft_errors,
            "ais_loader_rejections_total": counts.rejections,
            "ais_loader_tenant_bytes_total": service.slots.charged_bytes,
        }
        for name, numbers in labelled.items():
            for label, number in list(numbers.items()):
                yield name, (label,), number
        for labels, number in list(counts.request_errors.items()):
            yield "ais_loader_request_errors_total", labels, number

    def _admission(self) -> Iterator[Sample]:
        service, config = self._service, self._service.config
        budgets = {"frames": service.budget, "answers": service.buffered, "assembly": service.assembly}
        for kind, budget in budgets.items():
            yield "ais_loader_memory_held_bytes", (kind,), budget.held_bytes
            yield "ais_loader_memory_limit_bytes", (kind,), budget.limit_bytes
        yield "ais_loader_open_sessions", (), service.open_sessions
        yield "ais_loader_active_batches", (), service.active_batches
        yield "ais_loader_active_parts", (), service.active_parts
        yield "ais_loader_active_batches_limit", (), config.max_active_batches
        yield "ais_loader_pending_reads", (), service.counts.pending_reads
        yield "ais_loader_read_threads", (), config.read_threads

    def _drives(self) -> Iterator[Sample]:
        store = self._service.store
        yield "ais_loader_node_info", (self._version, store.store_uuid, IMPLEMENTATION), 1
        try:
            states = store.states()
        except StoreError:  # closed under our hands: the node is stopping
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
        counts, doubts = self._repair, self._service.store.doubts
        yield "ais_loader_repair_passes_total", (), counts.passes
        objects = {
            "pushed": counts.objects_pushed, "failed": counts.failed_pushes, "fetched": counts.names_fetched,
            "dropped": counts.copies_dropped,
        }  # fmt: skip
        for what, number in objects.items():
            yield "ais_loader_repair_objects_total", (what,), number
        for what, number in {"pushed": counts.bytes_pushed, "fetched": counts.bytes_fetched}.items():
            yield "ais_loader_repair_bytes_total", (what,), number
        tombstones = {"pushed": counts.tombstones_pushed, "forgotten": counts.tombstones_forgotten}
        for what, number in tombstones.items():
            yield "ais_loader_repair_tombstones_total", (what,), number
        yield "ais_loader_repair_doubtful_names", (), doubts.count()
        yield "ais_loader_repair_doubtful_buckets", ("copies",), len(doubts.buckets())
        yield "ais_loader_repair_doubtful_buckets", ("gaps",), len(doubts.buckets_with_gaps())
        yield "ais_loader_repair_silent_peers", (), len(counts.silent)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus wants them."""
    bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(list(histogram.buckets)), strict=True))


def node_registry(
    service: BatchService, membership: Membership, version: str, repair: RepairCounts, drives: DriveCare
) -> CollectorRegistry:
    """All metrics of one node."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    registry.register(NodeCollector(service, membership, version, repair, drives))
    ProcessCollector(namespace="ais_loader", registry=registry)
    return registry


def require_library() -> None:
    """Raises InvalidRequest where metrics cannot be served."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise InvalidRequest(
            "metrics_port needs prometheus-client, which is not installed here: pip install 'ais-loader[store]'"
        ) from error


@contextmanager
def metrics_served(
    service: BatchService, membership: Membership, version: str, repair: RepairCounts, drives: DriveCare
) -> Iterator[int | None]:
    """Serve a node's metrics over HTTP, at /metrics, on threads of their own; yields the port. Raises OSError.

    Where the node's configuration names no port, nothing is served.
    """
    host, port = service.config.host, service.config.metrics_port
    if port is None:
        yield None
        return
    from prometheus_client import start_http_server

    try:
        registry = node_registry(service, membership, version, repair, drives)
        server, thread = start_http_server(port, host.strip("[]"), registry)
    except OSError as error:
        raise OSError(f"cannot serve metrics on {host}:{port}: {error.strerror or error}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SHUTDOWN_TIMEOUT_S)


def markdown_table() -> str:
    """The table of docs/metrics.md; a test compares them."""
    rows = ["| metric | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(metric.labels)
        rows.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.unit} | {metric.meaning} |")
    for name, meaning in PROCESS.items():
        kind, unit = "counter" if name.endswith("_total") else "gauge", name.removesuffix("_total").rpartition("_")[2]
        rows.append(f"| `{name}` | {kind} |  | {unit} | {meaning} |")
    return "\n".join(rows) + "\n"

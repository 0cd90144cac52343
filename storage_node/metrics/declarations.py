"""Metric catalogue: all exported metrics, with unit and meaning. Tests compare it with docs/metrics.md and the
dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """An exported metric. A counter's name ends in _total; a histogram's samples add _bucket, _sum, and _count."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    unit: str
    meaning: str


METRICS = (
    # Throughput.
    Metric(
        "ais_loader_batches_total",
        "counter",
        ("kind", "outcome"),
        "batches",
        "GetBatch requests that have ended. kind: single (one entry, as sent by a client's get()), many, or part "
        "(what one of several nodes contributes, to a node or a client that assembles the batch). outcome: complete, "
        "stopped (at an entry that failed, as requested), failed, rejected (to be retried), abandoned (cancelled, or "
        "the connection broke).",
    ),
    Metric(
        "ais_loader_delivered_entries_total",
        "counter",
        ("kind", "content"),
        "entries",
        "Successful entries of batches that reached their end, by the kind of batch: the node that assembles delivers "
        "the entries of a part once more. content: object (whole or a range) or member (of a shard).",
    ),
    Metric(
        "ais_loader_delivered_bytes_total",
        "counter",
        ("kind", "content"),
        "bytes",
        "Payload of delivered entries.",
    ),
    Metric(
        "ais_loader_session_sent_bytes_total",
        "counter",
        (),
        "bytes",
        "All messages of all sessions, to clients and to peers, including those of abandoned batches.",
    ),
    Metric(
        "ais_loader_tenant_bytes_total",
        "counter",
        ("tenant",),
        "bytes",
        "Payload that this node read for batches and parts, by tenant. Tenants without a weight are counted together "
        "as `other`.",
    ),
    Metric(
        "ais_loader_requests_total",
        "counter",
        ("operation",),
        "requests",
        "Calls on single objects that have ended: put, get, head, delete, list. In a PUT of many objects, each object "
        "counts. A small get() uses a session and is a batch of kind single.",
    ),
    Metric(
        "ais_loader_request_bytes_total",
        "counter",
        ("operation",),
        "bytes",
        "Payload that calls on single objects put and got.",
    ),
    Metric("ais_loader_listed_objects_total", "counter", (), "objects", "Objects returned by list calls."),
    # Latency.
    Metric(
        "ais_loader_batch_first_byte_seconds",
        "histogram",
        ("kind",),
        "seconds",
        "Time from a batch's arrival until its first frame was handed to the network.",
    ),
    Metric(
        "ais_loader_batch_duration_seconds",
        "histogram",
        ("kind",),
        "seconds",
        "Time from a batch's arrival until its end was handed to the network, for complete, stopped, and failed "
        "batches.",
    ),
    Metric(
        "ais_loader_peer_wait_seconds_total",
        "counter",
        (),
        "seconds",
        "Time that batches waited for entries from other nodes (rxwait).",
    ),
    Metric(
        "ais_loader_throttle_seconds_total",
        "counter",
        ("cause",),
        "seconds",
        "Time that batches were held back by this node's own limits. cause: memory (of frames in flight), turn (other "
        "batches were served first), cpu and drives (pauses of an overloaded node).",
    ),
    Metric(
        "ais_loader_client_wait_seconds_total",
        "counter",
        (),
        "seconds",
        "Time that batches waited for their clients to take data.",
    ),
    # Errors and recoveries.
    Metric(
        "ais_loader_hard_errors_total",
        "counter",
        ("kind",),
        "batches",
        "Batches ended by an error, by the error's kind, or by the entry's status if an entry ended the batch.",
    ),
    Metric(
        "ais_loader_soft_errors_total",
        "counter",
        ("status",),
        "entries",
        "Entries that failed without ending their batch, by status.",
    ),
    Metric(
        "ais_loader_assembly_soft_errors_total",
        "counter",
        (),
        "entries",
        "Soft errors in batches gathered from other nodes: entries that no node could deliver.",
    ),
    Metric(
        "ais_loader_recoveries_total",
        "counter",
        (),
        "entries",
        "Entries requested again from another holder, because the first one did not deliver them.",
    ),
    Metric(
        "ais_loader_hedged_entries_total",
        "counter",
        (),
        "entries",
        "Entries of gathered batches that were also requested from a second holder, because the first one was "
        "unusually slow.",
    ),
    Metric(
        "ais_loader_request_errors_total",
        "counter",
        ("operation", "kind"),
        "requests",
        "Calls on single objects that failed, by the error's kind.",
    ),
    Metric(
        "ais_loader_rejections_total",
        "counter",
        ("reason",),
        "batches",
        "Batches that were rejected and can be retried. reason: batches (too many are active), answers (no room to "
        "collect the answer), memory (the process is above its critical limit, or there is no room for what other "
        "nodes send or for requests), still (the client received nothing while others waited for its place), "
        "stopping.",
    ),
    # Memory and admission.
    Metric(
        "ais_loader_evictions_total",
        "counter",
        ("kind",),
        "calls",
        "Stalled calls that were ended because others needed their places, or because memory was short. kind: batches, "
        "parts, streams (objects being put or got in calls of their own), replicas (copies that other nodes write), "
        "sessions (idle ones), requests (calls by gRPC whose request did not arrive completely).",
    ),
    Metric("ais_loader_open_streams", "gauge", (), "calls", "Objects being put or got in calls of their own."),
    Metric(
        "ais_loader_memory_held_bytes",
        "gauge",
        ("kind",),
        "bytes",
        "Payload in memory. kind: frames (on their way to the network), answers (collected before sending), assembly "
        "(what other nodes have sent or may send), requests (of batches being served), messages (of objects being "
        "put), replicas (the same, from other nodes), transforms (inputs and outputs of entries that pass through "
        "transforms), results (of transforms, kept for repeated requests).",
    ),
    Metric("ais_loader_memory_limit_bytes", "gauge", ("kind",), "bytes", "Limit of each kind of memory."),
    Metric("ais_loader_open_sessions", "gauge", (), "sessions", "Open GetBatch sessions, including idle ones."),
    Metric(
        "ais_loader_open_lanes",
        "gauge",
        ("kind",),
        "connections",
        "Open lanes (connections besides gRPC), including idle ones. kind: clients (opened by clients), peers (opened "
        "by other nodes), to_peers (opened by this node, for its sessions with other nodes that do not use gRPC).",
    ),
    Metric(
        "ais_loader_lanes_closed_total",
        "counter",
        ("kind", "reason"),
        "connections",
        "Lanes that the node closed or refused by itself. kind: clients, peers. reason: token (none, or an invalid "
        "one), strangers (too many connections without a token), lanes (too many, in total or from one peer), "
        "descriptors (too few are left), idle (closed to make room for another lane), message (it was not complete in "
        "time).",
    ),
    Metric("ais_loader_active_batches", "gauge", (), "batches", "Batches being served, without parts."),
    Metric("ais_loader_active_parts", "gauge", (), "batches", "Parts being served."),
    Metric(
        "ais_loader_active_batches_limit",
        "gauge",
        (),
        "batches",
        "Maximum number of active batches; further ones are rejected.",
    ),
    Metric(
        "ais_loader_assembled_batches_total",
        "counter",
        (),
        "batches",
        "Batches for which this node gathered entries from other nodes.",
    ),
    Metric(
        "ais_loader_pending_reads",
        "gauge",
        (),
        "reads",
        "Reads and writes that a drive thread is executing or that wait for one: the node's queue.",
    ),
    Metric("ais_loader_read_threads", "gauge", (), "threads", "Threads that process the read queue."),
    # Drives.
    Metric(
        "ais_loader_drive_up",
        "gauge",
        ("drive", "path"),
        "1 or 0",
        "Whether the drive works. path is empty if the drive was not found.",
    ),
    Metric("ais_loader_drive_free_bytes", "gauge", ("drive", "path"), "bytes", "Space available to this process."),
    Metric("ais_loader_drive_size_bytes", "gauge", ("drive", "path"), "bytes", "Size of the drive's file system."),
    Metric(
        "ais_loader_drive_objects",
        "gauge",
        ("drive", "path"),
        "objects",
        "Estimated number of objects on the drive.",
    ),
    Metric(
        "ais_loader_drive_state",
        "gauge",
        ("drive", "path", "state"),
        "1",
        "State of the drive: active, retiring (its objects are being moved to the others), disabled (because of too "
        "many errors, or by an operator), missing, failing (in use, but it failed recently).",
    ),
    Metric(
        "ais_loader_drive_io_errors_total",
        "counter",
        ("drive", "path"),
        "errors",
        "Reads and writes that the drive, its file system, or its catalog has refused since the node opened the drive.",
    ),
    Metric(
        "ais_loader_drive_bad_checksums_total",
        "counter",
        ("drive", "path"),
        "objects",
        "How often bytes on the drive differed from those that were put.",
    ),
    Metric(
        "ais_loader_drive_changes_total",
        "counter",
        ("what",),
        "drives",
        "Drives that changed. what: disabled (because of too many errors), given up (their objects are fetched from "
        "other nodes).",
    ),
    Metric(
        "ais_loader_drive_moved_objects_total",
        "counter",
        (),
        "objects",
        "Objects moved between the node's drives after a drive was added or while one retires.",
    ),
    Metric("ais_loader_drive_moved_bytes_total", "counter", (), "bytes", "Bytes of the objects moved between drives."),
    Metric(
        "ais_loader_drive_objects_to_move",
        "gauge",
        (),
        "objects",
        "Approximate number of objects still to be moved.",
    ),
    # The node in its cluster.
    Metric(
        "ais_loader_map_version",
        "gauge",
        (),
        "version",
        "Version of the cluster map; 0 if the node is in no cluster.",
    ),
    Metric(
        "ais_loader_map_nodes",
        "gauge",
        ("state",),
        "nodes",
        "Nodes in the cluster map, by state: active, joining, leaving.",
    ),
    # Making copies equal.
    Metric(
        "ais_loader_repair_passes_total",
        "counter",
        (),
        "passes",
        "Passes over all objects of the node in search of copies that other nodes lack.",
    ),
    Metric(
        "ais_loader_repair_objects_total",
        "counter",
        ("what",),
        "objects",
        "Copies handled by repair. what: pushed (to nodes that lacked them or had older ones), failed (pushes that "
        "did not succeed and are retried), fetched (this node lacked them or had older ones), dropped (they belong to "
        "other nodes, which have them).",
    ),
    Metric("ais_loader_repair_bytes_total", "counter", ("what",), "bytes", "Bytes of the objects pushed and fetched."),
    Metric(
        "ais_loader_repair_tombstones_total",
        "counter",
        ("what",),
        "objects",
        "Deletions. what: pushed (to nodes that did not know of them), forgotten (they are no longer needed).",
    ),
    Metric(
        "ais_loader_repair_doubtful_names",
        "gauge",
        (),
        "objects",
        "Objects of which the node has an older copy than another node, or none; it does not serve them until it has "
        "fetched the copy.",
    ),
    Metric(
        "ais_loader_repair_doubtful_buckets",
        "gauge",
        ("what",),
        "buckets",
        "Buckets being compared with other nodes. what: copies (any copy may be outdated, so none is served), gaps "
        "(existing copies are served; missing ones may have been on a drive that was given up).",
    ),
    Metric(
        "ais_loader_repair_silent_peers",
        "gauge",
        (),
        "nodes",
        "Nodes that did not respond when this node came back: it may serve copies older than theirs.",
    ),
    Metric(
        "ais_loader_peer_clock_offset_seconds",
        "gauge",
        (),
        "seconds",
        "Offset of the other node's wall clock that differs most from this node's. Above max_clock_offset_s, writes "
        "that involve both nodes are refused.",
    ),
    Metric(
        "ais_loader_version_clock_ahead_seconds",
        "gauge",
        (),
        "seconds",
        "How far the versions that this node assigns are ahead of its wall clock, because the clock was set back or "
        "objects came from a node whose clock was ahead.",
    ),
    Metric(
        "ais_loader_repair_short_objects",
        "gauge",
        ("bucket",),
        "objects",
        "Objects with fewer copies than their bucket requires, as of the last pass and the writes since. Each object "
        "is counted by one node: the sum over all nodes is the total.",
    ),
    Metric(
        "ais_loader_repair_short_writes_total",
        "counter",
        (),
        "objects",
        "Objects that a write coordinated by this node left with fewer copies than their bucket requires.",
    ),
    Metric(
        "ais_loader_damaged_copies",
        "gauge",
        (),
        "objects",
        "Copies on this node that are known to be damaged or missing from their drive and are not repaired yet.",
    ),
    Metric(
        "ais_loader_damaged_copies_total",
        "counter",
        ("what",),
        "objects",
        "Damaged copies. what: found (by readers and by the scrub), mended (rewritten from another holder's copy).",
    ),
    Metric(
        "ais_loader_scrubbed_bytes_total",
        "counter",
        (),
        "bytes",
        "Bytes read by the scrub, which verifies checksums.",
    ),
    Metric(
        "ais_loader_scrub_finished_seconds",
        "gauge",
        (),
        "seconds",
        "When the scrub had last covered all drives, in seconds since 1970; 0 if it has not covered all of them yet.",
    ),
    # Files that become objects.
    Metric(
        "ais_loader_promoted_files_total",
        "counter",
        ("how",),
        "files",
        "Files that this node has turned into objects, on its own drives or other nodes'. how: linked (given up; the "
        "file is now the object's file), cloned (the drive shares the file's blocks), copied_by_server (by the server "
        "of a network file system), copied (read and written).",
    ),
    Metric("ais_loader_promoted_bytes_total", "counter", ("how",), "bytes", "Bytes of the promoted files."),
    Metric("ais_loader_promote_skipped_files_total", "counter", (), "files", "Files whose objects existed already."),
    Metric(
        "ais_loader_promote_errors_total",
        "counter",
        ("kind",),
        "files",
        "Files that were refused, or could not be stored or given up, by the error's kind.",
    ),
    # Transforms.
    Metric(
        "ais_loader_etl_objects_total",
        "counter",
        ("transform",),
        "objects",
        "Objects, members, and ranges that a transform has transformed, for batches and for jobs. transform: its "
        "name, for transforms that exist now (at most 256) and that this node has used.",
    ),
    Metric(
        "ais_loader_etl_failures_total",
        "counter",
        ("transform", "kind"),
        "objects",
        "Objects, members, and ranges that a transform failed to transform, by the error's kind.",
    ),
    Metric(
        "ais_loader_etl_bytes_total",
        "counter",
        ("transform", "what"),
        "bytes",
        "Bytes of the objects transformed. what: input, output.",
    ),
    Metric(
        "ais_loader_etl_seconds_total",
        "counter",
        ("transform",),
        "seconds",
        "Time that objects spent in the transform, for all workers or connections together, without waiting for a "
        "turn.",
    ),
    Metric(
        "ais_loader_etl_running",
        "gauge",
        ("transform",),
        "workers",
        "Workers of the transform, or connections to its server, that are busy now.",
    ),
    Metric(
        "ais_loader_etl_workers",
        "gauge",
        ("transform",),
        "processes",
        "Workers of the transform, including idle ones.",
    ),
    Metric(
        "ais_loader_etl_worker_restarts_total",
        "counter",
        ("transform",),
        "processes",
        "Workers that died or were ended by a limit or a timeout, and are replaced by others.",
    ),
    Metric(
        "ais_loader_etl_results_total",
        "counter",
        ("transform", "how"),
        "entries",
        "Entries of batches whose last transform is this one. how: kept (the result existed already, or was being "
        "made, for another request), made. A failure counts as made.",
    ),
    Metric(
        "ais_loader_etl_kept_result_bytes_total",
        "counter",
        ("transform",),
        "bytes",
        "Bytes of results that were kept.",
    ),
    Metric(
        "ais_loader_node_info",
        "gauge",
        ("version", "store_uuid", "batch_reader"),
        "1",
        "Version, store UUID, and batch reader of this node.",
    ),
)
PROCESS = {
    "ais_loader_process_virtual_memory_bytes": "Virtual memory of the node's process.",
    "ais_loader_process_resident_memory_bytes": "Resident memory of the node's process.",
    "ais_loader_process_start_time_seconds": "When the node's process started, in seconds since 1970.",
    "ais_loader_process_cpu_seconds_total": "CPU time of the node's process.",
    "ais_loader_process_open_fds": "Open file descriptors.",
    "ais_loader_process_max_fds": "Maximum number of open file descriptors.",
}
"""Metrics of prometheus-client's own collector, on Linux."""


def markdown_table() -> str:
    """Format the table in docs/metrics.md; a test compares them."""
    rows = ["| metric | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(metric.labels)
        rows.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.unit} | {metric.meaning} |")
    for name, meaning in PROCESS.items():
        kind, unit = "counter" if name.endswith("_total") else "gauge", name.removesuffix("_total").rpartition("_")[2]
        rows.append(f"| `{name}` | {kind} |  | {unit} | {meaning} |")
    return "\n".join(rows) + "\n"

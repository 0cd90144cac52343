"""Metric catalogue: every number that a node exports, with unit and meaning; docs/metrics.md and the dashboard are held
against it by tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    Metric(
        "ais_loader_batches_total",
        "counter",
        ("kind", "outcome"),
        "batches",
        "GetBatch requests that have ended. kind: single (one entry, as a client's get() sends), many, or part "
        "(what one node of several contributes, to a node that assembles or to a client that does). outcome: "
        "complete, stopped (at an entry that failed, as asked), failed, rejected (to be asked again), abandoned "
        "(cancelled, or its connection broke).",
    ),
    Metric(
        "ais_loader_delivered_entries_total",
        "counter",
        ("kind", "content"),
        "entries",
        "Good entries of batches that reached their end, by the batch's kind: a part is delivered once more by the "
        "node that assembles. content: object (whole or a range) or member (of a shard).",
    ),
    Metric("ais_loader_delivered_bytes_total", "counter", ("kind", "content"), "bytes", "Payload of those entries."),
    Metric(
        "ais_loader_session_sent_bytes_total",
        "counter",
        (),
        "bytes",
        "All messages of all sessions, to clients and to peers, those of abandoned batches too.",
    ),
    Metric(
        "ais_loader_tenant_bytes_total",
        "counter",
        ("tenant",),
        "bytes",
        "Payload of batches by tenant: those that have a weight, and all others together as `other`. What this node "
        "read for them, for parts too.",
    ),
    Metric(
        "ais_loader_requests_total",
        "counter",
        ("operation",),
        "requests",
        "Calls on single objects that have ended: put, get, head, delete, list. In a PUT of many objects each "
        "counts. A small get() rides a session and is a batch of kind single.",
    ),
    Metric("ais_loader_request_bytes_total", "counter", ("operation",), "bytes", "Payload put and got by those calls."),
    Metric("ais_loader_listed_objects_total", "counter", (), "objects", "Objects that list calls have returned."),
    # Latency.
    Metric(
        "ais_loader_batch_first_byte_seconds",
        "histogram",
        ("kind",),
        "seconds",
        "From a batch's arrival until its first frame was handed to the network.",
    ),
    Metric(
        "ais_loader_batch_duration_seconds",
        "histogram",
        ("kind",),
        "seconds",
        "From a batch's arrival until its end was; complete, stopped and failed batches.",
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
        "Time that batches were held back by this node's own limits. cause: memory (of frames on their way), turn "
        "(others came first), cpu and drives (pauses of a node that has too much to do).",
    ),
    Metric(
        "ais_loader_client_wait_seconds_total",
        "counter",
        (),
        "seconds",
        "Time that batches waited for their clients to take what they had been sent.",
    ),
    # Errors and recoveries.
    Metric(
        "ais_loader_hard_errors_total",
        "counter",
        ("kind",),
        "batches",
        "Batches ended by an error, by its kind; where an entry ended it, by that entry's status.",
    ),
    Metric(
        "ais_loader_soft_errors_total",
        "counter",
        ("status",),
        "entries",
        "Entries that failed in batches that went on, by status.",
    ),
    Metric(
        "ais_loader_assembly_soft_errors_total",
        "counter",
        (),
        "entries",
        "Those among them, of batches gathered from other nodes, that no node could deliver.",
    ),
    Metric(
        "ais_loader_recoveries_total",
        "counter",
        (),
        "entries",
        "Entries asked again, of another holder, because the first one asked did not deliver them.",
    ),
    Metric(
        "ais_loader_hedged_entries_total",
        "counter",
        (),
        "entries",
        "Entries of gathered batches asked of a second holder as well, because the first one was unusually slow.",
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
        "Batches told to come back. reason: batches (too many active), answers (no room to collect it), memory "
        "(over its critical mark, of what other nodes have sent, or of requests), still (their clients took nothing "
        "while others waited for their place), stopping.",
    ),
    # Memory and admission.
    Metric(
        "ais_loader_evictions_total",
        "counter",
        ("kind",),
        "calls",
        "Calls that stood still and were ended because others needed their places. kind: batches, parts, streams "
        "(objects being put and got by calls of their own), replicas (copies that other nodes write).",
    ),
    Metric("ais_loader_open_streams", "gauge", (), "calls", "Objects being put and got by calls of their own."),
    Metric(
        "ais_loader_memory_held_bytes",
        "gauge",
        ("kind",),
        "bytes",
        "Payload in memory. kind: frames (on their way to the network), answers (collected before "
        "sending), assembly (what other nodes have sent or may send), requests (of batches being served), "
        "messages (of objects being put), replicas (the same, from other nodes), transforms (inputs and outputs of "
        "entries that pass through transforms), results (of transforms, kept for those who ask again).",
    ),
    Metric("ais_loader_memory_limit_bytes", "gauge", ("kind",), "bytes", "What each kind may reach."),
    Metric("ais_loader_open_sessions", "gauge", (), "sessions", "Open GetBatch sessions, idle ones too."),
    Metric(
        "ais_loader_open_lanes",
        "gauge",
        ("kind",),
        "connections",
        "Lanes beside gRPC, idle ones too. kind: clients (opened by them), peers (opened by other nodes), to_peers "
        "(opened by this node: its sessions with other nodes that do not go by gRPC).",
    ),
    Metric("ais_loader_active_batches", "gauge", (), "batches", "Batches being served, parts aside."),
    Metric("ais_loader_active_parts", "gauge", (), "batches", "Parts being served."),
    Metric("ais_loader_active_batches_limit", "gauge", (), "batches", "Where further ones are rejected."),
    Metric(
        "ais_loader_assembled_batches_total",
        "counter",
        (),
        "batches",
        "Batches for which this node gathered entries from others.",
    ),
    Metric(
        "ais_loader_pending_reads",
        "gauge",
        (),
        "reads",
        "Reads and writes that the drives' threads have or that wait for one: the node's queue.",
    ),
    Metric("ais_loader_read_threads", "gauge", (), "threads", "Threads that work off that queue."),
    # Drives.
    Metric(
        "ais_loader_drive_up",
        "gauge",
        ("drive", "path"),
        "1 or 0",
        "Whether the drive works. path is empty for one that was not found.",
    ),
    Metric("ais_loader_drive_free_bytes", "gauge", ("drive", "path"), "bytes", "Room left for this process."),
    Metric("ais_loader_drive_size_bytes", "gauge", ("drive", "path"), "bytes", "Size of the drive's file system."),
    Metric("ais_loader_drive_objects", "gauge", ("drive", "path"), "objects", "Objects on the drive, estimated."),
    Metric(
        "ais_loader_drive_state",
        "gauge",
        ("drive", "path", "state"),
        "1",
        "How the drive is: active, retiring (its objects move to the others), disabled (it failed too often, or the "
        "node was told so), missing, failing (it is used, and failed a moment ago).",
    ),
    Metric(
        "ais_loader_drive_io_errors_total",
        "counter",
        ("drive", "path"),
        "errors",
        "Reads and writes that the drive, its file system or its catalog refused since the node opened it.",
    ),
    Metric(
        "ais_loader_drive_bad_checksums_total",
        "counter",
        ("drive", "path"),
        "objects",
        "Times that bytes on the drive were not those that had been put.",
    ),
    Metric(
        "ais_loader_drive_changes_total",
        "counter",
        ("what",),
        "drives",
        "what: disabled (because they failed too often), given up (what was on them comes from other nodes).",
    ),
    Metric(
        "ais_loader_drive_moved_objects_total",
        "counter",
        (),
        "objects",
        "Moved between the node's drives, after one was added or while one retires.",
    ),
    Metric("ais_loader_drive_moved_bytes_total", "counter", (), "bytes", "Of those objects."),
    Metric("ais_loader_drive_objects_to_move", "gauge", (), "objects", "Left to be moved, roughly."),
    # The node in its cluster.
    Metric("ais_loader_map_version", "gauge", (), "version", "Version of the cluster's map; 0 while in no cluster."),
    Metric("ais_loader_map_nodes", "gauge", ("state",), "nodes", "Nodes in that map: active, joining, leaving."),
    # Making copies equal.
    Metric(
        "ais_loader_repair_passes_total",
        "counter",
        (),
        "passes",
        "Times that the node went through all that it has, in search of copies that other nodes lack.",
    ),
    Metric(
        "ais_loader_repair_objects_total",
        "counter",
        ("what",),
        "objects",
        "what: pushed (to nodes that lacked them or had them older), failed (pushes that did not succeed, and are "
        "tried again), fetched (that this node lacked or had older), dropped (that belong to other nodes, which "
        "have them).",
    ),
    Metric("ais_loader_repair_bytes_total", "counter", ("what",), "bytes", "Of the objects pushed and fetched."),
    Metric(
        "ais_loader_repair_tombstones_total",
        "counter",
        ("what",),
        "objects",
        "Deletions. what: pushed (to nodes that had not heard of them), forgotten (nothing is left to guard against).",
    ),
    Metric(
        "ais_loader_repair_doubtful_names",
        "gauge",
        (),
        "objects",
        "Copies that the node has older than another node, or not at all, and does not serve before they have come.",
    ),
    Metric(
        "ais_loader_repair_doubtful_buckets",
        "gauge",
        ("what",),
        "buckets",
        "Buckets being compared with other nodes. what: copies (any may be old, none is served), gaps (what is here "
        "is served; what is not may have been on a drive that was given up).",
    ),
    Metric(
        "ais_loader_repair_silent_peers",
        "gauge",
        (),
        "nodes",
        "Nodes that kept silent while this one came back: it may serve copies older than theirs.",
    ),
    Metric(
        "ais_loader_peer_clock_offset_seconds",
        "gauge",
        (),
        "seconds",
        "By how much the wall clock of another node differs most from this one's. Beyond max_clock_offset_s writes "
        "that involve both are refused.",
    ),
    Metric(
        "ais_loader_version_clock_ahead_seconds",
        "gauge",
        (),
        "seconds",
        "How far the versions that this node gives are ahead of its wall clock: that was set back, or objects came "
        "from a node whose clock was ahead.",
    ),
    Metric(
        "ais_loader_repair_short_objects",
        "gauge",
        ("bucket",),
        "objects",
        "Objects that have fewer copies than their bucket asks for, as of the last pass and of the writes since. Each "
        "is counted by one node: the sum over all nodes is what is short.",
    ),
    Metric(
        "ais_loader_repair_short_writes_total",
        "counter",
        (),
        "objects",
        "Objects of which a write that the node coordinated left fewer copies than their bucket asks for.",
    ),
    Metric(
        "ais_loader_damaged_copies",
        "gauge",
        (),
        "objects",
        "Copies on this node that are known to be damaged or missing from their drive, and are not mended yet.",
    ),
    Metric(
        "ais_loader_damaged_copies_total",
        "counter",
        ("what",),
        "objects",
        "what: found (by readers and by the scrub), mended (written again from another holder's copy).",
    ),
    Metric("ais_loader_scrubbed_bytes_total", "counter", (), "bytes", "Read by the scrub, which compares checksums."),
    Metric(
        "ais_loader_scrub_finished_seconds",
        "gauge",
        (),
        "seconds",
        "When all drives had last been gone through by the scrub, since 1970; 0: some never have.",
    ),
    # Files that become objects.
    Metric(
        "ais_loader_promoted_files_total",
        "counter",
        ("how",),
        "files",
        "Files of which this node has made objects, on its drives or other nodes'. how: linked (given up, and now "
        "the object's file), cloned (the drive shares their blocks), copied_by_server (of a network's file system), "
        "copied (read and written).",
    ),
    Metric("ais_loader_promoted_bytes_total", "counter", ("how",), "bytes", "Of those files."),
    Metric("ais_loader_promote_skipped_files_total", "counter", (), "files", "Files whose objects were there already."),
    Metric(
        "ais_loader_promote_errors_total",
        "counter",
        ("kind",),
        "files",
        "Files that were refused, could not be stored, or not be given up, by the error's kind.",
    ),
    # Transforms.
    Metric(
        "ais_loader_etl_objects_total",
        "counter",
        ("transform",),
        "objects",
        "Objects, members and ranges that a transform has made something of, for batches and for jobs. transform: its "
        "name, of those that there are now (at most 256) and that this node has had a use for.",
    ),
    Metric(
        "ais_loader_etl_failures_total",
        "counter",
        ("transform", "kind"),
        "objects",
        "Those of which it has made nothing, by the error's kind.",
    ),
    Metric(
        "ais_loader_etl_bytes_total",
        "counter",
        ("transform", "what"),
        "bytes",
        "what: input and output, of objects that it has made something of.",
    ),
    Metric(
        "ais_loader_etl_seconds_total",
        "counter",
        ("transform",),
        "seconds",
        "Time that objects spent in it, of all workers or connections together, without the wait for a turn.",
    ),
    Metric(
        "ais_loader_etl_running",
        "gauge",
        ("transform",),
        "workers",
        "Its workers, or connections to its server, that are busy now.",
    ),
    Metric("ais_loader_etl_workers", "gauge", ("transform",), "processes", "Its workers, idle ones too."),
    Metric(
        "ais_loader_etl_worker_restarts_total",
        "counter",
        ("transform",),
        "processes",
        "Workers that died or were ended, for a limit or a time-out, and whose place another one takes.",
    ),
    Metric(
        "ais_loader_etl_results_total",
        "counter",
        ("transform", "how"),
        "entries",
        "Entries of batches that ask for it, as the last of their transforms. how: kept (its result had been made for "
        "somebody else, or was being made), made. A failure counts as made.",
    ),
    Metric("ais_loader_etl_kept_result_bytes_total", "counter", ("transform",), "bytes", "Of those that were kept."),
    Metric("ais_loader_node_info", "gauge", ("version", "store_uuid", "batch_reader"), "1", "What this node is."),
)
PROCESS = {
    "ais_loader_process_virtual_memory_bytes": "Address space of the node's process.",
    "ais_loader_process_resident_memory_bytes": "Memory of the node's process.",
    "ais_loader_process_start_time_seconds": "When the node's process began, since 1970.",
    "ais_loader_process_cpu_seconds_total": "Processor time of the node's process.",
    "ais_loader_process_open_fds": "Open file descriptors.",
    "ais_loader_process_max_fds": "How many it may have.",
}
"""Of prometheus-client's own collector, on Linux."""


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
